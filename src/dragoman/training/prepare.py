"""Preparation: from the user's files to a run folder that is ready to train."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from dragoman import data
from dragoman.config import Config, DataConfig, SearchConfig, TextConfig, to_yaml
from dragoman.data import Corpus, Example, HoldOut, Limits, Memory, Pair, Preflight, Reading
from dragoman.errors import UserError
from dragoman.models import DecoderOnly, EncoderOnly, Model, ModelSpec, blueprint, count_parameters
from dragoman.models.model import position_limit
from dragoman.objectives import Material, make, objective
from dragoman.parts.spec import find
from dragoman.parts.stack import Stack
from dragoman.run import CONFIG, FRAMINGS, is_run, pick_device, write_model, write_tokenizers
from dragoman.storage import new_folder
from dragoman.systems import Vocabulary, system
from dragoman.text import Framing, Tokenizer, learn
from dragoman.training.beginning import Origin, begin, with_labels
from dragoman.training.choices import Choice, choose, choose_objective, choose_vocabulary

TELL_EVERY = 10.0  # seconds
LONGEST_SIGNAL = 4000  # vectors of a source, unless told: 40 seconds of speech
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
    origin = Origin.open(config.training.start_from) if config.training.start_from else None
    told = config.system.name or config.objective.name or origin
    config = settle_system(config, origin)
    kept = origin.spec if origin and config.system == origin.config.system else None  # else another system is built
    device = str(pick_device(config.training.device))
    train, valid = corpora(config.data)
    holds = data.kind_of(train[0])
    if holds == "text" and not told:
        raise UserError(
            f"{train[0].source} is one side of a parallel corpus: name the target file too, or say with --system or "
            "--objective what to learn from it alone"
        )
    if holds == "signals":
        config = settle_signals(config, train[0]) if kept is None else config
    tried = kept or try_spec(config)
    for corpus in (*train, *valid):
        check_source(config.system.name or "", tried, corpus)
    config = choose_objective(config, tried, holds)
    reading = data.READINGS["signals" if holds == "signals" else objective(config.objective.name or "").reads]
    with new_folder(folder) as partial:
        say("reading the corpus")
        count = _Count()
        split = None
        if valid:
            _exhaust(count.watch(tell(reading.read(train), "read", say)))
            _exhaust(reading.read(valid))  # all of it, so that a flaw in it shows before anything is made
        else:
            pairs = count.watch(tell(reading.read(train), "read", say))
            split = data.hold_out(pairs, config.training.seed, config.data.hold_out)
            if not split.pairs:
                raise UserError(f"{train[0].source} has too few sentences to hold one out: give validation files")
        config, tokenizers, choices = _tokenizers(
            config, reading, lambda: _train(reading, train, split), count, origin, say
        )
        vocabulary = Vocabulary(tokenizers[0].size, tokenizers[1].size, tokenizers[0] is tokenizers[1])
        spec = _labelled(kept or make_spec(config, vocabulary), reading, vocabulary)
        check_vocabulary(spec, vocabulary, reading)
        framing = origin.framing if origin and kept else framing_of(spec, tokenizers[1])
        say("writing the token store")
        others = {} if split else {"valid": reading.read(valid)}
        if config.data.test_source:
            others["test"] = reading.read(_corpora(config.data, config.data.test_source, config.data.test_target))
        inspector = reading.inspector(*tokenizers, Limits(config.data.longest), others)
        sizes = (vocabulary.source, vocabulary.target)

        def encoded(pairs: Iterable[Pair]) -> Iterator[list[Example]]:
            return reading.encode(pairs, *tokenizers, config.data.longest, framing)

        written = tell(_train(reading, train, split), "written", say, count.pairs)
        store = data.write_store(partial / "data" / "train", inspector.keep(encoded(written)), *sizes)
        watch = reading.inspector(*tokenizers, Limits(config.data.longest), what="validate on")
        held = split.valid(reading.read(train)) if split else reading.read(valid)
        data.write_store(partial / "data" / "valid", watch.keep(encoded(held)), *sizes)
        if watch.dropped:
            lost = f"{watch.read - watch.pairs:,} of {watch.read:,} validation pairs"
            say(f"  {lost} are dropped: {', '.join(watch.dropped)}")
        config, more = choose(config, spec, store, device, fresh=kept is None)
        if kept is None:  # what was chosen for the amount of data is in it now
            spec = _labelled(make_spec(config, vocabulary), reading, vocabulary)
        parameters = count_parameters(spec)
        memory = Memory.of(parameters, estimate_activations(spec, config.training.tokens or 0))
        preflight = inspector.report(memory)
        material = Material(blueprint(spec), *tokenizers, framing, config.training.label_smoothing or 0.0)
        learned = make(config.objective.name or "", material, config.objective.settings)  # refuses what cannot be
        check_lengths(blueprint(spec), int(learned.width(store.source_lengths, store.target_lengths).max()))
        if config.text.dropout and config.objective.name != "translation":
            say(f"text.dropout is of no effect: the objective {config.objective.name} makes its own rows")
        begin(partial, spec, config, tokenizers, say)
        _write(partial, config, spec, framing, tokenizers, preflight)
    return Prepared(config, preflight, choices + more, parameters)


def settle_system(config: Config, origin: Origin | None) -> Config:
    """The system that was named, that of the run to start from, or the Transformer."""
    if config.system.name is not None:
        if origin is None or origin.config.system.name != config.system.name:
            return config
        before = origin.config.system  # the same system: what is not told stays as it was
        settings = before.settings | config.system.settings
        return replace(config, system=replace(before, size=config.system.size or before.size, settings=settings))
    if origin is None:
        return replace(config, system=replace(config.system, name="transformer"))
    if config.system.settings or config.system.size:
        raise UserError("the settings of the run to start from stay as they are: name a --system to choose others")
    return replace(config, system=origin.config.system)


def settle_signals(config: Config, corpus: Corpus) -> Config:
    """As many numbers a vector as the files have, unless the system was told; and sources longer than those of text."""
    name, settings = config.system.name or "", config.system.settings
    if config.data.longest == DataConfig.longest:
        config = replace(config, data=replace(config.data, longest=LONGEST_SIGNAL))
    if config.search.longest_source == SearchConfig.longest_source:
        config = replace(config, search=replace(config.search, longest_source=LONGEST_SIGNAL))
    if "features" not in system(name).settings() or "features" in settings:
        return config
    found = {**settings, "features": data.Signals(corpus.source).features}
    return replace(config, system=replace(config.system, settings=found))


def check_source(name: str, spec: ModelSpec, corpus: Corpus) -> None:
    """Refuse text for a system that reads vectors, vectors for one that reads text, and vectors of another width."""
    features, signals = blueprint(spec).source_features, data.kind_of(corpus) == "signals"
    if signals and features is None:
        raise UserError(f"{name} reads text, but {corpus.source} holds vectors: choose --system vision or speech")
    if features is not None and not signals:
        raise UserError(f"{name} reads vectors, but {corpus.source} is none of numpy's .npz and .npy files")
    if signals and (found := data.Signals(corpus.source).features) != features:
        raise UserError(
            f"{corpus.source} has vectors of {found} numbers, but the system reads {features}: leave "
            "system.settings.features out, or give it other files"
        )


def _labelled(spec: ModelSpec, reading: Reading, vocabulary: Vocabulary) -> ModelSpec:
    """The spec with an output for every tag, where words are to be tagged."""
    return with_labels(spec, vocabulary.target) if reading.labels else spec


def check_vocabulary(spec: ModelSpec, vocabulary: Vocabulary, reading: Reading) -> None:
    """Refuse outputs and tables that cannot serve the text."""
    if isinstance(spec, DecoderOnly) and not vocabulary.joint:
        raise UserError("a decoder alone reads source and target as one text: leave text.joint true")
    if isinstance(spec, EncoderOnly) and spec.outputs and not reading.labels and spec.outputs < vocabulary.source:
        raise UserError("the run to start from labels words: to learn words again, name a --system such as roberta")


def check_lengths(model: Model, widest: int) -> None:
    limit = position_limit(model)
    if limit is not None and widest > limit:
        raise UserError(
            f"the longest row has {widest:,} tokens, but the system has {limit:,} positions: lower data.longest, or "
            "raise system.settings.longest"
        )


def _tokenizers(
    config: Config,
    reading: Reading,
    pairs: Callable[[], Iterator[Pair]],
    count: _Count,
    origin: Origin | None,
    say: Say,
) -> tuple[Config, tuple[Tokenizer, Tokenizer], list[Choice]]:
    """Those of the run to start from, or learned ones; tags are always learned."""
    choices: list[Choice] = []
    if origin:
        tokenizers, asked, default = origin.tokenizers, config.text, TextConfig()
        if (asked.kind, asked.size, asked.joint, asked.marker) != (
            default.kind,
            default.size,
            default.joint,
            default.marker,
        ):
            raise UserError("the tokenizers of the run to start from are kept: leave text.kind, size, joint and marker")
        text = replace(
            origin.config.text,
            dropout=asked.dropout,
            source_vectors=asked.source_vectors,
            target_vectors=asked.target_vectors,
        )
        config = replace(config, text=text)
    else:
        config, choices = choose_vocabulary(config, count.words)
        say(f"learning a vocabulary of {config.text.kind} pieces from {count.pairs:,} {reading.name}")
        tokenizers = _learn(config, reading, pairs, count.pairs)
    if reading.labels:
        tags = learn((pair.target or "" for pair in pairs()), "label", 100_000)
        tokenizers = (tokenizers[0], tags)
    return config, tokenizers, choices


def framing_of(spec: ModelSpec, target: Tokenizer) -> Framing:
    """The symbols around a text; tokens past the tokenizer's own (sentinels) are never written by a search."""
    framing, model = FRAMINGS[type(spec)], blueprint(spec)
    if model.source_features is not None:  # nothing stands around vectors
        framing = replace(framing, before=(), after=())
    return replace(framing, banned=(*framing.banned, *range(target.size, model.vocabulary)))


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


