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
from dragoman.run.translation_constraints import Constraints
from dragoman.search import (
    Beam,
    ExactSearch,
    Hypothesis,
    LengthLimit,
    MinimumBayesRisk,
    Rerank,
    Sample,
    SearchConfig,
    SpecialTokens,
    Speculative,
    build_engine,
)
from dragoman.search.configs import OtherRun
from dragoman.search.engine import SearchEngine
from dragoman.search.exact_search import exact_search
from dragoman.search.reranking import Candidate, Reranker, Scorer
from dragoman.search.speculative import AcceptanceStats, SpeculativeEngine

if TYPE_CHECKING:
    from dragoman.run.run import Run
    from dragoman.run.sources import Source

StepByStep = Beam | Sample | Speculative  # searches that write word by word
NO_WISHES = Constraints()
ENGINES = 4  # that a run keeps
BEGINNING = 5  # the beam that exact search begins with


@dataclass(frozen=True)
class SearchRequest:
    """Sources for a search: padded, B S or B S F, with their lengths and numbers (B), and what is asked of targets."""

    source: Tensor
    lengths: Tensor
    keys: Tensor
    texts: Sequence[Source] = ()  # as they came, where they are to be translated
    first_token: Tensor | None = None  # B: the tokens that targets are begun after, where they are not START
    constraints: Constraints = NO_WISHES
    max_batch_size: int | None = None  # sources that are searched at a time


@singledispatch
def decode(settings: SearchConfig, run: Run, asked: SearchRequest) -> list[list[Hypothesis]]:
    """The hypotheses of each source, best first."""
    raise TypeError(f"{type(settings).__name__} describes no search that a run can do")


@decode.register(Beam)
@decode.register(Sample)
@decode.register(Speculative)
def _step_by_step(settings: StepByStep, run: Run, asked: SearchRequest) -> list[list[Hypothesis]]:
    searching, given = prepared(settings, run, asked)
    if run.shortlist is None:
        return searching.search(*given)
    source, lengths, limits, keys, wishes, most = given
    if (
        asked.constraints.include is not None
        or asked.constraints.exclude is not None
        or isinstance(settings, Speculative)
    ):
        raise UserError("a shortlist knows few words: leave it out with phrases to require or forbid, and with a draft")
    prefixes = [wishes["prefix"]] if "prefix" in wishes else []
    chosen = run.shortlist.select(source, searching.special_tokens, prefixes)
    models, symbols = (
        [model.restrict_vocabulary(chosen.token_ids) for model in searching.models],
        chosen.local_special_tokens(searching.special_tokens),
    )
    few = build_engine(models, symbols, settings, asked.constraints.logits_processors)
    return chosen.to_global(few.search(source, lengths, limits, keys, chosen.local_constraints(wishes), most))


def prepared(settings: StepByStep, run: Run, asked: SearchRequest) -> tuple[SearchEngine, tuple[Any, ...]]:
    """What searches step by step, and what it is to be given."""
    symbols = run.special_tokens if asked.first_token is None else replace(run.special_tokens, bos=asked.first_token)
    limits = length_limits(run, settings.length_limit, asked.lengths)
    plain = settings.search if isinstance(settings, Speculative) else settings
    searching = _engine(run, symbols, plain, asked)
    if isinstance(settings, Speculative):
        searching = SpeculativeEngine(searching, draft_model(run, settings), settings.draft_tokens)
    wishes = asked.constraints.to_tensors(run.target_tokenizer, limits, len(symbols.forced_bos))
    return searching, (asked.source, asked.lengths, limits, asked.keys, wishes, asked.max_batch_size)


def _engine(run: Run, symbols: SpecialTokens, settings: Beam | Sample, asked: SearchRequest) -> SearchEngine:
    """What searches: where the run keeps them, the same as before, which knows how to do its steps quickly."""
    if (
        run.engine_cache is None
        or asked.constraints.logits_processors
        or asked.constraints.include is not None
        or asked.first_token is not None
    ):
        return build_engine(
            run.inference_models,
            symbols,
            settings,
            asked.constraints.logits_processors,
            asked.constraints.include is not None,
        )
    models = run.inference_models
    key = (settings, *(weight.data_ptr() for model in models for weight in model.parameters()))
    if key not in run.engine_cache:
        while len(run.engine_cache) >= ENGINES:
            run.engine_cache.pop(next(iter(run.engine_cache)))
        run.engine_cache[key] = build_engine(models, symbols, settings, compile=run.compile_steps)
    return run.engine_cache[key]


