"""Automatic settings: chosen by the amount of data and the device, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dragoman.config import TRAINING_DEFAULTS, Config, replace_settings
from dragoman.data import DataFormat, TokenStore
from dragoman.data.batching import BATCH_FILL
from dragoman.data.text_profile import CorpusProfile
from dragoman.errors import UserError
from dragoman.evaluation import choose_bleu_tokenizer
from dragoman.evaluation.metric_choice import MIN_FORMAL_PUNCTUATION
from dragoman.models import ModelSpec, cached_meta_model, training_flops
from dragoman.objectives import Objective, objective_class, objective_settings
from dragoman.systems import SYSTEMS
from dragoman.text import TOKENIZER_TYPES
from dragoman.text.untranslatable import MIN_LETTERLESS_LINES, CopyEvidence
from dragoman.training.memory_plan import choose_memory_plan
from dragoman.training.recipes import (
    MIN_STEPS,
    Recipe,
    default_recipe,
    default_steps,
    fine_tuning,
    get_recipe,
    low_rank_adaptation,
)
from dragoman.training.schedule import SCHEDULES_WITH_END
from dragoman.training.training_budget import pluralize
from dragoman.training.validation import MAX_DECODED_SENTENCES, check_metric, default_metric

USUAL_BLEU_TOKENIZER = "13a"  # sacreBLEU's default

#: The system copies by default if at least these shares of the target's words, and of its rare words, occur in their
#: source, and the corpus has at least this number of pairs.
MIN_COPIED_SHARE, MIN_RARE_COPIED_SHARE, MIN_COPYING_PAIRS = 0.05, 0.5, 1000

#: pairs from which on a system has the size small or base. With dropout, small is better than tiny from 4,400 pairs on
#: (logical forms) and 5,000 (captions), but takes several times as long, which counts on a CPU.
MIN_SMALL_PAIRS_GPU, MIN_SMALL_PAIRS_CPU, MIN_BASE_PAIRS = 2_000, 100_000, 500_000

#: Smaller corpora are memorized without regularization: dropout is at least 0.3 below the first number of pairs and 0.2
#: below the second, where BPE dropout helps as well.
FEW_PAIRS, MEDIUM_PAIRS = 50_000, 500_000
MEDIUM_DROPOUT = 0.2

#: With BPE dropout every epoch has another text, so that twice the epochs are of use; on a CPU time counts more.
BPE_DROPOUT_EPOCHS = 2

#: target tokens trained on per decoded validation token: with a beam of 5, decoding takes about a tenth of the time
TRAINING_TOKENS_PER_DECODED = 40

DECODED_SENTENCES_PER_MINUTE = 50  # at each validation, per minute of a time budget

MIN_FLOPS_TO_COMPILE = 8e15  # of a training that makes up for a minute of compilation

ASSUMED_EPOCHS = 50  # of a training without a limit of steps or epochs, which only patience ends


@dataclass(frozen=True)
class Choice:
    """An automatic setting and its reason; `--set SETTING=VALUE` overrides it."""

    setting: str
    value: object
    reason: str

    def __str__(self) -> str:
        """Format the choice for the user: "SETTING=VALUE  (REASON)"."""
        value = f"{self.value:.4g}" if isinstance(self.value, float) else self.value
        return f"{self.setting}={value}  ({self.reason})"


class Defaults:
    """Fills in the settings that a configuration leaves open, and collects the choices to be reported."""

    def __init__(self, config: Config) -> None:
        """Start with the user's configuration, in which settings that are None or "auto" are still to be chosen."""
        self.config = config
        self.choices: list[Choice] = []  # to be reported to the user
        self.warnings: list[str] = []  # to be shown to the user
        self.batch_is_measured = False  # whether the batch size was found by training steps on trial

    def set_and_report(self, setting: str, value: Any, reason: str) -> Any:
        """Set a setting by its dotted name, such as "training.steps", report it with its reason, and return `value`.

        The report replaces an earlier one of the same setting.
        """
        self.set_quietly({setting: value})
        self.choices = [choice for choice in self.choices if choice.setting != setting]
        self.choices.append(Choice(setting, value, reason))
        return value

    @property
    def objective(self) -> type[Objective]:
        """The class of the training objective that is configured, by default translation."""
        return objective_class(self.config.objective.name or "translation")

    def is_chosen(self, setting: str) -> bool:
        """Whether a setting, by its dotted name, was chosen automatically and is reported: the user has not set it."""
        return any(choice.setting == setting for choice in self.choices)

    def set_quietly(self, values: Mapping[str, Any]) -> None:
        """Set the settings `values`, by dotted name such as "training.steps", without reporting them to the user."""
        self.config = replace_settings(self.config, values)


