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
from dragoman.data.data_formats import encode_words
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
GAP_MARK = "\x01"  # stands for a gap while a text is tokenized


def fill(run: Run, texts: Sequence[str], top_k: int, search: Beam | None = None) -> list[FillResult]:
    """Fill every gap (`<mask>`) of the texts.

    Args:
        top_k: number of choices for each gap
        search: for encoder–decoders; the run's beam search by default
    """
    run.check_usage("fill")
    infilling = infilling_of(run)
    if infilling is None:
        raise run.usage_error("fill")
    texts = [normalize_text(run, text) for text in texts]
    if infilling == "piece":  # one token per gap
        return _fill_tokens(run, texts, top_k)
    search = search or run.beam_config()
    search = replace(search, size=max(search.size, top_k), n_best=top_k)
    if infilling == "span":  # the decoder generates the fillers
        return _fill_spans(run, texts, search)
    return _generate_texts(run, texts, search)  # the decoder generates the whole text


def infilling_of(run: Run) -> Infilling | None:
    """Return how the run fills gaps, by its objective or by the special tokens of an imported checkpoint.

    `piece`: an encoder predicts one token per gap; `span`: a decoder generates the fillers, like T5; `text`: a decoder
    generates the whole text, like BART; None: it does not.
    """
    if run.objective is not None:
        return run.objective.infilling
    if run.model.mask_predictor is not None:
        return "piece"
    if not run.model.can_generate or run.model.is_decoder_only or run.model.source_features is not None:
        return None
    if "<extra_id_0>" in run.target_tokenizer.special_token_ids:
        return "span"
    return None if run.source_tokenizer.mask is None else "text"


# ---- encoders


@torch.inference_mode()
def tag(run: Run, texts: Sequence[str]) -> list[TaggedSentence]:
    """Tag the words of each text, which are separated by spaces; a word's tag is predicted at its first token."""
    run.check_usage("tag")
    if not run.model.num_labels or run.model.labels_sequence:
        raise run.usage_error("tag")
    if run.target_tokenizer is run.source_tokenizer:
        raise UserError(
            f"{run.folder} has no names for its labels: train a tagger from it (--start-from) on words and their tags"
        )
    sentences = [text.split() for text in texts]
    normalizer = TextNormalizer.from_settings(run.config.text)
    normalized = [[normalizer.normalize_words(word) for word in words] for words in sentences]
    word_tokens = encode_words(normalized, run.source_tokenizer)
    max_tokens, prefix_length = max_source_tokens(run), len(run.framing.source_prefix)
    results = [TaggedSentence(words=[], tags=[], probabilities=[])] * len(texts)  # of empty texts
    nonempty = [i for i, words in enumerate(sentences) if words]
    rows = [[token for word in word_tokens[i] for token in word][:max_tokens] for i in nonempty]
    special = special_labels(run.target_tokenizer, run.model.num_labels)
    for batch, logits in batch_logits(run, run.model, rows):
        logits[..., special] = -torch.inf
        probability, best = logits.softmax(-1).max(-1)  # B T
        for n, probabilities, labels in zip(batch, probability.tolist(), best.tolist()):
            i = nonempty[n]
            word_starts = np.cumsum([0, *(len(word) for word in word_tokens[i])])[:-1]
            positions = [int(start) + prefix_length for start in word_starts if start < max_tokens]
            tags = [run.target_tokenizer.decode([labels[position]]) for position in positions]
            results[i] = TaggedSentence(sentences[i], tags, [probabilities[position] for position in positions])
    return results


def special_labels(tokenizer: Tokenizer, num_labels: int) -> list[int]:
    """Return the outputs of a tagger or classifier that are not labels: the special tokens of its target tokenizer."""
    return [n for n in range(num_labels) if n == tokenizer.unk or not tokenizer.decode([n])]


def batch_logits(run: Run, model: Model, rows: Sequence[Sequence[int]]) -> Iterator[tuple[list[int], Tensor]]:
    """Yield batches of rows, which are token ids without special tokens: their indices, and an encoder's logits.

    The logits (B T V) are for the rows with the special tokens before and after them (framing).
    """
    lengths = np.array([len(row) for row in rows])
    for batch in batch_by_length(lengths, run.config.search.batch_tokens) if len(rows) else []:
        source, source_lengths = run.pad_batch([add_framing(run, rows[n]) for n in batch])
        yield batch.tolist(), model(source, source_lengths).float()


