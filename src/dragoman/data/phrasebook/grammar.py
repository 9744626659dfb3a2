"""The synchronous grammar: sentence structures that say themselves in English and in German at once.

Every structure is realised in both languages together, and each German word keeps the English words it translates, so
that the word alignment is a by-product and never a guess.

The German clause is laid out in its topological fields (Drach 1937):

    statement    front | finite verb | middle field | rest of the verb | after field
    subordinate  front |             | middle field | rest of the verb, finite verb | after field
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Modal, Noun, Verb

FIRST_SINGULAR, SECOND_SINGULAR, THIRD_SINGULAR, PLURAL = range(4)  # places in Verb.finite


class Word:
    """A word of a sentence; a German one keeps the English words it comes from."""

    __slots__ = ("origins", "text")

    def __init__(self, text: str, *origins: Word) -> None:
        self.text = text
        self.origins = origins


class Bitext(NamedTuple):
    """The same thing in both languages."""

    english: list[Word]
    german: list[Word]


@dataclass(frozen=True)
class Pair:
    """A sentence, its translation, and the gold alignment as sorted (source word, target word) indices."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


# Nominals: what can be a subject, an object, or stand after a preposition


@dataclass(frozen=True, eq=False)
class Nominal:
    """The common face of noun phrases, names and pronouns."""

    leads: ClassVar[bool] = False  # relative and question pronouns open their clause
    is_pronoun: ClassVar[bool] = False

    @property
    def agreement(self) -> int:
        """Which finite form of the verb it takes as a subject."""
        return THIRD_SINGULAR

    @property
    def definite(self) -> bool:
        """Whether it is known to the hearer: German puts known objects before, new ones after adverbs of frequency."""
        return True

    @property
    def takes_kein(self) -> bool:
        """Whether German negates it with "kein" in place of "nicht"."""
        return False

    @property
    def clause(self) -> Clause | None:
        """The relative clause that belongs to it."""
        return None

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
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
        return not (self.takes_kein or self.determiner == "no" or self.determiner in lexicon.NUMBERS)

    @property
    def takes_kein(self) -> bool:
        return self.determiner in ("", "a")

    @property
    def clause(self) -> Clause | None:
        return self.relative

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        noun = [Word(text) for text in (self.noun.plural if self.plural else self.noun.singular).split()]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = []
        if self.determiner:
            following = (adjective + noun)[0].text
            determiner.append(Word(english_determiner(self.determiner, self.plural, following)))
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


@dataclass(frozen=True, eq=False)
class Name(Nominal):
    name: str

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        return said(Word(self.name), self.name)


@dataclass(frozen=True, eq=False)
class Pronoun(Nominal):
    """A personal pronoun, named by its subject form; "you" is always the familiar singular."""

    name: str
    is_pronoun: ClassVar[bool] = True

    @property
    def agreement(self) -> int:
        return lexicon.PRONOUNS[self.name][5]

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        subject, other, nominative, accusative, dative, _ = lexicon.PRONOUNS[self.name]
        german = {"nom": nominative, "acc": accusative, "dat": dative}[case]
        return said(Word(subject if case == "nom" else other), german)


@dataclass(frozen=True, eq=False)
class Relative(Nominal):
    """The pronoun that stands for `noun` in its relative clause."""

    noun: Noun
    plural: bool = False
    leads: ClassVar[bool] = True

    @property
    def agreement(self) -> int:
        return PLURAL if self.plural else THIRD_SINGULAR

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        who = "who" if case == "nom" else "whom"
        english = Word(who if "person" in self.noun.kinds else "that")
        german = GERMAN_DETERMINERS["the", case, "p" if self.plural else self.noun.gender][0]
        return said(english, "denen" if self.plural and case == "dat" else german)


@dataclass(frozen=True, eq=False)
class Asked(Nominal):
    """The person or the thing a question is about: who, whom, what."""

    thing: bool = False
    leads: ClassVar[bool] = True

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        if self.thing:
            return said(Word("what"), "was")
        return said(Word("who" if case == "nom" else "whom"), {"nom": "wer", "acc": "wen", "dat": "wem"}[case])


