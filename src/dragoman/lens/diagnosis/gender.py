"""Gender bias: the gender of translations whose source leaves it open (Prates et al. 2020).

Templates are text that users can extend. A section for each language pair has a line per source. If the source language
has no gender, the pronouns of the target language show it (`TARGET_PRONOUNS`), and the line may have a meaning in
English; `[fi-*]` is a section for all target languages with pronouns.

    [fi-*]
    frame<tab>Hän on {}.
    lääkäri<tab>doctor

Otherwise a line has the words that show a gender in the translation: feminine, masculine and optionally neutral ones.

    [en-de]
    frame<tab>The {} is tired.
    doctor<tab>Ärztin|Ärztinnen<tab>Arzt|Arztes|Ärzte

Every source is inserted into each of the frames before it in its section. Lines that begin with # are comments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from dragoman.errors import UserError
from dragoman.lens.diagnosis.diagnosis_types import (
    DiagnosisExample,
    Finding,
    GenderChoice,
    percentage,
)
from dragoman.run import Run
from dragoman.text import split_words

NAME, TITLE = "gender", "Gender where the source has none"
#: largest number of examples that are shown of each gender of a translation (`GenderTemplate.gender`)
EXAMPLES_PER_GENDER = {"feminine": 3, "masculine": 3, "both": 1, "nothing": 1}
MAX_GENDER_EXAMPLES = 6  # of all genders together
#: words that show a gender, by target language: feminine, masculine and neutral pronouns
TARGET_PRONOUNS: dict[str, tuple[str, ...]] = {
    "en": ("she|her|hers|herself", "he|him|his|himself", "they|them|their|it"),
    "de": ("sie|ihr|ihre|ihren|ihrem", "er|ihn|ihm|sein|seine|seinen|seinem", "es"),
    "fr": ("elle", "il", ""),
    "es": ("ella", "él", ""),
}


@dataclass(frozen=True)
class GenderTemplate:
    """A source without gender, and the lower-case words that show the gender of a translation.

    `subject` is what was inserted into a frame, such as an occupation, or the whole source; `meaning` is English.
    """

    source: str
    feminine: frozenset[str]
    masculine: frozenset[str]
    neutral: frozenset[str]
    subject: str
    meaning: str = ""

    def gender(self, translation: str) -> str:
        """Return the gender that a translation shows: "feminine", "masculine", "both", "neutral" or "nothing".

        It is decided by the words of the translation that are in the sets `feminine`, `masculine` and `neutral`.
        """
        words = {word.casefold() for word in split_words(translation)}
        is_feminine, is_masculine = bool(words & self.feminine), bool(words & self.masculine)
        if is_feminine or is_masculine:
            return "both" if is_feminine and is_masculine else "feminine" if is_feminine else "masculine"
        return "neutral" if words & self.neutral else "nothing"

    def chosen_word(self, translation: str) -> str:
        """Return the first word of a translation that shows its gender, such as “she”; "" if none does."""
        gendered = self.feminine | self.masculine | self.neutral
        words = split_words(translation)
        first_word = [word.lower() for word in words[:1]]  # a capital letter only begins the sentence
        return next((word for word in (*first_word, *words[1:]) if word.casefold() in gendered), "")


def parse_templates(text: str, origin: str) -> dict[str, list[GenderTemplate]]:
    """Parse a template file of the gender test; return the templates by language pair, such as en-de.

    A template is a source sentence that leaves the gender open, with the words that show it in a translation. A line of
    the file has cells separated by tabs, and is one of:

        [en-de]                                 the language pair of the following lines
        frame, sentence with {}                 a sentence into which the following source words are inserted
        source, feminine, masculine, neutral    a source word or sentence, and words of its translation, separated by |
        source, meaning                         a source whose gender is shown by the pronouns of the target language

    The words for neutral and the meaning are optional. A source is inserted into all frames before it in its section;
    without frames, it is a whole sentence. Lines that begin with # are comments. `origin` names the text in error
    messages.
    """
    templates: dict[str, list[GenderTemplate]] = {}
    frames: list[str] = []
    pairs: list[str] = []  # language pairs of the section
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            pairs, frames = _language_pairs(line.strip().strip("[]").strip().lower()), []
            for pair in pairs:
                templates.setdefault(pair, [])
            continue
        if not pairs:
            raise UserError(
                f"{origin}, line {number}: the line of the language pair, such as [en-de], must come before the "
                "templates"
            )
        if cells[0] == "frame" and len(cells) == 2 and "{}" in cells[1]:
            frames.append(cells[1])
            continue
        for pair in pairs:
            target_language = pair.rpartition("-")[2]
            gender_words = TARGET_PRONOUNS.get(target_language, ())  # feminine, masculine and neutral, joined by |
            if len(cells) in (3, 4) and all(cells[:3]):  # a source with its own words
                meaning, gender_words = "", (*cells[1:], "")[:3]  # without neutral words, their cell is empty
            elif len(cells) in (1, 2) and gender_words:  # a source whose gender pronouns show
                meaning = "".join(cells[1:])
            else:
                raise UserError(
                    f"{origin}, line {number}: expected a source word or sentence, its feminine and its masculine "
                    "translations, separated by tabs (the source alone is enough for translation into "
                    f"{', '.join(TARGET_PRONOUNS)}), or the word 'frame', a tab and a sentence with {{}} in place of "
                    f"the source words of the next lines, but found {line[:60]!r}: correct the line"
                )
            feminine, masculine, neutral = (
                frozenset(word.casefold() for word in words.split("|") if word) for words in gender_words
            )
            sources = [frame.replace("{}", cells[0]) for frame in frames] or [cells[0]]
            templates[pair] += [
                GenderTemplate(source, feminine, masculine, neutral, subject=cells[0], meaning=meaning)
                for source in sources
            ]
    return templates


def _language_pairs(section: str) -> list[str]:
    """Return the language pairs of a section heading: ["en-de"] for "en-de".

    For "fi-*" it is a pair with each target language whose pronouns are in TARGET_PRONOUNS: fi-en, fi-de, …
    """
    source, _, target = section.rpartition("-")
    return [f"{source}-{language}" for language in TARGET_PRONOUNS] if target == "*" else [section]


def builtin_templates() -> dict[str, list[GenderTemplate]]:
    """Return the templates of the gender test that are part of the package, by language pair such as en-de."""
    file = files("dragoman.lens.diagnosis").joinpath("gender_templates.txt")
    return parse_templates(file.read_text(encoding="utf-8"), origin=file.name)


def load_templates(pair: str, file: Path | None) -> list[GenderTemplate]:
    """Return the gender-test templates of a language pair: those of the package, then those of `file`, if given.

    Templates are source sentences that leave the gender open. A file that cannot be read, or that has none for this
    pair, is a UserError.
    """
    templates = list(builtin_templates().get(pair, []))
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} (--templates) cannot be read as UTF-8 text ({error}): name another file") from None
        added = parse_templates(text, str(file))
        if pair not in added:
            available = ", ".join(added) or "no language pair"
            raise UserError(
                f"{file} has no gender templates for the language pair {pair}, but for {available}: add a line "
                f"'[{pair}]' with templates after it"
            )
        templates += added[pair]
    return templates


def gender(run: Run, pair: str | None, file: Path | None) -> Finding:
    """Measure gender bias: translate sentences that leave a person's gender open, and count the genders that come out.

    The value of the finding is the percentage of the more frequent gender, feminine or masculine; 50 is unbiased.

    Args:
        pair: the language pair, such as en-de; None if it is unknown, and then nothing is measured.
        file: a user's file with more templates (such sentences); None for those of the package only.
    """
    if pair is None:
        explanation = "The languages of the run are unknown: give them with --language-pair, such as en-de."
        return Finding(NAME, TITLE, explanation)
    templates = load_templates(pair, file)
    if not templates:
        available = ", ".join(builtin_templates())
        explanation = (
            f"There are no templates (sentences that leave the gender open) for the language pair {pair}, only for "
            f"{available}: give a file of them with --templates."
        )
        return Finding(NAME, TITLE, explanation)
    translations = run.translate([template.source for template in templates], alignment=False)
    texts = [translation.text for translation in translations]
    genders = [template.gender(text) for template, text in zip(templates, texts)]
    counts = {name: genders.count(name) for name in ("feminine", "masculine", "both", "neutral", "nothing")}
    metrics = {name: percentage(count, len(genders)) for name, count in counts.items()}
    examples, choices = _examples(templates, texts, genders), _choices(templates, texts)
    total = counts["feminine"] + counts["masculine"]
    if not total:
        explanation = f"None of the {len(genders)} translations contains a word that shows a gender."
        return Finding(NAME, TITLE, explanation, metrics=metrics, examples=examples, choices=choices)
    dominant = max(("feminine", "masculine"), key=lambda name: counts[name])
    value = percentage(counts[dominant], total)
    explanation = (
        f"{value:.0f} % of {total} sentences whose source leaves the gender open, but whose translation shows one, "
        f"came out {dominant}; an unbiased system would have 50 %."
    )
    return Finding(NAME, TITLE, explanation, value, unit="%", metrics=metrics, examples=examples, choices=choices)


def _choices(templates: Sequence[GenderTemplate], texts: Sequence[str]) -> tuple[GenderChoice, ...]:
    """Return for each subject, such as an occupation, how often which word shows the gender in its translations.

    `texts` are the translations of the templates; a subject occurs in several templates.
    """
    word_counts: dict[tuple[str, str], Counter[str]] = {}  # by subject and its meaning in English
    for template, text in zip(templates, texts):
        counter = word_counts.setdefault((template.subject, template.meaning), Counter())
        counter[template.chosen_word(text)] += 1
    return tuple(GenderChoice(subject, meaning, dict(counts)) for (subject, meaning), counts in word_counts.items())


def _examples(
    templates: Sequence[GenderTemplate], texts: Sequence[str], genders: Sequence[str]
) -> tuple[DiagnosisExample, ...]:
    """Return a few translations as examples, evenly spread over the templates.

    There are up to EXAMPLES_PER_GENDER of each gender (none that are neutral), and MAX_GENDER_EXAMPLES in all. `texts`
    are the translations of the templates, and `genders` the gender that each shows: "feminine", "masculine", "both",
    "neutral" or "nothing".
    """
    examples: list[DiagnosisExample] = []
    for gender_name, count in EXAMPLES_PER_GENDER.items():
        matching = [
            DiagnosisExample(template.source, text, name)
            for template, text, name in zip(templates, texts, genders)
            if name == gender_name
        ]
        stride = math.ceil(len(matching) / count) or 1  # a slice needs at least 1
        examples += matching[::stride][:count]
    return tuple(examples[:MAX_GENDER_EXAMPLES])
