"""Tagging words, and filling gaps: with tokens by an encoder, with spans by T5, with the whole text by BART."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from dragoman.data import BatchRow
from dragoman.data.batching import batch_by_length
from dragoman.data.data_formats import encode_text_lists
from dragoman.errors import UserError
from dragoman.objectives.denoising import sentinel_ids
from dragoman.objectives.objective import Infilling
from dragoman.run.results import FillResult, ScoredText, TaggedSentence
from dragoman.run.sources import add_framing, frame_source, max_source_tokens, normalize_text
from dragoman.search import Beam, Hypothesis, SearchRequest
from dragoman.text import Tokenizer
from dragoman.text.normalization import TextNormalizer

if TYPE_CHECKING:
    from dragoman.models import Model
    from dragoman.run.run import Run

GAP_PATTERN = re.compile(r"<mask>|\[MASK\]|<extra_id_\d+>")  # how a user may write a gap
GAP_MARK = "\x01"  # replaces a gap while a text is tokenized


def fill(run: Run, texts: Sequence[str], top_k: int, search: Beam | None = None) -> list[FillResult]:
    """Fill every gap (`<mask>`) of the texts; a run that cannot fill gaps is a UserError.

    Args:
        top_k: number of choices that are returned for each gap, or of texts if the model generates whole texts
        search: for encoder–decoders, which generate the fillers; None: the run's beam search. Its size is raised to
            `top_k` if it is smaller
    """
    run.check_usage("fill")
    infilling = infilling_of(run)
    if infilling is None:
        raise run.usage_error("fill")
    texts = [normalize_text(run, text) for text in texts]
    if infilling == "piece":  # one token per gap
        return _fill_tokens(run, texts, top_k)
    search = search or run.beam_config()
    search = replace(search, size=max(search.size, top_k), n_best=top_k)  # a beam finds at most `size` hypotheses
    if infilling == "span":  # the decoder generates the fillers
        return _fill_spans(run, texts, search)
    return _generate_texts(run, texts, search)  # the decoder generates the whole text


def infilling_of(run: Run) -> Infilling | None:
    """Return how the run fills gaps, by its objective, or by the model and tokenizer of an imported checkpoint.

    "piece": an encoder predicts one token per gap, like BERT; "span": a decoder generates the fillers, like T5; "text":
    a decoder generates the whole text, like BART; None: the run cannot fill gaps.
    """
    if run.objective is not None:
        return run.objective.infilling
    if run.model.mask_predictor is not None:
        return "piece"
    # only an encoder–decoder that reads text can fill gaps in it
    if not run.model.can_generate or run.model.is_decoder_only or run.model.source_features is not None:
        return None
    if "<extra_id_0>" in run.target_tokenizer.special_token_ids:
        return "span"
    return None if run.source_tokenizer.mask is None else "text"


# ---- encoders


@torch.inference_mode()
def tag(run: Run, texts: Sequence[str]) -> list[TaggedSentence]:
    """Tag the words of each text, which are separated by spaces; a run that is no tagger is a UserError.

    A word's tag is predicted at its first token. Words after the maximum source length get no tag. Labels without
    names, as of some imported checkpoints, are a UserError, too.
    """
    run.check_usage("tag")
    if not run.model.num_labels or run.model.one_label_per_sequence:
        raise run.usage_error("tag")
    if run.target_tokenizer is run.source_tokenizer:  # no tokenizer of its own that holds the names of labels
        raise UserError(
            f"the model in {run.folder} predicts labels that have no names, so that it cannot tag words: train a "
            "tagger from it ('dragoman train --start-from') on words and their tags"
        )
    sentences = [text.split() for text in texts]
    normalizer = TextNormalizer.from_settings(run.config.text)
    normalized = [[normalizer.normalize_words(word) for word in words] for words in sentences]
    word_tokens = encode_text_lists(normalized, run.source_tokenizer)
    max_tokens, prefix_length = max_source_tokens(run), len(run.framing.source_prefix)
    results = [TaggedSentence(words=[], tags=[], probabilities=[])] * len(texts)  # remains for empty texts
    nonempty = [i for i, words in enumerate(sentences) if words]  # indices of the texts with words
    token_ids = [[token for word in word_tokens[i] for token in word][:max_tokens] for i in nonempty]
    special = special_labels(run.target_tokenizer, run.model.num_labels)
    for batch, logits in batch_logits(run, run.full_precision_model, token_ids):
        logits[..., special] = -torch.inf  # special tokens are never predicted
        batch_probabilities, batch_labels = logits.softmax(-1).max(-1)  # B T: of the best label
        for n, probabilities, labels in zip(batch, batch_probabilities.tolist(), batch_labels.tolist()):
            i = nonempty[n]
            # index of the first token of each word; positions count special tokens before the text too
            word_starts = np.cumsum([0, *(len(tokens) for tokens in word_tokens[i])])[:-1]
            positions = [int(start) + prefix_length for start in word_starts if start < max_tokens]
            tags = [run.target_tokenizer.decode([labels[position]]) for position in positions]
            results[i] = TaggedSentence(sentences[i], tags, [probabilities[position] for position in positions])
    return results


def special_labels(tokenizer: Tokenizer, num_labels: int) -> list[int]:
    """Return the output classes of a tagger or classifier that must not be predicted: special tokens such as <unk>.

    The `num_labels` classes are the tokens of its target tokenizer, which decodes special tokens to ''.
    """
    return [label for label in range(num_labels) if label == tokenizer.unk or not tokenizer.decode([label])]


def batch_logits(run: Run, model: Model, texts: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """Compute the logits of an encoder for texts, given by their token ids, in batches of similar length.

    Yields for each batch the indices of its texts, and the logits B T V in float32. The T positions include the special
    tokens before and after a text, which are added here.
    """
    lengths = np.array([len(ids) for ids in texts])
    for batch in batch_by_length(lengths, run.config.search.batch_tokens) if len(texts) else []:
        source, source_lengths = run.pad_batch([add_framing(run, texts[n]) for n in batch])
        yield batch.tolist(), model(source, source_lengths).float()


@torch.inference_mode()
def _fill_tokens(run: Run, texts: Sequence[str], top_k: int) -> list[FillResult]:
    """Fill the masks of each text with an encoder; return the text, and the `top_k` most probable tokens of each mask.

    Each mask is filled with its most probable token, independently of other masks. Masks after the maximum source
    length remain.
    """
    model, tokenizer = _mask_predictor(run), run.source_tokenizer
    prefix_length = len(run.framing.source_prefix)  # number of special tokens before a text
    token_ids = [encode_masked(tokenizer, text) for text in texts]
    truncated = [ids[: max_source_tokens(run)] for ids in token_ids]
    results = [FillResult(text, []) for text in texts]
    for batch, logits in batch_logits(run, model, truncated):
        for n, text_logits in zip(batch, logits):
            ids, choices = list(truncated[n]), []
            for position in [position for position, token in enumerate(ids) if token == tokenizer.mask]:
                probabilities = text_logits[position + prefix_length].softmax(-1)  # V
                probabilities[list(run.framing.suppressed)] = 0.0  # special tokens
                probabilities = probabilities[: tokenizer.vocab_size]  # the output layer may be larger
                top_probabilities, top_tokens = probabilities.topk(min(top_k, tokenizer.vocab_size))
                choices.append(list(zip(tokenizer.tokens(top_tokens.tolist()), top_probabilities.tolist())))
                ids[position] = int(top_tokens[0])
            not_read = token_ids[n][len(ids) :]  # after the maximum source length
            results[n] = FillResult(tokenizer.decode(ids + not_read), choices)
    return results


@torch.inference_mode()
def score_masked(run: Run, texts: Sequence[str]) -> list[ScoredText]:
    """Compute log p of every token given all others with a masked language model: Salazar et al. (2020), equation 1.

    A text of n tokens is read n times, each time with another token masked. Tokens after the maximum source length are
    left out. A run that does not predict single masked tokens, or whose tokenizer has no mask, is a UserError.
    """
    if infilling_of(run) != "piece":  # only encoders that predict single tokens
        raise run.usage_error("fill")
    model, tokenizer = _mask_predictor(run), run.source_tokenizer
    prefix_length = len(run.framing.source_prefix)  # number of special tokens before a text
    if tokenizer.mask is None:
        raise UserError(
            "texts cannot be scored by masking one token at a time (pseudo-perplexity), because the run's tokenizer "
            "has no mask token: use a run of a masked language model"
        )
    results = []
    for ids in tokenizer.encode_batch(list(texts)):
        ids = ids[: max_source_tokens(run)]
        masked_texts = [[*ids[:n], tokenizer.mask, *ids[n + 1 :]] for n in range(len(ids))]  # n-th token masked
        scores = [0.0] * len(ids)
        for batch, logits in batch_logits(run, model, masked_texts):
            positions = torch.tensor(batch, device=logits.device)  # copy n of the text has its mask at position n
            labels = torch.tensor([ids[position] for position in batch], device=logits.device)
            at_masks = logits[torch.arange(len(batch), device=logits.device), positions + prefix_length]  # B V
            log_p = at_masks.log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist()
            for position, score in zip(batch, log_p):
                scores[position] = score
        results.append(ScoredText(sum(scores), tokenizer.tokens(ids), scores))
    return results


def _mask_predictor(run: Run) -> Model:
    """Return the model that predicts masked tokens: the run's model, or the generator of ELECTRA; UserError if none."""
    predictor = run.full_precision_model.mask_predictor
    if predictor is None:
        raise run.usage_error("fill")
    return predictor