def acceptance(run: Run, texts: Sequence[Source], settings: Speculative) -> AcceptanceStats:
    """How many of the words that a draft proposes for some texts the run would have written itself."""
    total = AcceptanceStats()
    for text in texts:
        source, lengths = run.pad_batch(run.encode_sources([text]), run.framing.pad)
        searching, given = prepared(settings, run, SearchRequest(source, lengths, torch.tensor([0])))
        assert isinstance(searching, SpeculativeEngine)
        searching.search(*given)
        total += searching.acceptance
    return total


def draft_model(run: Run, settings: Speculative) -> Model:
    """The model that drafts for a run."""
    other = run.open_run(settings.draft_model)
    run.check_same_vocabulary(other, "a draft is read by the run itself, token by token")
    return run.inference_weights(other.model)


@decode.register(MinimumBayesRisk)
def _minimum_risk(settings: MinimumBayesRisk, run: Run, asked: SearchRequest) -> list[list[Hypothesis]]:
    candidates = decode(settings.candidates, run, asked)
    judges = [None] * len(candidates) if settings.references is None else decode(settings.references, run, asked)
    return [_least_risk(settings, run, *both) for both in zip(candidates, judges)]


@decode.register(Rerank)
def _reranked(settings: Rerank, run: Run, asked: SearchRequest) -> list[list[Hypothesis]]:
    if not asked.texts:
        raise UserError("reranking is for translations: continue a text with a beam, or sample")
    if settings.channel_model is not None and not all(isinstance(text, str) for text in asked.texts):
        raise UserError("a channel model writes the source, but vectors are no text: rerank by a language model alone")
    found = decode(settings.candidates, run, asked)
    reranker = Reranker(settings.weights, *reranking_scorers(run, settings.channel_model, settings.language_model))
    nbest = [[Candidate(run.target_tokenizer.decode(h.tokens), h.score, len(h.tokens)) for h in some] for some in found]
    orders = reranker([str(text) for text in asked.texts], nbest)
    return [[some[number] for number in order[: settings.n_best]] for some, order in zip(found, orders)]


@decode.register(ExactSearch)
def _exact(settings: ExactSearch, run: Run, asked: SearchRequest) -> list[list[Hypothesis]]:
    if run.ensemble_members:
        raise UserError("exact search proves what one model says, not what several say together: leave the others out")
    if asked.constraints != NO_WISHES:
        raise UserError("exact search looks at all translations: leave prefixes, required and forbidden phrases out")
    room = run.model.vocab_size - len(run.special_tokens.suppressed) - 1
    beam = Beam(
        min(BEGINNING, room), settings.length_penalty, length_limit=settings.length_limit
    )  # a good bound from the start
    begun = [some[0] for some in decode(beam, run, asked)]
    symbols = run.special_tokens if asked.first_token is None else replace(run.special_tokens, bos=asked.first_token)
    limits = length_limits(run, settings.length_limit, asked.lengths)
    modes = exact_search(run.inference_models[0], asked.source, asked.lengths, symbols, limits, settings, begun)
    return [[mode.hypothesis._replace(proven_optimal=mode.proven_optimal)] for mode in modes]


def reranking_scorers(
    run: Run, channel: str | OtherRun | None, language: str | OtherRun | None
) -> tuple[Scorer | None, Scorer | None]:
    """What scores for a reranking: a run from target to source, and one of a decoder alone."""

    def scorer(other: str | OtherRun | None) -> Scorer | None:
        if other is None:
            return None
        judge = run.open_run(other)
        return lambda sources, targets: [scored.score for scored in judge.score(sources, targets)]

    return scorer(channel), scorer(language)


def length_limits(run: Run, length: LengthLimit, lengths: Tensor) -> Tensor:
    """B: how long targets of such sources may get, END counted in, by all models that write them."""
    limits = length.max_lengths(lengths, run.model.max_target_length(lengths))
    for room in (model.max_target_length(lengths) for model in run.ensemble_members):
        limits = limits if room is None else torch.minimum(limits, room.clamp(min=1))
    return limits


def _least_risk(
    settings: MinimumBayesRisk, run: Run, candidates: list[Hypothesis], references: list[Hypothesis] | None
) -> list[Hypothesis]:
    """The candidates of a source that are chosen."""
    both = [
        None if some is None else ([run.target_tokenizer.decode(h.tokens) for h in some], [h.score for h in some])
        for some in (candidates, references)
    ]
    texts, scores = both[0] or ([], [])
    chosen = settings.choose(texts, scores, *(both[1] or (None, None)))
    return [candidates[number] for number, _ in chosen]