def choose_copy_untranslatable(
    defaults: Defaults, data_format: DataFormat, evidence: CopyEvidence, text: CorpusProfile
) -> None:
    """Set `search.copy_untranslatable`: whether lines of numbers, punctuation or addresses are copied, not translated.

    Args:
        defaults: the configuration so far, in which the setting is set and recorded; what the user has set stays.
        data_format: format of the corpus; only translations copy.
        evidence: counts of such lines, numbers and punctuation marks in the training pairs, and of those that are kept.
        text: statistics of the training pairs. If the target is a formal language, such as JSON or code, only lines of
            the corpus that are copied are evidence: its numbers are arguments of something else.
    """
    if defaults.config.search.copy_untranslatable is not None:
        return
    is_formal = text.target is not None and text.target.punctuation >= MIN_FORMAL_PUNCTUATION
    has_evidence = bool(evidence.reason) and (not is_formal or evidence.lines >= MIN_LETTERLESS_LINES)
    if data_format.is_translation and defaults.objective.generates and has_evidence:
        reason = f"lines of numbers, punctuation or addresses, since {evidence.reason}"
        defaults.set_and_report("search.copy_untranslatable", True, reason)
    else:
        defaults.set_quietly({"search.copy_untranslatable": False})


def choose_copy_mechanism(defaults: Defaults, data_format: DataFormat, pairs: int, text: CorpusProfile) -> None:
    """Set `system.settings.copying`, a copy mechanism (pointer network), if the training pairs suggest it.

    They do if there are at least 1,000, and some target words, and most of the rare ones, occur in their source: names,
    numbers, words of a summary or of a logical form. In translations at most a seventh of the rare words do. The recipe
    `textbook` trains the system of the paper, which does not copy.

    Args:
        defaults: the configuration so far, in which the setting is set and recorded; what the user has set stays.
        data_format: format of the corpus; only pairs of source and target can copy.
        pairs: number of training pairs.
        text: statistics of the training pairs, with the shares of copied words among all and among rare target words.
    """
    config = defaults.config
    system = SYSTEMS.get(config.system.name or "")
    _, recipe = configured_recipe(config)
    follows_paper = recipe.paper is not None
    can_copy = system is not None and "copying" in system.settings()
    is_set = "copying" in config.system.settings  # by the user
    translates = defaults.objective.generates and data_format.is_translation
    if not can_copy or is_set or not translates or follows_paper or pairs < MIN_COPYING_PAIRS:
        return
    rare_copied_share = text.rare_copied_share or 0.0
    if (text.copied_share or 0.0) >= MIN_COPIED_SHARE and rare_copied_share >= MIN_RARE_COPIED_SHARE:
        reason = f"{100 * rare_copied_share:.0f} % of the rare words of the target occur in their source"
        defaults.set_and_report("system.settings.copying", True, reason)


def choose_selection_metric(defaults: Defaults, references: Sequence[str], sources: Sequence[str]) -> None:
    """Choose the metric that selects the best checkpoint, and sacreBLEU's tokenizer, if the user has set them to auto.

    Raise a UserError if the metric cannot be computed, for example if a package is missing.

    Args:
        defaults: the configuration so far, in which both settings are set and recorded.
        references, sources: targets and sources of the validation pairs; `sources` are empty if they are not texts.
    """
    training = defaults.config.training
    metric: str = training.selection_metric
    tokenizer: str = training.bleu_tokenizer
    if metric == "auto":
        chosen_metric, reason = default_metric(defaults.objective, references, sources)
        metric = defaults.set_and_report("training.selection_metric", chosen_metric, reason)
    if tokenizer == "auto":
        tokenizer, reason = choose_bleu_tokenizer(references)
        if metric == "bleu" and tokenizer != USUAL_BLEU_TOKENIZER:  # sacreBLEU's own default needs no report
            defaults.set_and_report("training.bleu_tokenizer", tokenizer, reason)
        else:
            defaults.set_quietly({"training.bleu_tokenizer": tokenizer})
    check_metric(metric, tokenizer, references)


