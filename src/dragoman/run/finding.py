"""What a search finds for padded sources, for every kind of description of a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import singledispatch
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.run.wishes import Wishes
from dragoman.search import (
    Beam,
    Decision,
    Exact,
    Hypothesis,
    Length,
    MinimumRisk,
    Rerank,
    Sample,
    Speculative,
    Symbols,
    engine,
)
from dragoman.search.engine import Engine
from dragoman.search.exact import exact_search
from dragoman.search.reranking import Candidate, Reranker, Scorer
from dragoman.search.settings import OtherRun
from dragoman.search.speculative import Acceptance, SpeculativeEngine

if TYPE_CHECKING:
    from dragoman.run.run import Run
    from dragoman.run.sources import Source

StepByStep = Beam | Sample | Speculative  # searches that write word by word
NO_WISHES = Wishes()
ENGINES = 4  # that a run keeps
BEGINNING = 5  # the beam that exact search begins with


@dataclass(frozen=True)
class Asked:
    """Sources for a search: padded, B S or B S F, with their lengths and numbers (B), and what is asked of targets."""

    source: Tensor
    lengths: Tensor
    keys: Tensor
    texts: Sequence[Source] = ()  # as they came, where they are to be translated
    first: Tensor | None = None  # B: the tokens that targets are begun after, where they are not START
    wishes: Wishes = NO_WISHES
    most: int | None = None  # sources that are searched at a time


@singledispatch
def find(settings: Decision, run: Run, asked: Asked) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first."""
    raise TypeError(f"{type(settings).__name__} describes no search that a run can do")


@find.register(Beam)
@find.register(Sample)
@find.register(Speculative)
def _step_by_step(settings: StepByStep, run: Run, asked: Asked) -> list[list[Hypothesis]]:
    searching, given = prepared(settings, run, asked)
    if run.shortlist is None:
        return searching.search(*given)
    source, lengths, limits, keys, wishes, most = given
    if asked.wishes.required is not None or asked.wishes.forbidden is not None or isinstance(settings, Speculative):
        raise UserError("a shortlist knows few words: leave it out with phrases to require or forbid, and with a draft")
    prefixes = [wishes["prefix"]] if "prefix" in wishes else []
    chosen = run.shortlist.chosen(source, searching.symbols, prefixes)
    models, symbols = [model.chosen(chosen.pieces) for model in searching.models], chosen.symbols(searching.symbols)
    few = engine(models, symbols, settings, asked.wishes.rules)
    return chosen.back(few.search(source, lengths, limits, keys, chosen.wishes(wishes), most))


def prepared(settings: StepByStep, run: Run, asked: Asked) -> tuple[Engine, tuple[Any, ...]]:
    """What searches step by step, and what it is to be given."""
    symbols = run.symbols if asked.first is None else replace(run.symbols, start=asked.first)
    limits = limits_of(run, settings.length, asked.lengths)
    plain = settings.search if isinstance(settings, Speculative) else settings
    searching = _engine(run, symbols, plain, asked)
    if isinstance(settings, Speculative):
        searching = SpeculativeEngine(searching, drafting(run, settings), settings.ahead)
    wishes = asked.wishes.tree(run.target_tokenizer, limits, len(symbols.forced))
    return searching, (asked.source, asked.lengths, limits, asked.keys, wishes, asked.most)


def _engine(run: Run, symbols: Symbols, settings: Beam | Sample, asked: Asked) -> Engine:
    """What searches: where the run keeps them, the same as before, which knows how to do its steps quickly."""
    if run.engines is None or asked.wishes.rules or asked.wishes.required is not None or asked.first is not None:
        return engine(run.writers, symbols, settings, asked.wishes.rules, asked.wishes.required is not None)
    models = run.writers
    key = (settings, *(weight.data_ptr() for model in models for weight in model.parameters()))
    if key not in run.engines:
        while len(run.engines) >= ENGINES:
            run.engines.pop(next(iter(run.engines)))
        run.engines[key] = engine(models, symbols, settings, compiled=run.compiled)
    return run.engines[key]