@dataclass(frozen=True, eq=False)
class Both(Nominal):
    """Two nominals joined by "and"."""

    first: Nominal
    second: Nominal

    @property
    def agreement(self) -> int:
        return PLURAL

    @property
    def definite(self) -> bool:
        return self.first.definite and self.second.definite

    def realise(self, case: str, negation: Word | None = None) -> Bitext:
        first, second = self.first.realise(case), self.second.realise(case)
        joint = Word("and")
        return Bitext(
            [*first.english, joint, *second.english], [*first.german, Word("und", joint), *second.german]
        )


# Adverbials: what can stand in front of a statement


@dataclass(frozen=True, eq=False)
class Adverbial:
    """An adverb, or a phrase that behaves like one."""

    adverb: Adverb

    def realise(self) -> Bitext:
        english = [Word(text) for text in self.adverb.english.split()]
        return Bitext(
            english, [Word(text, word) for text, word in zip(self.adverb.german.split(), english, strict=True)]
        )


@dataclass(frozen=True, eq=False)
class Prepositional:
    """A preposition and what it governs; German contracts some prepositions with the article: in dem → im."""

    preposition: str
    nominal: Nominal

    def realise(self) -> Bitext:
        german, case = lexicon.PREPOSITIONS[self.preposition]
        phrase = self.nominal.realise(case)
        english = Word(self.preposition)
        first, *others = phrase.german
        contracted = lexicon.CONTRACTIONS.get((german, first.text))
        start = [Word(contracted, english, *first.origins)] if contracted else [Word(german, english), first]
        return Bitext([english, *phrase.english], start + others)


@dataclass(frozen=True, eq=False)
class Subordinate:
    """A clause under a conjunction, or an embedded question when there is none ("knows where she works")."""

    conjunction: str
    clause: Clause

    def realise(self) -> Bitext:
        clause = self.clause.realise("subordinate")
        if not self.conjunction:
            return clause
        english = Word(self.conjunction)
        german = Word(lexicon.CONJUNCTIONS[self.conjunction], english)
        return Bitext([english, *clause.english], [german, *clause.german])


# Clauses


class VerbGroup(NamedTuple):
    """The parts of a verb group: English around its subject, German at the two ends of its clause."""

    helper: list[Word]  # the English word that changes places with the subject in a question
    negation: Word | None
    tail: list[Word]
    finite: Word
    rest: list[Word]


@dataclass(frozen=True, eq=False)
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

    def realise(self, order: str) -> Bitext:
        """The clause as a "statement", a "question" or a "subordinate" clause."""
        inverted = order == "question" and not self.subject.leads
        frequency = self._adverb(self.frequency)
        verbs = self._verbs(inverted, order == "subordinate", frequency.english)
        subject = self._subject()
        front = self.front.realise() if self.front else Bitext([], [])
        if isinstance(self.front, Subordinate):
            comma = Word(",")
            front = Bitext([*front.english, comma], [*front.german, Word(",", comma)])

        # "kein" swallows the negation of the one object that can take it; otherwise "nicht" stands with the adverbs.
        english_objects: list[Word] = []
        pronouns: list[Word] = []
        known: list[Word] = []
        new: list[Word] = []
        after: list[Word] = []
        negation = verbs.negation
        for (case, _), nominal in zip(self.verb.objects, self.objects, strict=True):
            swallows = negation if nominal.takes_kein else None
            english, german = nominal.realise(case, swallows)
            negation = None if swallows else negation
            if nominal.leads:
                front = Bitext(english, german)
                continue
            field = pronouns if nominal.is_pronoun else known if nominal.definite and not new else new
            field += german
            english_objects += english
            if nominal.clause:
                relative = nominal.clause.realise("subordinate")
                english_objects += relative.english
                after += enclosed(relative.german)

        manner, time = self._adverb(self.manner), self._adverb(self.time)
        phrases = [phrase.realise() for phrase in self.phrases]
        predicate = [Word(word.english) for word in self.predicate]
        last = self.after.realise() if self.after else Bitext([], [])
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
            *pronouns,
            *time.german,
            *known,
            *frequency.german,
            *([Word("nicht", negation)] if negation else []),
            *new,
            *manner.german,
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
        subject = self.subject.realise("nom")
        if not self.subject.clause:
            return subject
        relative = self.subject.clause.realise("subordinate")
        return Bitext(subject.english + relative.english, subject.german + enclosed(relative.german))

    @staticmethod
    def _adverb(adverb: Adverb | None) -> Bitext:
        return Adverbial(adverb).realise() if adverb else Bitext([], [])

    def _verbs(self, inverted: bool, verb_last: bool, frequency: list[Word]) -> VerbGroup:
        verb, modal, person = self.verb, self.modal, self.subject.agreement
        third = person == THIRD_SINGULAR
        negation = Word("not") if self.negated else None
        main = Word(verb.third if third else verb.base)
        particle = [Word(verb.particle)] if verb.particle else []
        helper: list[Word] = []
        chain = [main, *particle]  # the English words behind helper, negation and adverb of frequency
        prefix_origins = particle or [main]

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
            finite = Word(verb.finite[person], *helper, main)
            rest = [Word(verb.prefix, *prefix_origins)] if verb.prefix else []
        apart = [negation] if negation and negation not in helper else []
        return VerbGroup(helper, negation, [*apart, *frequency, *chain], finite, rest)


