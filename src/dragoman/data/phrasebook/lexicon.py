"""Words of the phrasebook: in a given syntactic role, every English word has exactly one German translation.

Nouns and verbs are in CSV files, whose columns are the fields of the classes below. A German word of a sentence keeps
the English words that it translates, so that the gold word alignment follows from generation.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any


class Word:
    """A word of a sentence; a German word keeps its English `origins`."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, *origins: Word) -> None:
        self.text, self.origins = text, origins


@dataclass(slots=True)
class Bitext:
    """The words of a phrase in both languages."""

    english: list[Word] = field(default_factory=list)
    german: list[Word] = field(default_factory=list)

    def __add__(self, other: Bitext) -> Bitext:
        return Bitext(self.english + other.english, self.german + other.german)

    @classmethod
    def translated(cls, english: str, german: str) -> Bitext:
        """Return phrases that are translated word by word."""
        words = [Word(text) for text in english.split()]
        return cls(words, [Word(text, word) for text, word in zip(german.split(), words, strict=True)])


@dataclass(frozen=True, eq=False)
class Noun:
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
        return bool(self.plural) and "single" not in self.kinds

    def form(self, case: str, plural: bool) -> str:
        """Inflect the German noun."""
        if not plural:
            return self.german if case == "nom" else self.oblique
        needs_n = case == "dat" and not self.german_plural.endswith(("n", "s"))
        return self.german_plural + "n" * needs_n


@dataclass(frozen=True, eq=False)
class Adjective:
    english: str
    german: str

    def form(self, ending: str) -> str:
        """Inflect the German adjective: müde + es → müdes."""
        return self.german.removesuffix("e") + ending if ending else self.german


@dataclass(frozen=True, eq=False)
class Adverb:
    """An adverb, or a phrase that behaves like one ("every day")."""

    english: str
    german: str

    def realize(self) -> Bitext:
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
    finite: tuple[str, str, str, str]

    @property
    def is_full_verb(self) -> bool:
        """Whether English uses do-support and "to" with it: "does not want to" versus "will not"."""
        return self.base == "want"


def _pairs(table: str) -> dict[str, str]:
    """Parse "english: german, english: german"."""
    return dict(pair.split(": ") for pair in table.split(", "))


def _adverbs(table: str) -> dict[str, Adverb]:
    return {english: Adverb(english, german) for english, german in _pairs(table).items()}


def _rows(name: str) -> Iterator[dict[str, Any]]:
    """Read a table whose columns are the fields of a word class."""
    text = (files("dragoman.data.phrasebook") / name).read_text(encoding="utf-8")
    return csv.DictReader(text.splitlines())


def _noun(row: dict[str, Any]) -> Noun:
    row["kinds"] = tuple(row["kinds"].split())
    return Noun(**row, adjectives=tuple(ADJECTIVES[name] for name in _ADJECTIVES_BY_KIND[row["kinds"][0]].split()))


def _verb(row: dict[str, Any]) -> Verb:
    row |= {column: tuple(row[column].split()) for column in ("finite", "subject", "adjuncts")}
    objects = [value.split() for value in row["objects"].split(";") if value]
    row["objects"] = tuple((case, tuple(kinds)) for case, *kinds in objects)
    return Verb(**row)


_THING_ADJECTIVES = "old new big small red blue black beautiful"
_ADJECTIVES_BY_KIND = {
    "person": "old young tired happy friendly sick clever sad hungry quiet",
    "young": "young tired happy friendly sick clever sad hungry quiet",
    "aged": "old tired happy friendly sick clever sad hungry quiet",
    "animal": "old young big small black hungry tired",
    "food": "fresh good warm cold",
    "drink": "cold warm good",
    "readable": "old new good beautiful",
    "building": "old new big small beautiful quiet",
    "area": "old big small beautiful quiet",
    "plant": "old big small beautiful",
} | dict.fromkeys(("thing", "furniture", "vehicle", "opening"), _THING_ADJECTIVES)
ADJECTIVES = {
    english: Adjective(english, german)
    for english, german in _pairs(
        "old: alt, young: jung, new: neu, big: groß, small: klein, good: gut, beautiful: schön, red: rot, blue: blau, "
        "black: schwarz, warm: warm, cold: kalt, fresh: frisch, tired: müde, happy: glücklich, friendly: freundlich, "
        "sick: krank, clever: klug, sad: traurig, hungry: hungrig, quiet: ruhig"
    ).items()
}