def acceptance(run: Run, texts: Sequence[Source], settings: Speculative) -> Acceptance:
    """How many of the words that a draft proposes for some texts the run would have written itself."""
    total = Acceptance()
    for text in texts:
        source, lengths = run.pad(run.encode_sources([text]), run.framing.pad)
        searching, given = prepared(settings, run, Asked(source, lengths, torch.tensor([0])))
        assert isinstance(searching, SpeculativeEngine)
        searching.search(*given)
        total += searching.acceptance
    return total


def drafting(run: Run, settings: Speculative) -> Model:
    """The model that drafts for a run."""
    other = run.opened(settings.draft)
    run.check_words(other, "a draft is read by the run itself, token by token")
    return run.packing(other.model)


@find.register(MinimumRisk)
def _minimum_risk(settings: MinimumRisk, run: Run, asked: Asked) -> list[list[Hypothesis]]:
    candidates = find(settings.candidates, run, asked)
    judges = [None] * len(candidates) if settings.references is None else find(settings.references, run, asked)
    return [_least_risk(settings, run, *both) for both in zip(candidates, judges)]


@find.register(Rerank)
def _reranked(settings: Rerank, run: Run, asked: Asked) -> list[list[Hypothesis]]:
    if not asked.texts:
        raise UserError("reranking is for translations: continue a text with a beam, or sample")
    if settings.channel is not None and not all(isinstance(text, str) for text in asked.texts):
        raise UserError("a channel model writes the source, but vectors are no text: rerank by a language model alone")
    found = find(settings.candidates, run, asked)
    reranker = Reranker(settings.weights, *judges(run, settings.channel, settings.language))
    decode = run.target_tokenizer.decode
    nbest = [[Candidate(decode(h.tokens), h.score, len(h.tokens)) for h in some] for some in found]
    orders = reranker([str(text) for text in asked.texts], nbest)
    return [[some[number] for number in order[: settings.best]] for some, order in zip(found, orders)]


@find.register(Exact)
def _exact(settings: Exact, run: Run, asked: Asked) -> list[list[Hypothesis]]:
    if run.others:
        raise UserError("exact search proves what one model says, not what several say together: leave the others out")
    if asked.wishes != NO_WISHES:
        raise UserError("exact search looks at all translations: leave prefixes, required and forbidden phrases out")
    room = run.model.vocabulary - len(run.symbols.banned) - 1
    beam = Beam(min(BEGINNING, room), settings.length_penalty, length=settings.length)  # a good bound from the start
    begun = [some[0] for some in find(beam, run, asked)]
    symbols = run.symbols if asked.first is None else replace(run.symbols, start=asked.first)
    limits = limits_of(run, settings.length, asked.lengths)
    modes = exact_search(run.writers[0], asked.source, asked.lengths, symbols, limits, settings, begun)
    return [[mode.hypothesis._replace(proved=mode.proved)] for mode in modes]


def judges(
    run: Run, channel: str | OtherRun | None, language: str | OtherRun | None
) -> tuple[Scorer | None, Scorer | None]:
    """What scores for a reranking: a run from target to source, and one of a decoder alone."""

    def scorer(other: str | OtherRun | None) -> Scorer | None:
        if other is None:
            return None
        judge = run.opened(other)
        return lambda sources, targets: [scored.score for scored in judge.score(sources, targets)]

    return scorer(channel), scorer(language)


def limits_of(run: Run, length: Length, lengths: Tensor) -> Tensor:
    """B: how long targets of such sources may get, END counted in, by all models that write them."""
    limits = length.limits(lengths, run.model.room(lengths))
    for room in (model.room(lengths) for model in run.others):
        limits = limits if room is None else torch.minimum(limits, room.clamp(min=1))
    return limits


def _least_risk(
    settings: MinimumRisk, run: Run, candidates: list[Hypothesis], references: list[Hypothesis] | None
) -> list[Hypothesis]:
    """The candidates of a source that are chosen."""
    both = [
        None if some is None else ([run.target_tokenizer.decode(h.tokens) for h in some], [h.score for h in some])
        for some in (candidates, references)
    ]
    texts, scores = both[0] or ([], [])
    chosen = settings.choose(texts, scores, *(both[1] or (None, None)))
    return [candidates[number] for number, _ in chosen]
