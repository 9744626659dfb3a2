"""A synchronous grammar: phrases, clauses and sentences that are realized in English and German at once.

The German clause is laid out in its topological fields (Drach 1937):

    statement    front | finite verb | middle field | rest of the verb | after field
    subordinate  front |             | middle field | rest of the verb, finite verb | after field
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from dragoman.data.phrasebook import lexicon
from dragoman.data.phrasebook.lexicon import Adjective, Adverb, Bitext, Modal, Noun, Verb, Word

_PUNCTUATION = {",", ".", "?"}
THIRD_SINGULAR, PLURAL = 2, 3  # indices into Verb.finite
CASES = ("nom", "acc", "dat")
_DEFINITE = frozenset(["the", "this", *lexicon.POSSESSIVES])


# Noun phrases: subjects, objects and complements of prepositions


class Nominal:
    """Base class of noun phrases, names and pronouns."""

    agreement: int = THIRD_SINGULAR  # index into Verb.finite of the form that agrees with this subject
    definite: bool = True  # known to the hearer: German puts known objects before adverbs of time, new ones after
    takes_kein: bool = False  # negated with "kein" instead of "nicht"
    opens_clause: bool = False  # relative and question pronouns come first in their clause
    relative_clause: Clause | None = None

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        """Return the words in a German case ("nom", "acc" or "dat").

        `negation` is the English "not" if the German determiner expresses it, as "kein".
        """
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
        """Derive agreement, definiteness and whether the negation is "kein" from number and determiner.

        Without a determiner (""), or with "a", the German negation is "kein", not "nicht".
        """
        self.agreement = PLURAL if self.plural else THIRD_SINGULAR
        self.definite, self.takes_kein = self.determiner in _DEFINITE, self.determiner in ("", "a")

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        """Return the words in a German case ("nom", "acc" or "dat").

        A `negation` ("not") makes the German determiner a form of "kein", which translates it; None: no negation.
        """
        noun = [Word(text) for text in (self.noun.plural if self.plural else self.noun.singular).split()]
        adjective = [Word(self.adjective.english)] if self.adjective else []
        determiner = [Word(self._english_determiner((adjective + noun)[0].text))] if self.determiner else []
        number_or_gender = "p" if self.plural else self.noun.gender  # p, m, f or n
        german_determiner, adjective_ending = GERMAN_DETERMINERS[
            "no" if negation else self.determiner, case, number_or_gender
        ]
        origins = [negation, *determiner] if negation else determiner  # English words that the determiner translates
        german = [Word(german_determiner, *origins)] if german_determiner else []
        if self.adjective:
            german.append(Word(self.adjective.form(adjective_ending), *adjective))
        return Bitext(determiner + adjective + noun, [*german, Word(self.noun.form(case, self.plural), *noun)])

    def _english_determiner(self, following: str) -> str:
        """Inflect the English determiner: "these" for a plural, "an" if the `following` word begins with a vowel."""
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
        """Return the words in a German case ("nom", "acc" or "dat"); the English word is a subject in "nom".

        Otherwise it is an object. Pronouns take no negation.
        """
        english = self.subject_form if case == "nom" else self.object_form
        return Bitext.translated(english, self.german[CASES.index(case)])

    @classmethod
    def name(cls, text: str) -> Pronoun:
        """Return a proper name, which is inflected like a pronoun but has one form in all cases and both languages."""
        return cls(subject_form=text, object_form=text, german=(text, text, text))

    @classmethod
    def personal(cls, subject_form: str) -> Pronoun:
        """Return a personal pronoun, such as "he"; "you" is always the familiar singular.

        `agreement` is the index of the verb form that agrees with it.
        """
        object_form, nominative, accusative, dative, agreement = lexicon.PRONOUNS[subject_form]
        return cls(subject_form, object_form, german=(nominative, accusative, dative), agreement=agreement)

    @classmethod
    def question(cls, thing: bool = False) -> Pronoun:
        """Return "what" for a thing, else "who"."""
        if thing:
            return cls(subject_form="what", object_form="what", german=("was", "was", "was"), opens_clause=True)
        return cls(subject_form="who", object_form="whom", german=("wer", "wen", "wem"), opens_clause=True)

    @classmethod
    def relative(cls, noun: Noun, plural: bool = False) -> Pronoun:
        """Return the pronoun that stands for `noun` in its relative clause, in German mostly the definite article.

        `plural` says whether the noun is in the plural. A noun of the kind (semantic class) "person" takes "who".
        """
        who, whom = ("who", "whom") if "person" in noun.kinds else ("that", "that")
        nom, acc, dat = (GERMAN_DETERMINERS["the", case, "p" if plural else noun.gender][0] for case in CASES)
        german = (nom, acc, "denen" if plural else dat)
        agreement = PLURAL if plural else THIRD_SINGULAR
        return cls(subject_form=who, object_form=whom, german=german, agreement=agreement, opens_clause=True)


@dataclass(eq=False)
class Coordination(Nominal):
    """Two nominals joined by "and"."""

    first: Nominal
    second: Nominal

    def __post_init__(self) -> None:
        """Set the agreement of two phrases, which is plural, and their definiteness: they are definite if both are."""
        self.agreement, self.definite = PLURAL, self.first.definite and self.second.definite

    def realize(self, case: str, negation: Word | None = None) -> Bitext:
        """Return both phrases in a German case ("nom", "acc" or "dat"), joined by "and"; they take no negation."""
        return self.first.realize(case) + Bitext.translated("and", "und") + self.second.realize(case)


@dataclass(eq=False, slots=True)
class Prepositional:
    """A preposition and its complement; German contracts some prepositions with the article: in dem → im."""

    preposition: str
    nominal: Nominal

    def realize(self) -> Bitext:
        """Return the words in both languages; the German preposition governs the case of the nominal.

        German contracts some prepositions with the article, as "in dem" to "im". The contraction translates the English
        words of both (`origins`).
        """
        german_preposition, case = lexicon.PREPOSITIONS[self.preposition]
        phrase = Bitext.translated(self.preposition, german_preposition) + self.nominal.realize(case)
        preposition, article, *others = phrase.german
        if contraction := lexicon.CONTRACTIONS.get((german_preposition, article.text)):
            phrase.german = [Word(contraction, *preposition.origins, *article.origins), *others]
        return phrase


def _german_determiners() -> dict[tuple[str, str, str], tuple[str, str]]:
    """Map (English determiner, case, gender or plural) to the German determiner and the ending of an adjective.

    Gender or plural is m, f, n or p. In traditional grammar, adjectives have strong, weak or mixed endings.
    """
    # Endings for m, f, n and plural in the nominative, accusative and dative; "-" is none.
    definite = "der die das die", "den die das die", "dem der dem den"
    strong = "er e es e", "en e es e", "em er em en"
    ein = "- e - e", "en e - e", "em er em en"
    weak = "e e e en", "en e e en", "en en en en"
    mixed = "er e es en", "en e es en", "en en en en"
    # English determiner: German stem, endings of the determiner, endings of an adjective after it
    paradigms = {"the": ("", definite, weak), "this": ("dies", strong, weak), "every": ("jed", strong, weak)}
    paradigms |= {name: (stem, ein, mixed) for name, stem in {"a": "ein", "no": "kein", **lexicon.POSSESSIVES}.items()}
    no_ending = ("- - - -",) * 3
    paradigms |= {name: (stem, no_ending, strong) for name, stem in {"": "", **lexicon.NUMBERS}.items()}
    table = {}
    for name, (stem, endings, adjective_endings) in paradigms.items():
        for case, case_endings, case_adjective_endings in zip(CASES, endings, adjective_endings):
            for gender, ending, adjective_ending in zip("mfnp", case_endings.split(), case_adjective_endings.split()):
                table[name, case, gender] = stem + ending.strip("-"), adjective_ending
    return table


GERMAN_DETERMINERS = _german_determiners()


# Clauses and sentences


@dataclass(eq=False, slots=True)
class Subordinate:
    """A clause after a conjunction, or an embedded question without one ("knows where she works")."""

    conjunction: str
    clause: Clause

    def realize(self) -> Bitext:
        """Return the words of the conjunction and of the clause, with the German verb at its end."""
        return _conjunction(self.conjunction) + self.clause.realize("subordinate")


class VerbGroup(NamedTuple):
    """The verb forms of a clause: English forms around the subject, German forms at both ends of the clause."""

    helper: list[Word]  # the English auxiliary, which a question puts before the subject
    negation: Word | None  # the English "not" or "cannot", which "nicht" or "kein" translates
    english_rest: list[Word]  # negation, adverb of frequency, main verb
    finite: Word  # the German finite verb
    german_rest: list[Word]  # infinitive, participle or separated prefix


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
    front: Adverb | Prepositional | Subordinate | None = None  # the first words, before subject and verb
    frequency: Adverb | None = None
    manner: Adverb | None = None
    phrases: tuple[Adverb | Prepositional, ...] = ()  # of company, goal, place …
    time: Adverb | None = None
    after: Subordinate | None = None  # the last words

    def realize(self, order: str) -> Bitext:
        """Return the words of the clause as a "statement", a "question" or a "subordinate" clause.

        German: front, finite verb, middle field (subject, objects, adverbials), rest of the verb, subordinate clauses.
        In a subordinate clause the finite verb follows the rest of the verb. `front` are the first words of the clause,
        `after` is a subordinate clause at its end; `time`, `manner` and `frequency` are adverbs, `phrases` adverbials
        such as "in the garden", `predicate` is what follows "be": (tired,) or (very, tired).
        """
        # the verb comes before the subject, unless that is a question word, which opens its clause
        inverted = order == "question" and not self.subject.opens_clause
        frequency, manner, time, after = map(_realize, (self.frequency, self.manner, self.time, self.after))
        verbs = self._verbs(inverted=inverted, verb_last=order == "subordinate", frequency=frequency.english)
        subject = self.subject.realize("nom") + _relative_clause(self.subject)
        front = _realize(self.front)
        if isinstance(self.front, Subordinate):
            front += Bitext.translated(",", ",")

        # "kein" absorbs the negation of the one object that can take it; otherwise "nicht" is placed with the adverbs.
        english_objects: list[Word] = []
        known: list[Word] = []  # German objects before the adverbs: definite ones
        new: list[Word] = []  # … and after them: indefinite ones, and all that follow these
        german_end: list[Word] = []  # German relative and subordinate clauses, after the verb
        negation = verbs.negation  # the English "not" or "cannot", until a German word translates it
        cases = [case for case, _ in self.verb.objects]  # without the kinds of nouns that the verb selects
        for case, nominal in zip(cases, self.objects, strict=True):
            absorbed = negation if nominal.takes_kein else None
            phrase, relative = nominal.realize(case, absorbed), _relative_clause(nominal)
            negation = None if absorbed else negation
            if nominal.opens_clause:  # a question or relative pronoun
                front = phrase
                continue
            objects = known if nominal.definite and not new else new
            objects += phrase.german
            english_objects += phrase.english + relative.english
            german_end += relative.german
        german_end += _between_commas(after.german)

        phrases = sum(map(_realize, self.phrases), Bitext())
        predicate = sum((Bitext.translated(word.english, word.german) for word in self.predicate), Bitext())
        english = front.english + (verbs.helper + subject.english if inverted else subject.english + verbs.helper)
        english += verbs.english_rest + english_objects + predicate.english
        english += manner.english + phrases.english + time.english + after.english
        not_absorbed = [Word("nicht", negation)] if negation else []  # a translation of `negation`
        middle = known + time.german + frequency.german + not_absorbed + manner.german
        middle += new + phrases.german + predicate.german
        if order == "subordinate":
            german = [*front.german, *subject.german, *middle, *verbs.german_rest, verbs.finite, *german_end]
        elif front.german or inverted:
            german = [*front.german, verbs.finite, *subject.german, *middle, *verbs.german_rest, *german_end]
        else:
            german = [*subject.german, verbs.finite, *middle, *verbs.german_rest, *german_end]
        return Bitext(english, german)

    def _verbs(self, inverted: bool, verb_last: bool, frequency: list[Word]) -> VerbGroup:
        """Return the verb forms in both languages; the German words have the English ones that they translate.

        Args:
            inverted: the English auxiliary comes before the subject.
            verb_last: the German finite verb is at the end of the clause, with its prefix.
            frequency: the English adverb that precedes the main verb.
        """
        verb, modal = self.verb, self.modal  # such as "work", and "can" or None
        person = self.subject.agreement  # index of the verb form: I, you, he, or plural
        third = person == THIRD_SINGULAR  # "he works", whose form is `third` of a verb or modal
        negation = Word("not") if self.negated else None
        main = Word(verb.third if third else verb.base)
        particle = [Word(verb.particle)] if verb.particle else []
        helper: list[Word] = []
        chain = [main, *particle]  # the English words after helper, negation and adverb of frequency

        # English
        if modal and not modal.is_full_verb:  # such as "can work"; "want", a full verb, needs "do" and "to"
            main.text, helper = verb.base, [Word(modal.base)]
            if negation and modal.base == "can" and not inverted:
                negation.text, helper = "cannot", [negation]  # one word
        elif self.perfect:
            main.text, helper = verb.participle, [Word("has" if third else "have")]
        elif verb is lexicon.BE:
            helper, chain = [Word(("am", "are", "is", "are")[person])], []
        else:
            if modal:  # a full verb: "wants to"
                main.text, chain = verb.base, [Word(modal.third if third else modal.base), Word("to"), *chain]
            if inverted or negation:  # questions and negations need "do"
                helper = [Word("does" if third else "do")]
                chain[0].text = modal.base if modal else verb.base

        # German
        if modal:
            # of a full verb, "want" (the first word of the chain) is translated, too
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
            rest = [Word(verb.prefix, *(particle or [main]))] if verb.prefix else []  # the separated prefix
        separate_negation = [negation] if negation and negation not in helper else []  # "cannot" is a helper
        english_rest = [*separate_negation, *frequency, *chain]
        return VerbGroup(helper, negation, english_rest=english_rest, finite=finite, german_rest=rest)


@dataclass(frozen=True)
class AlignedPair:
    """A sentence, its translation, and the gold alignment as sorted (source word, target word) indices.

    Words are whitespace tokens. A punctuation mark belongs to the word that it is attached to, and is not aligned.
    """

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


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
    """Return the words of a phrase in both languages; no words for None."""
    return phrase.realize() if phrase else Bitext()


def _conjunction(english: str) -> Bitext:
    """Return a conjunction, given in English, in both languages; no words for ""."""
    return Bitext.translated(english, lexicon.CONJUNCTIONS[english]) if english else Bitext()


def _relative_clause(nominal: Nominal) -> Bitext:
    """Return the words of the relative clause of a nominal, none if it has none; German encloses it in commas."""
    if not nominal.relative_clause:
        return Bitext()
    relative = nominal.relative_clause.realize("subordinate")
    return Bitext(relative.english, _between_commas(relative.german))


def _between_commas(german: list[Word]) -> list[Word]:
    """Put the words of a German phrase between commas; no words stay none."""
    return [Word(","), *german, Word(",")] if german else []


def _merge_commas(german: Iterable[Word]) -> list[Word]:
    """Replace every run of commas by one, and drop a comma before the full stop or question mark."""
    words: list[Word] = []
    for word in german:
        if words and words[-1].text == "," and word.text in _PUNCTUATION:
            words.pop()
        words.append(word)
    return words


def _alignment(english: list[Word], german: list[Word]) -> tuple[tuple[int, int], ...]:
    """Return the sorted links (index of an English word, index of a German word that translates it).

    A German word knows the English words that it translates (`origins`). Punctuation marks are neither counted nor
    linked.
    """
    english, german = ([word for word in words if word.text not in _PUNCTUATION] for words in (english, german))
    position = {id(word): index for index, word in enumerate(english)}  # by identity, as equal words may occur twice
    links = ((id(origin), index) for index, word in enumerate(german) for origin in word.origins)
    return tuple(sorted((position[origin], index) for origin, index in links if origin in position))


def _to_text(words: list[Word]) -> str:
    """Write a sentence: commas and the final mark are attached to words, the first letter is capitalized."""
    text = " ".join([word.text for word in words]).replace(" ,", ",")
    return text[0].upper() + text[1:-2] + text[-1]  # without the space before the final mark