@torch.inference_mode()
def _fill_tokens(run: Run, texts: Sequence[str], top_k: int) -> list[FillResult]:
    """Fill every mask with its most probable token, independently of the others; return the `top_k` best for each."""
    model, tokenizer, prefix_length = _mask_predictor(run), run.source_tokenizer, len(run.framing.source_prefix)
    token_ids = [encode_masked(tokenizer, text) for text in texts]
    rows = [ids[: max_source_tokens(run)] for ids in token_ids]  # masks in the truncated rest stay
    results = [FillResult(text, []) for text in texts]
    for batch, logits in batch_logits(run, model, rows):
        for n, row_logits in zip(batch, logits):
            ids, choices = list(rows[n]), []
            for position in [position for position, token in enumerate(ids) if token == tokenizer.mask]:
                probabilities = row_logits[position + prefix_length].softmax(-1)
                probabilities[list(run.framing.suppressed)] = 0.0  # special tokens
                top, tokens = probabilities[: tokenizer.vocab_size].topk(min(top_k, tokenizer.vocab_size))
                choices.append(list(zip(tokenizer.tokens(tokens.tolist()), top.tolist())))
                ids[position] = int(tokens[0])
            results[n] = FillResult(tokenizer.decode(ids + token_ids[n][len(ids) :]), choices)
    return results


@torch.inference_mode()
def score_masked(run: Run, texts: Sequence[str]) -> list[ScoredText]:
    """Compute log p of every token given all others: Salazar et al. (2020), equation 1.

    A text of n tokens becomes n rows; in each, another token is masked.
    """
    if infilling_of(run) != "piece":  # only encoders that predict single tokens
        raise run.usage_error("fill")
    model, tokenizer, prefix_length = _mask_predictor(run), run.source_tokenizer, len(run.framing.source_prefix)
    if tokenizer.mask is None:
        raise UserError(
            "texts cannot be scored: pseudo-perplexity masks tokens, but the run's tokenizer has no mask token"
        )
    results = []
    for ids in tokenizer.encode_batch(list(texts)):
        ids = ids[: max_source_tokens(run)]
        rows = [[*ids[:masked], tokenizer.mask, *ids[masked + 1 :]] for masked in range(len(ids))]
        scores = [0.0] * len(ids)
        for batch, logits in batch_logits(run, model, rows):
            positions = torch.tensor(batch, device=logits.device)  # row n has its mask at position n
            labels = torch.tensor([ids[position] for position in batch], device=logits.device)
            at_masks = logits[torch.arange(len(batch), device=logits.device), positions + prefix_length]  # B V
            log_p = at_masks.log_softmax(-1).gather(1, labels[:, None])[:, 0].tolist()
            for position, score in zip(batch, log_p):
                scores[position] = score
        results.append(ScoredText(sum(scores), tokenizer.tokens(ids), scores))
    return results


def _mask_predictor(run: Run) -> Model:
    """The model that predicts masked tokens: the model itself, or the generator of ELECTRA."""
    if run.model.mask_predictor is None:
        raise run.usage_error("fill")
    return run.model.mask_predictor


# ---- encoder–decoders


