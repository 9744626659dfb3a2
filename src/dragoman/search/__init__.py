"""Search: from a model and a source to targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from dragoman.errors import UserError
from dragoman.models import Model
from dragoman.search.beam import BeamSearch
from dragoman.search.config_json import SearchConfig, read_search_config, search_from_dict, search_to_dict
from dragoman.search.configs import Beam, LengthLimit, Sample, TokenSearch
from dragoman.search.diverse import DiverseBeamSearch
from dragoman.search.engine import Hypothesis, LogitsProcessor, SearchEngine, SpecialTokens, Strategy
from dragoman.search.exact_search import ExactSearch
from dragoman.search.exhaustive import exhaustive_search
from dragoman.search.greedy import Greedy
from dragoman.search.logits_processors import NoRepeatNGram
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk
from dragoman.search.required_phrases import ConstrainedBeam
from dragoman.search.reranking import Rerank, RerankWeights
from dragoman.search.sampling import Sampling
from dragoman.search.speculative import Speculative

__all__ = [
    "Beam",
    "ExactSearch",
    "Hypothesis",
    "LengthLimit",
    "MinimumBayesRisk",
    "Rerank",
    "RerankWeights",
    "Sample",
    "SearchConfig",
    "SpecialTokens",
    "Speculative",
    "TokenSearch",
    "build_engine",
    "build_strategy",
    "exhaustive_search",
    "read_search_config",
    "search",
    "search_from_dict",
    "search_to_dict",
]


def search(
    model: Model,
    source: Tensor,
    lengths: Tensor,
    special_tokens: SpecialTokens,
    config: TokenSearch,
    keys: Tensor,
    max_lengths: Tensor | None = None,
) -> list[list[Hypothesis]]:
    """B S padded sources → the hypotheses of each, best first; `keys` (B) number the sources, for sampling.

    `limits` (B) say how long the targets may get, END counted in; unless told, the settings do.
    """
    if max_lengths is None:
        max_lengths = config.length_limit.max_lengths(lengths, model.max_target_length(lengths))
    return build_engine([model], special_tokens, config).search(source, lengths, max_lengths, keys)


def build_engine(
    models: Sequence[Model],
    special_tokens: SpecialTokens,
    config: TokenSearch,
    logits_processors: Sequence[LogitsProcessor] = (),
    has_required_phrases: bool = False,
    compile: bool = False,
) -> SearchEngine:
    """What searches with these models, as the settings say; `required`: for phrases that must be written.

    `compiled`: with kernels that are made for it, on a GPU.
    """
    room = models[0].vocab_size - len(special_tokens.suppressed) - 1
    if isinstance(config, Beam) and config.size > room:
        raise UserError(f"a beam of {config.size} is wider than the {room} words of the vocabulary: narrow it")
    own = [NoRepeatNGram(config.no_repeat_ngram_size)] if config.no_repeat_ngram_size else []
    special_tokens = replace(special_tokens, min_length=config.length_limit.min)
    return SearchEngine(
        models,
        special_tokens,
        build_strategy(config, special_tokens.eos, has_required_phrases),
        [*own, *logits_processors],
        compile,
    )


def build_strategy(config: TokenSearch, eos: int, has_required_phrases: bool = False) -> Strategy:
    """The way of choosing words that the settings describe."""
    if has_required_phrases and (isinstance(config, Sample) or config.num_groups > 1):
        raise UserError("required phrases are looked for by a plain beam: sample nothing, and part it into no groups")
    if isinstance(config, Sample):
        return Sampling(config, eos)
    if has_required_phrases:
        return ConstrainedBeam(config, eos)
    if config.num_groups > 1:
        return DiverseBeamSearch(config, eos)
    return Greedy(1, eos, config.length_divisor) if config.is_greedy else BeamSearch(config, eos)
