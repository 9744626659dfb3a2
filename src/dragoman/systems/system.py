"""Named systems: the builder of the spec, the paper, the sizes and the training settings of each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import update_wrapper
from typing import Any, Literal, TypeVar

from dragoman.errors import UserError, unknown_name
from dragoman.models import EncoderDecoder, ModelSpec
from dragoman.parts.copying import Copying
from dragoman.parts.spec import check_type

BaseSpec = TypeVar("BaseSpec", bound=ModelSpec)


@dataclass(frozen=True)
class VocabularySizes:
    """Number of tokens of the source and target tokenizers; `joint`: one tokenizer serves source and target.

    `features` are the ids of feature symbols in the source vocabulary.
    """

    source: int
    target: int
    joint: bool = False
    features: range = range(0)


@dataclass(frozen=True)
class PaperTraining:
    """Training settings of a system's paper, used by `--recipe textbook`.

    The fields up to `nesterov` have the names and meanings of `TrainingConfig`; None leaves the configuration's
    default. The peak learning rate is `learning_rate`, or `learning_rates[size]`, or
    `noam_factor` / √(model_dim · warmup_steps), the peak of the Transformer's schedule (Vaswani et al. 2017, §5.3).
    If the paper states the warm-up for a training of `total_steps` steps, a training of another length has the same
    fraction of warm-up.
    """

    optimizer: str
    schedule: str
    learning_rate: float | None = None
    warmup_steps: int = 0
    clip_norm: float = 0.0
    label_smoothing: float | None = None
    loss_normalization: str | None = None
    warmup_start_factor: float | None = None
    hold_steps: int | None = None
    final_rate_factor: float | None = None
    plateau_factor: float | None = None
    halving_start_epoch: float | None = None
    halving_interval: float | None = None
    beta1: float | None = None
    beta2: float | None = None
    epsilon: float | None = None
    weight_decay: float | None = None
    momentum: float | None = None
    nesterov: bool | None = None
    dropout: float | None = None  # of the system
    cell: str | None = None  # of the system
    tokenizer: str | None = None  # of the text
    learning_rates: Mapping[str, float] = field(default_factory=dict)  # by size
    noam_factor: float | None = None
    total_steps: int | None = None

    @property
    def training_settings(self) -> dict[str, Any]:
        """Training settings that the paper states, by name: those of the fields before `dropout` that are not None."""
        field_names = list(PaperTraining.__dataclass_fields__)
        return self._not_none(field_names[: field_names.index("dropout")])

    @property
    def system_settings(self) -> dict[str, Any]:
        """Settings of the model that belong to the paper's training: recurrent cell and dropout, unless None."""
        return self._not_none(["cell", "dropout"])

    def _not_none(self, field_names: list[str]) -> dict[str, Any]:
        """Return the values of the named fields that are not None, by name."""
        return {name: getattr(self, name) for name in field_names if getattr(self, name) is not None}

    def __str__(self) -> str:
        """Return the settings in one line, such as "optimizer adam, schedule constant".

        A learning rate by formula or by size, and the total steps that a warm-up is a part of, are written out.
        """
        shown: dict[str, Any] = self.training_settings | self.system_settings | self._not_none(["tokenizer"])
        if self.noam_factor is not None:
            # the peak of the Transformer's schedule
            shown["learning_rate"] = f"{self.noam_factor:g}/√(model_dim · warmup_steps)"
        for size, rate in self.learning_rates.items():
            shown[f"learning_rate ({size})"] = rate
        if self.total_steps:
            shown["warmup_steps"] = f"{self.warmup_steps:,} of {self.total_steps:,} steps"
        formatted = {name: f"{value:g}" if isinstance(value, float) else value for name, value in shown.items()}
        return ", ".join(f"{name} {value}" for name, value in formatted.items())


#: Adam with the values of its paper (Kingma & Ba 2015), a constant rate and no label smoothing
ADAM_TRAINING = PaperTraining("adam", "constant", label_smoothing=0.0, beta2=0.999, epsilon=1e-8)


