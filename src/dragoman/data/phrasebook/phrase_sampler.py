"""Sampling of words and phrases that go together: verbs select their arguments, so that nobody drinks a house."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.grammar import Coordination, Nominal, NounPhrase, Prepositional, Pronoun
from dragoman.data.phrasebook.lexicon import MODALS, NOUNS, Adjective, Adverb, Modal, Noun, Verb

Option = TypeVar("Option")

# Samples are uniform: repeated options are more likely.
_POSSESSIVES, _NUMBERS = tuple(lexicon.POSSESSIVES), tuple(lexicon.NUMBERS)
_DEMONSTRATIVES = ("the",) * 8 + ("this",) * 3
POSSESSED_DETERMINERS = ("the",) * 6 + _POSSESSIVES * 2
_PRONOUNS = ("I", "I", "I", "you", "you", "you", "he", "she", "we", "they")
_OBJECT_PRONOUNS = {  # by the subject: an object of the same person would be reflexive
    "I": ("you", "he", "she", "they"),
    "we": ("you", "he", "she", "they"),
    "you": ("I", "he", "she", "we", "they"),
}
_KINDS = {kind for noun in NOUNS.values() for kind in noun.kinds}
_NOUNS_BY_KIND = {kind: tuple(noun for noun in NOUNS.values() if kind in noun.kinds) for kind in _KINDS}


def definite_determiners(noun: Noun) -> tuple[str, ...]:
    """Return the definite determiners that suit a noun: "the", "this" and possessives such as "my".

    Nouns have kinds (semantic classes). Relatives (of the kind "kin") take no "this". The kind "unowned" takes no
    possessive: nobody owns a forest, and "my man" would mean a husband. Repeated determiners are more likely.
    """
    if "kin" in noun.kinds:
        return POSSESSED_DETERMINERS
    return _DEMONSTRATIVES if "unowned" in noun.kinds else _DEMONSTRATIVES + _POSSESSIVES


class PhraseSampler:
    """Samples words and phrases reproducibly: the seed is the only source of randomness."""

    def __init__(self, seed: int) -> None:
        """Start the random generator; no word is used yet."""
        self.random = Random(seed).random
        self.used_words: set[object] = set()  # nouns, names, pronouns and verbs of this sentence, to avoid repetition

    def pick(self, options: Sequence[Option]) -> Option:
        """Return one of the options, all equally probable."""
        return options[int(self.random() * len(options))]

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random() < probability

    def pick_unused(self, options: Sequence[Option]) -> Option:
        """Pick an option that is not yet used in the sentence; after 8 tries, a used one is taken."""
        for _ in range(8):
            option = self.pick(options)
            if option not in self.used_words:
                break
        self.used_words.add(option)
        return option

    # Nominals

    def nominal(
        self,
        kinds: Sequence[str],
        *,
        definite: bool = False,
        no_adjective: bool = False,
        subject: Nominal | None = None,
    ) -> Nominal:
        """Sample a subject, or an object for the given `subject`: a pronoun, a name, two people, or a noun phrase.

        Args:
            kinds: kinds of nouns that the verb selects.
            definite: use only definite determiners, such as "the" and "my".
            no_adjective: a noun phrase has no adjective.
            subject: the subject of the clause, if an object is sampled.
        """
        draw = self.random()  # of persons, 40 % are pronouns, 14 % names and 6 % coordinations; of objects fewer
        if "person" in kinds and draw < (0.16 if subject else 0.4):
            # an object of the same person as the subject would need a reflexive pronoun
            pronouns = _OBJECT_PRONOUNS.get(subject.subject_form) if isinstance(subject, Pronoun) else None
            return Pronoun.personal(self.pick_unused(pronouns or _PRONOUNS))
        if "person" in kinds and draw < (0.34 if subject else 0.54):
            return Pronoun.name(self.pick_unused(lexicon.NAMES))
        if "person" in kinds and not subject and draw < 0.6:
            return Coordination(self.name_or_person(), self.name_or_person())
        kind = self.pick(kinds)
        return self.noun_phrase(kind, definite=definite, no_adjective=no_adjective, is_subject=not subject)

    def name_or_person(self) -> Nominal:
        """Sample a name, or a definite noun phrase for a person."""
        if self.chance(0.5):
            return Pronoun.name(self.pick_unused(lexicon.NAMES))
        return self.noun_phrase("person", definite=True, singular=True)

    def noun_phrase(
        self,
        kind: str,
        *,
        definite: bool = False,
        negated: bool = False,
        no_adjective: bool = False,
        singular: bool = False,
        is_subject: bool = False,
    ) -> NounPhrase:
        """Sample a noun phrase.

        Args:
            kind: semantic class of the noun, such as "person" or "food".
            definite: use only definite determiners, such as "the" and "my"; ignored if `negated`.
            negated: the clause is negated; an indefinite phrase then takes "kein" in German.
            no_adjective: the phrase has no adjective.
            singular: use no plural.
            is_subject: subjects are never without a determiner.
        """
        noun = self.pick_unused(_NOUNS_BY_KIND[kind])
        plural = not singular and self.chance(0.3) and noun.is_countable
        determiners = definite_determiners(noun)  # the following ones are added; repeated ones are more likely
        indefinite: tuple[str, ...] = ("a",)
        # plurals and mass nouns (which have no plural) are indefinite without a determiner, but people and subjects
        # would be ambiguous then: "weil wir Mädchen sehen"
        if plural or not noun.plural:
            indefinite = () if "person" in noun.kinds or is_subject else ("",)
        if negated:
            determiners += indefinite * 9
        elif not definite and "kin" not in noun.kinds:  # kin: relatives, such as "my mother"
            determiners += indefinite * (12 if plural else 7)
            if plural:
                determiners += _NUMBERS
            elif noun.plural:
                determiners += ("every",)
        adjective = None if no_adjective else self.adjective(noun)
        return NounPhrase(noun, determiner=self.pick(determiners), adjective=adjective, plural=plural)

    def adjective(self, noun: Noun) -> Adjective | None:
        """Sample an adjective that suits the noun; None with probability 0.7."""
        return self.pick(noun.adjectives) if self.chance(0.3) else None

    def objects(self, verb: Verb, subject: Nominal, definite: bool, negated: bool) -> tuple[Nominal, ...]:
        """Sample the objects that a verb takes.

        Args:
            verb: selects the German case and the kinds of nouns of each object.
            subject: the subject of the clause.
            definite: use only definite determiners, such as "the" and "my", and no coordination.
            negated: the clause is negated; an indefinite object then takes "kein" in German.
        """
        nominals: list[Nominal] = []
        for case, kinds in verb.objects:
            is_recipient = len(verb.objects) == 2 and case == "dat"  # the person to whom something is given
            if "person" in kinds and (is_recipient or self.chance(0.6)):
                nominals.append(self.nominal(("person",), definite=definite or is_recipient, subject=subject))
            elif not definite and self.chance(0.08):  # two objects joined by "and"
                kind = self.pick(kinds)
                first, second = (self.noun_phrase(kind, definite=True, singular=True) for _ in range(2))
                nominals.append(first if first.noun is second.noun else Coordination(first, second))
            else:
                nominals.append(self.noun_phrase(self.pick(kinds), definite=definite, negated=negated))
        return tuple(nominals)

    # Adverbials

    def initial_adverbial(
        self, verb: Verb, times: Sequence[str], no_time: bool, negated: bool
    ) -> tuple[Adverb | Prepositional, bool, bool]:
        """Sample an adverbial that begins a clause: a place, "here" or "there", an adverb of time, or "perhaps".

        Args:
            verb: its adjuncts say whether a place makes sense.
            times: English adverbs of time that suit the tense.
            no_time: the clause must have no adverb of time.
            negated: the clause is negated; then no place is sampled.

        Returns:
            The adverbial, whether the rest of the clause must have no adverb of time, and whether no place.
        """
        draw = self.random()
        if draw < 0.3 and "place" in verb.adjuncts and not negated:
            return self.place(outdoors="animal" in verb.subject), no_time, True  # what animals do, too, is outdoors
        if draw < 0.4 and "here" in verb.adjuncts and not negated:
            return self.here_or_there(), no_time, True
        if draw < 0.75 and not no_time:
            return lexicon.TIMES[self.pick(times)], True, False
        return lexicon.PERHAPS, no_time, False

    def frequency(self, tense: str, modal: Modal | None) -> Adverb:
        """Sample an adverb of frequency that suits the tense ("present", "perfect" or "modal").

        The names of some are repeated, which makes them more likely. There is no "must never".
        """
        if tense == "modal":
            names = ["always", "often"] + ["never"] * (modal is not MODALS["must"])
        else:
            names = ["often", "always", "sometimes", "never", "already" if tense == "perfect" else "often"]
        return lexicon.FREQUENCIES[self.pick(names)]

    def manner(self, adjuncts: Sequence[str], phrases: Sequence[Adverb | Prepositional]) -> Adverb | None:
        """Sample one of the adverbs of manner ("slowly") among the `adjuncts` that make sense with a verb, or none.

        `phrases` are the other adverbials of the clause: "alone" follows none of them, other manners follow no adverb.
        One is sampled with probability 0.2.
        """
        manners = [word for word in adjuncts if word in lexicon.MANNERS and not (word == "alone" and phrases)]
        has_adverb = any(isinstance(phrase, Adverb) for phrase in phrases)
        return lexicon.MANNERS[self.pick(manners)] if manners and not has_adverb and self.chance(0.2) else None

    def phrases(self, verb: Verb, subject: Nominal) -> tuple[Adverb | Prepositional, ...]:
        """Sample at most one phrase of company or benefit ("with Anna", "for Anna"), then one of direction or place.

        The adjuncts of a verb are the kinds of phrases that make sense with it. What animals do, too, is outdoors.
        """
        adjuncts = verb.adjuncts
        phrases: list[Adverb | Prepositional] = []
        if "company" in adjuncts and self.chance(0.2):
            phrases.append(Prepositional(self.pick(("with", "with", "without")), self.other_person(subject)))
        elif "beneficiary" in adjuncts and self.chance(0.35):
            phrases.append(Prepositional("for", self.other_person(subject)))
        outdoors = "animal" in verb.subject
        if "origin" in adjuncts and self.chance(0.4):
            phrases.append(Prepositional("from", self.location(outdoors)))
        elif "goal" in adjuncts and (not verb.objects or self.chance(0.3)):
            into = outdoors or self.chance(0.55)
            goal = ("into", self.location(outdoors)) if into else ("to", self.place_noun("building"))
            phrases.append(Prepositional(*goal))
        elif "place" in adjuncts and self.chance(0.25):
            phrases.append(self.place(outdoors))
        elif "here" in adjuncts and not (phrases or verb.objects) and self.chance(0.12):
            phrases.append(self.here_or_there())
        return tuple(phrases)

    def here_or_there(self) -> Adverb:
        """Sample the adverb "here" or "there"."""
        return lexicon.PLACE_ADVERBS[self.pick(("here", "there"))]

    def other_person(self, subject: Nominal) -> Nominal:
        """Sample a definite phrase for a person other than the subject."""
        # like an object, which is another pronoun than the subject, and another word than those in the sentence
        return self.nominal(("person",), definite=True, subject=subject)

    def location(self, outdoors: bool) -> NounPhrase:
        """Sample a place in which something can happen: outdoors, or else an area such as a city, or a building."""
        return self.place_noun("outdoors" if outdoors else self.pick(("area", "area", "building")))

    def place_noun(self, kind: str) -> NounPhrase:
        """Sample a noun phrase for a place of this kind (semantic class), such as "building", mostly with "the"."""
        noun = self.pick_unused(_NOUNS_BY_KIND[kind])
        determiner = self.pick(("the", "the", "the", "a", self.pick(definite_determiners(noun))))
        return NounPhrase(noun, determiner, self.adjective(noun))

    def place(self, outdoors: bool) -> Prepositional:
        """Sample where something happens: in, behind or under a place."""
        draw = self.random()
        if draw < 0.7:
            return Prepositional("in", self.location(outdoors))
        if draw < 0.85:
            return Prepositional("behind", self.place_noun("building"))
        return Prepositional("under", self.place_noun("plant"))
