"""The configuration of a run: a typed tree, read from YAML and the command line, written with everything resolved."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from dragoman import legacy
from dragoman.errors import UserError, unknown_name

Section = TypeVar("Section")


@dataclass(frozen=True)
class DataConfig:
    """Where the sentences stand. A TSV or JSON-lines file holds both sides; several files of a kind are all read.

    Every file (or pair of files, source and target) is a corpus. `weights`, `temperature` and `tags` speak of the
    training corpora in order. An epoch draws as many pairs as there are in all of them.
    """

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    valid_source: tuple[str, ...] = ()
    valid_target: tuple[str, ...] = ()
    test_source: tuple[str, ...] = ()  # only looked at by the preflight, which counts what of it stands in train
    test_target: tuple[str, ...] = ()
    format: str = ""  # text, tsv or jsonl; told by the file's name if empty
    source_column: str | None = None  # column of a TSV file (from 0), key of a JSON line
    target_column: str | None = None
    max_length: int = 256  # tokens a side; longer sentences are dropped and counted
    validation_size: int | None = (
        None  # validation pairs taken from the training pairs if no validation files are given
    )
    sampling_weights: tuple[
        float, ...
    ] = ()  # the share of each corpus in what is drawn, in proportion; all pairs if not given
    sampling_temperature: float | None = (
        None  # or by size: shares in proportion to pairs^(1/temperature); 1 is by size alone
    )
    corpus_tags: tuple[str, ...] = ()  # a name for each corpus, told at the beginning of its sources; '' tells nothing
    valid_corpus_tags: tuple[str, ...] = ()  # the same for the validation corpora, if they are not as many
    num_workers: int | None = None  # processes that prepare; as many as there are cores if not given

    def __post_init__(self) -> None:
        _check(
            "data",
            self,
            max_length=(1, 100_000),
            validation_size=(1, 10**9),
            sampling_temperature=(0.1, 10**6),
            num_workers=(1, 10_000),
        )
        if not all(0 <= weight < math.inf for weight in self.sampling_weights) or (
            self.sampling_weights and not any(self.sampling_weights)
        ):
            raise UserError(
                "data.sampling_weights must be numbers of at least 0 and not all 0, but are "
                f"{list(self.sampling_weights)}"
            )
        if self.sampling_weights and self.sampling_temperature is not None:
            raise UserError(
                "data.sampling_weights and data.sampling_temperature both say how corpora are mixed: give one of them"
            )
        if self.valid_corpus_tags and not self.corpus_tags:
            raise UserError(
                "data.valid_corpus_tags were given without data.corpus_tags: name the tags of the training corpora too"
            )


@dataclass(frozen=True)
class TextConfig:
    """How text becomes tokens."""

    tokenizer: str = "bpe"  # bpe, unigram, word, character, byte
    vocab_size: int | None = None  # of the vocabulary; by the amount of text if not given
    shared_vocabulary: bool = True  # one tokenizer for both sides
    space_marker: str = "initial"  # where a piece shows its space: initial (▁house) or final (house▁)
    bpe_dropout: float | None = None  # BPE dropout in training; by recipe, size and amount of data if not given
    #: strip text and collapse runs of white space, in training and translation; None in runs of older versions: no
    normalize_whitespace: bool | None = None
    #: use this tokenizer instead of learning one: a run folder, a SentencePiece .model, a Hugging Face tokenizer.json
    tokenizer_from: str | None = None
    source_word_vectors: str | None = None  # a file of word vectors to begin with: word2vec, GloVe or fastText
    target_word_vectors: str | None = None

    def __post_init__(self) -> None:
        _check("text", self, vocab_size=(1, 10**7), bpe_dropout=(0, 1))
        if self.bpe_dropout and self.tokenizer != "bpe":
            raise UserError(
                f"text.bpe_dropout leaves out merges of byte pairs, which text.tokenizer {self.tokenizer} does not have"
            )


@dataclass(frozen=True)
class SystemConfig:
    """Which system, in which size; `settings` are the system's own (`dragoman systems NAME` lists them)."""

    name: str | None = None  # transformer if nothing else is said
    size: str | None = None  # tiny, small, base, big; by the amount of data and the device if not given
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ObjectiveConfig:
    """What is to be learned from the text: the system's own objective for such data if not given."""

    name: str | None = None  # translation, one-sequence, language, dialogue, masked, replaced, denoising, spans, …
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingConfig:
    """How it is trained, and when it stops: at whichever of steps, epochs, minutes and patience comes first."""

    batch_tokens: int | None = None  # padded tokens a batch on the longer side
    batch_by: Literal["row", "pair"] = "row"  # a row's width: the model's own, or the longer side of the pair, as in
    # comparisons: then every system is trained on the same batches
    auto_batch_size: bool = (
        False  # the most tokens that fit the memory, found by trying; what was found is written to tokens
    )
    gradient_checkpointing: bool = (
        False  # layers are computed twice, which takes a third more time and much less memory
    )
    gradient_accumulation: int = 1  # batches a step
    steps: int | None = None
    epochs: int | None = None
    minutes: float | None = None
    patience: int | None = 8  # validations without a better one
    learning_rate: float | None = None  # at its peak; by the model's width if not given
    warmup_steps: int | None = None  # steps up to the peak
    extended_at: int = 0  # the step at which a run that was complete was extended; set by --resume
    recipe: Literal["auto", "textbook", "modern", "plain"] = "auto"  # what decides the rest: auto takes the best known
    schedule: Literal["inverse-sqrt", "cosine", "linear", "constant", "stable", "halving", "plateau"] | None = None
    warmup_start_factor: float | None = (
        None  # share of the peak at which the warm-up starts: 0; 1 holds the rate constant
    )
    final_rate_factor: float | None = None  # cosine, linear, stable: share of the peak at which the decay ends: 0
    decay_fraction: float = 0.2  # stable: the share of the steps, at the end, in which the rate falls
    halving_start_epoch: float | None = None  # halving: epochs before the rate is halved for the first time: 5
    halving_interval: float | None = None  # halving: epochs from then on between one time and the next: 1
    plateau_factor: float | None = None  # plateau: factor of the rate after a validation that is not better: 0.1
    optimizer: Literal["adamw", "adam", "sgd", "adadelta", "adafactor", "muon"] | None = None
    momentum: float | None = None  # of sgd, adafactor and muon: 0, 0 and 0.95
    nesterov: bool | None = None  # Nesterov momentum for sgd: false
    beta1: float | None = None  # 0.9
    beta2: float | None = None  # 0.98
    epsilon: float | None = None  # 1e-9
    weight_decay: float | None = None  # of adamw and muon: 0.01; the others have none
    loss_normalization: Literal["tokens", "sentences"] | None = None  # divide the summed loss by the number of: tokens
    clip_norm: float | None = None  # the largest norm of a gradient, 1 if not given; 0: any
    label_smoothing: float | None = None  # 0.1 for translation, else 0
    validation_interval: int | None = None  # steps; about once an epoch if not given
    validation_sentences: int | None = None  # decoded at each validation; by default, about a tenth of the time
    selection_metric: Literal["auto", "bleu", "chrf", "exact_match", "accuracy", "loss"] = (
        "auto"  # auto: what suits the task
    )
    keep_checkpoints: int = 5  # checkpoints, beside the best
    average_checkpoints: bool = True  # at the end, the mean of the kept checkpoints, if it is better
    ema_decay: float | None = (
        None  # such as 0.999: a running mean of the weights, which keeps so much of itself each step
    )
    start_from: str | None = None  # a run whose weights and tokenizers to begin with; validated at step 0
    seed: int = 1
    device: str = "auto"  # auto, cpu, cuda
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    parallelism: Literal["auto", "replicated", "sharded"] = "auto"  # of the weights among processes
    batch_layout: Literal["auto", "padded", "packed"] = (
        "auto"  # of a batch: packed on a GPU, where the system can read it
    )
    compile: bool | None = None  # the step, on a GPU: takes a minute at first; done where training is long if not told
    deterministic: bool = False  # on a GPU: the same bits every time, at some cost in speed

    def __post_init__(self) -> None:
        most = 10**12
        _check(
            "training", self, batch_tokens=(1, most), gradient_accumulation=(1, most), steps=(1, most), epochs=(1, most)
        )
        _check("training", self, minutes=(0, most), patience=(1, most), learning_rate=(0, 1e3), warmup_steps=(0, most))
        _check("training", self, beta1=(0, 0.99999), beta2=(0, 0.9999999), epsilon=(0, 1), weight_decay=(0, 10))
        _check("training", self, clip_norm=(0, most), label_smoothing=(0, 0.999), validation_interval=(1, most))
        _check("training", self, validation_sentences=(0, most), keep_checkpoints=(1, most), seed=(0, 2**31 - 1))
        _check("training", self, decay_fraction=(0, 1), halving_start_epoch=(0, most), halving_interval=(0.001, most))
        _check("training", self, momentum=(0, 0.99999), ema_decay=(0, 0.9999999))
        _check("training", self, warmup_start_factor=(0, 1), final_rate_factor=(0, 1), plateau_factor=(0, 1))
        if self.auto_batch_size and self.batch_tokens is not None:
            raise UserError(
                "training.auto_batch_size looks for the largest batch that fits, but "
                f"training.batch_tokens={self.batch_tokens} was given too: "
                "leave one of them out"
            )

    def resolved(self, name: str) -> Any:
        """The value of a setting, or its default where neither the user nor a recipe has set it."""
        own = getattr(self, name)
        return TRAINING_DEFAULTS.get(name) if own is None else own


