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
EXAMPLES_PER_GENDER, MAX_GENDER_EXAMPLES = {"feminine": 3, "masculine": 3, "both": 1, "nothing": 1}, 6


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
        """Return the gender of a translation: feminine, masculine, both, neutral, or nothing."""
        words = {word.casefold() for word in split_words(translation)}
        is_feminine, is_masculine = bool(words & self.feminine), bool(words & self.masculine)
        if is_feminine or is_masculine:
            return "both" if is_feminine and is_masculine else "feminine" if is_feminine else "masculine"
        return "neutral" if words & self.neutral else "nothing"

    def chosen_word(self, translation: str) -> str:
        """Return the first word of a translation that shows a gender, such as “she”; "" if there is none."""
        known = self.feminine | self.masculine | self.neutral
        words = split_words(translation)
        first = [word.lower() for word in words[:1]]  # a capital letter only begins the sentence
        return next((word for word in (*first, *words[1:]) if word.casefold() in known), "")


def parse_templates(text: str, origin: str) -> dict[str, list[GenderTemplate]]:
    """Parse the text of a template file to templates by language pair; `origin` names the text in errors.

    A line is a language pair ([en-de]), a frame (a sentence with {} for a source word), or a source word or sentence:
    with its meaning, or with the words that show its gender in a translation.
    """
    templates: dict[str, list[GenderTemplate]] = {}
    frames: list[str] = []
    pairs: list[str] = []
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
            words = TARGET_PRONOUNS.get(pair.rpartition("-")[2], ())
            if len(cells) in (3, 4) and all(cells[:3]):
                meaning, words = "", (*cells[1:], "")[:3]  # without neutral words, their cell is empty
            elif len(cells) in (1, 2) and words:
                meaning = "".join(cells[1:])
            else:
                raise UserError(
                    f"{origin}, line {number}: expected a source word or sentence, its feminine translations and its "
                    "masculine translations, separated by tabs (a source alone is enough for translation into "
                    f"{', '.join(TARGET_PRONOUNS)}); or the word 'frame', a tab and a sentence in which {{}} stands "
                    f"for the source words of the next lines; but found {line[:60]!r}"
                )
            feminine, masculine, neutral = (
                frozenset(word.casefold() for word in cell.split("|") if word) for cell in words
            )
            sources = [frame.replace("{}", cells[0]) for frame in frames] or [cells[0]]
            templates[pair] += [
                GenderTemplate(source, feminine, masculine, neutral, subject=cells[0], meaning=meaning)
                for source in sources
            ]
    return templates


def _language_pairs(section: str) -> list[str]:
    """Return the language pairs of a section: fi-* stands for all target languages of `TARGET_PRONOUNS`."""
    source, _, target = section.rpartition("-")
    return [f"{source}-{language}" for language in TARGET_PRONOUNS] if target == "*" else [section]


def builtin_templates() -> dict[str, list[GenderTemplate]]:
    """Return the templates that come with dragoman, by language pair such as en-de."""
    file = files("dragoman.lens.diagnosis").joinpath("gender_templates.txt")
    return parse_templates(file.read_text(encoding="utf-8"), "built-in")


def load_templates(pair: str, file: Path | None) -> list[GenderTemplate]:
    """Return the built-in templates of a language pair, and those of a user's file unless it is None."""
    templates = list(builtin_templates().get(pair, []))
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} (--templates) cannot be read as UTF-8 text: {error}") from None
        added = parse_templates(text, str(file))
        if pair not in added:
            available = ", ".join(added) or "no language pair"
            raise UserError(f"{file} has no gender templates for the language pair {pair}: it has {available}")
        templates += added[pair]
    return templates


def gender(run: Run, pair: str | None, file: Path | None) -> Finding:
    """Measure which gender translations get if the source leaves it open; the value is the share of the more frequent.

    Args:
        pair: the language pair, such as en-de; None if it is unknown.
        file: more templates (sentences that leave the gender open) of a user, or None.
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
    """Return for each subject, such as an occupation, how often which word shows the gender in its translations."""
    words: dict[tuple[str, str], Counter[str]] = {}
    for template, text in zip(templates, texts):
        words.setdefault((template.subject, template.meaning), Counter())[template.chosen_word(text)] += 1
    return tuple(GenderChoice(subject, meaning, dict(count)) for (subject, meaning), count in words.items())


def _examples(
    templates: Sequence[GenderTemplate], texts: Sequence[str], genders: Sequence[str]
) -> tuple[DiagnosisExample, ...]:
    """Return a few translations of each gender as examples, evenly spread over the templates.

    `genders` are those of the texts: feminine, masculine, both, neutral or nothing.
    """
    examples: list[DiagnosisExample] = []
    for gender_name, count in EXAMPLES_PER_GENDER.items():
        matching = [
            DiagnosisExample(template.source, text, name)
            for template, text, name in zip(templates, texts, genders)
            if name == gender_name
        ]
        stride = math.ceil(len(matching) / count) or 1
        examples += matching[::stride][:count]
    return tuple(examples[:MAX_GENDER_EXAMPLES])