def choose_settings(
    defaults: Defaults,
    store: TokenStore,
    device: str,
    num_valid: int,
    build_spec: Callable[[Config], ModelSpec],
    new_model: bool,
    imported_parent: bool = False,
) -> None:
    """Choose all training settings that the user has not set: first the recipe, then what it leaves open.

    A recipe is a set of training defaults: `textbook`, `modern` or `plain`.

    Args:
        defaults: the configuration so far; chosen settings are set and recorded in it.
        store: the tokenized training pairs.
        device: on which the model is trained, such as "cpu" or "cuda:0".
        num_valid: number of validation pairs.
        build_spec: returns the hyper-parameters of the model of a configuration.
        new_model: whether size and settings of the system can be chosen; not if the model of a parent run is kept.
        imported_parent: whether training starts from a model that another library has trained.
    """
    config, requested = defaults.config, defaults.config.training.recipe  # "auto" or a name
    recipe_name, recipe = configured_recipe(config, imported_parent)
    unset = {key: value for key, value in recipe.training.items() if getattr(config.training, key) is None}
    defaults.set_quietly({f"training.{key}": value for key, value in unset.items()})
    # also reported if the user named the recipe of the paper: its reason says how it differs from the paper
    if requested == "auto" or recipe.paper:
        optimizer, schedule = (defaults.config.training.resolved(key) for key in ("optimizer", "schedule"))
        defaults.set_and_report("training.recipe", recipe_name, f"{optimizer}, {schedule}; {recipe.reason}")
    if new_model:
        _choose_system(defaults, recipe, pairs=len(store), device=device)
    _choose_bpe_dropout(defaults, recipe, pairs=len(store))
    _choose_training(defaults, recipe, build_spec(defaults.config), store, num_valid, device)


def configured_recipe(config: Config, imported_parent: bool = False) -> tuple[str, Recipe]:
    """Return name and content of the recipe (set of training defaults) that `training.recipe` names.

    "auto" is the default recipe of the system. LoRA, and models that another library has trained (`imported_parent`),
    then have the recipe "plain" (AdamW) with their own learning rates.
    """
    system = SYSTEMS.get(config.system.name or "")
    if config.training.recipe != "auto":
        return config.training.recipe, get_recipe(config.training.recipe, system)
    if config.lora.rank:
        return "plain", low_rank_adaptation(system)
    if imported_parent:
        return "plain", fine_tuning(system)
    return (name := default_recipe(system)), get_recipe(name, system)


def _choose_bpe_dropout(defaults: Defaults, recipe: Recipe, pairs: int) -> None:
    """Set `text.bpe_dropout` for a corpus of `pairs` training pairs: that of the recipe if they are few, else 0.

    It is also 0 without a BPE tokenizer, for objectives that do not use it by default, for systems that copy words, and
    for models of the size "tiny". `recipe` is a set of training defaults. What the user has set stays.
    """
    config = defaults.config
    if config.text.bpe_dropout is not None:  # set by the user
        return
    tokenizer_types = [TOKENIZER_TYPES[kind] for kind in config.text.tokenizers if kind in TOKENIZER_TYPES]
    has_merges = any(tokenizer.has_merges for tokenizer in tokenizer_types)  # BPE merges, which dropout skips
    is_useful = has_merges and defaults.objective.default_bpe_dropout
    is_useful &= not config.system.settings.get("copying")  # copied words need the same tokens in source and target
    if is_useful and recipe.bpe_dropout and config.system.size != "tiny" and pairs < MEDIUM_PAIRS:
        reason = "every epoch segments the words differently, which helps small corpora"
        defaults.set_and_report("text.bpe_dropout", recipe.bpe_dropout, reason)
    else:
        defaults.set_quietly({"text.bpe_dropout": 0.0})


