"""Comparison of systems: each is trained on the same batches with the same budget."""

from __future__ import annotations

import hashlib
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dragoman import evaluation
from dragoman.config import Config, TrainingConfig, from_yaml, override_settings, to_yaml
from dragoman.console import format_duration
from dragoman.data import TokenStore
from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.system_comparison import RunResult
from dragoman.models import meta_model
from dragoman.objectives import objective_class
from dragoman.parts.flops import Workload
from dragoman.run import Run, load, read_framing, read_spec
from dragoman.run_files import CHECKPOINT_DIR, CONFIG_FILE, has_checkpoint, is_run_folder
from dragoman.search.forced_decoding import attention_weights
from dragoman.storage import write_file
from dragoman.systems import SYSTEMS, VocabularySizes, get_system
from dragoman.training.checkpoint_manager import TrainState
from dragoman.training.defaults import epoch_target_tokens
from dragoman.training.display import Display, SilentDisplay
from dragoman.training.matmul_speed import matmul_flops_per_second
from dragoman.training.prepare import prepare_run
from dragoman.training.recipes import default_steps
from dragoman.training.saved_request import save_or_check_request
from dragoman.training.trainer import Trainer
from dragoman.training.validation import ValidationResult

REQUEST_FILE = "comparison.json"  # in the folder of a comparison: settings that all its runs share
RESULT_FILE = "comparison.json"  # in the folder of a run: its result on the test set
FINE_TUNING_SHARE = 0.1  # budget of a second training with another objective, of that of the first
VALIDATIONS_PER_RUN = 5  # evenly spaced; the checkpoint with the lowest validation loss is compared

#: training settings of all systems, with batches that do not depend on the system
SAME_FOR_ALL: dict[str, Any] = {
    "recipe": "plain",
    "batch_by": "pair",
    "batch_layout": "padded",
    "patience": None,
    "average_checkpoints": False,
    "keep_checkpoints": 1,
    "validation_sentences": 0,
    "selection_metric": "loss",
}


@dataclass(frozen=True)
class ComparisonBudget:
    """The training budget of each system.

    `tokens` (target tokens) and `steps` mean the same batches for every system, `flops` the same floating-point
    operations, counted from the system's specification. `minutes` depend on the machine. Without an amount the number
    of target tokens follows from the size of the corpus, as it does for a single training.
    """

    kind: Literal["tokens", "steps", "flops", "minutes"] = "tokens"
    amount: float | None = None
    share: float = 1.0  # of the number of steps that follows from the size of the corpus, without an amount

    def __post_init__(self) -> None:
        """Check that the amount is positive and finite."""
        if self.amount is not None and not (0 < self.amount < math.inf):
            raise UserError(
                f"the training budget of each system must be a positive number of {self.kind}, but is {self.amount:g}: "
                "give a finite number above 0"
            )

    def part(self, share: float) -> ComparisonBudget:
        """Return a budget of a fraction `share` of this one's amount, or of the default amount if this one has none."""
        return replace(self, amount=None if self.amount is None else share * self.amount, share=share)

    def __str__(self) -> str:
        """Describe the budget for the user, such as "2,000 steps per system"."""
        names = {"tokens": "target tokens", "steps": "steps", "flops": "training FLOPs", "minutes": "minutes"}
        if self.amount is None:
            return f"{names[self.kind]} by the size of the corpus"
        amount = f"{self.amount:.3g}" if self.kind in ("flops", "minutes") else f"{self.amount:,.0f}"
        return f"{amount} {names[self.kind]} per system"


class SystemLabel(NamedTuple):
    """A compared system with settings of its own, possibly trained further with another objective."""

    name: str
    settings: list[str]  # such as ["system.size=big"]
    objective: str | None  # of the second training
    base: str  # label of the first training; the label itself without a second one


def split_label(label: str) -> SystemLabel:
    """Parse the label of a compared system.

    "transformer@size=big@dropout=0.3@training.recipe=textbook" is the transformer with three settings of its own. A
    setting without a section is the size or a setting of the system. "gnmt+reward" is gnmt, trained further with the
    objective `reward`: the `base` of this label is "gnmt", the first training; without "+" it is the label itself.
    """
    system, *assignments = label.split("@")
    name, _, objective = system.partition("+")
    settings = []
    for assignment in assignments:
        setting = assignment.partition("=")[0]
        if "." not in setting:
            assignment = f"system.{assignment}" if setting == "size" else f"system.settings.{assignment}"
        settings.append(assignment)
    # settings of an objective belong to the second training
    base_assignments = [assignment for assignment in assignments if not assignment.startswith("objective.")]
    base = "@".join([name, *base_assignments]) if objective else label
    return SystemLabel(name, settings, objective=objective or None, base=base)


