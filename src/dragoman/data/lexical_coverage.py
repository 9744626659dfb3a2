"""Coverage of source words by a translation: whether it contains a translation of them, by a lexical model p(t|s)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dragoman.data.lexical_model import learn_lexical_model, spread_rows
from dragoman.data.token_store import TokenStore

MAX_LEXICON_PAIRS = 5000  # sentence pairs that the model is learned from
MIN_OCCURRENCES = 5  # of a source token in these pairs, so that its usual coverage is known
COVERAGE_QUANTILE, COVERAGE_MARGIN = 0.01, 0.5  # a token is uncovered below this share of this quantile

TokenIds = Sequence[int] | NDArray[Any]


class LexicalCoverage:
    """Which source tokens no target token translates.

    The coverage of a source token s by a translation T is max_{t ∈ T} p(t|s) (IBM model 1, Brown et al. 1993). A token
    is uncovered if that is less than half of what 99 % of its occurrences in the training pairs have: function words,
    which often have no translation of their own, are hardly ever reported.
    """

    def __init__(self, store: TokenStore, sizes: tuple[int, int]) -> None:
        """Learn p(t|s) of a target token t given a source token s from training pairs, and which coverage is too low.

        The coverage of a source token is max_t p(t|s) over the target. Below half of what 99 % of its occurrences in
        the training pairs have, it counts as untranslated, unless it occurs less than MIN_OCCURRENCES times. `sizes`
        are those of the source and the target vocabulary.
        """
        self._model = learn_lexical_model(store, sizes, MAX_LEXICON_PAIRS)
        self._probabilities = self._model.probabilities()
        observed: dict[int, list[float]] = defaultdict(list)
        for row in spread_rows(store, MAX_LEXICON_PAIRS):
            source = store.source(row)
            for token, coverage in zip(source.tolist(), self.coverage(source, store.target(row)).tolist()):
                observed[token].append(coverage)
        #: token id → threshold of the coverage, below which the token counts as not translated
        self._min_coverage = {
            token: COVERAGE_MARGIN * float(np.quantile(values, COVERAGE_QUANTILE))
            for token, values in observed.items()
            if len(values) >= MIN_OCCURRENCES
        }

    def coverage(self, source: TokenIds, target: TokenIds) -> NDArray[np.float64]:
        """Return the coverage max_t p(t|s) of each source token s by the target tokens t; 0 without target tokens."""
        if not len(target) or not len(source) or not len(self._model.keys):
            return np.zeros(len(source))
        # the model has p(t|s) at the key s · V + t, where V is the size of the target vocabulary; 0 without a key
        keys = np.asarray(source, np.int64)[:, None] * self._model.target_size + np.asarray(target, np.int64)  # S T
        # where the keys are among the sorted keys of the model, if they are
        index = np.minimum(np.searchsorted(self._model.keys, keys), len(self._model.keys) - 1)
        return np.asarray(np.where(self._model.keys[index] == keys, self._probabilities[index], 0.0).max(1))

    def uncovered(self, source: Sequence[int], target: Sequence[int]) -> list[bool]:
        """Return for each source token whether no target token translates it, as far as the lexical model knows.

        Tokens that are rare in the training pairs never count as uncovered.
        """
        coverage = self.coverage(source, target).tolist()
        return [value < self._min_coverage.get(token, 0.0) for token, value in zip(source, coverage)]
