"""Noun phrases, pronouns and prepositional phrases, realized in English and German at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Bitext, Noun, Word

if TYPE_CHECKING:
    from dragoman.data.phrasebook.grammar import Clause

THIRD_SINGULAR, PLURAL = 2, 3  # indices into Verb.finite
CASES = ("nom", "acc", "dat")
_DEFINITE = frozenset(["the", "this", *lexicon.POSSESSIVES])


# Nominals: subjects, objects and complements of prepositions


class Nominal:
    """Base class of noun phrases, names and pronouns."""

    agreement: int = THIRD_SINGULAR  # index into Verb.finite of the form that agrees with this subject
    definite: bool = True  # known to the hearer: German puts known objects before adverbs of time, new ones after
    takes_kein: bool = False  # negated with "kein" instead of "nicht"
    opens_clause: bool = False  # relative and question pronouns come first in their clause
    relative_clause: Clause | None = None

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        """Inflect for a German case; `negation` is the English "not" that "kein" absorbs."""
        raise NotImplementedError


@dataclass(eq=False)
class NounPhrase(Nominal):
    """Determiner, adjective, noun and relative clause; the determiner "" leaves a plural or mass noun bare."""

    noun: Noun
    determiner: str = "the"
    adjective: Adjective | None = None
    plural: bool = False
    relative_clause: Clause | None = None

    def __post_init__(self) -> None:
        self.agreement = PLURAL if self.plural else THIRD_SINGULAR
        self.definite, self.takes_kein = self.determiner in _DEFINITE, self.determiner in ("", "a")

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        noun = [Word(text) for text in (self.noun.plural if self.plural else self.noun.singular).split()]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = [Word(self._english_determiner((adjective + noun)[0].text))] if self.determiner else []
        number_or_gender = "p" if self.plural else self.noun.gender
        text, ending = GERMAN_DETERMINERS["no" if negation else self.determiner, case, number_or_gender]
        german = [Word(text, *([negation] if negation else []), *determiner)] if text else []
        if self.adjective:
            german.append(Word(self.adjective.form(ending), *adjective))
        return Bitext(determiner + adjective + noun, [*german, Word(self.noun.form(case, self.plural), *noun)])

    def _english_determiner(self, following: str) -> str:
        """Inflect the English determiner: "these" before a plural, "an" before a vowel."""
        if self.determiner == "this" and self.plural:
            return "these"
        return "an" if self.determiner == "a" and following[0] in "aeiou" else self.determiner


@dataclass(eq=False)
class Pronoun(Nominal):
    """A pronoun or a name: one word in both languages."""

    subject_form: str
    object_form: str
    german: tuple[str, str, str]  # nominative, accusative, dative
    agreement: int = THIRD_SINGULAR
    opens_clause: bool = False

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        english = self.subject_form if case == "nom" else self.object_form
        return Bitext.translated(english, self.german[CASES.index(case)])


def proper_name(text: str) -> Pronoun:
    return Pronoun(text, text, (text, text, text))


def personal_pronoun(subject_form: str) -> Pronoun:
    """Return a personal pronoun; "you" is always the familiar singular."""
    object_form, nominative, accusative, dative, agreement = lexicon.PRONOUNS[subject_form]
    return Pronoun(subject_form, object_form, (nominative, accusative, dative), agreement)


def question_pronoun(thing: bool = False) -> Pronoun:
    if thing:
        return Pronoun("what", "what", ("was", "was", "was"), opens_clause=True)
    return Pronoun("who", "whom", ("wer", "wen", "wem"), opens_clause=True)


def relative_pronoun(noun: Noun, plural: bool = False) -> Pronoun:
    """Return the pronoun that stands for `noun` in its relative clause."""
    who, whom = ("who", "whom") if "person" in noun.kinds else ("that", "that")
    nom, acc, dat = (GERMAN_DETERMINERS["the", case, "p" if plural else noun.gender][0] for case in CASES)
    german = (nom, acc, "denen" if plural else dat)
    return Pronoun(who, whom, german, PLURAL if plural else THIRD_SINGULAR, opens_clause=True)


@dataclass(eq=False)
class Coordination(Nominal):
    """Two nominals joined by "and"."""

    first: Nominal
    second: Nominal

    def __post_init__(self) -> None:
        self.agreement, self.definite = PLURAL, self.first.definite and self.second.definite

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        return self.first.realize(case) + Bitext.translated("and", "und") + self.second.realize(case)


@dataclass(eq=False, slots=True)
class Prepositional:
    """A preposition and its complement; German contracts some prepositions with the article: in dem → im."""

    preposition: str
    nominal: Nominal

    def realize(self) -> Bitext:
        german, case = lexicon.PREPOSITIONS[self.preposition]
        phrase = Bitext.translated(self.preposition, german) + self.nominal.realize(case)
        preposition, article, *others = phrase.german
        if contracted := lexicon.CONTRACTIONS.get((german, article.text)):
            phrase.german = [Word(contracted, *preposition.origins, *article.origins), *others]
        return phrase


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
        for case, own, adjective in zip(CASES, endings, adjective_endings):
            for gender, ending, adjective_ending in zip("mfnp", own.split(), adjective.split()):
                table[name, case, gender] = stem + ending.strip("-"), adjective_ending
    return table


GERMAN_DETERMINERS = _german_determiners()
