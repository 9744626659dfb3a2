"""Results of a preparation that several runs share: the survey of the corpus, tokenizers and token stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class PreparationCache:
    """Results by what they were computed from, so that runs with equal text settings compute them only once."""

    def __init__(self) -> None:
        """Start without results."""
        self.results: dict[str, Any] = {}

    def compute_once(self, compute: Callable[[], Result], *inputs: object) -> Result:
        """Return what `compute` returned for equal inputs before; otherwise call it.

        Inputs are compared by their representation (`repr`), which shows all fields of settings.
        """
        key = repr(inputs)
        if key not in self.results:
            self.results[key] = compute()
        result: Result = self.results[key]
        return result
