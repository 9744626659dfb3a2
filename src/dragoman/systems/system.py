"""What a named system is: its function, its paper, its sizes."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dragoman.errors import UserError, unknown_name
from dragoman.models import ModelSpec
from dragoman.systems.vocabulary_sizes import VocabularySizes


@dataclass(frozen=True)
class PaperTraining:
    """How the paper trained a system: what `--recipe textbook` uses.

    `settings` are those of `training` in the configuration, `system` the system's own. The peak learning rate is
    `settings["learning_rate"]`, or that of a size in `rates`, or `noam` / √(width · warmup), the peak of the
    Transformer's schedule. Where the paper gives its warm-up for a training of `steps` steps, a training of another
    length has the same share of warm-up.
    """

    training_settings: Mapping[str, Any]
    system_settings: Mapping[str, Any] = field(default_factory=dict)
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    noam_factor: float | None = None
    total_steps: int | None = None
    #: in which respects the recipe is not the paper's
    differences: str = ""

    def __str__(self) -> str:
        shown: dict[str, Any] = dict(self.training_settings) | dict(self.system_settings)
        if self.noam_factor is not None:
            shown["learning_rate"] = f"{self.noam_factor:g}/√(model_dim · warmup_steps)"
        for size, rate in self.learning_rates.items():
            shown[f"learning_rate ({size})"] = rate
        if self.total_steps:
            shown["warmup_steps"] = f"{shown['warmup_steps']:,} of {self.total_steps:,} steps"
        written = {name: f"{value:g}" if isinstance(value, float) else value for name, value in shown.items()}
        return ", ".join(f"{name} {value}" for name, value in written.items())


@dataclass(frozen=True)
class System:
    """A named system: its function, its paper, its sizes, and how it is trained.

    `rate` is the peak learning rate with AdamW for a width of 1; it falls as 1/width: 0.4 is 0.0008 at a width of 512.
    """

    builder: Callable[..., ModelSpec]
    paper: str
    year: int
    sizes: Mapping[str, Mapping[str, Any]]
    base_learning_rate: float
    #: what it learns from pairs, text or turns, with settings, where that is not what all of its kind learn
    default_objectives: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    #: how the paper trained it
    paper_training: PaperTraining = field(kw_only=True)
    #: settings that learn better than the paper's; every recipe but textbook uses them
    tuned_settings: Mapping[str, Any] = field(default_factory=dict)
    #: further settings of the recipe modern
    modern_settings: Mapping[str, Any] = field(default_factory=dict)
    #: the recipe used by default
    default_recipe: Literal["plain", "modern"] = "plain"

    @property
    def summary(self) -> str:
        """The first sentence of what it says of itself, without its paper."""
        return (inspect.getdoc(self.builder) or "").splitlines()[0].rsplit(" (", 1)[0]

    def settings(self) -> dict[str, inspect.Parameter]:
        """What can be set, by name."""
        signature = inspect.signature(self.builder, eval_str=True)
        return {name: p for name, p in signature.parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}

    def model_dim(self, size: str, settings: Mapping[str, Any]) -> int:
        """The model's width in this size with these settings."""
        return settings.get("model_dim") or self.sizes[size].get("model_dim") or self.settings()["model_dim"].default

    def spec(self, vocabulary: VocabularySizes, size: str = "base", **settings: Any) -> ModelSpec:
        """The model's spec: the size's settings, then the user's."""
        if size not in self.sizes:
            raise unknown_name("size", size, self.sizes)
        known = self.settings()
        for name, value in settings.items():
            if name not in known:
                raise unknown_name(f"setting of {self.builder.__name__}", name, known)
            validate_setting(f"{self.builder.__name__}.{name}", value, known[name].annotation)
        return self.builder(vocabulary, **(dict(self.sizes[size]) | settings))


def validate_setting(name: str, value: Any, kind: Any) -> None:
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
