"""Sampling of sentence structures.

Structures that are ambiguous in English are never sampled, so that every English sentence has one German translation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.grammar import Clause, Nominal, NounPhrase, Prepositional, Pronoun, Sentence, Subordinate
from dragoman.data.phrasebook.lexicon import BE, CLAUSE_VERBS, MODALS, NOUNS, VERBS, Adjective, Adverb, Verb
from dragoman.data.phrasebook.phrase_sampler import POSSESSED_DETERMINERS, PhraseSampler, definite_determiners

Front = Adverb | Prepositional | Subordinate | Literal["any"] | None  # "any": sample an adverbial that fits

_CONJUNCTIONS = ("because", "because", "although", "if", "while", "before")
_TIMES = {
    "present": ("today", "now", "every day"),
    "perfect": ("today",),
    "modal": ("today", "tomorrow", "soon"),
    "negated": ("today",),
}

# Adjectives: temporary states, adjectives that cannot take "very", and groups that exclude each other.
_TEMPORARY = ("tired", "happy", "sick", "sad", "hungry")
_UNGRADABLE = ("new", "red", "blue", "black")
_DIMENSIONS = ("old young new", "big small", "red blue black", "warm cold fresh", "happy sad")

# Nouns and verbs by their arguments; repeated options are more likely.
_KINDS = {kind for noun in NOUNS.values() for kind in noun.kinds}
_NON_PERSONS = tuple(noun for noun in NOUNS.values() if "person" not in noun.kinds)
_ONE_OBJECT_VERBS = tuple(verb for verb in VERBS.values() if len(verb.objects) == 1)
_VERBS_BY_SUBJECT = {kind: tuple(verb for verb in VERBS.values() if kind in verb.subject) for kind in _KINDS}
_VERBS_BY_OBJECT = {
    kind: tuple(verb for verb in _ONE_OBJECT_VERBS if kind in verb.objects[0][1] and not verb.particle)
    for kind in _KINDS
}
_VERBS_BY_OBJECT["person"] += tuple(verb for verb in _VERBS_BY_OBJECT["person"] if verb.objects[0][0] == "dat")
_THING_VERBS = tuple(verb for verb in _ONE_OBJECT_VERBS if not {"person", "animal"}.intersection(verb.objects[0][1]))
# Separable verbs have more forms to learn, and "belong" is the only verb whose subject is a thing.
_SEPARABLE = tuple(verb for verb in VERBS.values() if verb.prefix)
_WEIGHTED_VERBS = (*VERBS.values(), *_SEPARABLE * 2, *(VERBS["belong"],) * 3)
_WEIGHTED_DYNAMIC_VERBS = tuple(verb for verb in _WEIGHTED_VERBS if "stative" not in verb.adjuncts)
_PLACE_VERBS = (
    *(verb for verb in VERBS.values() if "place" in verb.adjuncts),
    *(VERBS["go"], VERBS["run"]) * 2,
)
# Only some verbs open questions, so that each of their capitalized forms is seen often enough.
_QUESTION_VERBS = (
    *("sleep", "work", "come", "see", "know", "need", "buy"),
    *("eat", "drink", "read", "help", "call", "open", "give"),
)


class SentenceSampler(PhraseSampler):
    """Samples sentences reproducibly: the seed is the only source of randomness."""

    def sentence(self) -> Sentence:
        """Sample a sentence of any kind, which should not repeat its own words (`used_words`)."""
        self.used_words.clear()
        sample = self.pick(_SENTENCE_METHODS)  # methods of this class
        return sample(self)

    def subject_first(self) -> Sentence:
        """Sample a main clause that begins with its subject."""
        return Sentence(self.clause())

    def adverbial_first(self) -> Sentence:
        """Sample a main clause that begins with an adverbial that fits ("any"), such as "today"."""
        return Sentence(self.clause(front="any"))

    def with_relative(self) -> Sentence:
        """Sample a main clause with a relative clause, and a verb other than "be"."""
        return Sentence(self.clause(verb=self.pick_unused(_WEIGHTED_VERBS), relative=True))

    def yes_no_question(self) -> Sentence:
        """Sample a question that begins with its verb, such as “Do you sleep?” or “Is the house old?”."""
        if self.chance(0.15):  # with "be" and an adjective
            return Sentence(self.description(), question=True)
        verb = VERBS[self.pick(_QUESTION_VERBS)]
        tense = "present" if self.chance(0.3) else self.tense(verb)
        subject = self.nominal(verb.subject, definite=True)
        if self.chance(0.4) or (isinstance(subject, Pronoun) and subject.subject_form == "I"):
            subject = Pronoun.personal(self.pick(("you", "you", "we", "they")))  # "Do I sleep?" would be odd
        return Sentence(self.clause(subject=subject, verb=verb, tense=tense), question=True)

    def open_question(self) -> Sentence:
        """Sample a question with a question word, such as “Where do you work?”."""
        return Sentence(self.question_clause(("who", "whom", "what", "where", "when", "why")), question=True)

    def with_adverbial_clause(self) -> Sentence:
        """Sample a main clause with a subordinate clause, such as "because …", before or after it."""
        conjunction = self.pick(_CONJUNCTIONS)
        is_present = conjunction in ("if", "while", "before")  # both clauses are in the present tense
        without = ("time", "negation") if conjunction in ("while", "before") else ()  # which make no sense
        # repeated verbs are more likely
        verbs = _WEIGHTED_DYNAMIC_VERBS if is_present else (*_WEIGHTED_VERBS, *(BE,) * 3)
        tense = "present" if is_present else ""
        # of_person: with "be", it is about a temporary state of a person
        clause = self.clause(verb=self.pick_unused(verbs), tense=tense, without=without, of_person=True)
        adverbial = Subordinate(conjunction, clause)
        verb = self.pick_unused(verbs)
        front, after = (adverbial, None) if self.chance(0.4) else (None, adverbial)
        main_clause = self.clause(verb=verb, tense=tense, front=front, after=after, without=without, of_person=True)
        return Sentence(main_clause)

    def reported(self) -> Sentence:
        """Sample a sentence with reported speech or thought, such as "She says that …"."""
        return Sentence(self.report())

    def coordinated(self) -> Sentence:
        """Sample two main clauses, joined by "and" or "but"."""
        first = self.clause()
        return Sentence(first, conjunction=self.pick(("and", "but")), second=self.statement())

    # Clauses

    def report(self, nested: bool = False) -> Clause:
        """Sample a clause whose verb takes a clause: says that, asks whether, knows where.

        A `nested` report, which is itself such a clause, contains no further one. The adjuncts of a verb say whether it
        takes clauses with “that” and “whether”.
        """
        verb = self.pick_unused(tuple(CLAUSE_VERBS.values()))
        without = ["time"]  # what the main clause must not have
        if "that" in verb.adjuncts and ("whether" not in verb.adjuncts or self.chance(0.4)):
            inner = self.report(nested=True) if not nested and self.chance(0.08) else self.statement()
            after = Subordinate("that", inner)
            if verb.base in ("know", "hope"):
                without.append("negation")  # "I do not know that it rains" contradicts itself
        elif self.chance(0.4):
            after = Subordinate("whether", self.clause(without=("negation",)))
        else:
            # verbs with an object ("ask her") go only with some question words
            words = ("where", "when", "why") if verb.objects else ("who", "whom", "what", "where", "when", "why")
            after = Subordinate("", self.question_clause(words))
        return self.clause(verb=verb, after=after, without=without)

    def statement(self) -> Clause:
        """Sample a main clause, with a relative clause in 12 % of the cases."""
        if self.chance(0.12):
            return self.clause(verb=self.pick_unused(_WEIGHTED_VERBS), relative=True)
        return self.clause()

    def question_clause(self, words: Sequence[str]) -> Clause:
        """Sample a clause that begins with one of the question words `words`.

        Verbs are chosen by the kinds of subjects, objects and adverbials that they take. `without` is what the clause
        must not have, such as a negation.
        """
        word = self.pick(words)
        if word == "who":
            verb = self.pick_unused(_VERBS_BY_SUBJECT["person"])
            return self.clause(subject=Pronoun.question(), verb=verb, without=("negation",))
        if word in ("whom", "what"):
            verb = self.pick_unused(_VERBS_BY_OBJECT["person"] if word == "whom" else _THING_VERBS)
            question_word = Pronoun.question(thing=word == "what")
            return self.clause(verb=verb, only_object=question_word, without=("negation",))
        if word == "where":
            verb = self.pick_unused(_PLACE_VERBS)
            where = lexicon.WHERE_TO if "goal" in verb.adjuncts else lexicon.QUESTIONS["where"]
            return self.clause(verb=verb, front=where, without=("negation", "place"))
        without = () if word == "why" else ("negation", "time")
        verb = self.pick_unused(_WEIGHTED_DYNAMIC_VERBS)
        return self.clause(verb=verb, front=lexicon.QUESTIONS[word], without=without)

    def clause(
        self,
        *,
        subject: Nominal | None = None,
        verb: Verb | None = None,
        only_object: Nominal | None = None,
        tense: str = "",
        front: Front = None,
        after: Subordinate | None = None,
        relative: bool = False,
        without: Sequence[str] = (),
        of_person: bool = False,
    ) -> Clause:
        """Sample a clause; arguments fix some of its parts.

        Args:
            subject, verb: sampled by default.
            only_object: the object of a verb with one object.
            tense: "present", "perfect" or "modal"; sampled by default.
            front: what begins the clause before the subject; "any": sample an adverbial that fits.
            after: a subordinate clause at the end.
            relative: describe the subject or the last object with a relative clause.
            without: "negation", "time" or "place" where these make no sense.
            of_person: if the verb is "be", the clause is about a temporary state of a person.
        """
        # BE is likely, as it occurs seven times, unless a subordinate clause follows
        verb = verb or self.pick_unused(_WEIGHTED_VERBS if after else (*_WEIGHTED_VERBS, *(BE,) * 7))
        if verb is BE:
            return self.description(front=front, after=after, without=without, of_person=of_person)
        tense = tense or self.tense(verb)
        modal = self.pick(tuple(MODALS.values())) if tense == "modal" else None
        # whether the relative clause describes the last object, and not the subject
        relative_on_object = relative and bool(verb.objects) and self.chance(0.6)
        # "must not" is no negation of "must"
        negated = not ("negation" in without or relative_on_object or modal is MODALS["must"]) and self.chance(0.16)
        # no adverb of time: verbs of a state ("stative"), such as "know", take none
        no_time = "time" in without or relative_on_object or "stative" in verb.adjuncts
        if negated and not (subject or relative) and self.chance(0.15):
            subject = self.noun_phrase(self.pick(verb.subject), definite=True, singular=True)
            if "kin" not in subject.noun.kinds:  # "no" before the subject is the negation, in place of "not"
                subject, negated, no_time = replace(subject, determiner="no"), False, True
        frequency = None
        if not (negated or no_time or relative) and len(verb.objects) < 2 and self.chance(0.14):
            frequency, no_time = self.frequency(tense, modal), True

        definite = negated or frequency is not None  # the scope of negation with "every" and "no" would be ambiguous
        if relative and not relative_on_object:
            noun_phrase = self.noun_phrase(self.pick(verb.subject), definite=definite, is_subject=True)
            subject = self.add_relative_clause(noun_phrase)
        subject = subject or self.nominal(verb.subject, definite=definite)
        definite = definite or (isinstance(subject, NounPhrase) and subject.determiner in ("every", "no"))
        objects = (only_object,) if only_object else self.objects(verb, subject, definite, negated)

        times = _TIMES["negated" if negated else tense]
        no_place = "place" in without
        if front == "any":
            front, no_time, no_place = self.initial_adverbial(verb, times, no_time, negated)
        clause = Clause(subject, verb, objects, perfect=tense == "perfect", modal=modal, front=front, after=after)
        if relative_on_object:  # in English, whatever follows a relative clause could belong to either clause
            _, kinds = verb.objects[-1]
            last_object = self.add_relative_clause(self.noun_phrase(self.pick(kinds), definite=definite))
            clause.objects = (*objects[:-1], last_object)
            return clause
        clause.negated, clause.frequency = negated, frequency
        uses_kein = negated and any(nominal.takes_kein for nominal in objects)  # "kein" negates the object only
        clause.phrases = () if no_place or uses_kein else self.phrases(verb, subject)
        adjuncts = () if uses_kein or (negated and clause.phrases) else verb.adjuncts
        clause.manner = self.manner(adjuncts, clause.phrases)
        clause.time = lexicon.TIMES[self.pick(times)] if not no_time and self.chance(0.2) else None
        return clause

    def description(
        self,
        relative_of: NounPhrase | None = None,
        *,
        front: Front = None,
        after: Subordinate | None = None,
        without: Sequence[str] = (),
        of_person: bool = False,
    ) -> Clause:
        """Sample a clause with "be" and an adjective, such as "the big house is very old".

        Args:
            relative_of: the noun phrase that the clause describes, if it is a relative clause ("who is old").
            front: what begins the clause before the subject; "any": sample an adverb that fits.
            after: a subordinate clause at the end.
            without: "negation" or "time" where these make no sense.
            of_person: the clause is about a temporary state of a person, such as "tired".
        """
        subject: Nominal
        attribute: Adjective | None = None  # an adjective of the subject: "the big house"
        if relative_of:
            noun, subject = relative_of.noun, Pronoun.relative(relative_of.noun, relative_of.plural)
        elif of_person or self.chance(0.45):
            subject = self.nominal(("person",), definite=True, no_adjective=True)
            noun = subject.noun if isinstance(subject, NounPhrase) else NOUNS["man"]  # for the adjectives of a person
        else:
            noun = self.pick_unused(_NON_PERSONS)
            plural = self.chance(0.3) and noun.is_countable
            # "unowned" nouns, such as "forest", take no possessive such as "my"; others take one or "the"
            determiners = definite_determiners(noun) if "unowned" in noun.kinds else POSSESSED_DETERMINERS
            determiner, attribute = self.pick(determiners), self.pick((None, *noun.adjectives))
            subject = NounPhrase(noun, determiner=determiner, adjective=attribute, plural=plural)
        suitable = [word for word in noun.adjectives if not (attribute and _same_dimension(word, attribute))]
        adjective_of_noun = self.pick(suitable)  # drawn in any case, so that a seed keeps its sentences
        adjective = lexicon.ADJECTIVES[self.pick(_TEMPORARY)] if of_person else adjective_of_noun
        very = adjective.english not in _UNGRADABLE and self.chance(0.25)  # not “very red”
        clause = Clause(subject, BE, predicate=(lexicon.VERY, adjective) if very else (adjective,), after=after)
        clause.negated = "negation" not in without and self.chance(0.2)
        temporary = adjective.english in _TEMPORARY  # a temporary state, such as “tired”, goes with adverbs of time
        if front == "any":
            clause.front = lexicon.TIMES["today"] if temporary and self.chance(0.6) else lexicon.PERHAPS
            return clause
        clause.front = front
        if temporary and "time" not in without:
            if self.chance(0.25):
                clause.time = lexicon.TIMES[self.pick(("today", "now"))]
            elif not clause.negated and self.chance(0.2):
                clause.frequency = lexicon.FREQUENCIES[self.pick(("often", "always", "sometimes", "never"))]
        return clause

    def tense(self, verb: Verb) -> str:
        """Sample "present", "perfect" or "modal"; verbs of a state ("stative"), such as "know", have no modal."""
        draw = self.random()
        if draw < 0.45:
            return "present"
        return "modal" if draw > 0.72 and "stative" not in verb.adjuncts else "perfect"

    def add_relative_clause(self, phrase: NounPhrase) -> NounPhrase:
        """Add a relative clause to a noun phrase, and return the phrase.

        The noun is the subject or the object of the clause, or it is described with "be" ("who is old").
        """
        noun = phrase.noun
        pronoun = Pronoun.relative(noun, phrase.plural)
        without = ("time",)  # the adverb in "who sleeps now works" could belong to either clause
        # verbs that take the noun as subject, and as object, by its kinds (semantic classes)
        as_subject = [verb for kind in noun.kinds for verb in _VERBS_BY_SUBJECT[kind]]
        as_object = [verb for kind in noun.kinds for verb in _VERBS_BY_OBJECT[kind]]
        if as_subject and (not as_object or self.chance(0.5)):
            phrase.relative_clause = self.clause(subject=pronoun, verb=self.pick_unused(as_subject), without=without)
        elif not as_object or self.chance(0.2):
            phrase.relative_clause = self.description(phrase, without=without)
        else:
            phrase.relative_clause = self.clause(verb=self.pick_unused(as_object), only_object=pronoun, without=without)
        return phrase


def _same_dimension(first: Adjective, second: Adjective) -> bool:
    """Whether two adjectives are equal or exclude each other, like red and blue."""
    words = {first.english, second.english}
    return len(words) == 1 or any(words.issubset(dimension.split()) for dimension in _DIMENSIONS)


#: methods that sample a kind of sentence, as often as their numbers say
_SENTENCE_METHODS: tuple[Callable[[SentenceSampler], Sentence], ...] = (
    *(SentenceSampler.subject_first,) * 13,
    *(SentenceSampler.adverbial_first,) * 4,
    *(SentenceSampler.with_relative,) * 4,
    *(SentenceSampler.yes_no_question,) * 5,
    *(SentenceSampler.open_question,) * 3,
    *(SentenceSampler.with_adverbial_clause,) * 5,
    *(SentenceSampler.reported,) * 4,
    *(SentenceSampler.coordinated,) * 3,
)
