"""Draws words and phrases that go together: by what verbs ask for, so that nobody drinks a house."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import MODALS, NOUNS, Adjective, Adverb, Modal, Noun, Verb
from dragoman.data.phrasebook.phrases import Adverbial, Coordination, Name, Nominal, NounPhrase, Prepositional, Pronoun

T = TypeVar("T")

# Lists to draw from evenly; what stands in one more than once is drawn more often.
_POSSESSIVES = tuple(lexicon.POSSESSIVES)
_NUMBERS = tuple(lexicon.NUMBERS)
_POINTING = ("the",) * 8 + ("this",) * 3
_KNOWN = _POINTING + _POSSESSIVES
POSSESSED_DETERMINERS = ("the",) * 6 + _POSSESSIVES * 2
_PRONOUNS = ("I", "I", "I", "you", "you", "you", "he", "she", "we", "they")
_OTHER_PRONOUNS = {  # an object of the subject's own person would be reflexive
    "I": ("you", "he", "she", "they"),
    "we": ("you", "he", "she", "they"),
    "you": ("I", "he", "she", "we", "they"),
}
_KINDS = {kind for noun in NOUNS.values() for kind in noun.kinds}
_NOUNS_OF = {kind: tuple(noun for noun in NOUNS.values() if kind in noun.kinds) for kind in _KINDS}


class PhraseSampler:
    """Draws words and phrases, reproducibly: the seed is the only source of chance."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed).random
        self.said: set[object] = set()  # nouns, names and pronouns of this sentence: it uses none twice

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def fresh(self, options: Sequence[T]) -> T:
        """One of the options that the sentence has not used yet, as far as a few tries find one."""
        for _ in range(8):
            option = self.pick(options)
            if option not in self.said:
                break
        self.said.add(option)
        return option

    # Nominals

    def nominal(
        self,
        kinds: Sequence[str],
        *,
        calm: bool = False,
        plain: bool = False,
        beside: Nominal | None = None,
    ) -> Nominal:
        """A subject, or an object `beside` a subject; `plain` ones are without an adjective."""
        draw = self.random()
        if "person" in kinds and draw < (0.16 if beside else 0.4):
            others = _OTHER_PRONOUNS.get(beside.name) if isinstance(beside, Pronoun) else None
            return Pronoun(self.fresh(others or _PRONOUNS))
        if "person" in kinds and draw < (0.34 if beside else 0.54):
            return Name(self.fresh(lexicon.NAMES))
        if "person" in kinds and not beside and draw < 0.6:
            return Coordination(*(self.name_or_noun() for _ in range(2)))
        return self.noun_phrase(self.pick(kinds), calm=calm, plain=plain, subject=not beside)

    def name_or_noun(self) -> Nominal:
        return (
            Name(self.fresh(lexicon.NAMES)) if self.chance(0.5) else self.noun_phrase("person", calm=True, single=True)
        )

    def noun_phrase(
        self,
        kind: str,
        *,
        calm: bool = False,
        negated: bool = False,
        plain: bool = False,
        single: bool = False,
        subject: bool = False,
    ) -> NounPhrase:
        """A noun of a kind with a determiner; a `calm` one is known to the hearer, a `negated` one may take "kein"."""
        noun = self.fresh(_NOUNS_OF[kind])
        plural = not single and self.chance(0.3) and self.countable(noun)
        determiners = known_determiners(noun)
        unnamed: tuple[str, ...] = ("a",)
        if plural or not noun.plural:
            unnamed = () if "person" in noun.kinds or subject else ("",)  # "weil wir Mädchen sehen" would be ambiguous
        if negated:
            determiners += unnamed * 9
        elif not calm and "kin" not in noun.kinds:
            determiners += unnamed * (12 if plural else 7)
            if plural:
                determiners += _NUMBERS
            elif noun.plural:
                determiners += ("every",)
        adjective = None if plain else self.adjective(noun)
        return NounPhrase(noun, self.pick(determiners), adjective, plural)

    def countable(self, noun: Noun) -> bool:
        return bool(noun.plural) and "single" not in noun.kinds

    def adjective(self, noun: Noun) -> Adjective | None:
        return self.pick(noun.adjectives) if self.chance(0.3) else None

    def objects(self, verb: Verb, subject: Nominal, calm: bool, negated: bool) -> tuple[Nominal, ...]:
        nominals: list[Nominal] = []
        for case, kinds in verb.objects:
            recipient = len(verb.objects) == 2 and case == "dat"
            if "person" in kinds and (recipient or self.chance(0.6)):
                nominals.append(self.nominal(("person",), calm=calm or recipient, beside=subject))
            elif not calm and self.chance(0.08):
                kind = self.pick(kinds)
                one, other = (self.noun_phrase(kind, calm=True, single=True) for _ in range(2))
                nominals.append(one if one.noun is other.noun else Coordination(one, other))
            else:
                kind = self.pick(kinds)
                nominals.append(self.noun_phrase(kind, calm=calm, negated=negated))
        return tuple(nominals)

    # Adverbials

    def opening(
        self, verb: Verb, times: Sequence[str], timeless: bool, negated: bool
    ) -> tuple[Adverbial | Prepositional, bool, bool]:
        """An adverbial for the front, and whether the clause then has no place for one of time and one of place."""
        draw = self.random()
        if draw < 0.3 and "place" in verb.adjuncts and not negated:
            return self.place(outdoors="animal" in verb.subject), timeless, True
        if draw < 0.4 and "here" in verb.adjuncts and not negated:
            return Adverbial(lexicon.PLACES[self.pick(("here", "there"))]), timeless, True
        if draw < 0.75 and not timeless:
            return Adverbial(lexicon.TIMES[self.pick(times)]), True, False
        return Adverbial(lexicon.PERHAPS), timeless, False

    def frequency(self, tense: str, modal: Modal | None) -> Adverb:
        if tense == "modal":
            name = self.pick(("always", "often") if modal is MODALS["must"] else ("always", "often", "never"))
        else:
            name = self.pick(("often", "always", "sometimes", "never", "already" if tense == "perfect" else "often"))
        return lexicon.FREQUENCIES[name]

    def manner(self, adjuncts: Sequence[str], phrases: Sequence[Adverbial | Prepositional]) -> Adverb | None:
        names = [name for name in adjuncts if name in lexicon.MANNERS and not (name == "alone" and phrases)]
        here = any(isinstance(phrase, Adverbial) for phrase in phrases)
        return lexicon.MANNERS[self.pick(names)] if names and not here and self.chance(0.2) else None

    def phrases(self, verb: Verb, subject: Nominal) -> tuple[Adverbial | Prepositional, ...]:
        """At most one phrase of company or benefit, then one of direction or place."""
        adjuncts = verb.adjuncts
        chosen: list[Adverbial | Prepositional] = []
        if "company" in adjuncts and self.chance(0.2):
            chosen.append(Prepositional(self.pick(("with", "with", "without")), self.other_person(subject)))
        elif "beneficiary" in adjuncts and self.chance(0.35):
            chosen.append(Prepositional("for", self.other_person(subject)))
        outdoors = "animal" in verb.subject
        if "origin" in adjuncts and self.chance(0.4):
            chosen.append(Prepositional("from", self.location(outdoors)))
        elif "goal" in adjuncts and (not verb.objects or self.chance(0.3)):
            into = outdoors or self.chance(0.55)
            goal = Prepositional("into", self.location(outdoors)) if into else Prepositional("to", self.building())
            chosen.append(goal)
        elif "place" in adjuncts and self.chance(0.25):
            chosen.append(self.place(outdoors))
        elif "here" in adjuncts and not (chosen or verb.objects) and self.chance(0.12):
            chosen.append(Adverbial(lexicon.PLACES[self.pick(("here", "there"))]))
        return tuple(chosen)

    def other_person(self, subject: Nominal) -> Nominal:
        return self.nominal(("person",), calm=True, beside=subject)

    def building(self) -> NounPhrase:
        return self.somewhere("building")

    def location(self, outdoors: bool) -> NounPhrase:
        return self.somewhere("outdoors" if outdoors else self.pick(("area", "area", "building")))

    def somewhere(self, kind: str) -> NounPhrase:
        noun = self.fresh(_NOUNS_OF[kind])
        return NounPhrase(
            noun, self.pick(("the", "the", "the", "a", self.pick(known_determiners(noun)))), self.adjective(noun)
        )

    def place(self, outdoors: bool) -> Prepositional:
        draw = self.random()
        if draw < 0.7:
            return Prepositional("in", self.location(outdoors))
        if draw < 0.85:
            return Prepositional("behind", self.building())
        return Prepositional("under", self.somewhere("plant"))


def known_determiners(noun: Noun) -> tuple[str, ...]:
    """The determiners of a noun that is known to the hearer: "my man" would be a husband, and no forest is mine."""
    return POSSESSED_DETERMINERS if "kin" in noun.kinds else _POINTING if "unowned" in noun.kinds else _KNOWN
