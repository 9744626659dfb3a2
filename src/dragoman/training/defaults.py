"""Choices: what the user has left open, chosen by the amount of data and the device, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.config import TRAINING_DEFAULTS, Config
from dragoman.data import DataFormat, TokenStore
from dragoman.errors import UserError
from dragoman.models import DecoderOnly, EncoderDecoder, EncoderOnly, ModelSpec, ReplacedTokens, meta_model
from dragoman.models.flops import training_flops
from dragoman.objectives import check_objective, objective_class
from dragoman.parts.spec import Spec
from dragoman.systems import SYSTEMS
from dragoman.text.untranslatable import CopyEvidence
from dragoman.training.checkpoint_selection import check_metric, default_metric
from dragoman.training.recipes import Recipe, default_recipe, default_steps, get_recipe
from dragoman.training.schedule import SCHEDULES_WITH_END
from dragoman.training.training_budget import pluralize
from dragoman.training.validation import MAX_DECODED_SENTENCES

#: what each kind of model learns from such data, unless its system says otherwise
DEFAULTS: dict[type[Spec], dict[str, str]] = {
    EncoderDecoder: {"pairs": "translation", "text": "denoising", "features": "translation"},
    DecoderOnly: {"pairs": "translation", "text": "language", "turns": "dialogue"},
    EncoderOnly: {"pairs": "tagging", "text": "masked"},
    ReplacedTokens: {"text": "replaced", "pairs": "tagging"},
}


#: pairs of which there are few: fewer are learned by heart if nothing is done against it
LOW_RESOURCE_PAIRS = 100_000

#: target tokens trained on for each one decoded in a validation, by which a beam of 5 takes about a tenth of the time
DECODING_COST = 40

#: sentences decoded in a validation for each minute of a budget of time
DECODED_PER_MINUTE = 50

#: operations of a training from which on a minute of compiling is made up for
WORTH_COMPILING = 8e15


@dataclass(frozen=True)
class Choice:
    """A setting that was chosen, why, and so how to choose otherwise: `--set SETTING=…`."""

    setting: str
    value: object
    reason: str

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        return f"{self.setting}={value}  ({self.reason})"


def choose_vocab_size(config: Config, words: int) -> tuple[Config, list[Choice]]:
    """The size of the vocabulary: 8·√words, by which rare pieces are still seen often enough to be learned."""
    if config.text.vocab_size is not None or config.text.tokenizer == "byte":
        return config, []
    size = max(500, min(32_000, round(8 * math.sqrt(words), -2)))
    chosen = replace(config, text=replace(config.text, vocab_size=int(size)))
    return chosen, [
        Choice("text.vocab_size", int(size), f"8·√words for the {words:,} words of the corpus, at most 32,000")
    ]


def choose_copying(config: Config, reading: DataFormat, evidence: CopyEvidence) -> tuple[Config, list[Choice]]:
    """Whether lines without letters are copied in translation, unless it was said: see `CopyEvidence`."""
    if config.search.copy_untranslatable is not None:
        return config, []
    copies = reading.is_translation and objective_class(config.objective.name or "").generates and evidence.copies
    why = "lines of numbers, punctuation or addresses; the training targets keep them too"
    choices = [Choice("search.copy_untranslatable", True, why)] if copies else []
    return replace(config, search=replace(config.search, copy_untranslatable=copies)), choices


def choose_objective(config: Config, spec: ModelSpec, holds: str) -> Config:
    """What to learn from data that holds pairs, text alone or turns, unless it was said."""
    name, settings = config.objective.name, config.objective.settings
    if name is None:
        own = SYSTEMS[config.system.name].default_objectives if config.system.name in SYSTEMS else {}
        name, chosen = own.get(holds) or (DEFAULTS[type(spec)].get(holds), {})
        if name is None:
            wanted = " or ".join(DEFAULTS[type(spec)])
            raise UserError(
                f"{config.system.name} learns from {wanted}, but the data holds {holds}: give it other files"
            )
        settings = dict(chosen) | settings
    check_objective(name, settings)
    return replace(config, objective=replace(config.objective, name=name, settings=settings))


def choose_selection_metric(config: Config, references: Sequence[str]) -> tuple[Config, list[Choice]]:
    """The metric by which the best checkpoint is selected, by objective and validation references."""
    if config.training.selection_metric != "auto":
        check_metric(config.training.selection_metric, references)
        return config, []
    metric, why = default_metric(objective_class(config.objective.name or "translation"), references)
    training = replace(config.training, selection_metric=metric)  # type: ignore[arg-type]
    return replace(config, training=training), [Choice("training.selection_metric", metric, why)]


def choose_settings(
    config: Config,
    spec: ModelSpec,
    store: TokenStore,
    device: str,
    build: Callable[[Config], ModelSpec] | None = None,
) -> tuple[Config, list[Choice]]:
    """Recipe, system size, batch and the rest; `build` makes a new system, one that goes on is left as it is."""
    named = SYSTEMS.get(config.system.name or "")
    name = config.training.recipe if config.training.recipe != "auto" else default_recipe(named)
    how = get_recipe(name, named)
    asked = config.training.recipe
    config = _with_recipe(config, name, how)
    reason = f"{config.training.resolved('optimizer')}, {config.training.resolved('schedule')}; {how.reason}"
    choices = [] if asked == name and not how.paper else [Choice("training.recipe", name, reason)]
    if build is not None:
        config, more = _choose_system(config, how, len(store), device)
        choices += more
        spec = build(config)
    config, more = _choose_segmentation(config, how, len(store))
    choices += more
    config, more = _choose_training(config, how, spec, store, device)
    return config, choices + more


def _with_recipe(config: Config, name: str, how: Recipe) -> Config:
    """What the recipe says where the user has said nothing."""
    training = config.training
    values = {key: value for key, value in how.training.items() if getattr(training, key) is None}
    return replace(config, training=replace(training, **{"recipe": name, **values}))


def _choose_segmentation(config: Config, how: Recipe, pairs: int) -> tuple[Config, list[Choice]]:
    """BPE dropout, where the recipe has it, for texts that are few."""
    text = config.text
    if text.bpe_dropout is not None:
        return config, []
    suits = (
        text.tokenizer == "bpe"
        and config.objective.name == "translation"
        and config.system.size != "tiny"
        and pairs < LOW_RESOURCE_PAIRS
    )
    rate = how.bpe_dropout if suits else 0.0
    why = "every epoch sees the words cut into other pieces, which helps where pairs are few"
    choices = [Choice("text.bpe_dropout", rate, why)] if rate else []
    return replace(config, text=replace(text, bpe_dropout=rate)), choices


def _choose_system(config: Config, how: Recipe, pairs: int, device: str) -> tuple[Config, list[Choice]]:
    choices: list[Choice] = []
    size, settings = config.system.size, dict(config.system.settings)
    gpu = device.startswith("cuda")
    named = SYSTEMS.get(config.system.name or "")
    if size is None:
        size = _size(pairs, gpu)
        choices.append(Choice("system.size", size, f"for {pairs:,} rows on {'a GPU' if gpu else 'a CPU'}"))
    if how.dropout is not None and "dropout" not in settings and pairs < LOW_RESOURCE_PAIRS and size != "tiny":
        settings["dropout"] = how.dropout
        why = f"{pairs:,} rows are few, and are learned by heart without it"
        choices.append(Choice("system.settings.dropout", how.dropout, why))
    for key, value in how.system.items():
        if key not in settings and named is not None:
            settings[key] = value
            if value != (own := named.settings()[key].default):
                why = f"the paper's; {own} by default" if how.paper else f"learns better than the paper's {own}"
                choices.append(Choice(f"system.settings.{key}", value, why))
    return replace(config, system=replace(config.system, size=size, settings=settings)), choices


def _choose_training(
    config: Config, how: Recipe, spec: ModelSpec, store: TokenStore, device: str
) -> tuple[Config, list[Choice]]:
    choices: list[Choice] = []
    training, gpu = config.training, device.startswith("cuda")
    lengths, target_tokens = store.length_counts(), store.columns[1].tokens + len(store)

    def choose_one(setting: str, value: Any, reason: str) -> Any:
        choices.append(Choice(f"training.{setting}", value, reason))
        return value

    tokens = training.batch_tokens
    if tokens is None:
        tokens = max(_batch(target_tokens, gpu), 2 * config.data.max_length + 4)
        choose_one("batch_tokens", tokens, "tokens a batch, by the amount of data and the device")
    elif tokens < store.max_length + 2:
        raise UserError(
            f"training.batch_tokens is {tokens:,}, but the longest sentence, of {store.max_length:,} tokens, must fit a "
            "batch: raise it, or lower data.max_length"
        )
    places = int(meta_model(spec).row_length(lengths.source + 1, lengths.target + 1) @ lengths.pairs)
    an_epoch = max(1, math.ceil(places / (0.95 * tokens * training.gradient_accumulation)))
    steps = training.steps
    if training.schedule in SCHEDULES_WITH_END and steps is None and training.epochs is None:
        steps = default_steps(target_tokens, tokens * training.gradient_accumulation)
        end = "then" if training.minutes is None else f"then, or after {pluralize(training.minutes, 'minute')}"
        why = f"about {steps / an_epoch:.0f} epochs, by the amount of data; the learning rate falls to zero by {end}"
        choose_one("steps", steps, why)
    limits = [steps, training.epochs and training.epochs * an_epoch]
    planned = min((limit for limit in limits if limit is not None), default=None)  # steps, unless patience ends it
    warmup = training.warmup_steps
    if warmup is None and (own := how.warmup_steps(planned)) is not None:
        warmup = choose_one("warmup_steps", *own)
    if warmup is None:
        warmup = min(4000, max(100, 4 * an_epoch))
        warmup = warmup if planned is None else max(1, min(warmup, planned // 10))
        least = "" if training.minutes is None else ", at most a tenth of the time"
        choose_one("warmup_steps", warmup, f"about {warmup / an_epoch:.1f} epochs of about {an_epoch:,} steps{least}")
    learning_rate = training.learning_rate
    if learning_rate is None:
        started = training.start_from is not None
        learning_rate = choose_one(
            "learning_rate", *how.peak_learning_rate(spec.dim, warmup, config.system.size, started)
        )
    every = training.validation_interval
    if every is None:
        every = max(50, min(2000, max(an_epoch, planned // 12 if planned else 0)))
        choose_one(
            "validation_interval", every, "steps" if training.minutes is None else "steps, or a tenth of the time"
        )
    decoded = training.validation_sentences
    if decoded is None:
        decoded = MAX_DECODED_SENTENCES
        if objective_class(config.objective.name or "translation").generates:
            affordable = every * tokens * training.gradient_accumulation / DECODING_COST / (target_tokens / len(store))
            if training.minutes is not None:
                affordable = min(affordable, DECODED_PER_MINUTE * training.minutes)
            decoded = int(max(50, min(decoded, affordable)))
            choose_one("validation_sentences", decoded, "decoded at each validation, in about a tenth of the time")
    compiles = training.compile
    if compiles is None:
        words = target_tokens / max(1, len(store))
        work = training_flops(spec, round(words), round(words)) / words * tokens * (planned or 50 * an_epoch)
        compiles = gpu and work > WORTH_COMPILING
    smoothing = training.label_smoothing
    resolved = replace(
        training,
        **{name: training.resolved(name) for name in TRAINING_DEFAULTS},
        batch_tokens=tokens,
        label_smoothing=objective_class(config.objective.name or "").default_label_smoothing
        if smoothing is None
        else smoothing,
        learning_rate=learning_rate,
        warmup_steps=warmup,
        validation_interval=every,
        validation_sentences=decoded,
        steps=steps,
        device=device,
        compile=compiles,
        precision=("bfloat16" if gpu else "float32") if training.precision == "auto" else training.precision,
    )
    return replace(config, training=resolved), choices


def _size(pairs: int, gpu: bool) -> str:
    if pairs < 10_000 or (not gpu and pairs < 100_000):
        return "tiny"
    if pairs < 500_000 or not gpu:
        return "small"
    return "base"


def _batch(target_tokens: int, gpu: bool) -> int:
    """About 100 steps an epoch, or half as many on a GPU, within what the device does well."""
    most = 25_000 if gpu else 4096
    return int(max(1024, min(most, round(target_tokens / (55 if gpu else 100), -2))))