#: values of training settings that neither the user nor the recipe has set
TRAINING_DEFAULTS: dict[str, Any] = {
    "optimizer": "adamw",
    "schedule": "inverse-sqrt",
    "warmup_start_factor": 0.0,
    "final_rate_factor": 0.0,
    "halving_start_epoch": 5.0,
    "halving_interval": 1.0,
    "plateau_factor": 0.1,
    "nesterov": False,
    "beta1": 0.9,
    "beta2": 0.98,
    "epsilon": 1e-9,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "loss_normalization": "tokens",
}


@dataclass(frozen=True)
class SearchDefaults:
    """How the run translates unless told otherwise."""

    beam_size: int = 5
    length_penalty: float = 1.0
    length_normalization: Literal["power", "gnmt"] = "power"  # of a length: |y|^α, or ((5 + |y|) / 6)^α
    early_stopping: Literal[True, False, "never", "steps"] = "never"  # when a beam stops: as Hugging Face, and "steps"
    rank_unfinished: Literal["last", "by_score"] = (
        "last"  # do those that the limit cuts off compete with complete ones?
    )
    coverage_penalty: float = 0.0  # β, how much it counts that every source word was looked at
    batch_tokens: int = 8192  # source tokens of the sentences translated together
    max_source_length: int = 1024  # tokens; a longer line is cut there, and it is said
    length_ratio: float | None = None  # a target has at most length_ratio · source tokens + length_extra tokens;
    length_offset: int | None = None  # both are derived from the training pairs if not given
    max_target_length: int = 1024  # and never more than this
    min_length: int = 0  # no END before so many tokens
    no_repeat_ngram_size: int = 0  # no n-gram of so many tokens comes twice; 0: any may
    #: copy lines of numbers, punctuation, URLs and e-mail addresses; chosen by the training data if not given
    copy_untranslatable: bool | None = None
    strategy: dict[str, Any] = field(default_factory=dict)  # any search, in place of the beam that is said above

    def __post_init__(self) -> None:
        _check(
            "search",
            self,
            beam_size=(1, 10_000),
            length_penalty=(-10, 10),
            coverage_penalty=(0, 10),
            batch_tokens=(1, 10**9),
        )
        _check("search", self, max_source_length=(2, 100_000), length_ratio=(0, 100), length_offset=(1, 100_000))
        _check("search", self, max_target_length=(1, 100_000), min_length=(0, 100_000), no_repeat_ngram_size=(0, 1000))


