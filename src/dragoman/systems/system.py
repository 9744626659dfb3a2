"""What a named system is: its function, its paper, its sizes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dragoman.errors import UserError, unknown
from dragoman.models import ModelSpec
from dragoman.systems.vocabulary import Vocabulary


@dataclass(frozen=True)
class System:
    """A named system: its function, its paper, its sizes, and the learning rate that suits it.

    The rate is given for a width of 1 and falls as 1/width: 0.4 is 0.0008 at a width of 512.
    """

    make: Callable[..., ModelSpec]
    paper: str
    year: int
    sizes: Mapping[str, Mapping[str, Any]]
    rate: float
    #: what it learns from pairs, text or turns, with settings, where that is not what all of its kind learn
    objectives: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    #: settings of its own that are better than the paper's, as measured
    modern: Mapping[str, Any] = field(default_factory=dict)
    #: how the paper trained it, where that is not how the Transformer was trained
    paper_training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The first sentence of what it says of itself, without its paper."""
        return (inspect.getdoc(self.make) or "").splitlines()[0].rsplit(" (", 1)[0]

    def settings(self) -> dict[str, inspect.Parameter]:
        """What can be set, by name."""
        signature = inspect.signature(self.make, eval_str=True)
        return {name: p for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def width(self, size: str, settings: Mapping[str, Any]) -> int:
        """The model's width in this size with these settings."""
        return settings.get("width") or self.sizes[size].get("width") or self.settings()["width"].default

    def spec(self, vocabulary: Vocabulary, size: str = "base", **settings: Any) -> ModelSpec:
        """The model's spec: the size's settings, then the user's."""
        if size not in self.sizes:
            raise unknown("size", size, self.sizes)
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise unknown(f"setting of {self.make.__name__}", name, known)
            check_setting(f"{self.make.__name__}.{name}", value, known[name].annotation)
        return self.make(vocabulary, **(dict(self.sizes[size]) | settings))


def check_setting(name: str, value: Any, kind: Any) -> None:
    options = typing.get_args(kind) or (kind,)
    accepted = tuple(o for o in options if isinstance(o, type))
    wide = (*accepted, int) if float in accepted else accepted
    fits = (
        value in options if not accepted else isinstance(value, wide) and (bool in wide or not isinstance(value, bool))
    )
    if not fits:
        names = " or ".join("nothing" if o is type(None) else getattr(o, "__name__", repr(o)) for o in options)
        raise UserError(f"{name} must be {names}, but is {value!r}")
    if int in accepted and value is not None and value < 1:
        raise UserError(f"{name} must be at least 1, but is {value}")
    if name.endswith("dropout") and not 0 <= value < 1:
        raise UserError(f"{name} must be at least 0 and below 1, but is {value}")
