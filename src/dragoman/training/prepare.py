"""Preparation: from the user's files to a run folder that is ready to train."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman import data
from dragoman.config import Config, DataConfig, to_yaml
from dragoman.data import Corpus, HoldOut, Inspector, Limits, Memory, Pair, Preflight
from dragoman.errors import UserError
from dragoman.models import ModelSpec, blueprint, count_parameters, model_to_dict
from dragoman.parts.spec import find
from dragoman.parts.stack import Stack
from dragoman.run import CONFIG, MODEL, is_run, pick_device
from dragoman.storage import new_folder
from dragoman.systems import Vocabulary, system
from dragoman.text import Tokenizer, learn
from dragoman.training.choices import Choice, choose, choose_vocabulary

TELL_EVERY = 10.0  # seconds
LEARN_FROM = 1_000_000  # pairs, evenly spread, that a tokenizer is learned from

Say = Callable[[str], None]


@dataclass(frozen=True)
class Prepared:
    """What preparation found and chose."""

    config: Config
    preflight: Preflight
    choices: list[Choice]
    parameters: int


def prepare(folder: Path, config: Config, say: Say) -> Prepared:
    """Make the run folder: tokenizers, token stores, the model's spec. Nothing is left behind if it fails."""
    check_free(folder)
    try_spec(config)
    device = str(pick_device(config.training.device))
    train, valid = corpora(config.data)
    with new_folder(folder) as partial:
        say("reading the corpus")
        count = _Count()
        split = None
        if valid:
            _exhaust(count.watch(tell(data.read(train), "read", say)))
            _exhaust(data.read(valid))  # all of it, so that a flaw in it shows before anything is made
        else:
            pairs = count.watch(tell(data.read(train), "read", say))
            split = data.hold_out(pairs, config.training.seed, config.data.hold_out)
            if not split.pairs:
                raise UserError(f"{train[0].source} has too few sentence pairs to hold one out: give validation files")
        config, choices = choose_vocabulary(config, count.words)
        say(f"learning a vocabulary of {config.text.kind} pieces from {count.pairs:,} pairs")
        tokenizers = _learn(config, lambda: _train(train, split), count.pairs)
        say("writing the token store")
        others = {} if split else {"valid": data.read(valid)}
        if config.data.test_source:
            others["test"] = data.read(_corpora(config.data, config.data.test_source, config.data.test_target))
        inspector = Inspector(*tokenizers, Limits(config.data.longest), others)
        vocabulary = Vocabulary(tokenizers[0].size, tokenizers[1].size, config.text.joint)
        sizes = (vocabulary.source, vocabulary.target)
        encoded = data.encode(tell(_train(train, split), "written", say, count.pairs), *tokenizers)
        store = data.write_store(partial / "data" / "train", inspector.keep(encoded), *sizes)
        watch = Inspector(*tokenizers, Limits(config.data.longest), what="validate on")
        encoded = data.encode(split.valid(data.read(train)) if split else data.read(valid), *tokenizers)
        data.write_store(partial / "data" / "valid", watch.keep(encoded), *sizes)
        if watch.dropped:
            lost = f"{watch.read - watch.pairs:,} of {watch.read:,} validation pairs"
            say(f"  {lost} are dropped: {', '.join(watch.dropped)}")
        config, more = choose(config, len(store), int(store.target_lengths.sum()), device)
        spec = make_spec(config, vocabulary)
        parameters = count_parameters(spec)
        memory = Memory.of(parameters, estimate_activations(spec, config.training.tokens or 0))
        preflight = inspector.report(memory)
        _write(partial, config, spec, tokenizers, preflight)
    return Prepared(config, preflight, choices + more, parameters)


def tell(pairs: Iterable[Pair], done: str, say: Say, total: int | None = None) -> Iterator[Pair]:
    """The same pairs; now and then it is said how far one is, how fast, and how long it will still take."""
    began = last = time.monotonic()
    for number, pair in enumerate(pairs):
        if number % 10_000 == 0 and (now := time.monotonic()) - last >= TELL_EVERY:
            last, speed = now, number / (now - began)
            left = f", {(total - number) / speed:,.0f} s left" if total else ""
            say(f"  {number:,} pairs {done}, {speed:,.0f} a second{left}")
        yield pair


def _exhaust(pairs: Iterable[Pair]) -> None:
    for _ in pairs:
        pass