@dataclass(frozen=True)
class Config:
    """All settings of a run.

    `chosen` holds the settings that were chosen automatically. Another run that is given this configuration, with other
    data or another size, chooses them anew (`without_choices`), unless their values have been changed.
    """

    data: DataConfig = field(default_factory=DataConfig)
    text: TextConfig = field(default_factory=TextConfig)
    system: SystemConfig = field(default_factory=SystemConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    search: SearchDefaults = field(default_factory=SearchDefaults)
    chosen: dict[str, Any] = field(default_factory=dict)


def _check(section: str, config: Any, **ranges: tuple[float, float]) -> None:
    """Every value that is given lies within its range, ends counted in."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if value is not None and not least <= value <= most:
            raise UserError(f"{section}.{name} must lie between {least:g} and {most:g}, but is {value}")


def from_dict(values: Any, where: str = "the configuration") -> Config:
    """The configuration in plain values; a misspelt name is answered with the nearest known one."""
    return _section(Config, legacy.translate_settings(values) if isinstance(values, dict) else values, where, "")


OLD_STOPPING: dict[str, Any] = {"complete": True, "hopeless": False, "steps": "steps"}  # values of `stop`


def rename_stopping_settings(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings of a beam search with `stop` and `complete`, as earlier versions wrote them, under their new names.

    `stop` became `early_stopping`, and `complete` became `num_finished`. Both names at once are an error.
    """
    for old, new in (("stop", "early_stopping"), ("complete", "num_finished")):
        if old in values and new in values:
            known = ", ".join(f"{old}={name} is {new}={str(value).lower()}" for name, value in OLD_STOPPING.items())
            hint = f": {known}" if old == "stop" else ""
            raise UserError(f"{where}{old} is now called {new}{hint}")
    if not {"stop", "complete"} & values.keys():
        return values
    stop = values.get("stop", "complete")
    if not isinstance(stop, str) or stop not in OLD_STOPPING:
        raise unknown_name(f"{where}stop, which is now early_stopping:", str(stop), [*OLD_STOPPING])
    others = {name: value for name, value in values.items() if name not in ("stop", "complete")}
    count = {"num_finished": values["complete"]} if values.get("complete") is not None else {}
    return others | {"early_stopping": OLD_STOPPING[stop]} | count


def with_data(config: Config, files: dict[str, tuple[str, ...]]) -> Config:
    """The configuration with these files (source, target, valid_source, valid_target)."""
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **files))  # type: ignore[arg-type]


