"""Words of the phrasebook: in a given syntactic role, every English word has exactly one German translation.

Nouns and verbs are in CSV files, whose columns are the fields of the classes below, other words in `words.toml`. A
German word of a sentence keeps the English words that it translates, so that the gold word alignment follows from
generation.
"""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


class Word:
    """A word of a sentence; a German word keeps its English `origins`."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, *origins: Word) -> None:
        """Create a word; `origins` are the English words that a German one translates."""
        self.text, self.origins = text, origins


@dataclass(slots=True)
class Bitext:
    """The words of a phrase in both languages."""

    english: list[Word] = field(default_factory=list)
    german: list[Word] = field(default_factory=list)

    def __add__(self, other: Bitext) -> Bitext:
        """Concatenate both languages."""
        return Bitext(self.english + other.english, self.german + other.german)

    @classmethod
    def translated(cls, english: str, german: str) -> Bitext:
        """Return a phrase that is translated word by word: the nth German word translates the nth English one."""
        words = [Word(text) for text in english.split()]
        return cls(words, [Word(text, word) for text, word in zip(german.split(), words, strict=True)])


@dataclass(frozen=True, eq=False)
class Noun:
    """A noun in both languages, and the adjectives that go with it."""

    singular: str
    plural: str  # empty for mass nouns such as "milk"
    gender: str  # m, f or n
    german: str
    german_plural: str
    oblique: str  # German singular in the accusative and dative, which differs for n-declension nouns (den Jungen)
    kinds: tuple[str, ...]  # semantic classes that verbs select; the first one selects the adjectives
    adjectives: tuple[Adjective, ...]

    @property
    def is_countable(self) -> bool:
        """Whether the phrasebook uses the noun in the plural: it has one, and there is usually more than one of it."""
        return bool(self.plural) and "single" not in self.kinds

    def form(self, case: str, plural: bool) -> str:
        """Inflect the German noun for a case (nom, acc, dat) and number.

        Most nouns get -n in the dative plural, but not those whose plural ends with n or s.
        """
        if not plural:
            return self.german if case == "nom" else self.oblique  # the form of accusative and dative
        needs_n = case == "dat" and not self.german_plural.endswith(("n", "s"))
        return self.german_plural + "n" * needs_n


@dataclass(frozen=True, eq=False)
class Adjective:
    """An adjective; English and the uninflected German form."""

    english: str
    german: str

    def form(self, ending: str) -> str:
        """Inflect the German adjective with an ending: müde + es → müdes; "" leaves it uninflected."""
        return self.german.removesuffix("e") + ending if ending else self.german


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb, or a phrase that behaves like one ("every day")."""

    english: str
    german: str

    def realize(self) -> Bitext:
        """Return the adverb in both languages."""
        return Bitext.translated(self.english, self.german)


@dataclass(frozen=True, eq=False)
class Verb:
    """A verb in both languages, the kinds of nouns it selects, and the adjuncts that make sense with it."""

    base: str
    third: str
    participle: str
    particle: str  # "up" in "stand up", "to" in "belong to"
    infinitive: str
    finite: tuple[str, str, str, str]  # ich, du, er, plural; without the separable prefix
    german_participle: str
    prefix: str  # separable prefix, "an" in "anrufen"
    auxiliary: str  # "have" or "be": haben or sein in the perfect
    subject: tuple[str, ...]  # kinds of nouns
    objects: tuple[tuple[str, tuple[str, ...]], ...]  # (case, kinds of nouns), dative first
    adjuncts: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Modal:
    """A verb that takes an infinitive, which German places at the end of the clause."""

    base: str
    third: str
    finite: tuple[str, ...]  # ich, du, er, plural

    @property
    def is_full_verb(self) -> bool:
        """Whether English uses do-support and "to" with it: "does not want to" versus "will not"."""
        return self.base == "want"


def _read(name: str) -> str:
    """Return the text of a file of the phrasebook, such as nouns.csv or words.toml."""
    return (files("dragoman.data.phrasebook") / name).read_text(encoding="utf-8")


def _adverbs(name: str) -> dict[str, Adverb]:
    """Return the adverbs of a section of words.toml, which maps English to German, by their English form."""
    return {english: Adverb(english, german) for english, german in _WORDS[name].items()}


def _noun(row: dict[str, Any]) -> Noun:
    """Build a noun from a row of nouns.csv (values by the names of fields); its first kind decides on its adjectives.

    Kinds are semantic classes, such as person or food, which the file separates by spaces.
    """
    row["kinds"] = tuple(row["kinds"].split())
    return Noun(**row, adjectives=tuple(ADJECTIVES[name] for name in _WORDS["adjectives_by_kind"][row["kinds"][0]]))


def _verbs(name: str) -> dict[str, Verb]:
    """Read the verbs of the CSV file `name`, by their English base form.

    A field of several values has spaces between them; objects are a case with kinds of nouns: "dat person;acc thing".
    """
    verbs = {}
    for row in csv.DictReader(_read(name).splitlines()):
        fields: dict[str, Any] = row | {key: tuple(row[key].split()) for key in ("finite", "subject", "adjuncts")}
        objects = [value.split() for value in row["objects"].split(";") if value]
        verbs[row["base"]] = Verb(**fields | {"objects": tuple((case, tuple(kinds)) for case, *kinds in objects)})
    return verbs


_WORDS = tomllib.loads(_read("words.toml"))
ADJECTIVES = {english: Adjective(english, german) for english, german in _WORDS["adjectives"].items()}
NOUNS = {noun.singular: noun for noun in map(_noun, csv.DictReader(_read("nouns.csv").splitlines()))}
VERBS = _verbs("verbs.csv")
CLAUSE_VERBS = _verbs("clause_verbs.csv")  # their object is a clause
AUXILIARIES = {"have": ("habe", "hast", "hat", "haben"), "be": ("bin", "bist", "ist", "sind")}
BE = Verb(
    base="be",
    third="is",
    participle="been",
    particle="",
    infinitive="sein",
    finite=AUXILIARIES["be"],
    german_participle="gewesen",
    prefix="",
    auxiliary="be",
    subject=(),
    objects=(),
    adjuncts=(),
)
MODALS = {base: Modal(base, third, tuple(finite)) for base, (third, *finite) in _WORDS["modals"].items()}

TIMES, FREQUENCIES, MANNERS = _adverbs("times"), _adverbs("frequencies"), _adverbs("manners")
PLACE_ADVERBS, QUESTIONS = _adverbs("places"), _adverbs("questions")
PERHAPS, VERY, WHERE_TO = Adverb("perhaps", "vielleicht"), Adverb("very", "sehr"), Adverb("where", "wohin")
CONJUNCTIONS: dict[str, str] = _WORDS["conjunctions"]
NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Thomas", "Sophie", "Max", "Emma", "Karl")
NUMBERS: dict[str, str] = _WORDS["numbers"]
POSSESSIVES: dict[str, str] = _WORDS["possessives"]
PREPOSITIONS: dict[str, tuple[str, str]] = _WORDS["prepositions"]  # German preposition and the case it governs
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}
#: object form; German nominative, accusative, dative; index into Verb.finite
PRONOUNS: dict[str, tuple[str, str, str, str, int]] = _WORDS["pronouns"]
