"""A translation as it is written: what is certain of it, step by step."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from dragoman.run.decoding import SearchRequest, StepByStep, decode, prepared
from dragoman.run.pair_scoring import align_batch
from dragoman.run.results import Translation
from dragoman.run.sources import (
    Source,
    Tag,
    encode_without_framing,
    frame_source,
    is_empty,
    max_source_tokens,
    normalize_source,
    normalize_text,
)
from dragoman.run.translation_constraints import Constraints
from dragoman.run.translator import Translator, to_translation
from dragoman.search import Beam, Hypothesis, SearchConfig
from dragoman.search.partial_results import PartialResult, partial_result
from dragoman.text import Tokenizer

if TYPE_CHECKING:
    from dragoman.run.run import Run


@dataclass(frozen=True)
class StreamedTokens:
    """What has become known of a translation since the piece before: the texts of all pieces joined are its text."""

    text: str  # that will not change any more; '' where a token is but a part of a character
    tokens: list[str] = field(default_factory=list)
    score: float | None = None  # log p of these tokens; None where they are what hypotheses have in common
    tentative_text: str = ""  # what the best hypothesis goes on with as things stand: it may change
    translation: Translation | None = None  # the whole of it, with the last piece


class _Text:
    """Text of tokens that come one after the other."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.tokens: list[int] = []
        self.text = ""

    def add(self, settled: list[int], likely: list[int], score: float | None, last: bool = False) -> StreamedTokens:
        """What is new of all that is settled by now, and what may come after it."""
        new = self.tokenizer.tokens(settled[len(self.tokens) :])
        text, ahead = self.tokenizer.decode(settled), self.tokenizer.decode(likely)
        text = text if last else text.rstrip("\ufffd")  # bytes that may become a character yet
        added = text[len(self.text) :]
        self.tokens, self.text = settled, self.text + added
        return StreamedTokens(added, new, score, ahead.rstrip("\ufffd")[len(self.text) :])


def stream(
    run: Run,
    text: Source,
    settings: SearchConfig,
    *,
    alignment: bool,
    tag: Tag,
    prefix: str,
    required: Sequence[str],
    forbidden: Sequence[str],
) -> Generator[StreamedTokens]:
    """The translation of one text in pieces; searches that choose among whole translations give it as one."""
    translating = Translator(run, settings, alignment=alignment, dictionary=None, tag=tag, forbidden=forbidden)
    aligns, never = translating.align, translating.never
    text, prefix = normalize_source(run, text), normalize_text(run, prefix)
    if is_empty(text):
        yield StreamedTokens("", translation=Translation("", 0.0, alignment=[] if aligns else None))
        return
    if isinstance(text, str) and translating.copies(text, prefix, required):
        copied = translating.copied(text)
        yield StreamedTokens(copied.text, copied.tokens, translation=copied)
        return
    ids = encode_without_framing(run, [text], tag)[0]
    source, lengths = run.pad_batch([frame_source(run, ids)], run.framing.pad)
    wishes = Constraints([prefix] if prefix else None, [required] if required else None, never)
    asked = SearchRequest(source, lengths, torch.tensor([0]), [text], constraints=wishes)
    written = _Text(run.target_tokenizer)
    if isinstance(settings, StepByStep) and run.shortlist is None:  # whose numbers are not those of the tokenizer
        found, before = yield from _pieces(run, settings, asked, written)
    else:
        found, before = decode(settings, run, asked)[0], 0.0
    best = found[0]
    links = align_batch(run, source, lengths, [best.tokens]) if aligns else None
    whole = to_translation(run, found, links[0] if links else None, len(ids) <= max_source_tokens(run))
    rest = None if before is None else best.score - before
    last = written.add(best.tokens, best.tokens, rest, last=True)
    yield StreamedTokens(last.text, last.tokens, rest, translation=whole)


def _pieces(
    run: Run, settings: StepByStep, asked: SearchRequest, written: _Text
) -> Generator[StreamedTokens, None, tuple[list[Hypothesis], float | None]]:
    """The pieces before the last, and what was found, with log p of what the pieces hold."""
    searching, given = prepared(settings, run, asked)
    penalty = settings.length_divisor if isinstance(settings, Beam) else lambda length: 1.0
    last: PartialResult | None = None
    with closing(searching.steps(*given)) as steps:
        while True:
            try:
                _, slots = next(steps)
            except StopIteration as end:
                alone = last is None or last.single_hypothesis
                return end.value[0], (last.score if last else 0.0) if alone else None
            now = partial_result(slots, 0, run.special_tokens.eos, penalty)
            if now is None or now == last or bool(slots["over"][0]):  # what is over, the last piece says
                continue
            score = now.score - (last.score if last else 0.0) if now.single_hypothesis else None
            last = now
            yield written.add(now.stable_prefix, now.best_tokens, score)
