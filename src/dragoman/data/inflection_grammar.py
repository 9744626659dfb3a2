"""An invented language whose nouns and verbs are inflected: vowel harmony, consonant gradation, prefixes, suffixes.

A word is a lemma with features such as N;LOC;PL or V;PST;2;SG;NEG. Each rule is a function from text to text:

- A suffix adapts to the stem (vowel harmony): A, O and U are a, o, u after a back vowel and ä, ö, y otherwise.
- Consonants before the last vowel of a stem are weak in a closed syllable (gradation): kukka, kukan, but kukkani.
- A stem's last vowel changes before i: kukka, kukkoisa.
- The negative prefix is e-, before a vowel em-.
"""

from __future__ import annotations

from random import Random

from dragoman.data.task_grammars import GeneratedExample

BACK, FRONT, NEUTRAL = "aou", "äöy", "ei"
VOWELS = BACK + FRONT + NEUTRAL
INITIALS = (*"ptkmnslrvh", "")
MEDIALS = (*"ptkmnslrv", "pp", "tt", "kk", "ss", "mp", "nt", "nk", "lt", "rt", "lk", "st", "ht")
FINALS = ("", "", "", "n", "l", "r", "s")  # of a syllable within a stem
WEAK_GRADES = {
    **{"pp": "p", "tt": "t", "kk": "k", "mp": "mm", "nt": "nn", "nk": "ng", "lt": "ll", "rt": "rr", "lk": "l"},
    **{"p": "v", "t": "d", "k": "g"},
}
VOWELS_BEFORE_I = {"a": "o", "ä": "ö", "e": "", "i": "e"}

CASE_SUFFIXES = {"NOM": "", "GEN": "n", "LOC": "sA", "ABL": "stA", "ALL": "lle", "INS": "nkO"}
POSSESSIVE_SUFFIXES = {"PSS1": "ni", "PSS2": "si"}
PERSON_SUFFIXES = {"1;SG": "n", "2;SG": "t", "3;SG": "", "1;PL": "mme", "2;PL": "tte", "3;PL": "vAt"}
INFINITIVE = "dA"


def inflect(lemma: str, features: str) -> str:
    """Inflect a lemma; features such as N;GEN;PL;PSS1 are those of a noun, V;PST;3;SG;NEG those of a verb."""
    names = features.split(";")
    return _inflect_noun(lemma, names) if names[0] == "N" else _inflect_verb(lemma, names)


def inflection_example(random: Random) -> GeneratedExample:
    """Draw a noun or a verb and features such as N;LOC;PL: the source is the lemma, the target its inflected form."""
    stem = draw_stem(random)
    if random.random() < 0.5:
        case, number = random.choice(list(CASE_SUFFIXES)), random.choice(["SG", "PL"])
        possessor = random.choice(["", "", *(f";{name}" for name in POSSESSIVE_SUFFIXES)])  # "" in half of the nouns
        lemma, features = stem, f"N;{case};{number}{possessor}"
    else:
        tense, person = random.choice(["PRS", "PST", "COND"]), random.choice(list(PERSON_SUFFIXES))  # such as 3;SG
        negation = random.choice(["", "", ";NEG"])
        lemma, features = add_suffix(stem, INFINITIVE), f"V;{tense};{person}{negation}"
    return GeneratedExample(source=lemma, target=inflect(lemma, features), features=features)


def draw_stem(random: Random) -> str:
    """Draw a stem of two or three syllables, with either back (aou) or front vowels (äöy), and neutral ones (ei)."""
    vowels = random.choice([BACK, FRONT]) * 2 + NEUTRAL  # neutral ones are less frequent
    # syllable; in a third of the stems with a second vowel, a or ä (vowels[0])
    first = random.choice(INITIALS) + random.choice(vowels) + random.choice(["", "", vowels[0]])
    middle = ""  # syllable
    if random.random() < 0.4:
        middle = random.choice("ptkmnslrv") + random.choice(vowels) + random.choice(FINALS)
    # the consonants before the last vowel: a single one after a syllable that ends with a consonant
    medials = [medial for medial in MEDIALS if not middle or middle[-1] in VOWELS or len(medial) == 1]
    return first + middle + random.choice(medials) + random.choice(vowels)


def add_suffix(stem: str, suffix: str) -> str:
    """Return the stem with a suffix, whose vowels A, O and U follow vowel harmony.

    They become a, o, u if the last vowel of the stem that is not neutral is back (aou), otherwise ä, ö, y.
    """
    harmonic = [letter for letter in stem if letter in BACK + FRONT]  # vowels that are not neutral
    is_back = bool(harmonic) and harmonic[-1] in BACK
    return stem + suffix.translate(str.maketrans("AOU", BACK if is_back else FRONT))


def weaken_consonants(stem: str, suffix: str) -> str:
    """Return the stem with weak consonants before its last vowel if the suffix closes the syllable of that vowel.

    This is consonant gradation: kukka and the suffix n need the stem kuka. The first consonant of the suffix closes the
    syllable if it is the last letter, or comes before another consonant.
    """
    consonants = suffix.removeprefix("i")  # the plural i belongs to the syllable; A, O, U are vowels of suffixes
    is_closed = consonants[:1] not in ("", *VOWELS) and (len(consonants) == 1 or consonants[1] not in VOWELS + "AOU")
    onset_end = len(stem) - 1  # where the consonants before the last vowel end
    for size in (2, 1):  # first two consonants, then one, which must follow a vowel
        before, strong = stem[: onset_end - size], stem[onset_end - size : onset_end]
        if is_closed and strong in WEAK_GRADES and (size == 2 or before[-1:] in VOWELS):
            return before + WEAK_GRADES[strong] + stem[onset_end:]
    return stem


def _change_last_vowel(stem: str) -> str:
    """Return the stem with the last vowel that it has before a suffix with i, such as kukko- for kukka."""
    return stem[:-1] + VOWELS_BEFORE_I.get(stem[-1], stem[-1])


def _inflect_noun(lemma: str, names: list[str]) -> str:
    """Return the form of a noun; `names` of features are N, case, number, and a possessor (PSS1, PSS2) or nothing."""
    _, case, number, *possessor = names
    suffix = CASE_SUFFIXES[case]
    if number == "PL":
        suffix = {"NOM": "t", "GEN": "iden"}.get(case, f"i{suffix}")  # other cases: i and the singular suffix
    form = weaken_consonants(lemma, suffix)
    form = add_suffix(_change_last_vowel(form) if suffix.startswith("i") else form, suffix)
    ending = POSSESSIVE_SUFFIXES[possessor[0]] if possessor else ""
    return (form[:-1] if ending and form[-1] in "nt" else form) + ending  # a possessor replaces n and t


def _inflect_verb(lemma: str, names: list[str]) -> str:
    """Return the form of a verb; `names` of features are V, tense, person, number, and NEG or nothing."""
    _, tense, person, number, *negation = names
    stem, ending = lemma[: -len(INFINITIVE)], PERSON_SUFFIXES[f"{person};{number}"]
    suffix = {"PRS": "", "PST": "i", "COND": "isi"}[tense] + ending
    form = weaken_consonants(stem, suffix)
    if tense == "PRS" and f"{person};{number}" == "3;SG":
        form += form[-1]  # the last vowel is long
    form = add_suffix(_change_last_vowel(form) if suffix.startswith("i") else form, suffix)
    prefix = "" if not negation else "em" if form[0] in VOWELS else "e"
    return prefix + form
