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
        return _conjunction(self.conjunction) + self.clause.realize("subordinate")


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
        frequency, manner, time, last = map(_realize, (self.frequency, self.manner, self.time, self.after))
        verbs = self._verbs(inverted, order == "subordinate", frequency.english)
        subject = self.subject.realize("nom") + _relative_clause(self.subject)
        front = _realize(self.front)
        if isinstance(self.front, Subordinate):
            front += Bitext.translated(",", ",")

        # "kein" absorbs the negation of the one object that can take it; otherwise "nicht" is placed with the adverbs.
        english_objects: list[Word] = []
        known: list[Word] = []  # German objects before the adverbs
        new: list[Word] = []  # … and after them
        after: list[Word] = []
        negation = verbs.negation
        for (case, _), nominal in zip(self.verb.objects, self.objects, strict=True):
            absorbed = negation if nominal.takes_kein else None
            phrase, relative = nominal.realize(case, absorbed), _relative_clause(nominal)
            negation = None if absorbed else negation
            if nominal.opens_clause:
                front = phrase
                continue
            field = known if nominal.definite and not new else new
            field += phrase.german
            english_objects += phrase.english + relative.english
            after += relative.german
        after += _enclose(last.german)

        phrases = sum(map(_realize, self.phrases), Bitext())
        predicate = sum((Bitext.translated(word.english, word.german) for word in self.predicate), Bitext())
        english = front.english + (verbs.helper + subject.english if inverted else subject.english + verbs.helper)
        english += verbs.english_rest + english_objects + predicate.english
        english += manner.english + phrases.english + time.english + last.english
        not_absorbed = [Word("nicht", negation)] if negation else []
        middle = known + time.german + frequency.german + not_absorbed + manner.german
        middle += new + phrases.german + predicate.german
        if order == "subordinate":
            german = [*front.german, *subject.german, *middle, *verbs.german_rest, verbs.finite, *after]
        elif front.german or inverted:
            german = [*front.german, verbs.finite, *subject.german, *middle, *verbs.german_rest, *after]
        else:
            german = [*subject.german, verbs.finite, *middle, *verbs.german_rest, *after]
        return Bitext(english, german)

    def _verbs(self, inverted: bool, verb_last: bool, frequency: list[Word]) -> VerbGroup:
        verb, modal, person = self.verb, self.modal, self.subject.agreement
        third = person == THIRD_SINGULAR
        negation = Word("not") if self.negated else None
        main = Word(verb.third if third else verb.base)
        particle = [Word(verb.particle)] if verb.particle else []
        helper: list[Word] = []
        chain = [main, *particle]  # the English words after helper, negation and adverb of frequency

        if modal and not modal.is_full_verb:
            main.text, helper = verb.base, [Word(modal.base)]
            if negation and modal.base == "can" and not inverted:
                negation.text, helper = "cannot", [negation]
        elif self.perfect:
            main.text, helper = verb.participle, [Word("has" if third else "have")]
        elif verb is lexicon.BE:
            helper, chain = [Word(("am", "are", "is", "are")[person])], []
        else:
            if modal:
                main.text, chain = verb.base, [Word(modal.third if third else modal.base), Word("to"), *chain]
            if inverted or negation:
                helper = [Word("does" if third else "do")]
                chain[0].text = modal.base if modal else verb.base

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
        text = self.clause.realize("question" if self.question else "statement")
        if self.second:
            # German has no comma between main clauses joined by "und".
            text += Bitext([Word(",")]) if self.conjunction == "and" else Bitext.translated(",", ",")
            text += _conjunction(self.conjunction) + self.second.realize("statement")
        text += Bitext.translated("?", "?") if self.question else Bitext.translated(".", ".")
        english, german = text.english, _merge_commas(text.german)
        return AlignedPair(_to_text(english), _to_text(german), _alignment(english, german))


def _realize(phrase: Adverb | Prepositional | Subordinate | None) -> Bitext:
    return phrase.realize() if phrase else Bitext()


def _conjunction(english: str) -> Bitext:
    """Return a conjunction in both languages; nothing for ""."""
    return Bitext.translated(english, lexicon.CONJUNCTIONS[english]) if english else Bitext()


def _relative_clause(nominal: Nominal) -> Bitext:
    """Realize the relative clause of a nominal, if it has one; German encloses it in commas."""
    if not nominal.relative_clause:
        return Bitext()
    relative = nominal.relative_clause.realize("subordinate")
    return Bitext(relative.english, _enclose(relative.german))


def _enclose(german: list[Word]) -> list[Word]:
    """Put a phrase between commas."""
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