NOUNS = {noun.singular: noun for noun in map(_noun, _rows("nouns.csv"))}
VERBS = {verb.base: verb for verb in map(_verb, _rows("verbs.csv"))}
CLAUSE_VERBS = {verb.base: verb for verb in map(_verb, _rows("clause_verbs.csv"))}  # their object is a clause
AUXILIARIES = {"have": ("habe", "hast", "hat", "haben"), "be": ("bin", "bist", "ist", "sind")}
BE = Verb("be", "is", "been", "", "sein", AUXILIARIES["be"], "gewesen", "", "be", (), (), ())
MODALS = {
    "can": Modal("can", "can", ("kann", "kannst", "kann", "können")),
    "must": Modal("must", "must", ("muss", "musst", "muss", "müssen")),
    "should": Modal("should", "should", ("sollte", "solltest", "sollte", "sollten")),
    "want": Modal("want", "wants", ("will", "willst", "will", "wollen")),
    "will": Modal("will", "will", ("werde", "wirst", "wird", "werden")),
}

TIMES = _adverbs("today: heute, now: jetzt, every day: jeden Tag, tomorrow: morgen, soon: bald")
FREQUENCIES = _adverbs("often: oft, always: immer, sometimes: manchmal, never: nie, already: schon")
MANNERS = _adverbs("slowly: langsam, quickly: schnell, loudly: laut, quietly: leise, well: gut, alone: allein")
PLACE_ADVERBS = _adverbs("here: hier, there: dort")
QUESTIONS = _adverbs("where: wo, when: wann, why: warum")
PERHAPS, VERY, WHERE_TO = Adverb("perhaps", "vielleicht"), Adverb("very", "sehr"), Adverb("where", "wohin")
CONJUNCTIONS = _pairs(
    "because: weil, although: obwohl, if: wenn, while: während, before: bevor, that: dass, whether: ob, and: und, "
    "but: aber"
)
NAMES = ("Anna", "Peter", "Maria", "Paul", "Julia", "Thomas", "Sophie", "Max", "Emma", "Karl")
NUMBERS = _pairs(
    "two: zwei, three: drei, four: vier, five: fünf, six: sechs, seven: sieben, eight: acht, nine: neun, ten: zehn"
)
POSSESSIVES = _pairs("my: mein, your: dein, his: sein, her: ihr, our: unser, their: ihr")

# English preposition: German preposition and the case it governs
PREPOSITIONS = {
    "in": ("in", "dat"), "into": ("in", "acc"), "to": ("zu", "dat"), "from": ("aus", "dat"),
    "with": ("mit", "dat"), "without": ("ohne", "acc"), "for": ("für", "acc"),
    "behind": ("hinter", "dat"), "under": ("unter", "dat"),
}  # fmt: skip
CONTRACTIONS = {("in", "dem"): "im", ("in", "das"): "ins", ("zu", "dem"): "zum", ("zu", "der"): "zur"}

# English subject form: object form; German nominative, accusative, dative; index into Verb.finite
PRONOUNS = {
    "I": ("me", "ich", "mich", "mir", 0),
    "you": ("you", "du", "dich", "dir", 1),
    "he": ("him", "er", "ihn", "ihm", 2),
    "she": ("her", "sie", "sie", "ihr", 2),
    "we": ("us", "wir", "uns", "uns", 3),
    "they": ("them", "sie", "sie", "ihnen", 3),
}
