"""The textbook's table: several systems trained on the same data with the same budget, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dragoman import checkpoint, evaluation
from dragoman.config import Config, from_yaml
from dragoman.data import TokenStore
from dragoman.data.passes import Say
from dragoman.errors import UserError, unknown
from dragoman.evaluation import LengthBand, Score
from dragoman.models import blueprint
from dragoman.models.flops import training_flops
from dragoman.objectives import objective
from dragoman.run import CHECKPOINTS, CONFIG, Run, is_run, load
from dragoman.search.alignment import attention_weights
from dragoman.systems import SYSTEMS, Vocabulary, system
from dragoman.training.display import Display
from dragoman.training.prepare import prepare
from dragoman.training.trainer import Trainer

LONG = 13  # words from which on a sentence counts as long


@dataclass(frozen=True)
class Trained:
    """One system after its training: what it cost and how good it is on the test set."""

    system: str
    year: int
    parameters: int
    attends: bool
    bleu: Score
    exact: Score
    long_exact: float  # per cent of the long sentences that are exactly right
    perplexity: float  # of the test set's pieces
    flops: float  # of its training
    seconds: float  # of its training
    steps: int
    bands: list[LengthBand]

    def row(self) -> dict[str, object]:
        return {
            "system": self.system,
            "year": str(self.year),
            "attention": self.attends,
            "parameters": self.parameters,
            "BLEU": self.bleu,
            "exact %": self.exact,
            f"exact %, {LONG}+ words": self.long_exact,
            "perplexity": self.perplexity,
            "training FLOPs": self.flops,
            "seconds": round(self.seconds, 1),
            "steps": self.steps,
        }


def check_systems(names: Sequence[str]) -> None:
    """Refuse, before anything is trained, what is no system or cannot translate."""
    if len(set(names)) < len(names):
        raise UserError(f"a system is named twice in {', '.join(names)}: each can be compared once")
    if not names:
        raise UserError("no system was named: give some with --systems, separated by commas")
    for name in names:
        model = blueprint(system(name).spec(Vocabulary(100, 100, joint=True), "tiny"))
        if model.source_features is not None or not model.writes:
            raise UserError(f"{name} does not translate text, and so cannot be compared with systems that do")


def check_settings(names: Sequence[str], config: Config) -> None:
    """Refuse a setting that none of the systems has: each is given to those that have it."""
    known = {setting for name in names for setting in SYSTEMS[name].settings()}
    for setting in config.system.settings:
        if setting not in known:
            raise unknown("setting of these systems", setting, known)


def train_one(folder: Path, name: str, config: Config, display: Display, say: Say) -> Run:
    """Train a system in its own run folder, or go on with it where it stopped."""
    place = folder / name
    if is_run(place):
        saved = from_yaml(place / CONFIG)
        if _budget(saved) != _budget(config):
            raise UserError(f"{place} was trained with another budget, size or seed: name another folder")
    else:
        settings = {key: value for key, value in config.system.settings.items() if key in SYSTEMS[name].settings()}
        chosen = replace(config, system=replace(config.system, name=name, settings=settings))
        prepare(place, chosen, lambda text: None)
    outcome = Trainer(place, display).train()
    if outcome.interrupted:
        raise KeyboardInterrupt
    say(f"  {outcome.progress.step:,} steps in {outcome.progress.seconds:.0f} s: {outcome.reason}")
    return load(place)


def _budget(config: Config) -> tuple[object, ...]:
    training = config.training
    return config.system.size, training.minutes, training.steps, training.seed


def measure(run: Run, sources: Sequence[str], references: Sequence[str]) -> Trained:
    """How good a trained system is on a test set, and what it cost."""
    name = run.config.system.name or ""
    texts = [translation.text for translation in run.translate(sources, alignment=False)]
    scored = run.score(sources, references)
    long = [i for i, source in enumerate(sources) if len(source.split()) >= LONG]
    right = sum(texts[i] == references[i] for i in long)
    progress = checkpoint.values(run.folder / CHECKPOINTS / "last")["progress"]
    return Trained(
        name,
        SYSTEMS[name].year,
        sum(weight.numel() for weight in run.model.parameters()),
        attends(run, sources[0], references[0]),
        evaluation.bleu(texts, references),
        evaluation.exact_match(texts, references),
        100 * right / len(long) if long else float("nan"),
        evaluation.perplexity(sum(one.score for one in scored), sum(len(one.tokens) for one in scored)).value,
        run_flops(run, progress["tokens"]),
        progress["seconds"],
        progress["step"],
        evaluation.by_length(sources, texts, references, edges=(4, 8, 12, 16, 20)),
    )


def attends(run: Run, source: str, target: str) -> bool:
    """Does anything in it look back at words, rather than carry a state of fixed size along?"""
    ids, answer = run.encode_sources([source]), run.target_tokenizer.encode_batch([target])
    sides = (*run.pad(ids, run.framing.pad), *run.pad(answer, run.framing.pad))
    return bool(attention_weights(run.model, *sides))


def run_flops(run: Run, target_tokens: int) -> float:
    """The floating-point operations of training on so many target tokens of the run's corpus, padding not counted."""
    store = TokenStore(run.folder / "data" / "train")
    rows = np.linspace(0, len(store) - 1, min(len(store), 200)).astype(int)  # a fair sample: the cost is not linear
    around = len(run.framing.before) + len(run.framing.after)
    lengths = [(int(store.source_lengths[i]) + around, int(store.target_lengths[i]) + 1) for i in rows]
    if objective(run.config.objective.name or "translation").counts_source:
        lengths = [(0, source + target) for source, target in lengths]
    cost = sum(training_flops(run.spec, source, target) for source, target in lengths)
    return cost / sum(target for _, target in lengths) * target_tokens


def findings(trained: Sequence[Trained]) -> list[str]:
    """What the table shows, said only where it does."""
    with_it, without = ([one for one in trained if one.attends is which] for which in (True, False))
    found = []
    if with_it and without and not any(np.isnan(one.long_exact) for one in trained):
        least, most = min(with_it, key=lambda one: one.long_exact), max(without, key=lambda one: one.long_exact)
        means = [float(np.mean([one.long_exact for one in some])) for some in (with_it, without)]
        told = f"on sentences of {LONG} words or more: {means[0]:.1f} % exactly right with it, {means[1]:.1f} % without"
        if least.long_exact > most.long_exact:
            found.append(f"Every system with attention beats every one without it {told}, on average.")
        elif means[0] > means[1]:
            but = f"though not in every system: {least.system} with it gets {least.long_exact:.1f} %"
            found.append(f"Attention beats no attention {told}, on average, {but}.")
        else:
            found.append(f"Attention does not beat no attention here {told}, on average.")
    best = max(trained, key=lambda one: one.bleu.value)
    cheapest = min(trained, key=lambda one: one.flops)
    found.append(f"Best BLEU: {best.system} ({best.bleu.figure}); fewest operations: {cheapest.system}.")
    return found