def _choose_system(defaults: Defaults, recipe: Recipe, pairs: int, device: str) -> None:
    """Choose the size of the model, its dropout for a corpus of few pairs, and the hyper-parameters of the recipe.

    Settings of the objective that help the system on few pairs, such as those of R-Drop, are also set. What the user
    has set stays. Choices that differ from the system's default are reported.

    Args:
        defaults: the configuration so far; chosen settings are set and recorded in it.
        recipe: set of defaults for system and training.
        pairs: number of training pairs.
        device: on which the model is trained, such as "cpu" or "cuda:0".
    """
    config, gpu = defaults.config, device.startswith("cuda")
    system, user_settings = SYSTEMS.get(config.system.name or ""), config.system.settings
    size = config.system.size
    if size is None:
        reason = f"for {pairs:,} training pairs on {'a GPU' if gpu else 'a CPU'}"
        size = defaults.set_and_report("system.size", _system_size(pairs, gpu), reason)
    if recipe.dropout is not None and "dropout" not in user_settings and pairs < MEDIUM_PAIRS and size != "tiny":
        reason = f"{pairs:,} training pairs are few, and would be memorized without it"
        dropout = recipe.dropout if pairs < FEW_PAIRS else min(recipe.dropout, MEDIUM_DROPOUT)
        system_setting = system.settings().get("dropout") if system else None  # None: the system has no such setting
        if system_setting:  # never less than the system's default
            dropout = max(dropout, system_setting.default)
        defaults.set_and_report("system.settings.dropout", dropout, reason)
    objective_name = config.objective.name or "translation"
    if system and recipe.dropout is not None and pairs < FEW_PAIRS:  # regularization by the objective, such as R-Drop
        for key, value in system.small_corpus_objective.items():
            if key in objective_settings(objective_name) and key not in config.objective.settings:
                defaults.set_and_report(f"objective.settings.{key}", value, f"helps {config.system.name} on few pairs")
    for key, value in recipe.system.items():
        if system is None or key in defaults.config.system.settings:  # set by the user, or above
            continue
        if value == (default := system.settings()[key].default):
            defaults.set_quietly({f"system.settings.{key}": value})
        else:
            reason = f"the paper's; {default} by default" if recipe.paper else f"better than the paper's {default}"
            defaults.set_and_report(f"system.settings.{key}", value, reason)


