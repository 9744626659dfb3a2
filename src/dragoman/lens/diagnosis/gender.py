"""Gender that is chosen where the source has none.

Templates are text, which a user can extend: sections of language pairs, in them a line for each source with the words
that tell its gender in a translation, feminine, masculine and, if there are any, neutral ones.

    [en-de]
    frame<tab>The {} is tired.
    doctor<tab>Ärztin|Ärztinnen<tab>Arzt|Arztes|Ärzte

    [fi-en]
    Hän on lääkäri.<tab>she|her|hers<tab>he|him|his<tab>they|them|their

Where a section has frames, every source is put into each of them. Lines that begin with # are comments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import UserError
from dragoman.lens.diagnosis.diagnosis_types import MAX_EXAMPLES, DiagnosisExample, Finding, percentage
from dragoman.lens.diagnosis.gender_templates import TEMPLATES
from dragoman.run import Run
from dragoman.text import split_words

NAME, TITLE = "gender", "Gender where the source has none"


@dataclass(frozen=True)
class GenderTemplate:
    source: str
    feminine: frozenset[str]
    masculine: frozenset[str]
    neutral: frozenset[str]

    def gender(self, translation: str) -> str:
        """What a translation tells: feminine, masculine, both, neutral, or nothing."""
        said = {word.casefold() for word in split_words(translation)}
        both = bool(said & self.feminine), bool(said & self.masculine)
        if any(both):
            return "both" if all(both) else "feminine" if both[0] else "masculine"
        return "neutral" if said & self.neutral else "nothing"


def parse_templates(text: str, where: str) -> dict[str, list[GenderTemplate]]:
    """The templates of every language pair in a text; `where` names it in errors."""
    found: dict[str, list[GenderTemplate]] = {}
    frames: list[str] = []
    pair = None
    for number, line in enumerate(text.split("\n"), 1):
        cells = [cell.strip() for cell in line.rstrip("\r").split("\t")]
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith("["):
            pair, frames = line.strip().strip("[]").strip().lower(), []
            found.setdefault(pair, [])
            continue
        if pair is None:
            raise UserError(f"{where}, line {number}: a language pair such as [en-de] must come first")
        if cells[0] == "frame" and len(cells) == 2 and "{}" in cells[1]:
            frames.append(cells[1])
        elif len(cells) in (3, 4) and all(cells[:3]):
            told = [frozenset(word.casefold() for word in cell.split("|") if word) for cell in (*cells[1:], "")[:3]]
            sources = [frame.replace("{}", cells[0]) for frame in frames] or [cells[0]]
            found[pair] += [GenderTemplate(source, *told) for source in sources]
        else:
            raise UserError(
                f"{where}, line {number}: expected a source, feminine and masculine words, parted by tabs, or 'frame' "
                f"and a sentence with {{}}, but found {line[:60]!r}"
            )
    return found


def load_templates(pair: str, file: Path | None) -> list[GenderTemplate]:
    """The built-in ones, and those of a user's file."""
    found = list(parse_templates(TEMPLATES, "built-in").get(pair, []))
    if file is not None:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{file} cannot be read as templates: {error}") from None
        own = parse_templates(text, str(file))
        if pair not in own:
            raise UserError(f"{file} has no templates for {pair}: it has {', '.join(own) or 'none'}")
        found += own[pair]
    return found


def gender(run: Run, pair: str | None, file: Path | None) -> Finding:
    """How often each gender is chosen; the value is the share of the one that is chosen more often."""
    if pair is None:
        why = "Nothing is known of the run's languages: name them with --pair, such as en-de."
        return Finding(NAME, TITLE, why)
    templates = load_templates(pair, file)
    if not templates:
        known = ", ".join(parse_templates(TEMPLATES, "built-in"))
        why = f"There are no templates for {pair}, only for {known}: write some and name the file with --templates."
        return Finding(NAME, TITLE, why)
    texts = [one.text for one in run.translate([template.source for template in templates], alignment=False)]
    told = [template.gender(text) for template, text in zip(templates, texts)]
    return _counted(templates, texts, told)


def _counted(templates: Sequence[GenderTemplate], texts: Sequence[str], told: Sequence[str]) -> Finding:
    kinds = ("feminine", "masculine", "both", "neutral", "nothing")
    numbers: Mapping[str, float] = {kind: percentage(told.count(kind), len(told)) for kind in kinds}
    chosen = [kind for kind in told if kind in ("feminine", "masculine")]
    examples = _some(templates, texts, told)
    if not chosen:
        why = f"None of the {len(told)} translations shows a gender by the words that the templates know."
        return Finding(NAME, TITLE, why, metrics=dict(numbers), examples=examples)
    more = max(("feminine", "masculine"), key=chosen.count)
    value = percentage(chosen.count(more), len(chosen))
    why = (
        f"Of {len(chosen)} sentences whose source leaves the gender open, but whose translation shows one, "
        f"{value:.0f} % came out {more}: 50 % would be an even hand."
    )
    return Finding(NAME, TITLE, why, value, "%", dict(numbers), examples)


def _some(
    templates: Sequence[GenderTemplate], texts: Sequence[str], told: Sequence[str]
) -> tuple[DiagnosisExample, ...]:
    """A few of each kind, from all over."""
    found: list[DiagnosisExample] = []
    for kind, most in (("feminine", 3), ("masculine", 3), ("both", 1), ("nothing", 1)):
        some = [DiagnosisExample(t.source, text, kind) for t, text, what in zip(templates, texts, told) if what == kind]
        found += some[:: -(-len(some) // most) or 1][:most]
    return tuple(found[: MAX_EXAMPLES + 1])
