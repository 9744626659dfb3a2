"""The writer: draws sentence structures at random that are worth saying.

Structures that English leaves ambiguous are never drawn, so that every English sentence has one German translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.grammar import Clause, Sentence, Subordinate
from dragoman.data.phrasebook.lexicon import BE, CLAUSE_VERBS, MODALS, NOUNS, VERBS, Adjective, Verb
from dragoman.data.phrasebook.phrase_sampler import POSSESSED_DETERMINERS, PhraseSampler, known_determiners
from dragoman.data.phrasebook.phrases import (
    Adverbial,
    Nominal,
    NounPhrase,
    Prepositional,
    Pronoun,
    QuestionPronoun,
    RelativePronoun,
)

_CONJUNCTIONS = ("because", "because", "although", "if", "while", "before")
_TIMES = {
    "present": ("today", "now", "every day"),
    "perfect": ("today",),
    "modal": ("today", "tomorrow", "soon"),
    "negated": ("today",),
}

# Adjectives: states that come and go, those that cannot be "very", and those of which a thing has only one.
_PASSING = ("tired", "happy", "sick", "sad", "hungry")
_UNGRADABLE = ("new", "red", "blue", "black")
_DIMENSIONS = ("old young new", "big small", "red blue black", "warm cold fresh", "happy sad")

# Nouns and verbs by what goes with them; what stands in a list more than once is drawn more often.
_KINDS = {kind for noun in NOUNS.values() for kind in noun.kinds}
_THINGS = tuple(noun for noun in NOUNS.values() if "person" not in noun.kinds)
_OF_ONE_OBJECT = tuple(verb for verb in VERBS.values() if len(verb.objects) == 1)
_SUBJECT_VERBS = {kind: tuple(verb for verb in VERBS.values() if kind in verb.subject) for kind in _KINDS}
_OBJECT_VERBS = {
    kind: tuple(verb for verb in _OF_ONE_OBJECT if kind in verb.objects[0][1] and not verb.particle) for kind in _KINDS
}
_OBJECT_VERBS["person"] += tuple(verb for verb in _OBJECT_VERBS["person"] if verb.objects[0][0] == "dat")
_THING_VERBS = tuple(verb for verb in _OF_ONE_OBJECT if not {"person", "animal"}.intersection(verb.objects[0][1]))
_SEPARABLE = tuple(verb for verb in VERBS.values() if verb.prefix)
# Separable verbs have more forms to be seen, and one verb alone has things for its subject.
_EVENTS = (*VERBS.values(), *_SEPARABLE * 2, *(VERBS["belong"],) * 3)
_HAPPENINGS = tuple(verb for verb in _EVENTS if "stative" not in verb.adjuncts)
_CLAUSES = (*_EVENTS, *(BE,) * 7)
_REASONS = (*_EVENTS, *(BE,) * 3)
_MODALS = tuple(MODALS.values())
_PLACED = (*(verb for verb in VERBS.values() if "place" in verb.adjuncts), *(VERBS["go"], VERBS["run"]) * 2)
_REPORTING = tuple(CLAUSE_VERBS.values())
# Only some verbs open questions, so that each of their capitalised forms is seen often enough.
_ASKED = ("sleep", "work", "come", "see", "know", "need", "buy", "eat", "drink", "read", "help", "call", "open", "give")


class SentenceSampler(PhraseSampler):
    """Draws sentences, reproducibly: the seed is the only source of chance."""

    # Sentences

    def sentence(self) -> Sentence:
        self.said.clear()
        return self.pick(_SENTENCES)(self)

    def plain(self) -> Sentence:
        return Sentence(self.clause())

    def fronted(self) -> Sentence:
        return Sentence(self.clause(front="any"))

    def with_relative(self) -> Sentence:
        return Sentence(self.clause(verb=self.fresh(_EVENTS), relative=True))

    def yes_no_question(self) -> Sentence:
        if self.chance(0.15):
            return Sentence(self.description(), question=True)
        verb = VERBS[self.pick(_ASKED)]
        tense = "present" if self.chance(0.3) else self.tense(verb)
        subject = self.nominal(verb.subject, calm=True)
        if self.chance(0.4) or (isinstance(subject, Pronoun) and subject.name == "I"):
            subject = Pronoun(self.pick(("you", "you", "we", "they")))  # and nobody asks whether he sleeps himself
        return Sentence(self.clause(subject=subject, verb=verb, tense=tense), question=True)

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
        return Sentence(self.clause(verb=verb, tense=tense, after=adjunct, without=without))

    def reported(self) -> Sentence:
        return Sentence(self.report())

    def joined(self) -> Sentence:
        first = self.clause()
        return Sentence(first, conjunction=self.pick(("and", "but")), second=self.statement())

    # Clauses

    def report(self, nested: bool = False) -> Clause:
        """A clause whose verb takes a clause: says that, asks whether, knows where."""
        verb = self.fresh(_REPORTING)
        without = ["time"]
        if "that" in verb.adjuncts and ("whether" not in verb.adjuncts or self.chance(0.4)):
            inner = self.report(nested=True) if not nested and self.chance(0.08) else self.statement()
            after = Subordinate("that", inner)
            if verb.base in ("know", "hope"):
                without.append("negation")  # nobody can say that he does not know that
        elif self.chance(0.4):
            after = Subordinate("whether", self.clause(without=("negation",)))
        else:
            words = ("where", "when", "why") if verb.objects else ("who", "whom", "what", "where", "when", "why")
            after = Subordinate("", self.asking(words))
        return self.clause(verb=verb, after=after, without=without)

    def statement(self) -> Clause:
        if self.chance(0.12):
            return self.clause(verb=self.fresh(_EVENTS), relative=True)
        return self.clause()

    def asking(self, words: Sequence[str]) -> Clause:
        """A clause that is opened by one of these question words."""
        word = self.pick(words)
        if word == "who":
            verb = self.fresh(_SUBJECT_VERBS["person"])
            return self.clause(subject=QuestionPronoun(), verb=verb, without=("negation"))
        if word == "whom":
            return self.clause(verb=self.fresh(_OBJECT_VERBS["person"]), asked=QuestionPronoun(), without=("negation"))
        if word == "what":
            return self.clause(verb=self.fresh(_THING_VERBS), asked=QuestionPronoun(thing=True), without=("negation"))
        if word == "where":
            verb = self.fresh(_PLACED)
            where = Adverbial(lexicon.WHERE_TO if "goal" in verb.adjuncts else lexicon.QUESTIONS["where"])
            return self.clause(verb=verb, front=where, without=("negation", "place"))
        opened = Adverbial(lexicon.QUESTIONS[word])
        without = () if word == "why" else ("negation", "time")
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
        relative: bool = False,
        without: Sequence[str] = (),
    ) -> Clause:
        """A clause around a verb, `without` "negation" or adverbials of "time" and "place" where they make no sense.

        `asked` takes the place of the one object; `front` opens the clause: a given adverbial, or "any" that fits;
        a `relative` clause describes the subject or the last object.
        """
        verb = verb or self.fresh(_EVENTS if after else _CLAUSES)
        if verb is BE:
            return self.description(subject, front=front, after=after, without=without)
        tense = tense or self.tense(verb)
        modal = self.pick(_MODALS) if tense == "modal" else None
        on_object = relative and bool(verb.objects) and self.chance(0.6)
        negated = not ("negation" in without or on_object or modal is MODALS["must"]) and self.chance(0.16)
        timeless = "time" in without or on_object or "stative" in verb.adjuncts
        if negated and not (subject or relative) and self.chance(0.15):
            subject = self.noun_phrase(self.pick(verb.subject), calm=True, single=True)
            if "kin" not in subject.noun.kinds:
                subject.determiner, negated, timeless = "no", False, True
        frequency = None
        if not (negated or timeless or relative) and len(verb.objects) < 2 and self.chance(0.14):
            frequency = self.frequency(tense, modal)
            timeless = True

        calm = negated or frequency is not None  # "every" and "no" would leave open what is negated
        if relative and not on_object:
            subject = self.described(self.noun_phrase(self.pick(verb.subject), calm=calm, subject=True))
        subject = subject or self.nominal(verb.subject, calm=calm)
        calm = calm or (isinstance(subject, NounPhrase) and subject.determiner in ("every", "no"))
        objects = (asked,) if asked else self.objects(verb, subject, calm, negated)

        times = _TIMES["negated" if negated else tense]
        placeless = "place" in without
        if front == "any":
            front, timeless, placeless = self.opening(verb, times, timeless, negated)
        if on_object:  # nothing may follow the relative clause: English could not tell to which clause it belongs
            last = self.described(self.noun_phrase(self.pick(verb.objects[-1][1]), calm=calm))
            objects = (*objects[:-1], last)
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
        if isinstance(subject, RelativePronoun):
            noun = subject.noun
        elif reasoned or self.chance(0.45):
            subject = self.nominal(("person",), calm=True, plain=True)
            noun = subject.noun if isinstance(subject, NounPhrase) else NOUNS["man"]
        else:
            noun = self.fresh(_THINGS)
            plural = self.chance(0.3) and self.countable(noun)
            determiners = known_determiners(noun) if "unowned" in noun.kinds else POSSESSED_DETERMINERS
            subject = NounPhrase(noun, self.pick(determiners), self.pick((None, *noun.adjectives)), plural)
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

    def described(self, phrase: NounPhrase) -> NounPhrase:
        """The phrase with a relative clause, in which its noun is the subject or the object."""
        noun = phrase.noun
        pronoun = RelativePronoun(noun, phrase.plural)
        without = ("time",)  # "who sleeps now works" would leave open who does what now
        as_subject = [verb for kind in noun.kinds for verb in _SUBJECT_VERBS[kind]]
        as_object = [verb for kind in noun.kinds for verb in _OBJECT_VERBS[kind]]
        if as_subject and (not as_object or self.chance(0.5)):
            phrase.relative = self.clause(subject=pronoun, verb=self.fresh(as_subject), without=without)
        elif not as_object or self.chance(0.2):
            phrase.relative = self.description(pronoun, without=without)
        else:
            phrase.relative = self.clause(verb=self.fresh(as_object), asked=pronoun, without=without)
        return phrase


def _alike(one: Adjective, other: Adjective) -> bool:
    """Whether two adjectives are the same or speak of the same side of a thing, like red and blue."""
    both = {one.english, other.english}
    return len(both) == 1 or any(both.issubset(dimension.split()) for dimension in _DIMENSIONS)


_SENTENCES: tuple[Callable[[SentenceSampler], Sentence], ...] = (
    *(SentenceSampler.plain,) * 13,
    *(SentenceSampler.fronted,) * 4,
    *(SentenceSampler.with_relative,) * 4,
    *(SentenceSampler.yes_no_question,) * 5,
    *(SentenceSampler.open_question,) * 3,
    *(SentenceSampler.with_adjunct,) * 5,
    *(SentenceSampler.reported,) * 4,
    *(SentenceSampler.joined,) * 3,
)