def check_systems(labels: Sequence[str]) -> None:
    """Raise a UserError for systems that are unknown, repeated, or do not translate text, or have unknown settings.

    `labels` are names of systems, possibly with settings or the objective of a second training:
    "transformer@size=big", "gnmt+reward". Without any, or with an unknown objective, a UserError is raised, too.
    """
    if not labels:
        raise UserError("no system is given: name some with --systems, separated by commas")
    if len(set(labels)) < len(labels):
        raise UserError(f"--systems names a system twice ({', '.join(labels)}): name each once")
    for label in labels:
        name, own_settings, objective, _ = split_label(label)
        system = get_system(name)  # raises a UserError if it is unknown
        if objective:
            objective_class(objective)  # raises a UserError if it is unknown
        for setting in override_settings(Config(), own_settings).system.settings:
            if setting not in system.settings():
                raise unknown_name(f"setting of {name}", setting, system.settings())
        # any vocabulary and size will do: only properties of the model are read
        model = meta_model(system.spec(VocabularySizes(source=100, target=100, joint=True), size="tiny"))
        reads_vectors = model.source_features is not None  # of speech or images, instead of text
        if reads_vectors or not model.can_generate:
            raise UserError(f"the system {name} does not translate text: leave it out of --systems")


def check_settings(labels: Sequence[str], config: Config) -> None:
    """Raise a UserError for an entry of `system.settings` that none of the compared systems has.

    `labels` are names of systems, possibly with settings: "transformer@size=big".
    """
    known = {setting for label in labels for setting in SYSTEMS[split_label(label).name].settings()}
    for setting in config.system.settings:
        if setting not in known:
            raise unknown_name("system setting", setting, known)


def save_or_check_settings(folder: Path, config: Config, budget: ComparisonBudget) -> None:
    """Save the settings that all runs of a comparison share in its folder, or raise a UserError if it has other ones.

    These are all settings in `config` and the training `budget`, but for the system, the seed and the device: systems
    and seeds may be added later, and the device may change.
    """
    request = {"budget": asdict(budget)} | asdict(config)
    for section, name in (("training", "seed"), ("training", "device"), ("system", "name")):
        del request[section][name]
    save_or_check_request(folder / REQUEST_FILE, request, kind="comparison")


def run_folder(folder: Path, name: str, seed: int) -> Path:
    """Return the run folder of a system (its label `name`) and seed within that of a comparison: transformer-seed1."""
    return folder / f"{name}-seed{seed}"


def train_system(
    folder: Path, label: str, seed: int, config: Config, budget: ComparisonBudget, display: Display
) -> None:
    """Train a system in its own run folder within the folder of a comparison, or continue where it stopped.

    A label such as "gnmt+reward" means a second training with the objective `reward`. It starts from the run of the
    first training ("gnmt"), which is trained now if it has no result on the test set yet, and has a tenth of its
    budget. An interruption is raised as KeyboardInterrupt, a failure as UserError.

    Args:
        folder: folder of the comparison.
        label: name of the system, possibly with settings: "transformer@size=big".
        seed: of this run.
        config: shared by all systems; each gets those `system.settings` that it has.
        budget: amount of training, such as a number of steps.
        display: shows the progress.
    """
    run = run_folder(folder, label, seed)
    name, own_settings, objective, base = split_label(label)
    if objective:
        first_run, first_budget, budget = run_folder(folder, base, seed), budget, budget.part(FINE_TUNING_SHARE)
        if not (first_run / RESULT_FILE).exists():
            train_system(folder, base, seed, config, first_budget, display)
        own_settings += [f"objective.name={objective}", f"training.start_from={first_run.resolve()}"]
    if not is_run_folder(run):
        available = SYSTEMS[name].settings()
        settings = {key: value for key, value in config.system.settings.items() if key in available}
        system, training = replace(config.system, name=name, settings=settings), replace(config.training, seed=seed)
        run_config = override_settings(replace(config, system=system, training=training), own_settings)
        prepare_run(run, run_config, log=lambda text: None)  # the display shows only the training
    if not has_checkpoint(run, "last"):  # training has not started
        _apply_budget(run, budget, config.training)
    saved = from_yaml(run / CONFIG_FILE)
    if config.training.device != "auto":  # a run may be continued on another device than it was prepared for
        saved = replace(saved, training=replace(saved.training, device=config.training.device))
    try:
        outcome = Trainer(run, display, saved).train()
    except UserError as error:
        raise UserError(
            f"the training of the system {label} with seed {seed} failed ({error}): correct the cause of this error, "
            f"or leave {label} out of --systems"
        ) from error
    if outcome.interrupted:
        raise KeyboardInterrupt  # ends the whole comparison


