"""Phrases that are realized in English and German at once.

Each German word keeps the English words that it translates, so that the gold word alignment follows from generation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Noun

if TYPE_CHECKING:
    from dragoman.data.phrasebook.grammar import Clause

THIRD_SINGULAR, PLURAL = 2, 3  # indices into Verb.finite
_DEFINITE = frozenset(["the", "this", *lexicon.POSSESSIVES])


class Word:
    """A word of a sentence; a German word keeps its English `origins`."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, *origins: Word) -> None:
        self.text = text
        self.origins = origins


class Bitext(NamedTuple):
    """The words of a phrase in both languages."""

    english: list[Word]
    german: list[Word]


# Nominals: subjects, objects and complements of prepositions


@dataclass(eq=False, slots=True)
class Nominal:
    """Base class of noun phrases, names and pronouns."""

    opens_clause: ClassVar[bool] = False  # relative and question pronouns come first in their clause

    @property
    def agreement(self) -> int:
        """Index into Verb.finite of the form that agrees with this subject."""
        return THIRD_SINGULAR

    @property
    def definite(self) -> bool:
        """Whether the hearer knows the referent: German puts known objects before adverbs of time, new ones after."""
        return True

    @property
    def takes_kein(self) -> bool:
        """Whether German negates it with "kein" instead of "nicht"."""
        return False

    @property
    def relative_clause(self) -> Clause | None:
        return None

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        """Inflect for a German case; `negation` is the English "not" that "kein" absorbs."""
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
        return self.determiner in _DEFINITE

    @property
    def takes_kein(self) -> bool:
        return self.determiner in ("", "a")

    @property
    def relative_clause(self) -> Clause | None:
        return self.relative

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        noun = [Word(text) for text in (self.noun.plural if self.plural else self.noun.singular).split()]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = []
        if self.determiner:
            following = (adjective + noun)[0].text
            determiner.append(Word(_english_determiner(self.determiner, self.plural, following)))
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
        return _one_word(self.name, self.name)


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
        return _one_word(subject if case == "nom" else other, german)


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
        german = GERMAN_DETERMINERS["the", case, "p" if self.plural else self.noun.gender][0]
        english = who if "person" in self.noun.kinds else "that"
        return _one_word(english, "denen" if self.plural and case == "dat" else german)


@dataclass(eq=False, slots=True)
class QuestionPronoun(Nominal):
    """who, whom or what."""

    thing: bool = False
    opens_clause: ClassVar[bool] = True

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        if self.thing:
            return _one_word("what", "was")
        return _one_word("who" if case == "nom" else "whom", {"nom": "wer", "acc": "wen", "dat": "wem"}[case])


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
        first, second, conjunction = self.first.realize(case), self.second.realize(case), _one_word("and", "und")
        return Bitext(
            first.english + conjunction.english + second.english, first.german + conjunction.german + second.german
        )


# Adverbials: phrases that can open a statement


@dataclass(eq=False, slots=True)
class Adverbial:
    """An adverb, or a phrase that behaves like one ("every day")."""

    adverb: Adverb

    def realize(self) -> Bitext:
        english = [Word(text) for text in self.adverb.english.split()]
        german = zip(self.adverb.german.split(), english, strict=True)
        return Bitext(english, [Word(text, word) for text, word in german])


@dataclass(eq=False, slots=True)
class Prepositional:
    """A preposition and its complement; German contracts some prepositions with the article: in dem → im."""

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


def _one_word(english: str, german: str) -> Bitext:
    word = Word(english)
    return Bitext([word], [Word(german, word)])


def _english_determiner(determiner: str, plural: bool, following: str) -> str:
    if determiner == "this" and plural:
        return "these"
    return "an" if determiner == "a" and following[0] in "aeiou" else determiner


def _german_determiners() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Map (English determiner, case, gender or plural) to the German determiner and the ending of an adjective."""
    # endings for m, f, n and plural in the nominative, accusative and dative
    definite = "der die das die", "den die das die", "dem der dem den"
    strong = "er e es e", "en e es e", "em er em en"
    ein = "- e - e", "en e - e", "em er em en"
    weak = "e e e en", "en e e en", "en en en en"
    mixed = "er e es en", "en e es en", "en en en en"
    paradigms = {"the": ("", definite, weak), "this": ("dies", strong, weak), "every": ("jed", strong, weak)}
    paradigms |= {name: (stem, ein, mixed) for name, stem in {"a": "ein", "no": "kein", **lexicon.POSSESSIVES}.items()}
    no_ending = ("- - - -",) * 3
    paradigms |= {name: (stem, no_ending, strong) for name, stem in {"": "", **lexicon.NUMBERS}.items()}
    table = {}
    for name, (stem, endings, adjective_endings) in paradigms.items():
        for case, own, adjective in zip(("nom", "acc", "dat"), endings, adjective_endings):
            for gender, ending, adjective_ending in zip("mfnp", own.split(), adjective.split()):
                table[name, case, gender] = stem + ending.strip("-"), adjective_ending
    return table


GERMAN_DETERMINERS = _german_determiners()
