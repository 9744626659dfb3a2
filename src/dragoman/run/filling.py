"""Filling gaps: pieces by an encoder, spans by a T5, the whole text anew by a BART."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from dragoman.data import BatchRow
from dragoman.data.batching import batch_by_length
from dragoman.errors import UserError
from dragoman.models import EncoderOnlyModel, ReplacedTokensModel
from dragoman.objectives.denoising import sentinel_ids
from dragoman.objectives.objective import Infilling
from dragoman.run.decoding import SearchRequest, decode
from dragoman.run.labeling import add_framing, batch_logits
from dragoman.run.results import FillResult, ScoredText
from dragoman.run.sources import normalize_text
from dragoman.search import Beam, Hypothesis
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run

GAP_PATTERN = re.compile(r"<mask>|\[MASK\]|<extra_id_\d+>")  # how a user may write a gap
GAP_MARK = "\x01"  # stands for a gap while a text is tokenized


def fill(run: Run, texts: Sequence[str], top_k: int, search: Beam | None = None) -> list[FillResult]:
    """The texts with every gap filled; those without a gap stay as they are. `search` is for encoder–decoders."""
    run.check_usage("fill")
    kind = _kind(run)
    if kind is None:
        raise run.usage_error("fill")
    texts = [normalize_text(run, text) for text in texts]
    if kind == "piece":
        return _pieces(run, texts, top_k)
    settings = search or run.beam_config()
    settings = replace(settings, size=max(settings.size, top_k), n_best=top_k)
    return _spans(run, texts, settings) if kind == "span" else _whole_texts(run, texts, settings)


def _kind(run: Run) -> Infilling | None:
    """How the run fills gaps: as it was trained to, or as the symbols of an imported checkpoint suggest."""
    if run.objective is not None:
        return run.objective.infilling
    if not run.model.can_generate:
        return "piece" if run.usage is not None and run.usage.command == "fill" else None
    if run.model.is_decoder_only or run.model.source_features is not None:
        return None
    if "<extra_id_0>" in getattr(run.target_tokenizer, "special_token_ids", {}):
        return "span"
    return None if run.source_tokenizer.mask is None else "text"


@torch.inference_mode()
def _pieces(run: Run, texts: Sequence[str], best: int) -> list[FillResult]:
    """The likeliest piece under every mask, each on its own."""
    model, tokenizer = _masked_model(run), run.source_tokenizer
    room = run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix)
    whole = [with_masks(tokenizer, text) for text in texts]
    rows = [ids[:room] for ids in whole]  # what comes after the longest source stays as it is
    results = [FillResult(text, []) for text in texts]
    for batch, logits in batch_logits(run, model, rows):
        for n, scores in zip(batch, logits):
            ids, choices = list(rows[n]), []
            for place in [place for place, token in enumerate(ids) if token == tokenizer.mask]:
                probabilities = scores[place + len(run.framing.source_prefix)].softmax(-1)
                probabilities[list(run.framing.suppressed)] = 0.0
                p, tokens = probabilities[: tokenizer.vocab_size].topk(min(best, tokenizer.vocab_size))
                choices.append([(tokenizer.tokens([t])[0], q) for t, q in zip(tokens.tolist(), p.tolist())])
                ids[place] = int(tokens[0])
            results[n] = FillResult(tokenizer.decode(ids + whole[n][room:]), choices)
    return results


@torch.inference_mode()
def score_masked(run: Run, texts: Sequence[str]) -> list[ScoredText]:
    """log p of every token given all others: Salazar et al. (2020), equation 1. A text of n tokens takes n passes."""
    if _kind(run) != "piece":
        raise run.usage_error("fill")
    model, tokenizer = _masked_model(run), run.source_tokenizer
    if tokenizer.mask is None:
        raise UserError("texts cannot be scored: the run's tokenizer has no symbol for masks")
    room = run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix)
    results = []
    for ids in tokenizer.encode_batch(list(texts)):
        ids = ids[:room]
        rows = [[*ids[:place], tokenizer.mask, *ids[place + 1 :]] for place in range(len(ids))]
        scores = [0.0] * len(ids)
        for batch, logits in batch_logits(run, model, rows):
            places = torch.tensor(batch, device=logits.device)
            answers = torch.tensor([ids[place] for place in batch], device=logits.device)
            at_masks = logits[
                torch.arange(len(batch), device=logits.device), places + len(run.framing.source_prefix)
            ]  # B V
            log_p = at_masks.log_softmax(-1).gather(1, answers[:, None])[:, 0].tolist()
            for place, value in zip(batch, log_p):
                scores[place] = value
        results.append(ScoredText(sum(scores), tokenizer.tokens(ids), scores))
    return results


def _masked_model(run: Run) -> EncoderOnlyModel:
    model = run.model.generator if isinstance(run.model, ReplacedTokensModel) else run.model
    assert isinstance(model, EncoderOnlyModel)
    return model


def _spans(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Every gap becomes a sentinel, and the target is sentinel by sentinel what was there (Raffel et al. 2020, §3.1.4).

    A gap for which the model writes no sentinel stays a gap.
    """
    tokenizer = run.target_tokenizer
    sentinels = sentinel_ids(tokenizer, run.model.vocab_size)
    results = [FillResult(text, []) for text in texts]
    gaps = {n: len(GAP_PATTERN.findall(text)) for n, text in enumerate(texts)}
    if (most := max(gaps.values(), default=0)) > len(sentinels):
        raise UserError(f"a text has {most:,} gaps, but the run has {len(sentinels):,} sentinels: give it in parts")
    chosen = [n for n, count in gaps.items() if count]
    rows = [with_sentinels(tokenizer, texts[n], sentinels) for n in chosen]
    for row, found in _decoded(_with_sentinels_allowed(run), rows, search):
        n, ids = chosen[row], rows[row]
        spans = [spans_by_sentinel(one.tokens, set(sentinels)) for one in found]
        filled = [_decode(tokenizer, ids, some, sentinels) for some in spans]
        choices = [
            [(tokenizer.decode(some.get(sentinel, [])), math.exp(one.score)) for some, one in zip(spans, found)]
            for sentinel in sentinels[: gaps[n]]
        ]
        others = [(text, one.score) for text, one in zip(filled[1:], found[1:])]
        results[n] = FillResult(filled[0], choices, others)
    return results


