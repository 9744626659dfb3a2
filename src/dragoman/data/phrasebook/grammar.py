"""A synchronous grammar: clauses and sentences that are realized in English and German at once.

The German clause is laid out in its topological fields (Drach 1937):

    statement    front | finite verb | middle field | rest of the verb | after field
    subordinate  front |             | middle field | rest of the verb, finite verb | after field
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Bitext, Modal, Verb, Word
from dragoman.data.phrasebook.phrases import THIRD_SINGULAR, Nominal, Prepositional

_PUNCTUATION = {",", ".", "?"}


@dataclass(frozen=True)
class AlignedPair:
    """A sentence, its translation, and the gold alignment as sorted (source word, target word) indices.

    Words are whitespace tokens. A punctuation mark belongs to the word that it is attached to, and is not aligned.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


@dataclass(eq=False, slots=True)
class Subordinate:
    """A clause after a conjunction, or an embedded question without one ("knows where she works")."""

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
    """The verb forms of a clause: English forms around the subject, German forms at both ends of the clause."""

    helper: list[Word]  # the English auxiliary, which a question puts before the subject
    negation: Word | None  # the English "not" or "cannot"
    english_rest: list[Word]  # negation, adverb of frequency, main verb
    finite: Word
    german_rest: list[Word]


@dataclass(eq=False, slots=True)
class Clause:
    """A subject, a verb, their complements and adjuncts."""

    subject: Nominal
    verb: Verb
    objects: tuple[Nominal, ...] = ()
    predicate: tuple[Adverb | Adjective, ...] = ()  # (tired,) or (very, tired) after "be"
    perfect: bool = False
    modal: Modal | None = None
    negated: bool = False
    front: Adverb | Prepositional | Subordinate | None = None
    frequency: Adverb | None = None
    manner: Adverb | None = None
    phrases: tuple[Adverb | Prepositional, ...] = ()
    time: Adverb | None = None
    after: Subordinate | None = None

    def realize(self, order: str) -> Bitext:
        """Lay the clause out as a "statement", a "question" or a "subordinate" clause."""
        inverted = order == "question" and not self.subject.opens_clause
        frequency, manner, time = map(_realize, (self.frequency, self.manner, self.time))
        verbs = self._verbs(inverted, order == "subordinate", frequency.english)
        subject = self._subject()
        front = _realize(self.front)
        if isinstance(self.front, Subordinate):
            comma = Word(",")
            front = Bitext([*front.english, comma], [*front.german, Word(",", comma)])

        # "kein" absorbs the negation of the one object that can take it; otherwise "nicht" is placed with the adverbs.
        english_objects: list[Word] = []
        known: list[Word] = []
        new: list[Word] = []
        after: list[Word] = []
        negation = verbs.negation
        for (case, _), nominal in zip(self.verb.objects, self.objects, strict=True):
            absorbed = negation if nominal.takes_kein else None
            english, german = nominal.realize(case, absorbed)
            negation = None if absorbed else negation
            if nominal.opens_clause:
                front = Bitext(english, german)
                continue
            field = known if nominal.definite and not new else new
            field += german
            english_objects += english
            if nominal.relative_clause:
                relative = nominal.relative_clause.realize("subordinate")
                english_objects += relative.english
                after += _enclose(relative.german)

        phrases = [phrase.realize() for phrase in self.phrases]
        predicate = [Word(word.english) for word in self.predicate]
        last = _realize(self.after)
        after += _enclose(last.german)

        core = verbs.helper + subject.english if inverted else subject.english + verbs.helper
        english = [
            *front.english,
            *core,
            *verbs.english_rest,
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
            german = [*front.german, *subject.german, *middle, *verbs.german_rest, verbs.finite, *after]
        elif front.german or inverted:
            german = [*front.german, verbs.finite, *subject.german, *middle, *verbs.german_rest, *after]
        else:
            german = [*subject.german, verbs.finite, *middle, *verbs.german_rest, *after]
        return Bitext(english, german)

    def _subject(self) -> Bitext:
        """Realize the subject with its relative clause, which German encloses in commas."""
        subject = self.subject.realize("nom")
        if not self.subject.relative_clause:
            return subject
        relative = self.subject.relative_clause.realize("subordinate")
        return Bitext(subject.english + relative.english, subject.german + _enclose(relative.german))

    def _verbs(self, inverted: bool, verb_last: bool, frequency: list[Word]) -> VerbGroup:
        verb, modal, person = self.verb, self.modal, self.subject.agreement
        third = person == THIRD_SINGULAR
        negation = Word("not") if self.negated else None
        main = Word(verb.third if third else verb.base)
        particle = [Word(verb.particle)] if verb.particle else []
        helper: list[Word] = []
        chain = [main, *particle]  # the English words after helper, negation and adverb of frequency

        if modal and not modal.is_full_verb:
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
            finite = Word(modal.finite[person], *helper, *(chain[:1] if modal.is_full_verb else []))
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
        separate_negation = [negation] if negation and negation not in helper else []
        return VerbGroup(helper, negation, [*separate_negation, *frequency, *chain], finite, rest)


@dataclass(eq=False, slots=True)
class Sentence:
    """One clause, or two main clauses joined by a conjunction."""

    clause: Clause
    question: bool = False
    conjunction: str = ""
    second: Clause | None = None

    def pair(self) -> AlignedPair:
        """Write the sentence in both languages with its word alignment."""
        english, german = self.clause.realize("question" if self.question else "statement")
        if self.second:
            comma, conjunction = Word(","), Word(self.conjunction)
            second = self.second.realize("statement")
            english = [*english, comma, conjunction, *second.english]
            # German has no comma between main clauses joined by "und".
            german_comma = [] if self.conjunction == "and" else [Word(",", comma)]
            german_conjunction = Word(lexicon.CONJUNCTIONS[self.conjunction], conjunction)
            german = [*german, *german_comma, german_conjunction, *second.german]
        mark = Word("?" if self.question else ".")
        english.append(mark)
        german = _merge_commas([*german, Word(mark.text, mark)])
        return AlignedPair(_to_text(english), _to_text(german), _alignment(english, german))


def _realize(phrase: Adverb | Prepositional | Subordinate | None) -> Bitext:
    return phrase.realize() if phrase else Bitext([], [])


def _enclose(german: list[Word]) -> list[Word]:
    return [Word(","), *german, Word(",")] if german else []


def _merge_commas(german: Iterable[Word]) -> list[Word]:
    """Replace every run of commas by one, and drop a comma before the final mark."""
    words: list[Word] = []
    for word in german:
        if words and words[-1].text == "," and word.text in _PUNCTUATION:
            words.pop()
        words.append(word)
    return words


def _alignment(english: list[Word], german: list[Word]) -> tuple[tuple[int, int], ...]:
    english, german = ([word for word in words if word.text not in _PUNCTUATION] for words in (english, german))
    position = {id(word): index for index, word in enumerate(english)}
    links = ((id(origin), index) for index, word in enumerate(german) for origin in word.origins)
    return tuple(sorted((position[origin], index) for origin, index in links if origin in position))


def _to_text(words: list[Word]) -> str:
    text = " ".join([word.text for word in words]).replace(" ,", ",")
    return text[0].upper() + text[1:-2] + text[-1]
