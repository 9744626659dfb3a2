"""Diagnosis: the known failures of translation systems, measured on a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from dragoman.data import TokenStore
from dragoman.data.compression import file_extension
from dragoman.errors import UserError
from dragoman.evaluation import Link
from dragoman.lens.diagnosis.content_coverage import alignment_error, coverage, length_ratio, quality_by_length
from dragoman.lens.diagnosis.diagnosis_types import Diagnosis, DiagnosisExample, Finding, TranslatedSet
from dragoman.lens.diagnosis.gender import gender
from dragoman.lens.diagnosis.hallucination import copying, hallucination, words_of_both_languages
from dragoman.run import Run

__all__ = ["Diagnosis", "DiagnosisExample", "Finding", "diagnose", "language_pair", "validation_pairs"]


def diagnose(
    run: Run,
    sources: Sequence[str],
    references: Sequence[str] | None = None,
    *,
    languages: str | None = None,
    templates: Path | None = None,
    gold: Sequence[Collection[Link]] | None = None,
) -> Diagnosis:
    """Measure the known failures of translation systems on a run: gender bias, hallucination, copying, dropped words, …

    Args:
        sources: sentences that the run translates.
        references: a reference translation of each source; without them, some failures are not measured.
        languages: the language pair, such as en-de; by default inferred from the names of the training files.
        templates: a file with more sentences for the gender test, in the format of
            `lens/diagnosis/gender_templates.txt`; None for those of the package only.
        gold: for each sentence, pairs (index of a source word, index of a reference word) that are aligned, to measure
            the alignment error, which needs references; None: it is not measured.

    Models that do not translate text, empty sources, and lists of different lengths are a UserError.
    """
    run.check_usage("translate")
    if not run.model.can_generate or run.model.source_features is not None:  # feature vectors of images or speech
        raise UserError(
            f"the model in {run.folder} does not translate text, but only text-to-text translation can be diagnosed: "
            "name another run"
        )
    if not any(source.strip() for source in sources):
        raise UserError(
            "there is nothing to diagnose, because all source sentences are empty: name a file with other sentences "
            "with --source"
        )
    for name, items in (("references", references), ("gold alignments", gold)):
        if items is not None and len(items) != len(sources):
            raise UserError(
                f"there are {len(sources):,} source sentences but {len(items):,} {name}: give one for each source "
                "sentence"
            )
    if gold is not None and references is None:
        raise UserError(
            "gold alignments need reference translations, whose words they link with those of the sources: give the "
            "references with --target"
        )
    languages = languages or language_pair(run)
    translated = TranslatedSet(sources, run.translate(sources), references)
    # each finding measures one known failure; `coverage` returns two
    findings = [
        gender(run, languages, templates),
        hallucination(run, sources, languages),
        copying(translated, words_of_both_languages(run, sources, references)),
        *coverage(run, translated),
        length_ratio(translated),
        quality_by_length(translated),
    ]
    if gold is not None and references is not None:
        findings.append(alignment_error(run.align(sources, references), gold))
    return Diagnosis(
        run=str(run.folder),
        system=run.config.system.name or "",
        checkpoint=run.checkpoint,
        sentences=len(sources),
        findings=tuple(findings),
    )


def language_pair(run: Run) -> str | None:
    """Return the language pair of a run, such as en-de; None if it is unknown.

    It is that of the settings data.source_language and data.target_language, or else inferred from the extensions of
    the training files: train.en and train.de give en-de.
    """
    data = run.config.data
    if data.source_language and data.target_language:
        return f"{data.source_language}-{data.target_language}"
    codes = [_language_code(files[0]) if files else None for files in (data.source, data.target)]
    return f"{codes[0]}-{codes[1]}" if all(codes) else None


def _language_code(file_name: str) -> str | None:
    """Return the extension of a file name if it looks like a language code ("de" for train.de.gz), else None."""
    extension = file_extension(file_name).lower()
    is_file_type = extension in ("txt", "tsv", "csv", "tmx")
    is_code = len(extension) in (2, 3) and extension.isalpha() and not is_file_type
    return extension if is_code else None


def validation_pairs(run: Run, max_pairs: int) -> tuple[list[str], list[str]]:
    """Return the sources and the targets of the first `max_pairs` validation pairs, decoded from their token ids.

    `member_folders` are the run folders of an ensemble, or the one folder of a single model. A run without validation
    data, or whose sources are feature vectors, is a UserError.
    """
    folder = run.member_folders[0] / "data" / "valid"
    if not folder.is_dir() or run.model.source_features is not None:
        raise UserError(
            f"{run.folder} has no validation set of texts to diagnose: give a test set with --source and --target"
        )
    store = TokenStore(folder)
    rows = range(min(max_pairs, len(store)))
    sources = [run.decode_source(store.source(n)) for n in rows]
    return sources, [run.target_tokenizer.decode(store.target(n).tolist()) for n in rows]