def _whole_texts(run: Run, texts: Sequence[str], search: Beam) -> list[FillResult]:
    """Gaps are masks, and the target is the whole text (Lewis et al. 2020, §2.2)."""
    results = [FillResult(text, []) for text in texts]
    chosen = [n for n, text in enumerate(texts) if GAP_PATTERN.search(text)]
    rows = [with_masks(run.source_tokenizer, texts[n]) for n in chosen]
    for row, found in _decoded(run, rows, search):
        written = [(run.target_tokenizer.decode(one.tokens), one.score) for one in found]
        results[chosen[row]] = FillResult(written[0][0], [], written[1:])
    return results


def _decoded(run: Run, rows: Sequence[list[int]], search: Beam) -> Iterator[tuple[int, list[Hypothesis]]]:
    """The hypotheses for each row of source ids, which stand without the symbols around them."""
    room = run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix)
    budget = max(1, run.config.search.batch_tokens // search.rows_per_source)
    for batch in batch_by_length([len(ids) for ids in rows], budget) if rows else []:
        source, lengths = run.pad_batch([add_framing(rows[n][:room], run.framing) for n in batch], run.framing.pad)
        yield from zip(batch.tolist(), decode(search, run, SearchRequest(source, lengths, torch.from_numpy(batch))))


def repair_corrupted(run: Run, rows: Sequence[BatchRow]) -> list[list[int]] | None:
    """What a pretrained run makes of corrupted rows: aligned with the source, or a target; None if it fills no gaps.

    An answer stands for every token of the source that the row asks for, and `pad` elsewhere.
    """
    kind, pad = _kind(run), run.framing.pad
    if kind is None:
        return None
    if kind == "piece":
        return [_answers(run, row, pad) for row in rows]
    writer = _with_sentinels_allowed(run) if kind == "span" else run
    source, lengths = run.pad_batch([row.source.tolist() for row in rows], pad)
    found = decode(
        Beam(1, length_limit=run.length_limit), writer, SearchRequest(source, lengths, torch.arange(len(rows)))
    )
    return [hypotheses[0].tokens for hypotheses in found]


def _answers(run: Run, row: BatchRow, pad: int) -> list[int]:
    """The likeliest token wherever a row asks for one."""
    model = run.model.generator if isinstance(run.model, ReplacedTokensModel) else run.model
    assert isinstance(model, EncoderOnlyModel)
    source, lengths = run.pad_batch([row.source.tolist()], pad)
    types = None if row.token_type_ids is None else torch.from_numpy(row.token_type_ids)[None].to(run.device)
    likeliest = model(source, lengths, types=types)[0].argmax(-1).tolist()
    return [token if asked != pad else pad for token, asked in zip(likeliest, row.target.tolist())]


def _with_sentinels_allowed(run: Run) -> Run:
    """The run with a search that may write sentinels."""
    writer = copy(run)
    writer.engine_cache = None  # those that are kept may not
    sentinels = sentinel_ids(run.target_tokenizer, run.model.vocab_size)
    writer.special_tokens = replace(
        run.special_tokens, suppressed=tuple(set(run.special_tokens.suppressed) - set(sentinels))
    )
    return writer


def spans_by_sentinel(tokens: Sequence[int], sentinels: set[int]) -> dict[int, list[int]]:
    """What stands after each sentinel of a target, up to the next one; the first of each counts."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in tokens:
        if token in sentinels:
            current = []
            spans.setdefault(token, current)
        else:
            current.append(token)
    return spans


def _decode(tokenizer: Tokenizer, ids: Sequence[int], spans: dict[int, list[int]], sentinels: Sequence[int]) -> str:
    """The source with spans in place of its sentinels; a gap without a span stays <mask>."""
    texts: list[list[int]] = [[]]
    for token in ids:
        if token not in sentinels:
            texts[-1].append(token)
        elif token in spans:
            texts[-1] += spans[token]
        else:
            texts.append([])
    return " <mask> ".join(tokenizer.decode(some).strip() for some in texts).strip()


def with_masks(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text in which gaps are written out, as <mask>, [MASK] or <extra_id_0>."""
    if tokenizer.mask is None:
        raise UserError("masks cannot be filled: the run's tokenizer has no symbol for them")
    return tokenizer.encode_masked(GAP_PATTERN.sub(GAP_MARK, text), GAP_MARK)


def with_sentinels(tokenizer: Tokenizer, text: str, sentinels: Sequence[int]) -> list[int]:
    """The ids of a text with a sentinel for each gap, in order."""
    numbers = iter(sentinels)
    if "<extra_id_0>" in getattr(tokenizer, "special_token_ids", {}):  # an imported tokenizer, which knows them by name
        return tokenizer.encode(_numbered(text), parse_special=True)  # type: ignore[call-arg]
    return [next(numbers) if token == tokenizer.mask else token for token in with_masks(tokenizer, text)]


def _numbered(text: str) -> str:
    """The text with its gaps named <extra_id_0>, <extra_id_1> … from left to right."""
    parts = GAP_PATTERN.split(text)
    return parts[0] + "".join(f"<extra_id_{n}>{part}" for n, part in enumerate(parts[1:]))
