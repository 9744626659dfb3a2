"""Phrases that say themselves in English and in German at once.

Each German word keeps the English words it translates, so that the word alignment is a by-product and never a guess.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Noun

if TYPE_CHECKING:
    from dragoman.data.phrasebook.grammar import Clause

THIRD_SINGULAR, PLURAL = 2, 3  # places in Verb.finite
_KNOWN = frozenset(["the", "this", *lexicon.POSSESSIVES])


class Word:
    """A word of a sentence; a German one keeps the English words it comes from."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, *origins: Word) -> None:
        self.text = text
        self.origins = origins


class Bitext(NamedTuple):
    """The same thing in both languages."""

    english: list[Word]
    german: list[Word]


# Nominals: what can be a subject, an object, or stand after a preposition


@dataclass(eq=False, slots=True)
class Nominal:
    """The common face of noun phrases, names and pronouns."""

    opens_clause: ClassVar[bool] = False  # relative and question pronouns open their clause

    @property
    def agreement(self) -> int:
        """Which finite form of the verb it takes as a subject."""
        return THIRD_SINGULAR

    @property
    def definite(self) -> bool:
        """Whether it is known to the hearer: German puts known objects before adverbs of time, new ones after them."""
        return True

    @property
    def takes_kein(self) -> bool:
        """Whether German negates it with "kein" in place of "nicht"."""
        return False

    @property
    def clause(self) -> Clause | None:
        """The relative clause that belongs to it."""
        return None

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        raise NotImplementedError


@dataclass(eq=False, slots=True)
class NounPhrase(Nominal):
    """Determiner, adjective, noun and relative clause; the determiner "" leaves a plural or mass noun bare."""

    noun: Noun
    determiner: str = "the"
    adjective: Adjective | None = None
    plural: bool = False
    relative: Clause | None = None

    @property
    def agreement(self) -> int:
        return PLURAL if self.plural else THIRD_SINGULAR

    @property
    def definite(self) -> bool:
        return self.determiner in _KNOWN

    @property
    def takes_kein(self) -> bool:
        return self.determiner in ("", "a")

    @property
    def clause(self) -> Clause | None:
        return self.relative

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        noun = [Word(text) for text in (self.noun.plural if self.plural else self.noun.singular).split()]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = []
        if self.determiner:
            following = (adjective + noun)[0].text
            determiner.append(Word(english_determiner(self.determiner, self.plural, following)))
        german_determiner, ending = GERMAN_DETERMINERS[
            "no" if negation else self.determiner, case, "p" if self.plural else self.noun.gender
        ]
        german = []
        if german_determiner:
            german.append(Word(german_determiner, *([negation] if negation else []), *determiner))
        if self.adjective:
            german.append(Word(self.adjective.form(ending), *adjective))
        german.append(Word(self.noun.form(case, self.plural), *noun))
        return Bitext(determiner + adjective + noun, german)


@dataclass(eq=False, slots=True)
class Name(Nominal):
    name: str

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        return one_word(Word(self.name), self.name)


@dataclass(eq=False, slots=True)
class Pronoun(Nominal):
    """A personal pronoun, named by its subject form; "you" is always the familiar singular."""

    name: str

    @property
    def agreement(self) -> int:
        return lexicon.PRONOUNS[self.name][5]

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        subject, other, nominative, accusative, dative, _ = lexicon.PRONOUNS[self.name]
        german = {"nom": nominative, "acc": accusative, "dat": dative}[case]
        return one_word(Word(subject if case == "nom" else other), german)


@dataclass(eq=False, slots=True)
class RelativePronoun(Nominal):
    """The pronoun that stands for `noun` in its relative clause."""

    noun: Noun
    plural: bool = False
    opens_clause: ClassVar[bool] = True

    @property
    def agreement(self) -> int:
        return PLURAL if self.plural else THIRD_SINGULAR

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        who = "who" if case == "nom" else "whom"
        english = Word(who if "person" in self.noun.kinds else "that")
        german = GERMAN_DETERMINERS["the", case, "p" if self.plural else self.noun.gender][0]
        return one_word(english, "denen" if self.plural and case == "dat" else german)


@dataclass(eq=False, slots=True)
class QuestionPronoun(Nominal):
    """The person or the thing a question is about: who, whom, what."""

    thing: bool = False
    opens_clause: ClassVar[bool] = True

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        if self.thing:
            return one_word(Word("what"), "was")
        return one_word(Word("who" if case == "nom" else "whom"), {"nom": "wer", "acc": "wen", "dat": "wem"}[case])


@dataclass(eq=False, slots=True)
class Coordination(Nominal):
    """Two nominals joined by "and"."""

    first: Nominal
    second: Nominal

    @property
    def agreement(self) -> int:
        return PLURAL

    @property
    def definite(self) -> bool:
        return self.first.definite and self.second.definite

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        first, second = self.first.realize(case), self.second.realize(case)
        joint = Word("and")
        return Bitext([*first.english, joint, *second.english], [*first.german, Word("und", joint), *second.german])


# Adverbials: what can stand in front of a statement


@dataclass(eq=False, slots=True)
class Adverbial:
    """An adverb, or a phrase that behaves like one."""

    adverb: Adverb

    def realize(self) -> Bitext:
        english = [Word(text) for text in self.adverb.english.split()]
        return Bitext(
            english, [Word(text, word) for text, word in zip(self.adverb.german.split(), english, strict=True)]
        )


@dataclass(eq=False, slots=True)
class Prepositional:
    """A preposition and what it governs; German contracts some prepositions with the article: in dem → im."""

    preposition: str
    nominal: Nominal

    def realize(self) -> Bitext:
        german, case = lexicon.PREPOSITIONS[self.preposition]
        phrase = self.nominal.realize(case)
        english = Word(self.preposition)
        first, *others = phrase.german
        contracted = lexicon.CONTRACTIONS.get((german, first.text))
        start = [Word(contracted, english, *first.origins)] if contracted else [Word(german, english), first]
        return Bitext([english, *phrase.english], start + others)


# Inflection and small helpers


def one_word(english: Word, german: str) -> Bitext:
    return Bitext([english], [Word(german, english)])


def english_determiner(determiner: str, plural: bool, following: str) -> str:
    if determiner == "this" and plural:
        return "these"
    return "an" if determiner == "a" and following[0] in "aeiou" else determiner


def _german_determiners() -> dict[tuple[str, str, str], tuple[str, str]]:
    """(English determiner, case, gender or plural) → German determiner and the ending of an adjective after it."""
    #             m f n plural
    definite = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
    strong = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
    ein = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
    weak = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
    mixed = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
    stems = {"a": "ein", "no": "kein", **lexicon.POSSESSIVES}
    table = {}
    for case in ("nom", "acc", "dat"):
        for column, gender in enumerate("mfnp"):

            def ending(paradigm: dict[str, str], case: str = case, column: int = column) -> str:
                return paradigm[case].split()[column].strip("-")

            table["the", case, gender] = ending(definite), ending(weak)
            table["this", case, gender] = "dies" + ending(strong), ending(weak)
            table["every", case, gender] = "jed" + ending(strong), ending(weak)
            table["", case, gender] = "", ending(strong)
            for english, stem in stems.items():
                table[english, case, gender] = stem + ending(ein), ending(mixed)
            for english, number in lexicon.NUMBERS.items():
                table[english, case, gender] = number, ending(strong)
    return table


GERMAN_DETERMINERS = _german_determiners()
