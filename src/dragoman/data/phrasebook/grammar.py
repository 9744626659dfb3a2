"""The synchronous grammar: clauses and sentences that say themselves in English and in German at once.

The German clause is laid out in its topological fields (Drach 1937):

    statement    front | finite verb | middle field | rest of the verb | after field
    subordinate  front |             | middle field | rest of the verb, finite verb | after field
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Modal, Verb
from dragoman.data.phrasebook.phrases import THIRD_SINGULAR, Adverbial, Bitext, Nominal, Prepositional, Word

MARKS = {",", ".", "?"}


@dataclass(frozen=True)
class AlignedPair:
    """A sentence, its translation, and the gold alignment as sorted (source word, target word) indices.

    Words are whitespace tokens. A punctuation mark belongs to the word that it is attached to, and has no links.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


@dataclass(eq=False, slots=True)
class Subordinate:
    """A clause under a conjunction, or an embedded question when there is none ("knows where she works")."""

    conjunction: str
    clause: Clause

    def realize(self) -> Bitext:
        clause = self.clause.realize("subordinate")
        if not self.conjunction:
            return clause
        english = Word(self.conjunction)
        german = Word(lexicon.CONJUNCTIONS[self.conjunction], english)
        return Bitext([english, *clause.english], [german, *clause.german])


class VerbGroup(NamedTuple):
    """The parts of a verb group: English around its subject, German at the two ends of its clause."""

    helper: list[Word]  # the English word that changes places with the subject in a question
    negation: Word | None
    tail: list[Word]
    finite: Word
    rest: list[Word]


@dataclass(eq=False, slots=True)
class Clause:
    """A subject, a verb, and what goes with them; how it is laid out depends on where it stands."""

    subject: Nominal
    verb: Verb
    objects: tuple[Nominal, ...] = ()
    predicate: tuple[Adverb | Adjective, ...] = ()  # (tired,) or (very, tired) after "be"
    perfect: bool = False
    modal: Modal | None = None
    negated: bool = False
    front: Adverbial | Prepositional | Subordinate | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    phrases: tuple[Adverbial | Prepositional, ...] = ()
    time: Adverb | None = None
    after: Subordinate | None = None

    def realize(self, order: str) -> Bitext:
        """The clause as a "statement", a "question" or a "subordinate" clause."""
        inverted = order == "question" and not self.subject.opens_clause
        frequency = self._adverb(self.frequency)
        verbs = self._verbs(inverted, order == "subordinate", frequency.english)
        subject = self._subject()
        front = self.front.realize() if self.front else Bitext([], [])
        if isinstance(self.front, Subordinate):
            comma = Word(",")
            front = Bitext([*front.english, comma], [*front.german, Word(",", comma)])

        # "kein" swallows the negation of the one object that can take it; otherwise "nicht" stands with the adverbs.
        english_objects: list[Word] = []
        known: list[Word] = []
        new: list[Word] = []
        after: list[Word] = []
        negation = verbs.negation
        for (case, _), nominal in zip(self.verb.objects, self.objects, strict=True):
            swallows = negation if nominal.takes_kein else None
            english, german = nominal.realize(case, swallows)
            negation = None if swallows else negation
            if nominal.opens_clause:
                front = Bitext(english, german)
                continue
            field = known if nominal.definite and not new else new
            field += german
            english_objects += english
            if nominal.clause:
                relative = nominal.clause.realize("subordinate")
                english_objects += relative.english
                after += enclosed(relative.german)

        manner, time = self._adverb(self.manner), self._adverb(self.time)
        phrases = [phrase.realize() for phrase in self.phrases]
        predicate = [Word(word.english) for word in self.predicate]
        last = self.after.realize() if self.after else Bitext([], [])
        after += enclosed(last.german)

        core = verbs.helper + subject.english if inverted else subject.english + verbs.helper
        english = [
            *front.english,
            *core,
            *verbs.tail,
            *english_objects,
            *predicate,
            *manner.english,
            *(word for phrase in phrases for word in phrase.english),
            *time.english,
            *last.english,
        ]
        middle = [
            *known,
            *time.german,
            *frequency.german,
            *([Word("nicht", negation)] if negation else []),
            *manner.german,
            *new,
            *(word for phrase in phrases for word in phrase.german),
            *(Word(word.german, english) for word, english in zip(self.predicate, predicate, strict=True)),
        ]
        if order == "subordinate":
            german = [*front.german, *subject.german, *middle, *verbs.rest, verbs.finite, *after]
        elif front.german or inverted:
            german = [*front.german, verbs.finite, *subject.german, *middle, *verbs.rest, *after]
        else:
            german = [*subject.german, verbs.finite, *middle, *verbs.rest, *after]
        return Bitext(english, german)

    def _subject(self) -> Bitext:
        """The subject with its relative clause, which German sets between commas where it stands."""
        subject = self.subject.realize("nom")
        if not self.subject.clause:
            return subject
        relative = self.subject.clause.realize("subordinate")
        return Bitext(subject.english + relative.english, subject.german + enclosed(relative.german))

    @staticmethod
    def _adverb(adverb: Adverb | None) -> Bitext:
        return Adverbial(adverb).realize() if adverb else Bitext([], [])

    def _verbs(self, inverted: bool, verb_last: bool, frequency: list[Word]) -> VerbGroup:
        verb, modal, person = self.verb, self.modal, self.subject.agreement
        third = person == THIRD_SINGULAR
        negation = Word("not") if self.negated else None
        main = Word(verb.third if third else verb.base)
        particle = [Word(verb.particle)] if verb.particle else []
        helper: list[Word] = []
        chain = [main, *particle]  # the English words behind helper, negation and adverb of frequency

        if modal and not modal.full:
            main.text = verb.base
            helper = [Word(modal.base)]
            if negation and modal.base == "can" and not inverted:
                helper = [negation]
                negation.text = "cannot"
        elif self.perfect:
            main.text = verb.participle
            helper = [Word("has" if third else "have")]
        elif verb is lexicon.BE:
            helper = [Word(("am", "are", "is", "are")[person])]
            chain = []
        else:
            full = main
            if modal:
                full = Word(modal.third if third else modal.base)
                main.text = verb.base
                chain = [full, Word("to"), *chain]
            if inverted or negation:
                helper = [Word("does" if third else "do")]
                full.text = modal.base if modal else verb.base

        if modal:
            finite = Word(modal.finite[person], *helper, *(chain[:1] if modal.full else []))
            rest = [Word(verb.infinitive, main, *particle)]
        elif self.perfect:
            finite = Word(lexicon.AUXILIARIES[verb.auxiliary][person], *helper)
            rest = [Word(verb.german_participle, main, *particle)]
        elif verb is lexicon.BE:
            finite, rest = Word(verb.finite[person], *helper), []
        elif verb_last:
            finite, rest = Word(verb.prefix + verb.finite[person], *helper, main, *particle), []
        else:
            finite = Word(verb.finite[person], *helper, main, *([] if verb.prefix else particle))
            rest = [Word(verb.prefix, *(particle or [main]))] if verb.prefix else []
        apart = [negation] if negation and negation not in helper else []
        return VerbGroup(helper, negation, [*apart, *frequency, *chain], finite, rest)


