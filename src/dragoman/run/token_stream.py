"""Streaming: the tokens of a translation as soon as they are certain."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

import torch

from dragoman.run.pair_scoring import align_batch
from dragoman.run.results import StreamedTokens, Translation
from dragoman.run.sources import (
    Source,
    encode_without_framing,
    frame_source,
    is_empty,
    max_source_tokens,
    normalize_source,
    normalize_text,
)
from dragoman.run.translator import Translator, to_translation
from dragoman.search import Constraints, Hypothesis, SearchRequest
from dragoman.search.search_config import StepwiseSearch
from dragoman.search.search_state import PartialResult, partial_result
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run


def stream_tokens(
    translator: Translator, text: Source, prefix: str, include: Sequence[str]
) -> Generator[StreamedTokens]:
    """Yield the translation of one text in parts; searches that compare complete translations yield a single part."""
    run, search = translator.run, translator.search
    text, prefix = normalize_source(run, text), normalize_text(run, prefix)
    if is_empty(text):
        yield StreamedTokens("", translation=Translation("", 0.0, alignment=[] if translator.align else None))
        return
    if translator.copies(text, prefix, include):
        copied = translator.copy(str(text))
        yield StreamedTokens(copied.text, copied.tokens, translation=copied)
        return
    ids = encode_without_framing(run, [text], translator.tag)[0]
    source, lengths = run.pad_batch([frame_source(run, ids)])
    constraints = Constraints([prefix] if prefix else None, [include] if include else None, translator.forbidden)
    request = SearchRequest(source, lengths, torch.tensor([0]), [text], constraints=constraints)
    detokenizer = _Detokenizer(run.target_tokenizer)
    if isinstance(search, StepwiseSearch) and run.shortlist is None:  # a shortlist has token ids of its own
        hypotheses, streamed_score = yield from _stream_search(run, search, request, detokenizer)
    else:
        hypotheses, streamed_score = search.decode(run, request)[0], 0.0
    best = hypotheses[0]
    alignments = align_batch(run, source, lengths, [best.tokens]) if translator.align else None
    truncated = len(ids) > max_source_tokens(run)
    translation = to_translation(run, hypotheses, alignments[0] if alignments else None, truncated)
    score = None if streamed_score is None else best.score - streamed_score
    last = detokenizer.add(best.tokens, best.tokens, score, is_last=True)
    yield StreamedTokens(last.text, last.tokens, score, translation=translation)


def _stream_search(
    run: Run, search: StepwiseSearch, request: SearchRequest, detokenizer: _Detokenizer
) -> Generator[StreamedTokens, None, tuple[list[Hypothesis], float | None]]:
    """Yield all parts but the last; return the hypotheses and log p of the yielded tokens (None if unknown)."""
    engine, arguments = search.prepare(run, request)
    last: PartialResult | None = None
    with closing(engine.steps(*arguments)) as steps:
        while True:
            try:
                _, state = next(steps)
            except StopIteration as end:
                single = last is None or last.single_hypothesis
                return end.value[0], (last.score if last else 0.0) if single else None
            result = partial_result(state, run.special_tokens.eos, search.length_divisor)
            if result is None or result == last or bool(state.done[0]):  # the last part follows after the search
                continue
            score = result.score - (last.score if last else 0.0) if result.single_hypothesis else None
            last = result
            yield detokenizer.add(result.stable_prefix, result.best_tokens, score)


class _Detokenizer:
    """Decodes tokens that arrive one after the other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.text = ""

    def add(self, stable: list[int], best: list[int], score: float | None, is_last: bool = False) -> StreamedTokens:
        """Return what is new in the tokens that are certain (`stable`), and how the best hypothesis continues."""
        new_tokens = self.tokenizer.tokens(stable[len(self.tokens) :])
        text, best_text = self.tokenizer.decode(stable), self.tokenizer.decode(best)
        text = text if is_last else text.rstrip("\ufffd")  # an incomplete character may still be completed
        new_text = text[len(self.text) :]
        self.tokens, self.text = stable, self.text + new_text
        return StreamedTokens(new_text, new_tokens, score, best_text.rstrip("\ufffd")[len(self.text) :])