# ---- encoder–decoders


def _fill_spans(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Fill gaps with a model pretrained by span corruption, such as T5 (Raffel et al. 2020, §3.1.4).

    In the source, the gaps are replaced by sentinel tokens <extra_id_0>, <extra_id_1>, …. The model generates each
    sentinel, followed by the tokens that fill its gap. A gap whose sentinel is not generated remains. `search` finds
    `n_best` hypotheses, which are the choices. A text with more gaps than sentinels is a UserError; one without gaps is
    returned unchanged.
    """
    tokenizer = run.target_tokenizer
    sentinels = sentinel_ids(tokenizer, run.model.vocab_size)
    results = [FillResult(text, []) for text in texts]
    gap_counts = [len(GAP_PATTERN.findall(text)) for text in texts]
    with_gaps = [n for n, count in enumerate(gap_counts) if count]
    sources = [encode_with_sentinels(tokenizer, texts[n], sentinels) for n in with_gaps]
    for index, hypotheses in _decode_sources(_with_sentinels_allowed(run), sources, search):
        n, ids = with_gaps[index], sources[index]
        spans = [spans_by_sentinel(hypothesis.tokens, set(sentinels)) for hypothesis in hypotheses]
        filled = [_insert_spans(tokenizer, ids, by_sentinel, sentinels) for by_sentinel in spans]
        # for each gap: its filler in each hypothesis, with the probability of the whole hypothesis
        choices = [
            [
                (tokenizer.decode(by_sentinel.get(sentinel, [])), math.exp(hypothesis.score))
                for by_sentinel, hypothesis in zip(spans, hypotheses)
            ]
            for sentinel in sentinels[: gap_counts[n]]
        ]
        alternatives = [(text, hypothesis.score) for text, hypothesis in zip(filled[1:], hypotheses[1:])]
        results[n] = FillResult(filled[0], choices, alternatives)
    return results


def _generate_texts(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Fill gaps with a denoising model, such as BART, which reads masks and generates the whole text.

    (Lewis et al. 2020, §2.2.) The best hypothesis is the filled text, the others are its alternatives. A text without
    gaps is returned unchanged.
    """
    results = [FillResult(text, choices=[]) for text in texts]
    with_gaps = [n for n, text in enumerate(texts) if GAP_PATTERN.search(text)]
    sources = [encode_masked(run.source_tokenizer, texts[n]) for n in with_gaps]
    for index, hypotheses in _decode_sources(run, sources, search):
        generated = [(run.target_tokenizer.decode(hypothesis.tokens), hypothesis.score) for hypothesis in hypotheses]
        best_text, _ = generated[0]
        results[with_gaps[index]] = FillResult(best_text, choices=[], alternatives=generated[1:])
    return results


def _decode_sources(run: Run, sources: Sequence[list[int]], search: Beam) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Search the targets of sources in batches of similar length; yield the index and the hypotheses of each source.

    Sources are token ids without special tokens, which are added here.
    """
    batch_tokens = max(1, run.config.search.batch_tokens // search.rows_per_source)  # a beam takes several rows
    for batch in batch_by_length([len(ids) for ids in sources], batch_tokens) if sources else []:
        source, lengths = run.pad_batch([frame_source(run, sources[n]) for n in batch])
        # the keys seed sampling, which a beam search does not do
        request = SearchRequest(source, lengths, keys=torch.from_numpy(batch))
        yield from zip(batch.tolist(), search.decode(run, request))


def repair_corrupted(run: Run, rows: Sequence[BatchRow]) -> list[list[int]] | None:
    """Reconstruct corrupted training examples (`rows`) of a pretraining objective, such as masked language modelling.

    Returns token ids of each example: for an encoder the most probable token at every labeled position of the source,
    and `pad` elsewhere; for an encoder–decoder the target that greedy search generates. None if the run cannot fill
    gaps.
    """
    infilling = infilling_of(run)
    if infilling is None:
        return None
    if infilling == "piece":  # one token per gap
        return [_predict_labels(run, row) for row in rows]
    decoder = _with_sentinels_allowed(run) if infilling == "span" else run
    source, lengths = run.pad_batch([row.source.tolist() for row in rows])
    request = SearchRequest(source, lengths, keys=torch.arange(len(rows)))  # keys, which seed sampling, are unused
    search = Beam(size=1, length_limit=run.length_limit)
    return [hypotheses[0].tokens for hypotheses in search.decode(decoder, request)]


def _predict_labels(run: Run, row: BatchRow) -> list[int]:
    """Predict the masked tokens of an example with an encoder; return one token id per position of `row.source`.

    `row.target` has the labels, and `pad` at positions without one, where `pad` is returned.
    """
    pad = run.framing.pad
    source, lengths = run.pad_batch([row.source.tolist()])
    # the segment (0 or 1) of each token, of a model that reads pairs of texts; None: there are no segments
    types = None if row.token_type_ids is None else torch.from_numpy(row.token_type_ids)[None].to(run.device)
    predicted = _mask_predictor(run)(source, lengths, token_types=types)[0].argmax(-1).tolist()
    return [token if label != pad else pad for token, label in zip(predicted, row.target.tolist())]


def _with_sentinels_allowed(run: Run) -> Run:
    """Return a copy of the run whose searches may generate the sentinels <extra_id_0>, …, which mark gaps.

    In other searches they are suppressed.
    """
    new_run = copy(run)
    new_run.engine_cache = None  # cached engines suppress sentinels
    sentinels = sentinel_ids(run.target_tokenizer, run.model.vocab_size)
    still_suppressed = tuple(set(run.special_tokens.suppressed) - set(sentinels))
    new_run.special_tokens = replace(run.special_tokens, suppressed=still_suppressed)
    return new_run


def spans_by_sentinel(tokens: Sequence[int], sentinels: set[int]) -> dict[int, list[int]]:
    """Split generated token ids at sentinels, the tokens that mark gaps; return {sentinel: tokens that follow it}.

    The tokens go up to the next sentinel. If a sentinel occurs several times, the first occurrence counts.
    """
    spans: dict[int, list[int]] = {}
    current: list[int] = []  # the span of the last sentinel; tokens before the first sentinel are dropped
    for token in tokens:
        if token in sentinels:
            current = []
            spans.setdefault(token, current)
        else:
            current.append(token)
    return spans


def _insert_spans(
    tokenizer: Tokenizer, ids: Sequence[int], spans: dict[int, list[int]], sentinels: Sequence[int]
) -> str:
    """Return the text of the token ids of a source, with spans in place of its sentinels, the tokens that mark gaps.

    `spans` has the token ids that fill the gap of each sentinel; a sentinel without a span becomes <mask>.
    """
    segments: list[list[int]] = [[]]  # token ids between gaps that remain
    for token in ids:
        if token not in sentinels:
            segments[-1].append(token)
        elif token in spans:
            segments[-1] += spans[token]
        else:
            segments.append([])
    return " <mask> ".join(tokenizer.decode(segment).strip() for segment in segments).strip()


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the token ids of a text, with the mask token for every gap.

    Users write a gap as `<mask>`, `[MASK]` or `<extra_id_0>`; GAP_MARK, a single character, stands for it until the
    text is tokenized. A tokenizer without a mask token is a UserError.
    """
    if tokenizer.mask is None:
        raise UserError(
            "gaps (<mask>) cannot be filled, because the run's tokenizer has no mask token: use a run of a masked "
            "language model"
        )
    return tokenizer.encode_masked(GAP_PATTERN.sub(GAP_MARK, text), GAP_MARK)


def encode_with_sentinels(tokenizer: Tokenizer, text: str, sentinels: Sequence[int]) -> list[int]:
    """Return the token ids of a text, with the first sentinel for its first gap, the second for its second, and so on.

    Users write a gap as `<mask>`, `[MASK]` or `<extra_id_0>`; GAP_MARK, a single character, stands for it until the
    text is tokenized. `sentinels` are token ids; more gaps than sentinels are a UserError.
    """
    return tokenizer.encode_with_sentinels(GAP_PATTERN.sub(GAP_MARK, text), GAP_MARK, sentinels)