@dataclass(frozen=True)
class System:
    """A named system.

    Attributes:
        builder: function from vocabulary sizes and settings (keyword-only parameters) to the spec of the model.
        sizes: settings of the sizes tiny, small, base and big.
        differences: how the recipe `textbook` differs from the training in the paper.
        base_learning_rate: peak learning rate with AdamW, times the model dimension: 0.4 gives 0.0008 for 512.
        default_objectives: objective and its settings by data format (`pairs`, `text`, `turns`), where it differs
            from the default of the model kind.
        objective_settings: further settings of that objective by size, where the paper's differ.
        tuned_settings: settings that train better than the paper's; used by every recipe but `textbook`.
        modern_settings: further settings of the recipe `modern`.
        small_corpus_objective: settings of the objective that help on few pairs.
        training_length: default number of training steps, relative to that of other systems.
    """

    builder: Callable[..., ModelSpec]
    paper: str
    year: int
    sizes: Mapping[str, Mapping[str, Any]]
    paper_training: PaperTraining
    differences: str = ""
    base_learning_rate: float = 0.4
    default_objectives: Mapping[str, tuple[str, Mapping[str, Any]]] = field(default_factory=dict)
    objective_settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tuned_settings: Mapping[str, Any] = field(default_factory=dict)
    modern_settings: Mapping[str, Any] = field(default_factory=dict)
    small_corpus_objective: Mapping[str, Any] = field(default_factory=dict)
    training_length: float = 1.0
    default_recipe: Literal["plain", "modern"] = "modern"

    def default_objective(self, content: str, size: str | None) -> tuple[str, dict[str, Any]] | None:
        """Return the name and the settings of the system's own training objective for a kind of data.

        None: the default of the model's class is used. `content` is the kind of data ("pairs", "text", "turns"), `size`
        the size of the model ("base", …), on which some settings depend; None if it is not given.
        """
        if content not in self.default_objectives:
            return None
        name, settings = self.default_objectives[content]
        return name, dict(settings) | dict(self.objective_settings.get(size or "", {}))

    @property
    def summary(self) -> str:
        """One line that describes the system: the first line of its builder's docstring, without the citation."""
        return (inspect.getdoc(self.builder) or "").splitlines()[0].rsplit(" (", 1)[0]

    def settings(self) -> dict[str, inspect.Parameter]:
        """The settings of the system by name: the keyword-only parameters of its builder."""
        return builder_settings(self.builder)

    def model_dim(self, size: str, settings: Mapping[str, Any]) -> int:
        """Return the model dimension: that of the user's `settings`, else of `size` ("base", …), else the builder's."""
        default = self.sizes[size].get("model_dim") or self.settings()["model_dim"].default
        return settings.get("model_dim") or default

    def spec(self, vocabulary: VocabularySizes, size: str = "base", **settings: Any) -> ModelSpec:
        """Build the spec (description) of the model with the settings of `size`, overridden by `settings`.

        An unknown size, an unknown setting, or a value of a wrong type or range is a UserError.
        """
        if size not in self.sizes:
            raise unknown_name("size", size, self.sizes)
        supported = self.settings()
        for name, value in settings.items():
            if name not in supported:
                raise unknown_name(f"setting of {self.builder.__name__}", name, supported)
            validate_setting(f"{self.builder.__name__}.{name}", value, supported[name].annotation)
        return self.builder(vocabulary, **(dict(self.sizes[size]) | settings))


def builder_settings(builder: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the settings of a system: the keyword-only parameters of the `builder` of its model's spec."""
    parameters = inspect.signature(builder, eval_str=True).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY}


