"""The report of a run: one HTML page about scores, curves, samples, attention, data and configuration."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dragoman import checkpoint, config
from dragoman.data.preflight import PREFLIGHT_FILE, load_preflight
from dragoman.lens.axes import Points, evenly_spaced, format_number
from dragoman.lens.charts import attention_heatmap, line_chart
from dragoman.lens.html_page import (
    collapsible,
    definition_list,
    document,
    figure,
    mark_differences,
    paragraph,
    section,
    table,
    text,
    truncate,
)
from dragoman.lens.markup import Markup, join, tag
from dragoman.lens.preflight_section import preflight_section
from dragoman.lens.word_attention import word_attention
from dragoman.models import count_parameters, model_to_dict
from dragoman.run import CHECKPOINT_DIR, Run
from dragoman.storage import write_file
from dragoman.systems import SYSTEMS
from dragoman.text import split_words
from dragoman.training.validation import ValidationSample

REPORT_FILE = "report.html"
MAX_OPEN_SAMPLES, MAX_ATTENTION_FIGURES, MAX_VERSIONS = 5, 3, 10

Record = dict[str, Any]


def write_report(run: Run) -> Path:
    """Write the report into the run folder and return its path."""
    path = run.folder / REPORT_FILE
    write_file(path, run_report(run))
    return path


def run_report(run: Run) -> str:
    """Return the report of a run as an HTML page."""
    name = run.folder.resolve().name
    metrics, samples = run.metrics(), read_samples(run.folder)
    preflight = load_preflight(run.folder) if (run.folder / PREFLIGHT_FILE).exists() else None
    last_samples = samples[max(samples)] if samples else []
    corrupts = run.objective is not None and run.objective.corrupts_input
    sections = {
        "scores": ("Scores", _scores(run, metrics)),
        "curves": ("Curves", _curves(metrics)),
        "samples": ("Samples", _corrupted_samples(samples) if corrupts else _translation_samples(samples)),
        "attention": ("Attention", _attention(run, [] if corrupts else last_samples)),
        "data": ("Data", preflight_section(preflight)),
        "configuration": ("Configuration", _configuration(run)),
        "next": ("Next steps", _next_steps(run, last_samples)),
    }
    links = [tag("a", title, href=f"#{key}") for key, (title, _) in sections.items()]
    summary = paragraph(_summary(run, metrics, preflight), kind="lead")
    return document(
        f"{name}: report by Dragoman",
        tag("header", tag("h1", name), summary, tag("nav", *links)),
        *(section(key, title, content) for key, (title, content) in sections.items()),
    )


# ---- contents of the run folder


def read_samples(folder: Path) -> dict[int, list[ValidationSample]]:
    """Read the samples of each validation by its step."""
    return {
        # splitlines() would also split at other separators inside a sentence
        int(path.stem): [
            ValidationSample(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line
        ]
        for path in sorted((folder / "samples").glob("*.jsonl"))
        if path.stem.isdecimal()
    }


def _progress(run: Run, metrics: list[Record]) -> Record:
    """Return the training progress of the last checkpoint, or else the last record with a time."""
    last = run.folder / CHECKPOINT_DIR / "last"
    progress = checkpoint.read_values(last).get("progress", {}) if last.exists() else {}
    return progress or next((record for record in reversed(metrics) if "seconds" in record), {})


def _best_validation(run: Run, metrics: list[Record]) -> Record | None:
    """Return the validation of the averaged weights, or of the checkpoint that was selected."""
    averaged = [record for record in metrics if record["kind"] == "averaged"]
    valid = [record for record in metrics if record["kind"] == "valid"]
    if averaged or not valid:
        return averaged[-1] if averaged else None
    selected = [record for record in valid if record["step"] == _progress(run, metrics).get("best_step")]
    return selected[-1] if selected else min(valid, key=lambda record: record["loss"])


# ---- sections

#: key in the metrics, label, format
METRICS: list[tuple[str, str, Callable[[float], str]]] = [
    ("bleu", "BLEU", "{:.2f}".format),
    ("exact_match", "exact match", "{:.1f} %".format),
    ("accuracy", "accuracy", "{:.1f} %".format),
    ("perplexity", "perplexity", lambda value: _format_perplexity(value)),
    ("loss", "loss", "{:.3f}".format),
]


def _summary(run: Run, metrics: list[Record], preflight: Record | None) -> str:
    settings = run.config.system
    system, progress = SYSTEMS.get(settings.name or ""), _progress(run, metrics)
    paper = f" (“{system.paper}”, {system.year})" if system else ""
    size = f" in size {settings.size}" if settings.size else ""
    sentences = [f"This is the system {settings.name}{paper}{size}, with {count_parameters(run.spec):,} parameters."]
    pairs = f" on {preflight['pairs']:,} sentence pairs" if preflight else ""
    if progress.get("step"):
        tokens = f" and {progress['tokens']:,} target tokens" if "tokens" in progress else ""
        duration = _format_duration(progress["seconds"])
        sentences.append(f"It was trained{pairs} for {duration}: {progress['step']:,} steps{tokens}.")
    else:
        sentences.append(f"Its training{pairs} has not completed a step yet.")
    best, count = _best_validation(run, metrics), sum(record["kind"] == "valid" for record in metrics)
    if best is None:
        return " ".join([*sentences, "Training stopped before the first validation, so there are no scores."])
    if best["kind"] == "averaged":
        subject = f"The average of the last {best.get('checkpoints')} checkpoints, better than each of them,"
    else:
        subject = f"The best of {count:,} validations, at step {best['step']:,}," if count > 1 else "The validation"
    if "bleu" in best:
        scores = f"BLEU {best['bleu']:.1f} (of 100), {best['exact_match']:.1f}\u00a0% exact matches"
    else:
        scores = f"{best.get('accuracy', 0.0):.1f}\u00a0% accuracy"
    sentences.append(f"{subject} has {scores} and perplexity {_format_perplexity(best['perplexity'])}.")
    return " ".join(sentences)


def _scores(run: Run, metrics: list[Record]) -> Markup:
    best, valid = _best_validation(run, metrics), [record for record in metrics if record["kind"] == "valid"]
    if best is None:
        return paragraph("There are no scores before the first validation.")
    records = {"averaged checkpoints" if best["kind"] == "averaged" else "best validation": best}
    if valid and valid[-1] is not best:
        records["last validation"] = valid[-1]
    columns = [(key, label, form) for key, label, form in METRICS if key in best]
    rows = [
        (name, f"{record['step']:,}", *(form(record[key]) for key, _, form in columns))
        for name, record in records.items()
    ]
    explanation = (
        "Loss is the negative log probability per target token, given the reference so far; perplexity is its "
        "exponential: 1 is best. Accuracy is the share of tokens that are the most probable ones."
    )
    if "bleu" in best:
        explanation = (
            "BLEU (0 to 100) measures the n-grams shared with the reference; exact match is the share of sentences "
            f"that equal it. Both are of validation sentences decoded with {best.get('search', 'greedy')} search. "
        ) + explanation
    heading = ("", "step", *(label for _, label, _ in columns))
    return join(table(heading, rows), paragraph(explanation, kind="faint"))


def _curves(metrics: list[Record]) -> Markup:
    def points(kind: str, name: str) -> Points:
        return [(record["step"], record[name]) for record in metrics if record["kind"] == kind and name in record]

    # The training loss includes label smoothing; training perplexity does not, and is comparable with validation.
    training = [(step, math.log(perplexity)) for step, perplexity in points("train", "perplexity") if perplexity > 0]
    loss = {"training": training, "validation": points("valid", "loss")}
    quality = {"BLEU": points("valid", "bleu"), "exact match, %": points("valid", "exact_match")}
    has_bleu = bool(quality["BLEU"])
    if not has_bleu:
        quality = {"accuracy, %": points("valid", "accuracy")}
    charts = [
        (
            line_chart(loss, "Loss", y_label="−log p per target token"),
            "Lower is better. If validation rises while training falls, the model overfits. The training loss is "
            "measured with dropout, and may exceed the validation loss.",
        ),
        (
            line_chart(quality, "Translation quality" if has_bleu else "Accuracy"),
            f"Higher is better. Measured on validation {'translations' if has_bleu else 'tokens'}.",
        ),
        (
            line_chart({"learning rate": points("train", "learning_rate")}, "Learning rate"),
            "Warm-up to the peak, then decay.",
        ),
        (
            line_chart({"speed": points("train", "tokens_per_second")}, "Speed", y_label="target tokens per second"),
            "Higher is faster. Validations and other load of the machine cause dips.",
        ),
    ]
    return tag("div", *(figure(chart, caption) for chart, caption in charts), class_="wide")


def _translation_samples(samples: dict[int, list[ValidationSample]]) -> Markup:
    if not samples or not samples[max(samples)]:
        return paragraph("There are no samples: they are written at each validation.")
    last = max(samples)
    cards = [_sample_card(sample) for sample in samples[last]]
    hidden = cards[MAX_OPEN_SAMPLES:]
    return join(
        paragraph(
            f"Translations of validation sentences at step {last:,}. ",
            tag("mark", "Marked"),
            " words are not in the reference; ",
            tag("mark", "underlined", class_="missed"),
            " words of the reference are missing from the translation.",
        ),
        *cards[:MAX_OPEN_SAMPLES],
        *([collapsible(f"{len(hidden)} more", *hidden)] if hidden else []),
        _versions({step: rows[0] for step, rows in samples.items() if rows}),
    )


def _corrupted_samples(samples: dict[int, list[ValidationSample]]) -> Markup:
    """Show the corrupted inputs of the last validation, their targets and the predictions."""
    last = samples[max(samples)] if samples else []
    if not last:
        return paragraph("There are no samples: they are written at each validation.")
    cards = []
    for sample in last:
        items = {
            "input": text(truncate(sample.source)),
            "target": mark_differences(sample.reference, sample.translation or sample.reference, "missed"),
        }
        if sample.translation:
            items["prediction"] = mark_differences(sample.translation, sample.reference)
        cards.append(definition_list(items))
    return join(paragraph(f"Validation texts at step {max(samples):,}, corrupted as in pretraining."), *cards)


def _sample_card(sample: ValidationSample) -> Markup:
    translation = text("(nothing)", "faint")
    if sample.translation:
        translation = mark_differences(sample.translation, sample.reference)
    if sample.translation == sample.reference:
        translation = join(translation, tag("span", " ✓ exact match", class_="good"))
    return definition_list(
        {
            "source": text(truncate(sample.source)),
            "reference": mark_differences(sample.reference, sample.translation, "missed"),
            "translation": translation,
        }
    )


def _versions(first_samples: dict[int, ValidationSample]) -> Markup:
    """Show how the translation of the first sample changed during training."""
    versions: list[tuple[int, ValidationSample]] = []
    for step, sample in first_samples.items():
        if not versions or sample.translation != versions[-1][1].translation:
            versions.append((step, sample))
    if len(versions) < 2:
        return Markup()
    shown = evenly_spaced(versions, MAX_VERSIONS)
    first = shown[0][1]
    rows = [(f"{step:,}", mark_differences(sample.translation, sample.reference)) for step, sample in shown]
    rows.append(("reference", text(truncate(first.reference))))
    omitted = f" ({len(shown)} of {len(versions)} versions)" if len(shown) < len(versions) else ""
    return join(
        tag("h3", "Translations during training"),
        paragraph("“", text(truncate(first.source)), f"” and the step at which each translation appeared{omitted}:"),
        table(("step", "translation"), rows, numeric=False),
    )


def _attention(run: Run, samples: Sequence[ValidationSample]) -> Markup:
    if run.model.source_features is not None:
        return paragraph("The source consists of feature vectors, which cannot be shown as words.")
    figures = []
    for number, source in enumerate(_short_sources(samples), 1):
        translation = run.translate([source], alignment=False)[0].text
        attention = word_attention(run, source, translation)
        if attention.cross is None:
            return paragraph("This system has no cross-attention from a decoder to an encoder.")
        if attention.target:
            heatmap = attention_heatmap(attention, f"Sentence {number}")
            figures.append(figure(heatmap, text(source), " → ", text(translation), scroll=True))
    if not figures:
        return paragraph("There are no figures: attention is shown for translations of validation sentences.")
    return join(
        paragraph(
            "Each row is a word of the translation, each column a word of the source. The color of a cell is the "
            "attention weight; rows sum to 100 %. “(end)” is EOS."
        ),
        tag("div", *figures, class_="wide"),
        paragraph(
            "Weights are averaged over heads, layers and the tokens of a word. The translations are by the checkpoint "
            f"{run.checkpoint}, with beam search.",
            kind="faint",
        ),
    )


def _short_sources(samples: Sequence[ValidationSample]) -> list[str]:
    """Return a few sources of 4 to 10 words, or else the shortest."""
    lengths = {sample.source: len(split_words(sample.source)) for sample in samples}
    medium = [source for source, length in lengths.items() if 4 <= length <= 10]
    short = sorted((source for source, length in lengths.items() if 0 < length <= 25), key=lambda one: lengths[one])
    return (medium or short)[:MAX_ATTENTION_FIGURES]


def _configuration(run: Run) -> Markup:
    spec = yaml.safe_dump(model_to_dict(run.spec), sort_keys=False, allow_unicode=True)
    return join(
        collapsible("Configuration with all settings", tag("pre", config.to_yaml(run.config))),
        collapsible("Specification of the model", tag("pre", spec)),
    )


def _next_steps(run: Run, samples: Sequence[ValidationSample]) -> Markup:
    folder = shlex.quote(str(run.folder))
    source = shlex.quote(next(iter(_short_sources(samples)), "A sentence."))
    resume = {"continue training": f"dragoman train {folder} --resume"}
    if run.usage is None or run.usage.command == "translate":
        commands = {
            "translate a file": f"dragoman translate {folder} INPUT > OUTPUT",
            "score a test set": f"dragoman evaluate {folder} --source SOURCE --reference REFERENCE",
        }
        if run.model.source_features is None:
            commands["inspect a sentence"] = f"dragoman show {folder} {source}"
        commands |= resume
    else:
        commands = {run.usage.purpose: f"dragoman {run.usage.command} {folder} INPUT > OUTPUT", **resume}
        commands["start another run from it"] = f"dragoman train NEW --start-from {folder} --source SOURCE …"
    return table(("to", "run"), [(name, tag("code", command)) for name, command in commands.items()], numeric=False)


# ---- formats


def _format_perplexity(perplexity: float) -> str:
    return f"{perplexity:.2f}" if perplexity < 1000 else format_number(perplexity)


def _format_duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), round(seconds / 3600, 1)
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 100 else f"{hours:g} hours"