@dataclass(eq=False, slots=True)
class Sentence:
    """One clause, or two joined by a conjunction."""

    clause: Clause
    question: bool = False
    conjunction: str = ""
    second: Clause | None = None

    def pair(self) -> AlignedPair:
        """The sentence as text in both languages with its alignment."""
        english, german = self.clause.realize("question" if self.question else "statement")
        if self.second:
            comma, joint = Word(","), Word(self.conjunction)
            second = self.second.realize("statement")
            english = [*english, comma, joint, *second.english]
            # German has no comma between main clauses joined by "und".
            pause = [] if self.conjunction == "and" else [Word(",", comma)]
            german = [*german, *pause, Word(lexicon.CONJUNCTIONS[self.conjunction], joint), *second.german]
        mark = Word("?" if self.question else ".")
        english.append(mark)
        german = single_commas([*german, Word(mark.text, mark)])
        alignment = aligned(english, german)
        return AlignedPair(written(english), written(german), tuple(alignment))


def enclosed(german: list[Word]) -> list[Word]:
    return [Word(","), *german, Word(",")] if german else []


def single_commas(german: Iterable[Word]) -> list[Word]:
    """The words with every run of commas made one, and none before the final mark."""
    words: list[Word] = []
    for word in german:
        if words and words[-1].text == "," and word.text in ",.?":
            words.pop()
        words.append(word)
    return words


def aligned(english: list[Word], german: list[Word]) -> list[tuple[int, int]]:
    """The links between the words of both languages, punctuation marks aside."""
    english, german = ([word for word in words if word.text not in MARKS] for words in (english, german))
    place = {id(word): index for index, word in enumerate(english)}
    return sorted(
        (place[id(origin)], index)
        for index, word in enumerate(german)
        for origin in word.origins
        if id(origin) in place
    )


def written(words: list[Word]) -> str:
    text = " ".join([word.text for word in words]).replace(" ,", ",")
    return text[0].upper() + text[1:-2] + text[-1]