@dataclass(frozen=True, eq=False)
class Sentence:
    """One clause, or two joined by a conjunction."""

    clause: Clause
    question: bool = False
    conjunction: str = ""
    second: Clause | None = None

    def pair(self) -> Pair:
        """The sentence as text in both languages with its alignment."""
        english, german = self.clause.realise("question" if self.question else "statement")
        if self.second:
            comma, joint = Word(","), Word(self.conjunction)
            second = self.second.realise("statement")
            english = [*english, comma, joint, *second.english]
            # German has no comma between main clauses joined by "und".
            pause = [] if self.conjunction == "and" else [Word(",", comma)]
            german = [*german, *pause, Word(lexicon.CONJUNCTIONS[self.conjunction], joint), *second.german]
        mark = Word("?" if self.question else ".")
        english.append(mark)
        german = single_commas([*german, Word(mark.text, mark)])
        place = {id(word): index for index, word in enumerate(english)}
        alignment = sorted((place[id(origin)], index) for index, word in enumerate(german) for origin in word.origins)
        return Pair(written(english), written(german), tuple(alignment))


# Small helpers


def said(english: Word, german: str) -> Bitext:
    return Bitext([english], [Word(german, english)])


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


def written(words: list[Word]) -> str:
    text = "".join(word.text if word.text in ",.?" else " " + word.text for word in words)
    return text[1].upper() + text[2:]


def english_determiner(determiner: str, plural: bool, following: str) -> str:
    if determiner == "this" and plural:
        return "these"
    return "an" if determiner == "a" and following[0] in "aeiou" else determiner


def _german_determiners() -> dict[tuple[str, str, str], tuple[str, str]]:
    """(English determiner, case, gender or plural) → German determiner and the ending of an adjective after it."""
    #             m f n plural
    definite = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
    strong = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
    ein = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
    weak = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
    mixed = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
    stems = {"a": "ein", "no": "kein", **lexicon.POSSESSIVES}
    table = {}
    for case in ("nom", "acc", "dat"):
        for column, gender in enumerate("mfnp"):

            def ending(paradigm: dict[str, str], case: str = case, column: int = column) -> str:
                return paradigm[case].split()[column].strip("-")

            table["the", case, gender] = ending(definite), ending(weak)
            table["this", case, gender] = "dies" + ending(strong), ending(weak)
            table["every", case, gender] = "jed" + ending(strong), ending(weak)
            table["", case, gender] = "", ending(strong)
            for english, stem in stems.items():
                table[english, case, gender] = stem + ending(ein), ending(mixed)
            for english, number in lexicon.NUMBERS.items():
                table[english, case, gender] = number, ending(strong)
    return table


GERMAN_DETERMINERS = _german_determiners()