def _choose_training(
    defaults: Defaults, recipe: Recipe, spec: ModelSpec, store: TokenStore, num_valid: int, device: str
) -> None:
    """Choose all training settings that are still open: batch size, number of steps, learning rate, validation, device.

    Args:
        defaults: the configuration so far; chosen settings are set and recorded in it.
        recipe: set of training defaults.
        spec: hyper-parameters of the model.
        store: the tokenized training pairs.
        num_valid: number of validation pairs.
        device: on which the model is trained, such as "cpu" or "cuda:0".
    """
    training, gpu, target_tokens = defaults.config.training, device.startswith("cuda"), epoch_target_tokens(store)
    tokens = training.batch_tokens
    if tokens is None:
        longest_row = 2 * (defaults.config.data.max_length + 2)  # source and target in one row, with BOS and EOS
        reason = "tokens per batch, by the amount of data and the device"
        # sequences that are trained on for each pair, such as several samples of a target
        rows_per_pair = defaults.objective.rows_per_pair(defaults.config.objective.settings)
        if rows_per_pair > 1:
            reason += f", divided by the {rows_per_pair} sequences per pair"
        tokens = max(_batch_tokens(target_tokens, gpu) // rows_per_pair, longest_row)
        defaults.set_and_report("training.batch_tokens", tokens, reason)
    elif tokens < store.max_length + 2:  # BOS and EOS
        raise UserError(
            f"training.batch_tokens is {tokens:,}, but the longest sentence has {store.max_length:,} tokens, to which "
            "BOS and EOS are added: raise training.batch_tokens, or lower data.max_length"
        )
    choose_memory_plan(defaults, spec, device)  # may divide a step into several smaller batches
    training = defaults.config.training
    batch_tokens = training.batch_tokens or tokens
    step_tokens = batch_tokens * training.gradient_accumulation  # of all batches of a step
    lengths = store.length_counts()  # the number of pairs with each source and target length
    row_lengths = cached_meta_model(spec).row_length(lengths.source + 1, lengths.target + 1)  # with EOS
    copies = defaults.objective.copies_per_pair(defaults.config.objective.settings)  # in a batch: 2 with R-Drop
    epoch_tokens = copies * int(row_lengths @ lengths.pairs)
    epoch_steps = max(1, math.ceil(epoch_tokens / (BATCH_FILL * step_tokens)))  # the rest of a batch is padding
    steps = training.steps
    # these schedules decay the learning rate up to a last step, which must be known
    if training.schedule in SCHEDULES_WITH_END and steps is None and training.epochs is None:
        # with BPE dropout every epoch has another segmentation, so that more epochs are of use; on a CPU time counts
        relative_length = BPE_DROPOUT_EPOCHS if gpu and defaults.config.text.bpe_dropout else 1.0
        if system := SYSTEMS.get(defaults.config.system.name or ""):
            relative_length *= system.training_length  # relative to other systems
        steps = max(MIN_STEPS, math.ceil(relative_length * default_steps(target_tokens, step_tokens)))
        end = "then" if training.minutes is None else f"then, or after {pluralize(training.minutes, 'minute')}"
        reason = f"about {steps / epoch_steps:.0f} epochs, by the amount of data; the learning rate is zero by {end}"
        defaults.set_and_report("training.steps", steps, reason)
    steps_of_epochs = None if training.epochs is None else training.epochs * epoch_steps
    # None: only patience ends training, which may also end it before the planned steps
    planned_steps = min((limit for limit in (steps, steps_of_epochs) if limit is not None), default=None)
    _choose_learning_rate(defaults, recipe, spec.dim, epoch_steps, planned_steps)
    decoded_tokens = _choose_validation_interval(defaults, epoch_steps, planned_steps) * step_tokens
    _choose_validation_sentences(defaults, store, num_valid, decoded_tokens / TRAINING_TOKENS_PER_DECODED)
    compiles = training.compile
    if compiles is None:  # compilation takes about a minute, which a long training on a GPU makes up for
        mean_length = target_tokens / max(1, len(store))
        flops_per_token = training_flops(spec, round(mean_length), round(mean_length)) / mean_length
        flops = flops_per_token * step_tokens * (planned_steps or ASSUMED_EPOCHS * epoch_steps)
        compiles = gpu and flops > MIN_FLOPS_TO_COMPILE
    smoothing = training.label_smoothing
    if smoothing is None:
        smoothing = defaults.objective.default_label_smoothing
    precision = ("bfloat16" if gpu else "float32") if training.precision == "auto" else training.precision
    values = {name: training.resolved(name) for name in TRAINING_DEFAULTS}  # as set so far, or else the fallback
    values |= {"label_smoothing": smoothing, "device": device, "compile": compiles, "precision": precision}
    defaults.set_quietly({f"training.{name}": value for name, value in values.items()})


def _choose_learning_rate(
    defaults: Defaults, recipe: Recipe, dim: int, epoch_steps: int, planned_steps: int | None
) -> None:
    """Choose warmup steps and peak learning rate: those of the recipe, or by the number of training steps.

    Args:
        defaults: the configuration so far; chosen settings are set and recorded in it.
        recipe: set of training defaults.
        dim: width of the model.
        epoch_steps: steps of an epoch.
        planned_steps: steps of the training; None if only patience ends it.
    """
    training = defaults.config.training
    warmup = training.warmup_steps
    if warmup is None and (from_recipe := recipe.warmup_steps(planned_steps)) is not None:
        steps, reason = from_recipe
        warmup = defaults.set_and_report("training.warmup_steps", steps, reason)
    if warmup is None:
        # four epochs, from 100 to 4,000 steps, but at most a tenth of the training
        warmup = min(4000, max(100, 4 * epoch_steps))
        warmup = warmup if planned_steps is None else max(1, min(warmup, planned_steps // 10))
        limit = "" if training.minutes is None else ", at most a tenth of the time"
        reason = f"about {warmup / epoch_steps:.1f} epochs of about {epoch_steps:,} steps{limit}"
        defaults.set_and_report("training.warmup_steps", warmup, reason)
    if training.learning_rate is None:
        warm_start = training.start_from is not None
        size = defaults.config.system.size
        peak, reason = recipe.peak_learning_rate(dim, warmup, size=size, warm_start=warm_start)
        # below 1 for objectives such as rewards of sampled translations
        if (factor := defaults.objective.learning_rate_factor) != 1:
            peak *= factor
            reason = f"{factor:g} × that of likelihood ({reason}): {defaults.objective.learning_rate_reason}"
        defaults.set_and_report("training.learning_rate", peak, reason)


def _choose_validation_interval(defaults: Defaults, epoch_steps: int, planned_steps: int | None) -> int:
    """Set `training.validation_interval` unless the user has, and return it: the steps between two validations.

    `epoch_steps` are the steps of an epoch, `planned_steps` those of the training; None if only patience ends it.
    """
    training = defaults.config.training
    if training.validation_interval is not None:
        return training.validation_interval
    # an epoch or a twelfth of the training, whichever is longer, within 50 and 2,000 steps
    interval = max(50, min(2000, max(epoch_steps, planned_steps // 12 if planned_steps else 0)))
    reason = "steps" if training.minutes is None else "steps, or a tenth of the time"
    defaults.set_and_report("training.validation_interval", interval, reason)
    return interval


def _choose_validation_sentences(defaults: Defaults, store: TokenStore, num_valid: int, max_tokens: float) -> None:
    """Choose how many of the `num_valid` validation sentences each validation decodes: from 50 to 2,000, or all.

    `max_tokens` is the number of target tokens that can be decoded in about a tenth of the training time between two
    validations. `store` has the tokenized training pairs, whose mean target length is assumed for decoded sentences.
    """
    training = defaults.config.training
    if training.validation_sentences is not None:
        return
    if not defaults.objective.generates:
        # the objective generates no text, so that the value has no effect
        defaults.set_quietly({"training.validation_sentences": MAX_DECODED_SENTENCES})
        return
    mean_length = epoch_target_tokens(store) / len(store)
    sentences = max_tokens / mean_length
    if training.minutes is not None:
        sentences = min(sentences, DECODED_SENTENCES_PER_MINUTE * training.minutes)
    sentences = int(max(50, min(MAX_DECODED_SENTENCES, sentences)))
    reason = "decoded at each validation, in about a tenth of the time"
    if sentences >= num_valid:
        sentences, reason = num_valid, "all are decoded at each validation"
    defaults.set_and_report("training.validation_sentences", sentences, reason)


def epoch_target_tokens(store: TokenStore) -> int:
    """Return the number of target tokens of all training pairs in `store`, with one EOS per pair."""
    _, target_column = store.columns
    return target_column.tokens + len(store)


def _system_size(pairs: int, gpu: bool) -> str:
    """Return the default size of a system ("tiny", "small" or "base"): larger for more training pairs and for a GPU."""
    if pairs < (MIN_SMALL_PAIRS_GPU if gpu else MIN_SMALL_PAIRS_CPU):
        return "tiny"
    if pairs < MIN_BASE_PAIRS or not gpu:
        return "small"
    return "base"


def _batch_tokens(target_tokens: int, gpu: bool) -> int:
    """Return the default number of tokens per batch for a corpus of `target_tokens`.

    An epoch then has about 100 steps, or 55 on a GPU, but a batch has at least 1,024 tokens, and at most 4,096, or
    25,000 on a GPU.
    """
    steps_per_epoch, max_tokens = (55, 25_000) if gpu else (100, 4096)
    return int(max(1024, min(max_tokens, round(target_tokens / steps_per_epoch, -2))))  # rounded to hundreds
