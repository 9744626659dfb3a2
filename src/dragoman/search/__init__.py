"""Search: from a model and sources to targets."""

from __future__ import annotations

from dragoman.search.config_json import read_search_config, search_from_dict, search_to_dict
from dragoman.search.configs import Beam, Sample
from dragoman.search.constraints import Constraints
from dragoman.search.engine import SearchEngine, SpecialTokens
from dragoman.search.exact_search import ExactSearch
from dragoman.search.minimum_bayes_risk import MinimumBayesRisk
from dragoman.search.probability_table import ProbabilityTable
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
    "ProbabilityTable",
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
    "search_from_dict",
    "search_to_dict",
]
