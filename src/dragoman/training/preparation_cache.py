"""Results of a preparation that several runs share: the survey of the corpus, tokenizers and token stores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class PreparationCache:
    """Results by what they were computed from, so that runs with equal text settings compute them only once."""

    def __init__(self) -> None:
        """Start empty; `results` maps the representation of inputs to what was computed from them."""
        self.results: dict[str, Any] = {}

    def compute_once(self, compute: Callable[[], Result], *inputs: object) -> Result:
        """Return the stored result for these inputs, or call `compute()` and store its result.

        `inputs` are everything that the result depends on. They are compared by `repr`, which shows all fields of a
        configuration.
        """
        key = repr(inputs)
        if key not in self.results:
            self.results[key] = compute()
        result: Result = self.results[key]
        return result
