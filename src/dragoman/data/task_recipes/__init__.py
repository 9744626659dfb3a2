"""Task recipes: a corpus, its splits, settings, metrics and published figures, each as one TOML file in this folder.

`dragoman recipe NAME RUN` carries one out. A recipe contains no code; a file of the user's own is read like these.
"""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dragoman import config as configuration
from dragoman.config import convert
from dragoman.errors import UserError, unknown_name

RECIPE_FOLDER = Path(__file__).parent
TRAIN, VALID = "train", "valid"  # the other splits of a recipe are its test sets


@dataclass(frozen=True)
class Split:
    """Files of a training, validation or test set; names may contain placeholders of the variant, such as {source}."""

    source: str  # name of the file with the sources, or with both sides (TSV, JSON lines), without .gz
    target: str = ""  # name of the file with the targets, line by line
    group_by_source: bool = False  # lines with the same source are one item with several references
    #: column, from 0, with the category of each line; the items of every category are also scored on their own
    category_column: int | None = None


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus as it is used here."""

    #: checksum of the contents after decompression and conversion, so that it holds for gzipped copies too
    sha256: str = ""
    url: str = ""  # where to download it; by default the recipe's `url` with {file} replaced


@dataclass(frozen=True)
class TaskFigure:
    """A published or measured value of a metric."""

    value: float  # the value, in the unit of the metric
    metric: str  # name of the metric, as in `dragoman evaluate --metrics`
    test: str = ""  # test set; empty: the first one
    variant: str = ""  # variant of the corpus, or group of variants of which it is the mean; empty: the first variant
    #: how it was computed, if that differs from our metric; for measured values the settings and the machine
    note: str = ""
    citation: str = ""  # paper of a published value

    @property
    def origin(self) -> str:
        """How the value was obtained and where it is published, for display."""
        return "; ".join(filter(None, (self.note, self.citation)))


@dataclass(frozen=True)
class TaskRecipe:
    """One task on one corpus, from the files to the figures that a training is compared with."""

    name: str  # the name in `dragoman recipe NAME`
    task: str  # the task, such as "translation"
    shows: str  # what a run of the recipe demonstrates
    corpus: str  # description of the corpus
    size: str  # number of examples for training / validation / test
    licence: str  # licence of the corpus
    metrics: tuple[str, ...]  # names of the metrics, the most important one first
    splits: dict[str, Split]  # files of `train`, `valid` (optional) and the test sets
    #: name of the folder of the corpus, where --data names a folder of corpora; by default the recipe's name
    folder: str = ""
    homepage: str = ""  # where the corpus is described
    obtain: str = ""  # how to get the files, for a corpus that cannot be downloaded
    url: str = ""  # address of a file, with the placeholder {file}; only https
    conversion: str = ""  # name of the conversion of downloaded files, see `corpus_files.CONVERSIONS`
    files: dict[str, CorpusFile] = field(default_factory=dict)  # checksums of the files by name
    #: values of the placeholders by the name of the variant (a language, a split); the first is the default
    variants: dict[str, dict[str, str]] = field(default_factory=dict)
    generator: str = ""  # name of the generator of the corpus (`dragoman.data.generated_tasks`), for generated ones
    #: arguments of the generator, such as train = 20000
    generator_settings: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)  # settings of the training by their dotted names
    baseline: str = ""  # trivial system that is scored too: "lead" (the first sentence of the source), or none
    published: tuple[TaskFigure, ...] = ()  # figures of other systems
    measured: tuple[TaskFigure, ...] = ()  # our own figures

    @property
    def test_sets(self) -> list[str]:
        """The names of the splits that are evaluated, in the order of the file."""
        return [name for name in self.splits if name not in (TRAIN, VALID)]

    @property
    def default_variant(self) -> str:
        """The name of the first variant; empty if there is only one form of the corpus."""
        return next(iter(self.variants), "")

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of variants that share the value of a placeholder of file names, by that value, such as "medium".

        A value that a single variant has, or that is the name of a variant, is no group.
        """
        by_value: dict[str, list[str]] = {}
        for variant, values in self.variants.items():
            for value in values.values():
                by_value.setdefault(value, []).append(variant)
        return {value: names for value, names in by_value.items() if len(names) > 1 and value not in self.variants}

    def select_variants(self, name: str | None) -> list[str]:
        """Return the variant of this name, those of a group, or the first one for None; an unknown name is an error.

        The list is empty if there is only one form of the corpus.
        """
        if name is None:
            return list(self.variants)[:1]
        if name in self.variants:
            return [name]
        if name not in self.groups:
            if not self.variants:
                raise UserError(
                    f"the task recipe {self.name} has only one form of its corpus, and so no variants to choose from: "
                    "leave out --variant"
                )
            raise unknown_name(f"variant of the task recipe {self.name}", name, [*self.variants, *self.groups])
        return self.groups[name]

    def split(self, name: str, variant: str) -> Split:
        """Return the split with the placeholders in its file names replaced by the values of the variant.

        {variant} stands for the name of the variant. A placeholder without a value is a KeyError.
        """
        split, values = self.splits[name], {"variant": variant, **self.variants.get(variant, {})}
        return dataclasses.replace(split, source=split.source.format(**values), target=split.target.format(**values))

    def figures(self, metric: str, test: str = "", variant: str = "", *, measured: bool = False) -> list[TaskFigure]:
        """Return the published values, or if `measured` our own, of a metric on a test set of a variant.

        "" is the first test set, and the first variant. `variant` may also be a group of variants.
        """
        return [
            figure
            for figure in (self.measured if measured else self.published)
            if figure.metric == metric
            and (figure.test or self.test_sets[0]) == (test or self.test_sets[0])
            and (figure.variant or self.default_variant) == (variant or self.default_variant)
        ]

    def figures_of(self, metric: str) -> list[TaskFigure]:
        """Return all published and measured values of a metric."""
        return [figure for figure in (*self.published, *self.measured) if figure.metric == metric]

    def figure_order(self, variant_and_test: tuple[str, str]) -> tuple[int, int]:
        """Return a key that sorts (variant or group, test set) pairs as in the recipe; "" is the first of each."""
        variant, test = variant_and_test
        names = [*self.variants, *self.groups]
        return names.index(variant) if variant else 0, self.test_sets.index(test) if test else 0