def record_automatic_settings(given: Config, resolved: Config) -> Config:
    """The resolved configuration, which remembers what was chosen where the user had given nothing."""
    before, after = (_leaves(dataclasses.asdict(config)) for config in (given, resolved))
    chosen = {name: value for name, value in after.items() if name not in before or before[name] != value}
    return dataclasses.replace(resolved, chosen=_plain(chosen))


def without_automatic_settings(config: Config) -> Config:
    """The settings made by the user, for another run: those chosen automatically, and unchanged since, are unset."""
    tree, defaults = dataclasses.asdict(config), _leaves(dataclasses.asdict(Config()))
    tree["chosen"], tree["training"]["extended_at"] = {}, 0
    values = _plain(_leaves(dataclasses.asdict(config)))
    for name, value in config.chosen.items():
        if name not in values or values[name] != value:
            continue
        *sections, key = name.split(".")
        place = tree
        for section in sections:
            place = place[section]
        if name not in defaults:  # a setting of the system or objective
            del place[key]
        else:  # a default that equals the choice was not what the user had given
            place[key] = not value if value is defaults[name] is False else defaults[name]
    return from_dict(tree, "the configuration")


def _leaves(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Single settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name not in ("chosen", "strategy"):
            found |= _leaves(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def to_yaml(config: Config) -> str:
    return yaml.safe_dump(_plain(dataclasses.asdict(config)), sort_keys=False, allow_unicode=True)


def from_yaml(path: Path) -> Config:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: name a configuration file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {str(error).splitlines()[0]}") from None
    return from_dict({} if values is None else values, str(path))


def replace_settings(config: Config, values: Mapping[str, Any]) -> Config:
    """Replace settings by their dotted names: `with_values(config, {"training.steps": 1000})`."""
    tree = dataclasses.asdict(config)
    for name, value in values.items():
        if name in legacy.SETTINGS:
            raise UserError(f"{name} is now called {legacy.SETTINGS[name]}")
        place, keys = tree, name.split(".")
        for depth, key in enumerate(keys[:-1]):
            if not isinstance(place.get(key), dict):
                raise unknown_name("section", ".".join(keys[: depth + 1]), _names(Config))
            place = place[key]
        place[keys[-1]] = value
    return from_dict(tree, "--set")


def override_settings(config: Config, settings: Sequence[str]) -> Config:
    """Replace settings given as text on the command line: `with_settings(config, ["training.steps=1000"])`."""
    return replace_settings(config, parse_settings(settings))


def parse_settings(settings: Sequence[str]) -> dict[str, Any]:
    """Parse `NAME=VALUE` texts by the type of each setting.

    The text of a string setting is its value, whatever it contains. Lists are written `[a, b]`; settings without a
    declared type (`system.settings.NAME`) and mappings are YAML. An empty text, and `null` where the setting is no
    string, mean None.
    """
    values = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise UserError(f"--set wants NAME=VALUE, such as training.steps=1000, but got {setting!r}")
        values[name] = _parse(_hint(name), text, name)
    return values


def _hint(name: str) -> Any:
    """The declared type of a setting, or Any if it is unknown or a key of a mapping."""
    hint: Any = Config
    for key in name.split("."):
        if not dataclasses.is_dataclass(hint):
            return Any
        hint = typing.get_type_hints(hint).get(key, Any)
    return hint


def _parse(hint: Any, text: str, path: str) -> Any:
    """The value of a text for a setting of this type; `_value` rejects text that could not be parsed."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(option for option in options if option is not type(None))
        empty = not text or (inner is not str and text.strip().lower() in ("null", "none", "~"))
        return None if empty else _parse(inner, text, path)
    if origin is Literal:  # True and False are written true and false
        return next((option for option in options if str(option).lower() == text.lower()), text)
    if hint is str:
        return text
    if hint is int or hint is float:
        try:
            return hint(text)
        except ValueError:
            return text
    if hint is bool:
        return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}.get(
            text.strip().lower(), text
        )
    if origin is tuple:
        if not text.lstrip().startswith("["):
            return (_parse(options[0], text, path),) if text else ()
        items = _yaml(text, path, yaml.BaseLoader)  # which leaves every item a text
        return tuple(_parse(options[0], item, path) if isinstance(item, str) else item for item in items)
    value = _yaml(text, path, yaml.SafeLoader)
    if isinstance(value, str) and not text.lstrip().startswith(("'", '"')):
        with suppress(ValueError):
            return float(value)  # 1e-3, which YAML reads as text
    return value


def _yaml(text: str, path: str, loader: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> Any:
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}={text} is not YAML ({reason}): quote what contains special characters") from None


def _names(cls: type) -> list[str]:
    return [f.name for f in dataclasses.fields(cls)]


def _section(cls: type[Section], values: Any, where: str, path: str) -> Section:
    if not isinstance(values, dict):
        raise UserError(f"{where}: {path or 'it'} must hold names and values, but holds {values!r}")
    hints = typing.get_type_hints(cls)
    read = {}
    values = rename_stopping_settings(values, f"{where}: {path}.") if cls is SearchDefaults else values
    for name, value in values.items():
        full = f"{path}.{name}".lstrip(".")
        if name not in hints:
            raise unknown_name(f"setting in {where}:", full, [f"{path}.{known}".lstrip(".") for known in hints])
        hint = hints[name]
        inner = isinstance(hint, type) and dataclasses.is_dataclass(hint)
        read[name] = _section(hint, value, where, full) if inner else _value(hint, value, full)
    return cls(**read)


def _value(hint: Any, value: Any, path: str) -> Any:
    """The value as the hint wants it: numbers from text such as 1e-3 (which YAML reads as text), tuples from lists."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        return _value(next(o for o in options if o is not type(None)), value, path)
    if origin is Literal:
        if not any(value == option and type(value) is type(option) for option in options):
            raise unknown_name(
                f"{path}:", str(value), [str(o).lower() if isinstance(o, bool) else str(o) for o in options]
            )
        return value
    if origin is tuple:
        return tuple(_value(options[0], v, path) for v in (value if isinstance(value, (list, tuple)) else [value]))
    if hint is float and isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    if hint is str and isinstance(value, (int, str)) and not isinstance(value, bool):
        return str(value)
    kind = dict if origin is dict else hint
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", dict: "names and values"}
    hint = " (in a YAML file, put it in quotes)" if kind is str and not isinstance(value, (list, dict)) else ""
    raise UserError(f"{path} must be {names[kind]}, but is {value!r}{hint}")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