def _fill_spans(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Fill gaps with a model of span corruption, such as T5 (Raffel et al. 2020, §3.1.4).

    Each gap becomes another sentinel token in the source. The model generates each sentinel, followed by the tokens of
    its gap. A gap whose sentinel is not generated stays a gap.
    """
    tokenizer = run.target_tokenizer
    sentinels = sentinel_ids(tokenizer, run.model.vocab_size)
    results = [FillResult(text, []) for text in texts]
    gaps = {n: len(GAP_PATTERN.findall(text)) for n, text in enumerate(texts)}
    if (max_gaps := max(gaps.values(), default=0)) > len(sentinels):
        raise UserError(
            f"a text has {max_gaps:,} gaps, but the run has sentinel tokens for {len(sentinels):,}: split the text"
        )
    with_gaps = [n for n, count in gaps.items() if count]
    rows = [encode_with_sentinels(tokenizer, texts[n], sentinels) for n in with_gaps]
    for row, hypotheses in _decode_rows(_with_sentinels_allowed(run), rows, search):
        n, ids = with_gaps[row], rows[row]
        spans = [spans_by_sentinel(hypothesis.tokens, set(sentinels)) for hypothesis in hypotheses]
        filled = [_insert_spans(tokenizer, ids, by_sentinel, sentinels) for by_sentinel in spans]
        choices = [
            [
                (tokenizer.decode(by_sentinel.get(sentinel, [])), math.exp(hypothesis.score))
                for by_sentinel, hypothesis in zip(spans, hypotheses)
            ]
            for sentinel in sentinels[: gaps[n]]
        ]
        alternatives = [(text, hypothesis.score) for text, hypothesis in zip(filled[1:], hypotheses[1:])]
        results[n] = FillResult(filled[0], choices, alternatives)
    return results


def _generate_texts(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Fill gaps with a denoising model, such as BART: reads masks, generates the text (Lewis et al. 2020, §2.2)."""
    results = [FillResult(text, choices=[]) for text in texts]
    with_gaps = [n for n, text in enumerate(texts) if GAP_PATTERN.search(text)]
    rows = [encode_masked(run.source_tokenizer, texts[n]) for n in with_gaps]
    for row, hypotheses in _decode_rows(run, rows, search):
        generated = [(run.target_tokenizer.decode(h.tokens), h.score) for h in hypotheses]
        best_text, _ = generated[0]
        results[with_gaps[row]] = FillResult(best_text, choices=[], alternatives=generated[1:])
    return results


def _decode_rows(run: Run, rows: Sequence[list[int]], search: Beam) -> Iterator[tuple[int, list[Hypothesis]]]:
    """Yield the index and the hypotheses of each row, which is the token ids of a source without special tokens."""
    batch_tokens = max(1, run.config.search.batch_tokens // search.rows_per_source)  # a beam takes several rows
    for batch in batch_by_length([len(ids) for ids in rows], batch_tokens) if rows else []:
        source, lengths = run.pad_batch([frame_source(run, rows[n]) for n in batch])
        request = SearchRequest(source, lengths, keys=torch.from_numpy(batch))
        yield from zip(batch.tolist(), search.decode(run, request))


def repair_corrupted(run: Run, rows: Sequence[BatchRow]) -> list[list[int]] | None:
    """Reconstruct corrupted examples of a pretraining objective; None if the run does not fill gaps.

    Returns token ids: for an encoder the most probable token at every labeled position of the source, and `pad`
    elsewhere; for an encoder–decoder the generated target.
    """
    infilling = infilling_of(run)
    if infilling is None:
        return None
    if infilling == "piece":  # one token per gap
        return [_predict_labels(run, row) for row in rows]
    decoder = _with_sentinels_allowed(run) if infilling == "span" else run
    source, lengths = run.pad_batch([row.source.tolist() for row in rows])
    request = SearchRequest(source, lengths, keys=torch.arange(len(rows)))
    search = Beam(size=1, length_limit=run.length_limit)
    return [hypotheses[0].tokens for hypotheses in search.decode(decoder, request)]


def _predict_labels(run: Run, row: BatchRow) -> list[int]:
    """Return the most probable token at every position with a label (`row.target` is not `pad`), else `pad`."""
    pad = run.framing.pad
    source, lengths = run.pad_batch([row.source.tolist()])
    types = None if row.token_type_ids is None else torch.from_numpy(row.token_type_ids)[None].to(run.device)
    predicted = _mask_predictor(run)(source, lengths, token_types=types)[0].argmax(-1).tolist()
    return [token if label != pad else pad for token, label in zip(predicted, row.target.tolist())]


def _with_sentinels_allowed(run: Run) -> Run:
    """Return the run with a search that may generate sentinels, the tokens `<extra_id_0>`, … that stand for gaps."""
    allowed = copy(run)
    allowed.engine_cache = None  # cached engines suppress sentinels
    sentinels = sentinel_ids(run.target_tokenizer, run.model.vocab_size)
    suppressed = tuple(set(run.special_tokens.suppressed) - set(sentinels))
    allowed.special_tokens = replace(run.special_tokens, suppressed=suppressed)
    return allowed


def spans_by_sentinel(tokens: Sequence[int], sentinels: set[int]) -> dict[int, list[int]]:
    """Return the tokens after each sentinel, up to the next one; of a repeated sentinel the first counts."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
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
    """Return the source with spans in place of its sentinels; a sentinel without a span becomes <mask>."""
    texts: list[list[int]] = [[]]
    for token in ids:
        if token not in sentinels:
            texts[-1].append(token)
        elif token in spans:
            texts[-1] += spans[token]
        else:
            texts.append([])
    return " <mask> ".join(tokenizer.decode(text_ids).strip() for text_ids in texts).strip()


def encode_masked(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text with the mask token for every gap, which the user wrote as `<mask>`, `[MASK]` or `<extra_id_0>`."""
    if tokenizer.mask is None:
        raise UserError("masks cannot be filled, because the run's tokenizer has no mask token: use another run")
    return tokenizer.encode_masked(GAP_PATTERN.sub(GAP_MARK, text), GAP_MARK)


def encode_with_sentinels(tokenizer: Tokenizer, text: str, sentinels: Sequence[int]) -> list[int]:
    """Encode a text with one sentinel for each gap (`<mask>`, `[MASK]` or `<extra_id_0>`), in order."""
    return tokenizer.encode_with_sentinels(GAP_PATTERN.sub(GAP_MARK, text), GAP_MARK, sentinels)