def recipe_names() -> list[str]:
    """Return the names of all recipes of the package, which are TOML files in this folder."""
    return sorted(path.stem for path in RECIPE_FOLDER.glob("*.toml"))


def load_recipe(name: str) -> TaskRecipe:
    """Read a recipe of the package by its name, or one of the user's own by the path of its .toml file."""
    if not name.endswith(".toml"):
        if name not in (names := recipe_names()):
            raise unknown_name("task recipe", name, names)
        return read_recipe(RECIPE_FOLDER / f"{name}.toml")
    return read_recipe(Path(name))


def read_recipe(path: Path) -> TaskRecipe:
    """Read and validate the TOML file of a recipe; raise a UserError that names the entry which is wrong.

    It needs training data, a test set and metrics; its URL must be https, its settings must exist, file names must have
    known placeholders, and figures must be of known test sets and variants.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{path} does not exist: give the name of a task recipe that 'dragoman recipe' lists, or the path of "
            "your own TOML file (a task recipe describes a corpus with its training and scoring)"
        ) from None
    except (OSError, ValueError) as error:
        raise UserError(f"the task recipe {path} is not a readable TOML file ({error}): correct the file") from None
    recipe: TaskRecipe = _build(TaskRecipe, values, str(path))
    if TRAIN not in recipe.splits or not recipe.test_sets or not recipe.metrics:
        raise UserError(
            f"the task recipe {path} (a TOML file that describes a corpus with its training and scoring) needs "
            "the table [splits.train], a test set such as [splits.test], and a list `metrics`, such as metrics = "
            "['bleu']: add what is missing"
        )
    if recipe.url and not recipe.url.startswith("https://"):
        raise UserError(
            f"the task recipe {path}: its entry url must begin with https://, but is {recipe.url}: change it"
        )
    configuration.replace_settings(configuration.Config(), recipe.settings)  # raises a UserError for an unknown one
    for name in recipe.splits:
        for variant in recipe.variants or [""]:
            try:
                recipe.split(name, variant)
            except (KeyError, ValueError, IndexError) as error:
                raise UserError(
                    f"the task recipe {path}: a file name in [splits.{name}] has the placeholder {error}, for "
                    f"which the variant {variant!r} of the corpus has no value: add it to the table of that "
                    "variant in [variants]"
                ) from None
    for figure in (*recipe.published, *recipe.measured):
        if figure.test and figure.test not in recipe.splits:
            raise unknown_name(f"test set of a figure in {path}:", figure.test, recipe.test_sets)
        if figure.variant and figure.variant not in (known := [*recipe.variants, *recipe.groups]):
            raise unknown_name(f"variant of a figure in {path}:", figure.variant, known)
    return recipe


def _build(dataclass_type: Any, values: Any, where: str) -> Any:
    """Construct a dataclass from the values of a TOML table; `where` names the table in error messages.

    A wrong name, a missing entry or a wrong type is a UserError.
    """
    if not isinstance(values, dict):
        raise UserError(
            f"the entry {where} of a task recipe must be a TOML table (names with values), got {values!r}: "
            "correct the entry"
        )
    hints, declared = typing.get_type_hints(dataclass_type), dataclasses.fields(dataclass_type)
    for name in values:
        if name not in hints:  # types by the name of the field
            raise unknown_name(f"entry in {where}:", name, hints)
    for entry in declared:
        optional = entry.default is not dataclasses.MISSING or entry.default_factory is not dataclasses.MISSING
        if entry.name not in values and not optional:
            raise UserError(
                f"the task recipe {where} (a TOML file that describes a corpus with its training and scoring) has "
                f"no entry {entry.name!r}: add this entry"
            )
    return dataclass_type(**{name: _convert(value, hints[name], f"{where}: {name}") for name, value in values.items()})


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Return a TOML value as the declared type `hint`: a dataclass, a table or list of them, or a plain value.

    `where` names the value in error messages. A value of another type is a UserError.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return _build(hint, value, where)
    if origin is dict and arguments[1] is not Any and isinstance(value, Mapping):
        return {key: _convert(item, arguments[1], f"{where}.{key}") for key, item in value.items()}
    if origin is tuple and dataclasses.is_dataclass(arguments[0]) and isinstance(value, list):
        return tuple(_build(arguments[0], item, where) for item in value)
    return convert(value, hint, where)
