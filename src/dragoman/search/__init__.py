"""Search: from a model and sources to targets."""

from __future__ import annotations

from torch import Tensor

from dragoman.models import Model
from dragoman.search.config_json import read_search_config, search_from_dict, search_to_dict
from dragoman.search.configs import Beam, Sample
from dragoman.search.constraints import Constraints
from dragoman.search.engine import SearchEngine, SpecialTokens
from dragoman.search.exact_search import ExactSearch
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk
from dragoman.search.reranking import Rerank, RerankWeights
from dragoman.search.search_config import LengthLimit, OtherRun, SearchConfig, SearchRequest, TokenSearch, build_engine
from dragoman.search.search_state import Hypothesis, SearchState
from dragoman.search.speculative import Speculative

__all__ = [
    "Beam",
    "Constraints",
    "ExactSearch",
    "Hypothesis",
    "LengthLimit",
    "MinimumBayesRisk",
    "OtherRun",
    "Rerank",
    "RerankWeights",
    "Sample",
    "SearchConfig",
    "SearchEngine",
    "SearchRequest",
    "SearchState",
    "SpecialTokens",
    "Speculative",
    "TokenSearch",
    "build_engine",
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
    """Return the hypotheses of each source, best first.

    Args:
        source: B S, padded.
        lengths: B.
        keys: B, numbers of the sources, from which samples are drawn.
        max_lengths: B, of the targets, EOS included; None: by `config.length_limit`.
    """
    if max_lengths is None:
        max_lengths = config.length_limit.max_lengths(lengths, model.max_target_length(lengths))
    return build_engine([model], special_tokens, config).search(source, lengths, max_lengths, keys)
