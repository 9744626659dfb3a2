"""The named systems: short functions that return specs, with their papers and sizes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.errors import UserError, unknown
from dragoman.models import EncoderDecoder
from dragoman.systems.recurrent import bahdanau, cho, luong, sutskever
from dragoman.systems.transformer import transformer
from dragoman.systems.vocabulary import Vocabulary

__all__ = ["SYSTEMS", "System", "Vocabulary", "system"]


@dataclass(frozen=True)
class System:
    """A named system: its function, its paper, its sizes, and the learning rate that suits it.

    The rate is given for a width of 1 and falls as 1/width: 0.4 is 0.0008 at a width of 512.
    """

    make: Callable[..., EncoderDecoder]
    paper: str
    year: int
    sizes: Mapping[str, Mapping[str, Any]]
    rate: float

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

    def spec(self, vocabulary: Vocabulary, size: str = "base", **settings: Any) -> EncoderDecoder:
        """The model's spec: the size's settings, then the user's."""
        if size not in self.sizes:
            raise unknown("size", size, self.sizes)
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise unknown(f"setting of {self.make.__name__}", name, known)
            _check(f"{self.make.__name__}.{name}", value, known[name].annotation)
        return self.make(vocabulary, **(dict(self.sizes[size]) | settings))


def _check(name: str, value: Any, kind: Any) -> None:
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


_RECURRENT_SIZES = {
    "tiny": {"width": 128, "layers": 1, "tied": True},
    "small": {"width": 256, "layers": 1, "tied": True},
    "base": {"width": 512, "tied": True},
    "big": {"width": 1000},
}

SYSTEMS: dict[str, System] = {
    "sutskever": System(
        sutskever,
        "Sequence to Sequence Learning with Neural Networks",
        2014,
        _RECURRENT_SIZES | {"tiny": {"width": 128, "layers": 2, "tied": True}},
        1.0,
    ),
    "cho": System(
        cho,
        "Learning Phrase Representations using RNN Encoder–Decoder for Statistical Machine Translation",
        2014,
        _RECURRENT_SIZES,
        1.0,
    ),
    "bahdanau": System(
        bahdanau,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        2015,
        _RECURRENT_SIZES,
        1.0,
    ),
    "luong": System(
        luong,
        "Effective Approaches to Attention-based Neural Machine Translation",
        2015,
        _RECURRENT_SIZES,
        1.0,
    ),
    "transformer": System(
        transformer,
        "Attention Is All You Need",
        2017,
        {
            "tiny": {"width": 128, "layers": 2, "heads": 4},
            "small": {"width": 256, "layers": 3, "heads": 4},
            "base": {},
            "big": {"width": 1024, "heads": 16, "dropout": 0.3},
        },
        0.4,
    ),
}


def system(name: str) -> System:
    if name not in SYSTEMS:
        raise unknown("system", name, SYSTEMS)
    return SYSTEMS[name]