def _apply_budget(run: Path, budget: ComparisonBudget, requested: TrainingConfig) -> None:
    """Write the steps that the budget allows, and a suitable warmup and validation interval, to the run's config file.

    With a budget of minutes, only these are written. The run is prepared but not yet trained. `requested` are the
    training settings of the user, whose warmup and validation interval are kept; None: not set.
    """
    config = from_yaml(run / CONFIG_FILE)
    if budget.kind == "minutes":
        training = replace(config.training, minutes=budget.amount, steps=None)
    else:
        steps = budget_steps(run, budget, config.training)
        warmup = config.training.warmup_steps
        follows_paper = config.training.recipe == "textbook"  # also in the warmup
        if requested.warmup_steps is None and not follows_paper and warmup is not None:
            warmup = max(1, min(warmup, steps // 10))  # at most a tenth of the training
        interval = requested.validation_interval or max(100, math.ceil(steps / VALIDATIONS_PER_RUN))
        training = replace(config.training, steps=steps, warmup_steps=warmup, validation_interval=interval)
    write_file(run / CONFIG_FILE, to_yaml(replace(config, training=training)))


def budget_steps(run: Path, budget: ComparisonBudget, training: TrainingConfig) -> int:
    """Return the number of training steps after which the budget is used up.

    For a budget of tokens or FLOPs, the costs of the run's training batches are added up. Without an amount, the number
    follows from the size of the corpus.

    Args:
        run: prepared run folder, with the tokenized training text.
        budget: of the kind tokens, steps or flops.
        training: the run's training settings.
    """
    if budget.kind == "steps" and budget.amount is not None:
        return max(1, round(budget.amount))
    if budget.amount is None:
        assert training.batch_tokens is not None  # chosen when the run was prepared
        step_tokens = training.batch_tokens * training.gradient_accumulation
        steps = default_steps(epoch_target_tokens(TokenStore(run / "data" / "train")), step_tokens)
        return max(1, round(budget.share * steps))
    costs = TrainingCosts(run)
    count_cost = costs.flops if budget.kind == "flops" else costs.target_tokens
    totals = accumulate(count_cost(pairs) for pairs in costs.iterate_steps())  # after each step
    return next(step for step, total in enumerate(totals, 1) if total >= budget.amount)


class TrainingCosts:
    """Counts target tokens and FLOPs of the training steps of a run."""

    def __init__(self, run: Path) -> None:
        """Read the training batches, the lengths of all pairs, and the model's FLOPs of a prepared run folder."""
        self.batches = Trainer(run, SilentDisplay()).batches  # nothing is trained: only its batches are used
        config, framing = from_yaml(run / CONFIG_FILE), read_framing(run)
        self.batches_per_step, store = config.training.gradient_accumulation, self.batches.store
        # tokens of the source and the target of each pair, without special tokens
        self.source_lengths, self.target_lengths = (column.lengths for column in store.columns)
        self.framing_length = len(framing.source_prefix) + len(framing.source_suffix)  # special tokens of a source
        objective = objective_class(config.objective.name or "translation")
        self.predicts_source = objective.predicts_source
        self.cost_factor = objective.training_cost(config.objective.settings)  # FLOPs relative to teacher forcing
        spec = read_spec(run)
        model = meta_model(spec)  # without memory for weights
        # training FLOPs of a pair by its lengths
        self.pair_flops = cache(
            lambda source, target: model.training_flops(Workload(tokens=target, source=source, width=spec.dim))
        )

    def iterate_steps(self) -> Iterator[NDArray[Any]]:
        """Yield for each training step, without end, an array with the indices of its training pairs."""
        batches = self.batches.iterate_indices()  # of each batch: pairs, epoch, next position in the data
        while True:
            yield np.concatenate([pairs for pairs, _, _ in islice(batches, self.batches_per_step)])

    def target_tokens(self, pairs: NDArray[Any]) -> int:
        """Return the number of target tokens, including EOS, of the training pairs with the indices `pairs`."""
        return int(np.asarray(self.target_lengths[pairs], np.int64).sum()) + len(pairs)  # one EOS per pair

    def flops(self, pairs: NDArray[Any]) -> float:
        """Return the FLOPs of training on the pairs with the indices `pairs`; equal lengths are computed only once."""
        source_lengths = np.asarray(self.source_lengths[pairs], np.int64) + self.framing_length
        target_lengths = np.asarray(self.target_lengths[pairs], np.int64) + 1  # EOS
        if self.predicts_source:  # a language model, for which source and target together are the target
            source_lengths, target_lengths = np.zeros_like(source_lengths), source_lengths + target_lengths
        lengths, counts = np.unique(np.stack([source_lengths, target_lengths], 1), axis=0, return_counts=True)
        flops = (self.pair_flops(source, target) for source, target in lengths.tolist())
        return self.cost_factor * float(sum(count * cost for count, cost in zip(counts.tolist(), flops)))


def evaluate_run(
    folder: Path, label: str, seed: int, sources: Sequence[str], references: Sequence[str], device: str = "auto"
) -> RunResult:
    """Translate the test set with a trained system, and return texts, perplexity and training costs.

    The result is also saved in the run folder. A system that was trained twice ("gnmt+reward") has the costs of both
    trainings; the first one ("gnmt") is evaluated, too, if it has no saved result.

    Args:
        folder: folder of the comparison, which contains the run folders.
        label: name of the system, possibly with settings, "transformer@size=big", or a second objective, "gnmt+reward".
        seed: seed of the run.
        sources, references: the test set, aligned.
        device: of the search, such as "cuda"; "auto" is a GPU if there is one.
    """
    path = run_folder(folder, label, seed)
    state = TrainState.load(path / CHECKPOINT_DIR / "last")
    run = load(path, device=device)
    scores = run.score(sources, references)
    costs = TrainingCosts(path)
    target_tokens, flops = 0, 0.0
    for pairs in islice(costs.iterate_steps(), state.step):
        target_tokens += costs.target_tokens(pairs)
        flops += costs.flops(pairs)
    result = RunResult(
        system=label,
        seed=seed,
        year=SYSTEMS[split_label(label).name].year,
        attention=uses_attention(run, sources[0], references[0]),
        parameters=sum(weight.numel() for weight in run.model.parameters()),
        steps=state.step,
        target_tokens=target_tokens,
        flops=flops,
        seconds=state.seconds,
        perplexity=evaluation.perplexity(  # from log-probabilities and numbers of tokens of the references
            sum(score.score for score in scores), sum(len(score.tokens) for score in scores)
        ).value,
        texts=[translation.text for translation in run.translate(sources, alignment=False)],
        # what the device could have computed at best in the time of the training
        device_flops=state.seconds * matmul_flops_per_second(run.device, run.config.training.precision),
    )
    base = split_label(label).base
    if base != label:  # add the costs of the first training
        first = saved_result(folder, base, seed, sources, references) or evaluate_run(
            folder, base, seed, sources, references, device
        )
        result = replace(
            result,
            steps=result.steps + first.steps,
            target_tokens=result.target_tokens + first.target_tokens,
            flops=result.flops + first.flops,
            seconds=result.seconds + first.seconds,
            device_flops=(result.device_flops or 0.0) + (first.device_flops or 0.0),
        )
    values = {"test": _test_set_digest(sources, references), **asdict(result)}
    write_file(path / RESULT_FILE, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return result


def evaluate_ensemble(
    folder: Path, label: str, results: Sequence[RunResult], sources: Sequence[str], device: str = "auto"
) -> RunResult:
    """Translate the test set with the ensemble of all seeds of a system, and return its result.

    Parameters, target tokens, FLOPs and seconds are sums over the seeds; the steps are those of the first one. There is
    no perplexity.

    Args:
        folder: folder of the comparison, which contains the run folders.
        label: name of the system, possibly with settings: "transformer@size=big".
        results: results of the single seeds.
        sources: sources of the test set.
        device: of the search, such as "cuda"; "auto" is a GPU if there is one.
    """
    first, *others = (load(run_folder(folder, label, result.seed), device=device) for result in results)
    texts = [translation.text for translation in first.ensemble(*others).translate(sources, alignment=False)]
    device_flops = [result.device_flops for result in results if result.device_flops is not None]
    return replace(
        results[0],
        system=f"{label}, ensemble of {len(results)}",
        parameters=sum(result.parameters for result in results),
        target_tokens=sum(result.target_tokens for result in results),
        flops=sum(result.flops for result in results),
        seconds=sum(result.seconds for result in results),
        device_flops=sum(device_flops) if device_flops else None,
        perplexity=None,
        texts=texts,
    )


def saved_result(
    folder: Path, name: str, seed: int, sources: Sequence[str], references: Sequence[str]
) -> RunResult | None:
    """Return the result that `evaluate_run` has saved for a system (`name`) and seed; None if there is none.

    A result on another test set than (`sources`, `references`) does not count.
    """
    path = run_folder(folder, name, seed) / RESULT_FILE
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    test_set_digest = values.pop("test")  # not a field of RunResult
    return RunResult(**values) if test_set_digest == _test_set_digest(sources, references) else None


def _test_set_digest(sources: Sequence[str], references: Sequence[str]) -> str:
    """Return the SHA-256 of the test set: a saved result with another hash belongs to another test set."""
    return hashlib.sha256(json.dumps([list(sources), list(references)]).encode()).hexdigest()


def uses_attention(run: Run, source: str, target: str) -> bool:
    """Whether the model attends to tokens, and not only to a state of fixed size, when it reads this sentence pair."""
    sources, source_lengths = run.pad_batch(run.encode_sources([source]))
    targets, target_lengths = run.pad_batch(run.target_tokenizer.encode_batch([target]))
    weights_by_layer = attention_weights(run.model, sources, source_lengths, targets, target_lengths)
    return bool(weights_by_layer)  # empty without attention layers


class ComparisonDisplay(Display):
    """Shows a progress bar for each system, and an estimate of the time left for all of them.

    The runs are shown one after the other, inside the context of `bar`.
    """

    def __init__(self, systems: Sequence[str], seeds: int) -> None:
        """Create a bar for each of the `systems`, which is full after `seeds` runs, one for each seed."""
        super().__init__(live=sys.stderr.isatty())
        self.tasks = {name: self.bar.add_task(f"{name}  waiting", total=float(seeds)) for name in systems}
        self.pending_runs = len(systems) * seeds  # that have not started
        self.durations: list[float] = []  # seconds of the runs that this process trained

    def start_run(self, name: str, number: int, label: str) -> None:
        """Start to show the next run, of the system `name`.

        `number` counts the seeds of the system from 0, and `label`, such as "transformer, seed 1", precedes messages.
        """
        self.name, self.number, self.label = name, number, label
        self.pending_runs -= 1
        self.last_line = -math.inf  # time of the last plain line: the first one is printed at once
        self.run_started = time.monotonic()

    def __exit__(self, *exception: object) -> None:
        """Do nothing at the end of a run: the bars stay visible for the next one."""

    def show(self, fraction: float | None, text: str) -> None:
        """Show the finished `fraction` of the present run in the bar of its system (None: 0), with a text beside it.

        The bar counts runs (seeds), of which `self.number` were finished before.
        """
        done = self.number + min(1.0, fraction or 0.0)
        self.bar.update(self.tasks[self.name], completed=done, description=f"{self.name}  {text}")

    def finish(self, text: str) -> None:
        """Show the result of a run that was trained and evaluated."""
        self.durations.append(time.monotonic() - self.run_started)
        self.show(1.0, text)
        self.message(text)

    def message(self, text: str) -> None:
        """Print a message after the name of the system and its seed."""
        super().message(f"{self.label}: {text}")

    def line(self, record: dict[str, Any], fraction: float | None) -> str:
        """Return the status of the present run: step, loss, speed, and the time left for it and for all runs.

        Args:
            record: the latest record of metrics.jsonl, with step, loss and tokens_per_second.
            fraction: finished fraction of the run's budget; None if unknown.
        """
        step = f"step {record['step']:,}" + (f" of {self.total_steps:,}" if self.total_steps else "")
        parts = [step, f"loss {record['loss']:.3f}", f"{record['tokens_per_second']:,.0f} tokens/s"]
        if (seconds := self.seconds_left(fraction)) is not None:
            parts.append(f"{format_duration(seconds)} left")
            # runs that have not started are expected to take as long as the finished ones on average
            if self.durations:
                seconds += self.pending_runs * sum(self.durations) / len(self.durations)
                parts.append(f"{format_duration(seconds)} left for all")
        return "  ".join(parts)

    def log_validation(self, step: int, result: ValidationResult, best: bool) -> None:
        """Do not show the results of validations: systems are compared on the test set."""