def check_free(folder: Path) -> None:
    """A run is never written over another, nor over anything else."""
    if is_run(folder):
        raise UserError(f"{folder} already holds a run: go on with --resume, or choose another name")
    if folder.exists() or folder.is_symlink():
        raise UserError(f"{folder} exists and is no run: choose another name, or remove it")


def corpora(config: DataConfig) -> tuple[list[Corpus], list[Corpus]]:
    """The training and validation corpora."""
    if not config.source:
        raise UserError("no training text was given: name it with --source and --target (or --source alone for TSV)")
    return _corpora(config, config.source, config.target), _corpora(config, config.valid_source, config.valid_target)


def _corpora(config: DataConfig, sources: tuple[str, ...], targets: tuple[str, ...]) -> list[Corpus]:
    if targets and len(sources) != len(targets):
        raise UserError(f"{len(sources)} source files came with {len(targets)} target files: give one for each")
    keys = (config.source_key, config.target_key)
    return [
        Corpus(Path(source), Path(target) if target else None, config.format, *keys)
        for source, target in zip(sources, targets or [None] * len(sources))
    ]


def try_spec(config: Config) -> None:
    """Build the system small, so that a setting that cannot be is refused before anything is read."""
    named, settings = system(config.system.name), config.system.settings
    if not all(isinstance(name, str) for name in settings):
        raise UserError(f"system.settings must be named, but holds {settings}")
    count_parameters(named.spec(Vocabulary(100, 100, config.text.joint), config.system.size or "tiny", **settings))


def make_spec(config: Config, vocabulary: Vocabulary) -> ModelSpec:
    return system(config.system.name).spec(vocabulary, config.system.size or "base", **config.system.settings)


def estimate_activations(spec: ModelSpec, tokens: int) -> int:
    """Bytes kept for the backward pass, roughly: logits three times over, and some forty vectors a token and layer."""
    layers = sum(stack.depth * len(stack.block) for stack in find(spec, Stack))
    return 4 * tokens * (3 * blueprint(spec).vocabulary + 16 * spec.dim * layers)


class _Count:
    """Counts the pairs and words that pass."""

    def __init__(self) -> None:
        self.pairs = self.words = 0

    def watch(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        for pair in pairs:
            self.pairs += 1
            self.words += pair.source.count(" ") + (pair.target or "").count(" ") + 2
            yield pair


def _train(train: list[Corpus], split: HoldOut | None) -> Iterator[Pair]:
    return split.train(data.read(train)) if split else data.read(train)


def _learn(config: Config, pairs: Callable[[], Iterator[Pair]], count: int) -> tuple[Tokenizer, Tokenizer]:
    every = -(-count // LEARN_FROM)

    def texts(sides: tuple[bool, bool]) -> Iterator[str]:
        for number, pair in enumerate(pairs()):
            if number % every == 0:
                if sides[0]:
                    yield pair.source
                if sides[1]:
                    yield pair.target or ""

    def one(*sides: bool) -> Tokenizer:
        return learn(texts((sides[0], sides[1])), config.text.kind, config.text.size or 8000, config.text.marker)

    if config.text.joint:
        joint = one(True, True)
        return joint, joint
    return one(True, False), one(False, True)


def _write(
    folder: Path, config: Config, spec: ModelSpec, tokenizers: tuple[Tokenizer, Tokenizer], preflight: Preflight
) -> None:
    if config.text.joint:
        tokenizers[0].save(folder / "tokenizer.json")
    else:
        tokenizers[0].save(folder / "tokenizer.source.json")
        tokenizers[1].save(folder / "tokenizer.target.json")
    absolute = replace(config, data=_absolute(config.data))
    (folder / CONFIG).write_text(to_yaml(absolute), encoding="utf-8")
    document = {"version": 1, "system": config.system.name, "spec": model_to_dict(spec)}
    (folder / MODEL).write_text(json.dumps(document, indent=1), encoding="utf-8")
    (folder / "preflight.json").write_text(
        json.dumps(preflight.to_dict(), indent=1, ensure_ascii=False), encoding="utf-8"
    )


def _absolute(config: DataConfig) -> DataConfig:
    """Files by their full names, so that the run knows them from wherever it is looked at."""
    names = ("source", "target", "valid_source", "valid_target", "test_source", "test_target")
    files = {name: tuple(str(Path(file).resolve()) for file in getattr(config, name)) for name in names}
    return replace(config, **files)  # type: ignore[arg-type]
