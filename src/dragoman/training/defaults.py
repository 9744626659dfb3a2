"""Automatic settings: chosen by the amount of data and the device, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dragoman.config import TRAINING_DEFAULTS, Config
from dragoman.data import DataFormat, TokenStore
from dragoman.errors import UserError
from dragoman.models import ModelSpec, meta_model, training_flops
from dragoman.objectives import objective_class
from dragoman.systems import SYSTEMS
from dragoman.text.untranslatable import CopyEvidence
from dragoman.training.checkpoint_selection import check_metric, default_metric
from dragoman.training.recipes import Recipe, default_recipe, default_steps, get_recipe
from dragoman.training.schedule import SCHEDULES_WITH_END
from dragoman.training.training_budget import pluralize
from dragoman.training.validation import MAX_DECODED_SENTENCES

LOW_RESOURCE_PAIRS = 100_000  # smaller corpora are memorized without regularization

#: target tokens trained on per decoded validation token: with a beam of 5, decoding takes about a tenth of the time
TRAINING_TOKENS_PER_DECODED = 40

DECODED_SENTENCES_PER_MINUTE = 50  # at each validation, per minute of a time budget

MIN_FLOPS_TO_COMPILE = 8e15  # of a training that makes up for a minute of compilation


@dataclass(frozen=True)
class Choice:
    """An automatic setting and its reason; `--set SETTING=VALUE` overrides it."""

    setting: str
    value: object
    reason: str

    def __str__(self) -> str:
        value = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        return f"{self.setting}={value}  ({self.reason})"


def choose_vocab_size(config: Config, words: int) -> tuple[Config, list[Choice]]:
    """Choose the vocabulary size 8·√words, with which rare tokens are still frequent enough to be learned."""
    if config.text.vocab_size is not None or config.text.tokenizer == "byte":
        return config, []
    size = int(max(500, min(32_000, round(8 * math.sqrt(words), -2))))
    reason = f"8·√words for the {words:,} words of the corpus, at most 32,000"
    return replace(config, text=replace(config.text, vocab_size=size)), [Choice("text.vocab_size", size, reason)]


def choose_copying(config: Config, data_format: DataFormat, evidence: CopyEvidence) -> tuple[Config, list[Choice]]:
    """Choose whether lines without letters are copied in translation: see `CopyEvidence`."""
    if config.search.copy_untranslatable is not None:
        return config, []
    generates = objective_class(config.objective.name or "").generates
    copies = data_format.is_translation and generates and evidence.copies
    reason = "lines of numbers, punctuation or addresses; the training targets keep them too"
    choices = [Choice("search.copy_untranslatable", True, reason)] if copies else []
    return replace(config, search=replace(config.search, copy_untranslatable=copies)), choices


def choose_selection_metric(config: Config, references: Sequence[str]) -> tuple[Config, list[Choice]]:
    """Choose the metric that selects the best checkpoint, by objective and validation references."""
    if config.training.selection_metric != "auto":
        check_metric(config.training.selection_metric, references)
        return config, []
    metric, reason = default_metric(objective_class(config.objective.name or "translation"), references)
    training = replace(config.training, selection_metric=metric)  # type: ignore[arg-type]
    return replace(config, training=training), [Choice("training.selection_metric", metric, reason)]


def choose_settings(
    config: Config, store: TokenStore, device: str, build: Callable[[Config], ModelSpec], new_model: bool
) -> tuple[Config, list[Choice]]:
    """Choose recipe, system size, batch size and all other training settings that are not given.

    Args:
        build: builds the model of a configuration.
        new_model: whether size and settings of the system can be chosen; not if the model of a parent run is kept.
    """
    named = SYSTEMS.get(config.system.name or "")
    requested = config.training.recipe
    name = default_recipe(named) if requested == "auto" else requested
    recipe = get_recipe(name, named)
    values = {key: value for key, value in recipe.training.items() if getattr(config.training, key) is None}
    config = replace(config, training=replace(config.training, **{"recipe": name, **values}))
    choices = []
    if requested != name or recipe.paper:
        optimizer, schedule = (config.training.resolved(key) for key in ("optimizer", "schedule"))
        choices.append(Choice("training.recipe", name, f"{optimizer}, {schedule}; {recipe.reason}"))
    if new_model:
        config, more = _choose_system(config, recipe, len(store), device)
        choices += more
    config, more = _choose_bpe_dropout(config, recipe, len(store))
    choices += more
    config, more = _choose_training(config, recipe, build(config), store, device)
    return config, choices + more


def _choose_bpe_dropout(config: Config, recipe: Recipe, pairs: int) -> tuple[Config, list[Choice]]:
    """Choose BPE dropout for small corpora, if the recipe has it."""
    text = config.text
    if text.bpe_dropout is not None:
        return config, []
    suits = text.tokenizer == "bpe" and objective_class(config.objective.name or "").default_bpe_dropout
    suits = suits and config.system.size != "tiny" and pairs < LOW_RESOURCE_PAIRS
    rate = recipe.bpe_dropout if suits else 0.0
    reason = "every epoch segments the words differently, which helps small corpora"
    choices = [Choice("text.bpe_dropout", rate, reason)] if rate else []
    return replace(config, text=replace(text, bpe_dropout=rate)), choices


def _choose_system(config: Config, recipe: Recipe, pairs: int, device: str) -> tuple[Config, list[Choice]]:
    choices: list[Choice] = []
    size, settings = config.system.size, dict(config.system.settings)
    gpu = device.startswith("cuda")
    named = SYSTEMS.get(config.system.name or "")
    if size is None:
        size = _system_size(pairs, gpu)
        choices.append(Choice("system.size", size, f"for {pairs:,} rows on {'a GPU' if gpu else 'a CPU'}"))
    if recipe.dropout is not None and "dropout" not in settings and pairs < LOW_RESOURCE_PAIRS and size != "tiny":
        settings["dropout"] = recipe.dropout
        reason = f"{pairs:,} rows are few, and would be memorized without it"
        choices.append(Choice("system.settings.dropout", recipe.dropout, reason))
    for key, value in recipe.system.items():
        if key not in settings and named is not None:
            settings[key] = value
            if value != (default := named.settings()[key].default):
                reason = f"the paper's; {default} by default" if recipe.paper else f"better than the paper's {default}"
                choices.append(Choice(f"system.settings.{key}", value, reason))
    return replace(config, system=replace(config.system, size=size, settings=settings)), choices


def _choose_training(
    config: Config, recipe: Recipe, spec: ModelSpec, store: TokenStore, device: str
) -> tuple[Config, list[Choice]]:
    choices: list[Choice] = []
    training, gpu = config.training, device.startswith("cuda")
    objective = objective_class(config.objective.name or "translation")
    lengths, target_tokens = store.length_counts(), store.columns[1].tokens + len(store)

    def choose(setting: str, value: Any, reason: str) -> Any:
        choices.append(Choice(f"training.{setting}", value, reason))
        return value

    tokens = training.batch_tokens
    if tokens is None:
        tokens = max(_batch_tokens(target_tokens, gpu), 2 * config.data.max_length + 4)
        choose("batch_tokens", tokens, "tokens per batch, by the amount of data and the device")
    elif tokens < store.max_length + 2:
        raise UserError(
            f"training.batch_tokens is {tokens:,}, but the longest sentence has {store.max_length:,} tokens and must "
            "fit into a batch: raise it, or lower data.max_length"
        )
    positions = int(meta_model(spec).row_length(lengths.source + 1, lengths.target + 1) @ lengths.pairs)
    step_tokens = tokens * training.gradient_accumulation
    epoch_steps = max(1, math.ceil(positions / (0.95 * step_tokens)))
    steps = training.steps
    if training.schedule in SCHEDULES_WITH_END and steps is None and training.epochs is None:
        steps = default_steps(target_tokens, step_tokens)
        end = "then" if training.minutes is None else f"then, or after {pluralize(training.minutes, 'minute')}"
        reason = f"about {steps / epoch_steps:.0f} epochs, by the amount of data; the learning rate is zero by {end}"
        choose("steps", steps, reason)
    limits = [steps, training.epochs and training.epochs * epoch_steps]
    planned = min((limit for limit in limits if limit is not None), default=None)  # unless patience ends it earlier
    warmup = training.warmup_steps
    if warmup is None and (from_recipe := recipe.warmup_steps(planned)) is not None:
        warmup = choose("warmup_steps", *from_recipe)
    if warmup is None:
        warmup = min(4000, max(100, 4 * epoch_steps))
        warmup = warmup if planned is None else max(1, min(warmup, planned // 10))
        limit = "" if training.minutes is None else ", at most a tenth of the time"
        reason = f"about {warmup / epoch_steps:.1f} epochs of about {epoch_steps:,} steps{limit}"
        choose("warmup_steps", warmup, reason)
    learning_rate = training.learning_rate
    if learning_rate is None:
        warm_start = training.start_from is not None
        peak = recipe.peak_learning_rate(spec.dim, warmup, config.system.size, warm_start)
        learning_rate = choose("learning_rate", *peak)
    interval = training.validation_interval
    if interval is None:
        interval = max(50, min(2000, max(epoch_steps, planned // 12 if planned else 0)))
        reason = "steps" if training.minutes is None else "steps, or a tenth of the time"
        choose("validation_interval", interval, reason)
    decoded = training.validation_sentences
    if decoded is None:
        decoded = MAX_DECODED_SENTENCES
        if objective.generates:
            affordable = interval * step_tokens / TRAINING_TOKENS_PER_DECODED / (target_tokens / len(store))
            if training.minutes is not None:
                affordable = min(affordable, DECODED_SENTENCES_PER_MINUTE * training.minutes)
            decoded = int(max(50, min(decoded, affordable)))
            choose("validation_sentences", decoded, "decoded at each validation, in about a tenth of the time")
    compiles = training.compile
    if compiles is None:
        length = target_tokens / max(1, len(store))
        flops = training_flops(spec, round(length), round(length)) / length * tokens * (planned or 50 * epoch_steps)
        compiles = gpu and flops > MIN_FLOPS_TO_COMPILE
    smoothing = training.label_smoothing
    resolved = replace(
        training,
        **{name: training.resolved(name) for name in TRAINING_DEFAULTS},
        batch_tokens=tokens,
        label_smoothing=objective.default_label_smoothing if smoothing is None else smoothing,
        learning_rate=learning_rate,
        warmup_steps=warmup,
        validation_interval=interval,
        validation_sentences=decoded,
        steps=steps,
        device=device,
        compile=compiles,
        precision=("bfloat16" if gpu else "float32") if training.precision == "auto" else training.precision,
    )
    return replace(config, training=resolved), choices


def _system_size(pairs: int, gpu: bool) -> str:
    if pairs < 10_000 or (not gpu and pairs < 100_000):
        return "tiny"
    if pairs < 500_000 or not gpu:
        return "small"
    return "base"


def _batch_tokens(target_tokens: int, gpu: bool) -> int:
    """Choose batches for about 100 steps per epoch, or 55 on a GPU, within what the device processes efficiently."""
    limit = 25_000 if gpu else 4096
    return int(max(1024, min(limit, round(target_tokens / (55 if gpu else 100), -2))))