def variant_of(
    base: Callable[..., BaseSpec], *, excluded: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., BaseSpec]], Callable[..., BaseSpec]]:
    """Decorator for a system that differs a little from another one: it makes a builder of a function of a spec.

    The builder of a system is a function from vocabulary sizes and settings to the spec of a model. The decorated
    function gets the spec that the builder `base` returns, and the settings of the variant as keyword-only parameters,
    and returns the changed spec. The resulting builder has the settings of both, without those of `base` that are named
    in `excluded`. `defaults` are other default values for settings of `base`, including the excluded ones.

        @variant_of(transformer, excluded=["position_encoding"], position_encoding="learned")
        def bart(spec: EncoderDecoder) -> EncoderDecoder:
            return replace_everywhere(spec, FeedForward, activation="gelu")
    """

    def decorate(change: Callable[..., BaseSpec]) -> Callable[..., BaseSpec]:
        """Return the builder of the variant, which accepts the settings of `base` and those of `change`."""
        variant_settings = builder_settings(change)
        inherited = {
            name: parameter.replace(default=defaults.get(name, parameter.default))
            for name, parameter in builder_settings(base).items()
            if name not in excluded and name not in variant_settings
        }

        vocabulary = inspect.Parameter(
            "vocabulary", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=VocabularySizes
        )
        signature = inspect.Signature([vocabulary, *inherited.values(), *variant_settings.values()])

        def builder(vocabulary: VocabularySizes, **settings: Any) -> BaseSpec:
            """Build the spec of `base` with its settings, and change it with those of the variant."""
            signature.bind(vocabulary, **settings)  # raises a TypeError for unknown settings
            base_values = {name: value for name, value in settings.items() if name in inherited}
            variant_values = {name: value for name, value in settings.items() if name in variant_settings}
            return change(base(vocabulary, **(defaults | base_values)), **variant_values)

        update_wrapper(builder, change)  # copies name and docstring
        builder.__signature__ = signature  # type: ignore[attr-defined]  # where `builder_settings` reads the settings
        return builder

    return decorate


def with_copying(builder: Callable[..., EncoderDecoder]) -> Callable[..., EncoderDecoder]:
    """Decorator that adds two settings to the builder of an encoder–decoder: `copying` and `coverage_loss`.

    With them, the output layer can also copy source tokens (pointer–generator, See et al. 2017).
    """

    @variant_of(builder)
    def copying_builder(spec: EncoderDecoder, *, copying: bool = False, coverage_loss: float = 0.0) -> EncoderDecoder:
        """Let the output layer also copy source tokens if `copying`.

        `coverage_loss` is the weight of the loss that keeps it from attending to a source token twice; 0: none.
        """
        if coverage_loss and not copying:
            raise UserError(
                f"system.settings.coverage_loss={coverage_loss:g} is the weight of a loss on the attention that copies "
                "source tokens, but this model does not copy: set system.settings.copying to true as well"
            )
        return replace(spec, copying=Copying(coverage_loss) if copying else None)

    return update_wrapper(copying_builder, builder)  # keeps name and docstring of the system


#: settings of `with_copying`, which systems that read no tokens leave out
COPYING_SETTINGS = ("copying", "coverage_loss")


def model_sizes(
    *, base: Mapping[str, Any] | None = None, big: Mapping[str, Any], **tiny_and_small: Any
) -> dict[str, dict[str, Any]]:
    """Return the settings of a system in the sizes tiny, small, base and big, where they differ from its defaults.

    `base` and `big` are settings of these two sizes. Tiny and small have model dimensions 128 and 256; every other
    keyword is a setting of tiny and small, with one value for both or a pair (tiny, small):

        model_sizes(layers=(2, 3), heads=4, big={"model_dim": 1024, "heads": 16})
    """
    tiny: dict[str, Any] = {"model_dim": 128}
    small: dict[str, Any] = {"model_dim": 256}
    for name, value in tiny_and_small.items():
        tiny[name], small[name] = value if isinstance(value, tuple) else (value, value)
    return {"tiny": tiny, "small": small, "base": dict(base or {}), "big": dict(big)}


def validate_setting(name: str, value: Any, annotation: Any) -> None:
    """Raise a UserError unless the value of the setting `name` has the annotated type and a valid range.

    Integers must be at least 1, unless the annotation is a Literal, and settings whose names end in "dropout" at least
    0 and below 1.
    """
    check_type(name, value, annotation)
    # whether the annotation is `int` or a union with it, such as `int | None`; a Literal lists its values itself
    is_integer = isinstance(value, int) and int in (typing.get_args(annotation) or (annotation,))
    if is_integer and value < 1:
        raise UserError(f"the setting {name} must be at least 1, but is {value}: change it")
    if name.endswith("dropout") and not 0 <= value < 1:
        raise UserError(f"the setting {name} must be at least 0 and below 1, but is {value}: change it")
