"""Training several systems on the same batches with the same budget, so that they can be compared."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dragoman import checkpoint, evaluation
from dragoman.config import Config, from_yaml, to_yaml
from dragoman.data import TokenStore
from dragoman.errors import UserError, unknown_name
from dragoman.evaluation.system_comparison import RunResult
from dragoman.models import ModelSpec, meta_model
from dragoman.objectives import objective_class
from dragoman.parts.flops import Workload
from dragoman.run import CHECKPOINT_DIR, CONFIG_FILE, Run, is_run_folder, load, read_framing, read_spec
from dragoman.search.forced_decoding import attention_weights
from dragoman.storage import write_file
from dragoman.systems import SYSTEMS, VocabularySizes, get_system
from dragoman.training.display import Display, SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.recipes import default_steps
from dragoman.training.trainer import Trainer

REQUEST = "comparison.json"  # in the folder of a comparison: what all its runs have in common
RESULT = "comparison.json"  # in the folder of a run: its result on the test set
VALIDATIONS = 5  # checkpoints of a run, at equal distances; the best by validation loss is compared

#: How systems are trained in a comparison: alike, and on batches that do not depend on the system.
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
    """What each system is given for its training.

    `tokens` (target tokens) and `steps` mean the same batches for every system, `flops` the same floating-point
    operations, counted from the system's specification. `minutes` depend on the machine. Without an amount the number
    of target tokens follows from the size of the corpus, as it does for a single training.
    """

    kind: Literal["tokens", "steps", "flops", "minutes"] = "tokens"
    amount: float | None = None

    def __post_init__(self) -> None:
        if self.amount is not None and not (0 < self.amount < math.inf):
            raise UserError(f"a budget must be a positive number of {self.kind}, but is {self.amount:g}")

    def __str__(self) -> str:
        names = {"tokens": "target tokens", "steps": "steps", "flops": "training FLOPs", "minutes": "minutes"}
        if self.amount is None:
            return f"{names[self.kind]} by the size of the corpus"
        amount = f"{self.amount:.3g}" if self.kind in ("flops", "minutes") else f"{self.amount:,.0f}"
        return f"{amount} {names[self.kind]} per system"


def check_systems(names: Sequence[str]) -> None:
    """Refuse, before anything is trained, names that are unknown or systems that cannot translate."""
    if not names:
        raise UserError("no system was named: give some with --systems, separated by commas")
    if len(set(names)) < len(names):
        raise UserError(f"a system is named twice in {', '.join(names)}: each can be compared once")
    for name in names:
        model = meta_model(get_system(name).spec(VocabularySizes(100, 100, joint=True), "tiny"))
        if model.source_features is not None or not model.can_generate:
            raise UserError(f"{name} does not translate text, and so cannot be compared with systems that do")


def check_settings(names: Sequence[str], config: Config) -> None:
    """Refuse a setting that none of the systems has: each is given to those that have it."""
    known = {setting for name in names for setting in SYSTEMS[name].settings()}
    for setting in config.system.settings:
        if setting not in known:
            raise unknown_name("setting of these systems", setting, known)


def check_request(folder: Path, config: Config, budget: ComparisonBudget) -> None:
    """Write down what all runs of the comparison share, or refuse a folder whose runs share something else.

    Systems and seeds may be added later, and the device may change.
    """
    request = {"budget": asdict(budget)} | asdict(config)
    for section, name in (("training", "seed"), ("training", "device"), ("system", "name")):
        del request[section][name]
    request = json.loads(json.dumps(request))  # tuples become lists, as in the file
    path = folder / REQUEST
    if not path.exists():
        write_file(path, json.dumps(request, indent=1, ensure_ascii=False) + "\n")
        return
    before, now = _flat(json.loads(path.read_text(encoding="utf-8"))), _flat(request)
    for name in sorted({*before, *now}):
        if before.get(name) != now.get(name):
            raise UserError(
                f"{folder} holds a comparison with {name}={before.get(name)}, but now it is {now.get(name)}: repeat "
                "the first command to continue it, or choose another folder"
            )


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, dict)
        flat |= _flat(value, f"{path}{name}.") if inner else {f"{path}{name}": value}
    return flat


def run_folder(folder: Path, name: str, seed: int) -> Path:
    return folder / f"{name}-seed{seed}"


def train_system(
    folder: Path, name: str, seed: int, config: Config, budget: ComparisonBudget, display: Display
) -> None:
    """Train a system in its own run folder, or continue where it stopped."""
    place = run_folder(folder, name, seed)
    if not is_run_folder(place):
        settings = {key: value for key, value in config.system.settings.items() if key in SYSTEMS[name].settings()}
        prepare_run(
            place,
            replace(
                config,
                system=replace(config.system, name=name, settings=settings),
                training=replace(config.training, seed=seed),
            ),
            lambda text: None,
        )
    if not (place / CHECKPOINT_DIR / "last").exists():
        _fit_to_budget(place, budget, config)
    saved = from_yaml(place / CONFIG_FILE)
    try:
        outcome = Trainer(place, display, _on_device(saved, config.training.device)).train()
    except UserError as error:
        raise UserError(f"{name}, seed {seed}: {error}; or leave {name} out of --systems") from error
    if outcome.interrupted:
        raise KeyboardInterrupt


def _on_device(saved: Config, device: str) -> Config:
    return saved if device == "auto" else replace(saved, training=replace(saved.training, device=device))


def _fit_to_budget(place: Path, budget: ComparisonBudget, asked: Config) -> None:
    """Set the number of steps and fit the warm-up to it; the run has not been trained yet."""
    config = from_yaml(place / CONFIG_FILE)
    if budget.kind == "minutes":
        training = replace(config.training, minutes=budget.amount, steps=None)
    else:
        steps = _steps(place, budget, config)
        warmup = config.training.warmup_steps
        if asked.training.warmup_steps is None and config.training.recipe != "textbook" and warmup is not None:
            warmup = max(1, min(warmup, steps // 10))
        every = asked.training.validation_interval or max(100, math.ceil(steps / VALIDATIONS))
        training = replace(config.training, steps=steps, warmup_steps=warmup, validation_interval=every)
    write_file(place / CONFIG_FILE, to_yaml(replace(config, training=training)))


def _steps(place: Path, budget: ComparisonBudget, config: Config) -> int:
    """The number of training steps that the budget pays for, at least one."""
    if budget.kind == "steps" and budget.amount is not None:
        return round(budget.amount)
    if budget.amount is None:
        store, training = TokenStore(place / "data" / "train"), config.training
        return default_steps(
            store.columns[1].tokens + len(store), (training.batch_tokens or 4096) * training.gradient_accumulation
        )
    plan = _Plan(place)
    cost = plan.flops if budget.kind == "flops" else plan.target_tokens
    spent = 0.0
    for number, pairs in enumerate(plan.steps(), 1):
        spent += cost(pairs)
        if spent >= budget.amount:
            return number
    raise AssertionError("a plan has no end")


class _Plan:
    """The training pairs of each step of a run, and what they cost."""

    def __init__(self, place: Path) -> None:
        self.batches = Trainer(place, SilentDisplay()).batches
        config, framing = from_yaml(place / CONFIG_FILE), read_framing(place)
        self.accumulate, store = config.training.gradient_accumulation, self.batches.store
        self.source, self.target = store.source_lengths, store.target_lengths
        self.around = len(framing.source_prefix) + len(framing.source_suffix)
        self.joined = objective_class(config.objective.name or "translation").predicts_source
        self.pair_flops = pair_flops(read_spec(place))

    def steps(self) -> Iterator[NDArray[Any]]:
        walk = self.batches.iterate_indices()
        while True:
            yield np.concatenate([indices for indices, _, _ in islice(walk, self.accumulate)])

    def target_tokens(self, pairs: NDArray[Any]) -> int:
        return int(np.asarray(self.target[pairs], np.int64).sum()) + len(pairs)  # with the END of each

    def flops(self, pairs: NDArray[Any]) -> float:
        source = np.asarray(self.source[pairs], np.int64) + self.around
        target = np.asarray(self.target[pairs], np.int64) + 1
        if self.joined:
            source, target = 0 * source, source + target
        lengths, counts = np.unique(source << 32 | target, return_counts=True)
        costs = (self.pair_flops(length >> 32, length & 0xFFFFFFFF) for length in lengths.tolist())
        return float(sum(count * cost for count, cost in zip(counts.tolist(), costs)))


def pair_flops(spec: ModelSpec) -> Callable[[int, int], int]:
    """The training FLOPs of a pair of source and target length: a forward pass, and a backward pass of twice that."""
    model = meta_model(spec)
    return cache(lambda source, target: model.training_flops(Workload(target, source, spec.dim)))


def evaluate_run(
    folder: Path, name: str, seed: int, sources: Sequence[str], references: Sequence[str], device: str = "auto"
) -> RunResult:
    """Translate the test set with a trained run, once: the result is kept in the run folder."""
    place = run_folder(folder, name, seed)
    last = checkpoint.read_values(place / CHECKPOINT_DIR / "last")["progress"]
    run = load(place, device=device)
    scored = run.score(sources, references)
    plan, steps = _Plan(place), int(last["step"])
    tokens, operations = 0, 0.0
    for pairs in islice(plan.steps(), steps):
        tokens += plan.target_tokens(pairs)
        operations += plan.flops(pairs)
    result = RunResult(
        system=name,
        seed=seed,
        year=SYSTEMS[name].year,
        attention=uses_attention(run, sources[0], references[0]),
        parameters=sum(weight.numel() for weight in run.model.parameters()),
        steps=steps,
        target_tokens=tokens,
        flops=operations,
        seconds=float(last["seconds"]),
        perplexity=evaluation.perplexity(
            sum(one.score for one in scored), sum(len(one.tokens) for one in scored)
        ).value,
        texts=[translation.text for translation in run.translate(sources, alignment=False)],
    )
    values = {"test": _digest(sources, references), **asdict(result)}
    write_file(place / RESULT, json.dumps(values, indent=1, ensure_ascii=False) + "\n")
    return result


def saved_result(
    folder: Path, name: str, seed: int, sources: Sequence[str], references: Sequence[str]
) -> RunResult | None:
    """The result of a run that is trained and measured on this test set."""
    path = run_folder(folder, name, seed) / RESULT
    if not path.exists():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return RunResult(**values) if values.pop("test") == _digest(sources, references) else None


def _digest(sources: Sequence[str], references: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps([list(sources), list(references)]).encode()).hexdigest()


def uses_attention(run: Run, source: str, target: str) -> bool:
    """Whether anything in the model attends to tokens, rather than to one state of fixed size."""
    ids, answer = run.encode_sources([source]), run.target_tokenizer.encode_batch([target])
    sides = (*run.pad_batch(ids, run.framing.pad), *run.pad_batch(answer, run.framing.pad))
    return bool(attention_weights(run.model, *sides))
