"""Diagnosis: the known failures of the textbook, measured on a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.evaluation import Link
from dragoman.lens.diagnosis.content_coverage import alignment_error, coverage, length_ratio, quality_by_length
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, DiagnosisExample, Finding, LengthQuality
from dragoman.lens.diagnosis.gender import gender
from dragoman.lens.diagnosis.hallucination import copying, hallucination, words_of_both_languages
from dragoman.run import Run

__all__ = ["Diagnosis", "DiagnosisExample", "Finding", "LengthQuality", "diagnose", "language_pair", "validation_pairs"]


def diagnose(
    run: Run,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    languages: str | None = None,
    templates: Path | None = None,
    gold: Sequence[Collection[Link]] | None = None,
) -> Diagnosis:
    """What a run that translates does wrong, over some sentences and, if there are any, their references.

    `pair` names the languages, such as en-de; `templates` a file of more sentences without gender; `gold` are links of
    words between sources and references.
    """
    run.check_usage("translate")
    if not run.model.can_generate or run.model.source_features is not None:
        raise UserError(f"{run.folder} does not translate text, and its failures would be others")
    if not sources or not any(source.strip() for source in sources):
        raise UserError("there is nothing to diagnose: give some sentences that have words")
    for name, some in (("references", references), ("gold alignments", gold)):
        if some is not None and len(some) != len(sources):
            raise UserError(f"{len(sources):,} sources came with {len(some):,} {name}: give one for each")
    if gold is not None and references is None:
        raise UserError("gold alignments are of references: give them as well")
    languages = languages or language_pair(run)
    found = run.translate(sources)
    findings = [
        gender(run, languages, templates),
        hallucination(run, sources, languages),
        copying(sources, found, references, words_of_both_languages(run, sources, references)),
        *coverage(run, sources, found, references),
        length_ratio(sources, found, references),
        quality_by_length(sources, found, references),
    ]
    if gold is not None and references is not None:
        findings.append(alignment_error(run.align(sources, references), gold))
    return Diagnosis(str(run.folder), run.config.system.name or "", run.checkpoint, len(sources), tuple(findings))


def language_pair(run: Run) -> str | None:
    """The language pair as the endings of the training files tell it: train.en and train.de make en-de."""
    data = run.config.data
    endings = [_language(files[0]) if files else None for files in (data.source, data.target)]
    return f"{endings[0]}-{endings[1]}" if all(endings) else None


def _language(file: str) -> str | None:
    ending = Path(file.removesuffix(".gz")).suffix.removeprefix(".").lower()
    return ending if len(ending) in (2, 3) and ending.isalpha() and ending not in ("txt", "tsv", "csv") else None


def validation_pairs(run: Run, max_pairs: int) -> tuple[list[str], list[str]]:
    """The first sentences that the run is validated on, as its folder holds them."""
    place = run.folder / "data" / "valid"
    if not place.is_dir() or run.model.source_features is not None:
        raise UserError(f"{run.folder} holds no validation text: name a test set with --source and --target")
    store = TokenStore(place)
    count = min(max_pairs, len(store))
    sources = [run.source_tokenizer.decode(store.source(n).tolist()) for n in range(count)]
    return sources, [run.target_tokenizer.decode(store.target(n).tolist()) for n in range(count)]
