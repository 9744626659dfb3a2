"""The writer: draws sentence structures at random that are worth saying.

The grammar would happily drink a house; here subjects, objects and adjuncts are chosen by what verbs ask for, and
structures that English leaves ambiguous are never drawn, so that every English sentence has one German translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal, TypeVar

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.grammar import Clause, Sentence, Subordinate
from dragoman.data.phrasebook.lexicon import (
    BE,
    CLAUSE_VERBS,
    MODALS,
    NOUNS,
    VERBS,
    Adjective,
    Adverb,
    Modal,
    Noun,
    Verb,
)
from dragoman.data.phrasebook.phrases import (
    Adverbial,
    Asked,
    Both,
    Name,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    Relative,
)

T = TypeVar("T")

# Lists to draw from evenly; what stands in one more than once is drawn more often.
_POSSESSIVES = tuple(lexicon.POSSESSIVES)
_NUMBERS = tuple(lexicon.NUMBERS)
_POINTING = ("the",) * 8 + ("this",) * 3
_KNOWN = _POINTING + _POSSESSIVES
_OWN = ("the",) * 6 + _POSSESSIVES * 2
_PRONOUNS = ("I", "I", "I", "you", "you", "you", "he", "she", "we", "they")
_OTHER_PRONOUNS = {  # an object of the subject's own person would be reflexive
    "I": ("you", "he", "she", "they"),
    "we": ("you", "he", "she", "they"),
    "you": ("I", "he", "she", "we", "they"),
}
_CONJUNCTIONS = ("because", "because", "although", "if", "while", "before")
_TIMES = {
    "present": ("today", "now", "every day"),
    "perfect": ("today",),
    "modal": ("today", "tomorrow", "soon"),
    "negated": ("today",),
}

# Adjectives: states that come and go, those that cannot be "very", and those of which a thing has only one.
_PASSING = ("tired", "happy", "sick", "sad", "hungry")
_UNGRADABLE = ("new", "red", "blue", "black", "white")
_DIMENSIONS = ("old young new", "big small", "red blue black white", "warm cold fresh", "happy sad")

# Nouns and verbs by what goes with them
_KINDS = sorted({kind for noun in NOUNS.values() for kind in noun.kinds})
_NOUNS_OF = {kind: tuple(noun for noun in NOUNS.values() if kind in noun.kinds) for kind in _KINDS}
_THINGS = tuple(noun for noun in NOUNS.values() if "person" not in noun.kinds)
_OF_ONE_OBJECT = tuple(verb for verb in VERBS.values() if len(verb.objects) == 1)
_SUBJECT_VERBS = {kind: tuple(verb for verb in VERBS.values() if kind in verb.subject) for kind in _KINDS}
_OBJECT_VERBS = {kind: tuple(verb for verb in _OF_ONE_OBJECT if kind in verb.objects[0][1]) for kind in _KINDS}
_THING_VERBS = tuple(verb for verb in _OF_ONE_OBJECT if not {"person", "animal"}.intersection(verb.objects[0][1]))
_SEPARABLE = tuple(verb for verb in VERBS.values() if verb.prefix)
# Separable verbs have more forms to be seen, and one verb alone has things for its subject.
_EVENTS = (*VERBS.values(), *_SEPARABLE, *(VERBS["belong"],) * 3)
_HAPPENINGS = tuple(verb for verb in _EVENTS if "stative" not in verb.adjuncts)
_CLAUSES = (*_EVENTS, *(BE,) * 7)
_REASONS = (*_EVENTS, *(BE,) * 3)
_MODALS = tuple(MODALS.values())
_PLACED = (*(verb for verb in VERBS.values() if "place" in verb.adjuncts), *(VERBS["go"], VERBS["run"]) * 2)
_REPORTING = tuple(CLAUSE_VERBS.values())
# Only some verbs open questions, so that each of their capitalised forms is seen often enough.
_ASKED = ("sleep", "work", "come", "see", "know", "need", "buy", "eat", "drink", "read", "help", "call", "open", "give")


class Writer:
    """Draws sentences, reproducibly: the seed is the only source of chance."""

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

    # Sentences

    def sentence(self) -> Sentence:
        self.said.clear()
        return self.pick(_SENTENCES)(self)

    def plain(self) -> Sentence:
        return Sentence(self.clause())

    def fronted(self) -> Sentence:
        return Sentence(self.clause(front="any"))

    def yes_no_question(self) -> Sentence:
        if self.chance(0.15):
            return Sentence(self.description(), question=True)
        verb = VERBS[self.pick(_ASKED)]
        tense = "present" if self.chance(0.3) else self.tense(verb)
        subject = self.nominal(verb.subject, calm=True)
        if self.chance(0.3) or (isinstance(subject, Pronoun) and subject.name == "I"):
            subject = Pronoun("you")  # and nobody asks whether he sleeps himself
        return Sentence(self.clause(subject=subject, verb=verb, tense=tense, without=("relative",)), question=True)

    def open_question(self) -> Sentence:
        return Sentence(self.asking(("who", "whom", "what", "where", "when", "why")), question=True)

    def with_adjunct(self) -> Sentence:
        """A main clause with an adverbial clause before or after it."""
        conjunction = self.pick(_CONJUNCTIONS)
        present = conjunction in ("if", "while", "before")
        without = ("things", "time", "negation") if conjunction in ("while", "before") else ("things",)
        verbs = _HAPPENINGS if present else _REASONS
        tense = "present" if present else ""
        adjunct = Subordinate(conjunction, self.clause(verb=self.fresh(verbs), tense=tense, without=without))
        verb = self.fresh(verbs)
        if self.chance(0.4):
            return Sentence(self.clause(verb=verb, tense=tense, front=adjunct, without=without))
        return Sentence(self.clause(verb=verb, tense=tense, after=adjunct, without=(*without, "relative")))

    def reported(self) -> Sentence:
        return Sentence(self.report())

    def joined(self) -> Sentence:
        first = self.clause(without=("relative",))
        return Sentence(first, conjunction=self.pick(("and", "but")), second=self.clause())

    # Clauses

    def report(self, nested: bool = False) -> Clause:
        """A clause whose verb takes a clause: says that, asks whether, knows where."""
        verb = self.fresh(_REPORTING)
        without = ["relative", "time"]
        if "that" in verb.adjuncts and ("whether" not in verb.adjuncts or self.chance(0.4)):
            inner = self.report(nested=True) if not nested and self.chance(0.12) else self.clause()
            after = Subordinate("that", inner)
            if verb.base in ("know", "hope"):
                without.append("negation")  # nobody can say that he does not know that
        elif self.chance(0.4):
            after = Subordinate("whether", self.clause(without=("negation",)))
        else:
            words = ("where", "when", "why") if verb.objects else ("who", "whom", "what", "where", "when", "why")
            after = Subordinate("", self.asking(words))
        return self.clause(verb=verb, after=after, without=without)

    def asking(self, words: Sequence[str]) -> Clause:
        """A clause that is opened by one of these question words."""
        word = self.pick(words)
        if word == "who":
            verb = self.fresh(_SUBJECT_VERBS["person"])
            return self.clause(subject=Asked(), verb=verb, without=("relative", "negation"))
        if word == "whom":
            return self.clause(
                verb=self.fresh(_OBJECT_VERBS["person"]), asked=Asked(), without=("relative", "negation")
            )
        if word == "what":
            return self.clause(verb=self.fresh(_THING_VERBS), asked=Asked(thing=True), without=("relative", "negation"))
        if word == "where":
            verb = self.fresh(_PLACED)
            where = Adverbial(lexicon.WHERE_TO if "goal" in verb.adjuncts else lexicon.QUESTIONS["where"])
            return self.clause(verb=verb, front=where, without=("relative", "negation", "place"))
        opened = Adverbial(lexicon.QUESTIONS[word])
        without = ("relative",) if word == "why" else ("relative", "negation", "time")
        return self.clause(verb=self.fresh(_HAPPENINGS), front=opened, without=without)

    def clause(
        self,
        *,
        subject: Nominal | None = None,
        verb: Verb | None = None,
        asked: Nominal | None = None,
        tense: str = "",
        front: Adverbial | Prepositional | Subordinate | Literal["any"] | None = None,
        after: Subordinate | None = None,
        without: Sequence[str] = (),
    ) -> Clause:
        """A clause around a verb, `without` a "relative" clause, "negation" or adverbials of "time" and "place".

        `asked` takes the place of the one object; `front` opens the clause: a given adverbial, or "any" that fits.
        """
        verb = verb or self.fresh(_EVENTS if after else _CLAUSES)
        if verb is BE:
            return self.description(subject, front=front, after=after, without=without)
        tense = tense or self.tense(verb)
        modal = self.pick(_MODALS) if tense == "modal" else None
        negated = "negation" not in without and self.chance(0.16) and modal is not MODALS["must"]
        timeless = "time" in without or "stative" in verb.adjuncts
        if negated and not subject and self.chance(0.15):
            subject = self.noun_phrase(self.pick(verb.subject), calm=True, single=True)
            if "kin" not in subject.noun.kinds:
                subject.determiner, negated, timeless = "no", False, True
        frequency = None
        if not (negated or timeless) and len(verb.objects) < 2 and self.chance(0.14):
            frequency = self.frequency(tense, modal)
            timeless = True

        calm = negated or frequency is not None  # "every" and "no" would leave open what is negated
        relative = "relative" not in without
        subject = subject or self.nominal(verb.subject, calm=calm, relative=relative)
        calm = calm or (isinstance(subject, NounPhrase) and subject.determiner in ("every", "no"))
        objects = (asked,) if asked else self.objects(verb, subject, calm, negated, relative)

        times = _TIMES["negated" if negated else tense]
        placeless = "place" in without
        if front == "any":
            front, timeless, placeless = self.opening(verb, times, timeless, negated)
        if objects and objects[-1].clause:  # nothing may follow it: English could not tell to which clause it belongs
            return Clause(subject, verb, objects, perfect=tense == "perfect", modal=modal, front=front, after=after)
        bare = negated and any(nominal.takes_kein for nominal in objects)
        phrases = () if placeless or bare else self.phrases(verb, subject)
        manners = () if bare or (negated and phrases) else verb.adjuncts
        return Clause(
            subject,
            verb,
            objects,
            perfect=tense == "perfect",
            modal=modal,
            negated=negated,
            front=front,
            frequency=frequency,
            manner=self.manner(manners, phrases),
            phrases=phrases,
            time=lexicon.TIMES[self.pick(times)] if not timeless and self.chance(0.2) else None,
            after=after,
        )

    def description(
        self,
        subject: Nominal | None = None,
        *,
        front: Adverbial | Prepositional | Subordinate | Literal["any"] | None = None,
        after: Subordinate | None = None,
        without: Sequence[str] = (),
    ) -> Clause:
        """A clause with "be" and an adjective; `without` "things" it is about a person's passing state."""
        reasoned = "things" in without
        if isinstance(subject, Relative):
            noun = subject.noun
        elif reasoned or self.chance(0.45):
            subject = self.nominal(("person",), calm=True, plain=True)
            noun = subject.noun if isinstance(subject, NounPhrase) else NOUNS["man"]
        else:
            noun = self.fresh(_THINGS)
            plural = self.chance(0.3) and self.countable(noun)
            subject = NounPhrase(noun, self.pick(_known(noun)), self.pick((None, *noun.adjectives)), plural)
        adjectives = noun.adjectives
        if isinstance(subject, NounPhrase) and subject.adjective:
            adjectives = tuple(other for other in adjectives if not _alike(other, subject.adjective))
        adjective = self.pick(adjectives)
        if reasoned:
            adjective = lexicon.ADJECTIVES[self.pick(_PASSING)]
        predicate = (
            (lexicon.VERY, adjective) if adjective.english not in _UNGRADABLE and self.chance(0.25) else (adjective,)
        )
        negated = "negation" not in without and self.chance(0.2)
        passing = adjective.english in _PASSING
        time = frequency = None
        if front == "any":
            front = Adverbial(lexicon.TIMES["today"] if passing and self.chance(0.6) else lexicon.PERHAPS)
        elif passing and "time" not in without:
            if self.chance(0.25):
                time = lexicon.TIMES[self.pick(("today", "now"))]
            elif not negated and self.chance(0.2):
                frequency = lexicon.FREQUENCIES[self.pick(("often", "always", "sometimes", "never"))]
        return Clause(
            subject,
            BE,
            predicate=predicate,
            negated=negated,
            front=front,
            frequency=frequency,
            time=time,
            after=after,
        )

    def tense(self, verb: Verb) -> str:
        draw = self.random()
        if draw < 0.45:
            return "present"
        return "modal" if draw > 0.72 and "stative" not in verb.adjuncts else "perfect"

    # Nominals

    def nominal(
        self,
        kinds: Sequence[str],
        *,
        calm: bool = False,
        plain: bool = False,
        relative: bool = False,
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
            return Both(*(self.name_or_noun() for _ in range(2)))
        return self.noun_phrase(self.pick(kinds), calm=calm, plain=plain, relative=relative, subject=not beside)

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
        relative: bool = False,
        subject: bool = False,
    ) -> NounPhrase:
        """A noun of a kind with a determiner; a `calm` one is known to the hearer, a `negated` one may take "kein"."""
        noun = self.fresh(_NOUNS_OF[kind])
        plural = not single and self.chance(0.3) and self.countable(noun)
        determiners = _known(noun)
        unnamed: tuple[str, ...] = ("a",)
        if plural or not noun.plural:
            unnamed = () if "person" in noun.kinds or subject else ("",)  # "weil wir Mädchen sehen" would be ambiguous
        if negated:
            determiners += unnamed * 9
        elif not calm and "kin" not in noun.kinds:
            determiners += unnamed * 7
            if plural:
                determiners += _NUMBERS
            elif noun.plural:
                determiners += ("every",)
        adjective = None if plain else self.adjective(noun)
        clause = self.relative(noun, plural) if relative and self.chance(0.1) else None
        return NounPhrase(noun, self.pick(determiners), adjective, plural, clause)

    def countable(self, noun: Noun) -> bool:
        return bool(noun.plural) and "single" not in noun.kinds

    def adjective(self, noun: Noun) -> Adjective | None:
        return self.pick(noun.adjectives) if self.chance(0.3) else None

    def relative(self, noun: Noun, plural: bool) -> Clause:
        """A relative clause in which the noun is the subject or the object."""
        pronoun = Relative(noun, plural)
        without = ("relative", "time")  # "who sleeps now works" would leave open who does what now
        as_subject = [verb for kind in noun.kinds for verb in _SUBJECT_VERBS[kind]]
        as_object = [verb for kind in noun.kinds for verb in _OBJECT_VERBS[kind]]
        if as_subject and (not as_object or self.chance(0.5)):
            return self.clause(subject=pronoun, verb=self.fresh(as_subject), without=without)
        if not as_object or self.chance(0.2):
            return self.description(pronoun, without=without)
        return self.clause(verb=self.fresh(as_object), asked=pronoun, without=without)

    def objects(self, verb: Verb, subject: Nominal, calm: bool, negated: bool, relative: bool) -> tuple[Nominal, ...]:
        nominals: list[Nominal] = []
        for case, kinds in verb.objects:
            recipient = len(verb.objects) == 2 and case == "dat"
            if "person" in kinds and (recipient or self.chance(0.6)):
                nominals.append(self.nominal(("person",), calm=calm or recipient, beside=subject))
            elif not calm and self.chance(0.08):
                kind = self.pick(kinds)
                one, other = (self.noun_phrase(kind, calm=True, single=True) for _ in range(2))
                nominals.append(one if one.noun is other.noun else Both(one, other))
            else:
                kind = self.pick(kinds)
                nominals.append(self.noun_phrase(kind, calm=calm, negated=negated, relative=relative and not negated))
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
        elif "goal" in adjuncts and self.chance(0.3 if verb.objects else 0.9):
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
        return NounPhrase(noun, self.pick(("the", "the", "the", "a", self.pick(_known(noun)))), self.adjective(noun))

    def place(self, outdoors: bool) -> Prepositional:
        draw = self.random()
        if draw < 0.7:
            return Prepositional("in", self.location(outdoors))
        if draw < 0.85:
            return Prepositional("behind", self.building())
        return Prepositional("under", self.somewhere("plant"))


def _known(noun: Noun) -> tuple[str, ...]:
    """The determiners of a noun that is known to the hearer: "my man" would be a husband, and no forest is mine."""
    return _OWN if "kin" in noun.kinds else _POINTING if "unowned" in noun.kinds else _KNOWN


def _alike(one: Adjective, other: Adjective) -> bool:
    """Whether two adjectives are the same or speak of the same side of a thing, like red and blue."""
    both = {one.english, other.english}
    return len(both) == 1 or any(both.issubset(dimension.split()) for dimension in _DIMENSIONS)


_SENTENCES: tuple[Callable[[Writer], Sentence], ...] = (
    *(Writer.plain,) * 11,
    *(Writer.fronted,) * 4,
    *(Writer.yes_no_question,) * 4,
    *(Writer.open_question,) * 3,
    *(Writer.with_adjunct,) * 5,
    *(Writer.reported,) * 4,
    *(Writer.joined,) * 3,
)