def try_spec(config: Config) -> ModelSpec:
    """Build the system small, so that a setting that cannot be is refused before anything is read."""
    named, settings = system(config.system.name or ""), config.system.settings
    if not all(isinstance(name, str) for name in settings):
        raise UserError(f"system.settings must be named, but holds {settings}")
    spec = named.spec(Vocabulary(100, 100, config.text.joint), config.system.size or "tiny", **settings)
    count_parameters(spec)
    return spec


def make_spec(config: Config, vocabulary: Vocabulary) -> ModelSpec:
    name, size = config.system.name or "", config.system.size or "tiny"  # before a size is chosen, the smallest
    return system(name).spec(vocabulary, size, **config.system.settings)


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


def _train(reading: Reading, train: list[Corpus], split: HoldOut | None) -> Iterator[Pair]:
    return split.train(reading.read(train)) if split else reading.read(train)


def _learn(
    config: Config, reading: Reading, pairs: Callable[[], Iterator[Pair]], count: int
) -> tuple[Tokenizer, Tokenizer]:
    every = -(-count // LEARN_FROM)

    def texts(sides: tuple[bool, bool]) -> Iterator[str]:
        for number, pair in enumerate(pairs()):
            if number % every == 0:
                if sides[0]:
                    yield pair.source
                if sides[1] and pair.target is not None:
                    yield pair.target

    def one(*sides: bool) -> Tokenizer:
        return learn(texts((sides[0], sides[1])), config.text.kind, config.text.size or 8000, config.text.marker)

    if config.text.joint or reading.sides == 1 or reading.labels or reading.signals:
        joint = one(not reading.signals, not reading.labels)
        return joint, joint
    return one(True, False), one(False, True)


def _write(
    folder: Path,
    config: Config,
    spec: ModelSpec,
    framing: Framing,
    tokenizers: tuple[Tokenizer, Tokenizer],
    preflight: Preflight,
) -> None:
    write_tokenizers(folder, *tokenizers)
    text = replace(
        config.text,
        source_vectors=_full(config.text.source_vectors),
        target_vectors=_full(config.text.target_vectors),
    )
    training = replace(config.training, start_from=_full(config.training.start_from))
    absolute = replace(config, data=_absolute(config.data), text=text, training=training)
    (folder / CONFIG).write_text(to_yaml(absolute), encoding="utf-8")
    write_model(folder, config.system.name or "", spec, framing)
    (folder / "preflight.json").write_text(
        json.dumps(preflight.to_dict(), indent=1, ensure_ascii=False), encoding="utf-8"
    )


def _absolute(config: DataConfig) -> DataConfig:
    """Files by their full names, so that the run knows them from wherever it is looked at."""
    names = ("source", "target", "valid_source", "valid_target", "test_source", "test_target")
    files = {name: tuple(str(Path(file).resolve()) for file in getattr(config, name)) for name in names}
    return replace(config, **files)  # type: ignore[arg-type]


def _full(path: str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())
