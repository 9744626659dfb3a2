"""The report of a run: one HTML page about scores, curves, samples, attention, data and configuration."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from dragoman import checkpoint, config
from dragoman.data.preflight import PREFLIGHT_FILE, load_preflight
from dragoman.evaluation import text_metric
from dragoman.lens.axes import Points
from dragoman.lens.charts import attention_heatmap, bar_chart, line_chart
from dragoman.lens.html_page import format_perplexity, render
from dragoman.lens.word_attention import word_attention
from dragoman.models import count_parameters, model_to_dict
from dragoman.run import Run
from dragoman.run_files import CHECKPOINT_DIR, has_checkpoint, sample_files
from dragoman.storage import write_file
from dragoman.systems import SYSTEMS
from dragoman.text import split_words
from dragoman.training.validation import ValidationSample, displayed_metrics, format_metric, metric_title

REPORT_FILE = "report.html"
MAX_ATTENTION_FIGURES = 3

Record = dict[str, Any]  # a line of metrics.jsonl, or preflight.json

#: metrics of reference tokens: key in the records, label, format
TOKEN_METRICS: list[tuple[str, str, Callable[[float], str]]] = [
    ("accuracy", "accuracy", "{:.1f} %".format),
    ("perplexity", "perplexity", format_perplexity),
    ("loss", "loss", "{:.3f}".format),
]


def write_report(run: Run) -> Path:
    """Write the HTML report of a run into its folder, as report.html, and return the path."""
    path = run.folder / REPORT_FILE
    write_file(path, run_report(run))
    return path


def run_report(run: Run) -> str:
    """Return the report of a run as an HTML page: scores, training curves, samples, attention, data and configuration.

    The keyword arguments of `render` are the variables of the template. `samples` are validation sentences with their
    translations at the last validation, `preflight` is the check of the data before training, and `best` is the
    validation record of the best checkpoint.
    """
    metrics, samples_by_step = validation_records(run), read_samples(run.folder)
    last_step = max(samples_by_step, default=0)
    samples = samples_by_step.get(last_step, [])
    preflight = load_preflight(run.folder) if (run.folder / PREFLIGHT_FILE).exists() else None  # None: an imported run
    dropped_pairs = {reason: count["pairs"] for reason, count in preflight["dropped"].items()} if preflight else {}
    # whether the sources of the samples are corrupted texts, as in denoising, rather than plain sentences
    corrupted = run.objective is not None and run.objective.corrupts_input
    best = _best_validation(run, metrics)
    return render(
        "run_report.html",
        run=run,
        name=run.folder.resolve().name,
        folder=shlex.quote(str(run.folder)),
        system=SYSTEMS.get(run.config.system.name or ""),  # with its paper; None for systems of users
        parameters=count_parameters(run.spec),
        progress=_progress(run, metrics),
        num_validations=sum(record["kind"] == "valid" for record in metrics),
        best=best,
        scores=_scores(metrics, best) if best else [],
        headline=", ".join(format_metric(name, best[name]) for name in displayed_metrics(best)) if best else "",
        meanings=_meanings(best) if best else [],
        charts=_charts(metrics),
        corrupted=corrupted,
        step=last_step,
        samples=samples,
        translation_history=_translation_changes({step: rows[0] for step, rows in samples_by_step.items() if rows}),
        attention=_attention(run, [] if corrupted else samples),
        preflight=preflight,
        dropped_chart=bar_chart(dropped_pairs, "Dropped pairs by reason", "pairs"),
        length_rows=_length_rows(preflight) if preflight else [],
        config=config.to_yaml(run.config),
        model=yaml.safe_dump(model_to_dict(run.spec), sort_keys=False, allow_unicode=True),
        example=shlex.quote(next(iter(_short_sources(samples)), "A sentence.")),
    )


# ---- contents of the run folder


def read_samples(folder: Path) -> dict[int, list[ValidationSample]]:
    """Read the samples (sentences with their translations) of each validation, by training step.

    The run folder has a file samples/STEP.jsonl for each validation.
    """
    samples: dict[int, list[ValidationSample]] = {}
    for step, path in sample_files(folder).items():
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would also split inside a sentence
        samples[step] = [ValidationSample(**json.loads(line)) for line in lines if line]
    return samples


def validation_records(run: Run) -> list[Record]:
    """Return the records of metrics.jsonl: one dict for each logged training step, validation or averaging.

    Records of earlier versions do not have the key `selection_metric`; it gets the value of the configuration.
    """
    default = {"selection_metric": run.config.training.selection_metric}
    return [default | record for record in run.metrics()]


def _progress(run: Run, metrics: list[Record]) -> Record:
    """Return the progress of the training: a dict with step and seconds.

    It is that of the checkpoint `last`, or else the last of the records of metrics.jsonl with a time; it may be empty.
    """
    last = run.folder / CHECKPOINT_DIR / "last"
    progress = checkpoint.read_values(last).get("progress", {}) if has_checkpoint(run.folder, "last") else {}
    return progress or next((record for record in reversed(metrics) if "seconds" in record), {})


def _best_validation(run: Run, metrics: list[Record]) -> Record | None:
    """Return the validation record of the averaged weights, or else of the best checkpoint; None without validation.

    `metrics` are the records of metrics.jsonl, whose `kind` is "train", "valid" or "averaged". If the best step is
    unknown, the record with the lowest loss is returned.
    """
    averaged = [record for record in metrics if record["kind"] == "averaged"]
    valid = [record for record in metrics if record["kind"] == "valid"]
    if averaged or not valid:
        return averaged[-1] if averaged else None
    # `best_step` is that of the best checkpoint
    selected = [record for record in valid if record["step"] == _progress(run, metrics).get("best_step")]
    return selected[-1] if selected else min(valid, key=lambda record: record["loss"])


# ---- contents of the sections


def _scores(metrics: list[Record], best: Record) -> list[list[str]]:
    """Return the table of scores as rows of texts: the column names, the best validation, and the last validation.

    `metrics` are the records of metrics.jsonl and `best` one of them. Columns are the metrics of decoded texts, such as
    BLEU, then those of reference tokens (TOKEN_METRICS: key, label and format of accuracy, perplexity and loss).
    """
    last = next((record for record in reversed(metrics) if record["kind"] == "valid"), best)
    records = {"averaged checkpoints" if best["kind"] == "averaged" else "best validation": best}
    if last is not best:
        records["last validation"] = last
    # "accuracy" is that of reference tokens, in TOKEN_METRICS
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        (key, metric_title(key), partial(_format_score, key)) for key in displayed_metrics(best) if key != "accuracy"
    ]
    columns += [column for column in TOKEN_METRICS if column[0] in best]
    rows = [
        [name, f"{record['step']:,}", *(format_score(record[key]) for key, _, format_score in columns)]
        for name, record in records.items()
    ]
    return [["", "step", *(label for _, label, _ in columns)], *rows]


def _format_score(name: str, value: float) -> str:
    """Format the value of the text metric `name` for a table: "31.25" for BLEU, "4.0 %" for a rate."""
    return f"{value:.1f} %" if text_metric(name).unit else f"{value:.2f}"


def _meanings(best: Record) -> list[str]:
    """Return a sentence about each text metric of a validation record: what it measures, with its signature."""
    signatures = best.get("signatures", {})
    names = [name for name in displayed_metrics(best) if name != "accuracy"]  # which is that of reference tokens
    return [
        f"{metric_title(name)}: {text_metric(name).meaning}"
        + (f" (signature {signatures[name]})" if name in signatures else "")
        for name in names
    ]


def training_curves(metrics: list[Record]) -> dict[str, Points]:
    """Return named curves of points (step, value) from the records of metrics.jsonl; some may be empty.

    Losses are −log p per token. That of training is the logarithm of the training perplexity, which is comparable with
    validation, because it does not include label smoothing as the logged training loss does.
    """

    def points(kind: str, name: str) -> Points:
        """Return (step, value) of a metric in all records of a kind, "train" or "valid"."""
        return [(record["step"], record[name]) for record in metrics if record["kind"] == kind and name in record]

    perplexity = [(step, value) for step, value in points("train", "perplexity") if value > 0]
    return {
        "training loss": [(step, math.log(value)) for step, value in perplexity],
        "validation loss": points("valid", "loss"),
        **{metric_title(name): points("valid", name) for name in text_metric_names(metrics)},
        "accuracy": points("valid", "accuracy"),
        "learning rate": points("train", "learning_rate"),
        "tokens per second": points("train", "tokens_per_second"),
        "expert load": points("valid", "expert_load_cv"),
        "expert importance": points("valid", "expert_importance_cv"),
    }


def text_metric_names(metrics: list[Record]) -> list[str]:
    """Return the names of the metrics of decoded texts, such as bleu, in the last validation record.

    `metrics` are the records of metrics.jsonl. The metric that selects checkpoints comes first. The result is empty
    before the first validation.
    """
    records = [record for record in metrics if record["kind"] == "valid"]
    # "accuracy" is that of reference tokens
    return [name for name in displayed_metrics(records[-1]) if name != "accuracy"] if records else []


def _charts(metrics: list[Record]) -> dict[str, str]:
    """Return the charts of the report as SVG, by their names in the template, from the records of metrics.jsonl.

    `quality` has the metrics of decoded texts where higher is better, such as BLEU, and `errors` those where lower is
    better; a chart without such metrics is "". Mixtures of experts have two more charts.
    """
    curves = training_curves(metrics)
    quality: dict[str, Points] = {}
    errors: dict[str, Points] = {}
    for name in text_metric_names(metrics):
        chart = quality if text_metric(name).better == "higher" else errors
        unit = ", %" if text_metric(name).unit else ""
        chart[metric_title(name) + unit] = curves[metric_title(name)]
    loss = {"training": curves["training loss"], "validation": curves["validation loss"]}
    speed = {"speed": curves["tokens per second"]}
    return {
        "loss": line_chart(loss, "Loss", y_label="−log p per target token"),
        "quality": line_chart(quality, "Quality") if quality else "",
        "errors": line_chart(errors, "Error rate") if errors else "",
        "accuracy": line_chart({"accuracy, %": curves["accuracy"]}, "Accuracy"),
        "learning_rate": line_chart({"learning rate": curves["learning rate"]}, "Learning rate"),
        "speed": line_chart(speed, "Speed", y_label="target tokens per second"),
        **(_expert_charts(metrics, curves) if curves["expert load"] else {}),
    }


def _expert_charts(metrics: list[Record], curves: dict[str, Points]) -> dict[str, str]:
    """Return two SVG charts of how evenly tokens are distributed over the experts of a mixture of experts.

    `expert_balance` is the coefficient of variation of load (number of tokens) and importance (sum of gates) during
    training, from `curves`. `expert_load` is the load of each expert at the last validation, largest first, with a
    curve for each layer, from `metrics`: the key "expert_load" of the last record that has one maps the path of a layer
    to the share of tokens of each expert.
    """
    balance = {"load": curves["expert load"], "importance": curves["expert importance"]}
    last_load = [record["expert_load"] for record in metrics if "expert_load" in record][-1]
    # relative to an equal share, which is 1 / number of experts
    load = {
        path: [(rank, share * len(shares)) for rank, share in enumerate(sorted(shares, reverse=True), 1)]
        for path, shares in last_load.items()
    }
    return {
        "expert_balance": line_chart(balance, "Balance of experts", y_label="coefficient of variation"),
        "expert_load": line_chart(load, "Load of experts", "expert, by load", "load, relative to an equal share"),
    }


def _translation_changes(sample_by_step: dict[int, ValidationSample]) -> list[tuple[int, ValidationSample]]:
    """Return pairs (training step, sample) of the validations at which the translation of a sentence changed.

    `sample_by_step` has the sample (source, reference, translation) of that sentence at every validation, in order.
    The first validation is always included.
    """
    changes: list[tuple[int, ValidationSample]] = []
    previous = None
    for step, sample in sample_by_step.items():
        if sample.translation != previous:
            changes.append((step, sample))
        previous = sample.translation
    return changes


def _attention(run: Run, samples: Sequence[ValidationSample]) -> str | list[tuple[str, str, str]]:
    """Return (SVG heatmap of cross-attention between words, source, translation) for a few short samples.

    The run translates their sources again. If there are no heatmaps, the result is a sentence that says why.
    """
    if run.model.source_features is not None:
        return "The source consists of feature vectors, which cannot be shown as words."
    figures = []
    for number, source in enumerate(_short_sources(samples), 1):
        translation = run.translate([source], alignment=False)[0].text
        attention = word_attention(run, source, translation)
        if attention.cross is None:
            return "This system has no cross-attention from a decoder to an encoder."
        if attention.target:
            figures.append((attention_heatmap(attention, f"Sentence {number}"), source, translation))
    return figures or "There are no figures: attention is shown for translations of validation sentences."


def _short_sources(samples: Sequence[ValidationSample]) -> list[str]:
    """Return the first MAX_ATTENTION_FIGURES sources of 4 to 10 words; without any, the shortest of up to 25 words."""
    lengths = {sample.source: len(split_words(sample.source)) for sample in samples}
    medium = [source for source, length in lengths.items() if 4 <= length <= 10]
    short = sorted((source for source, length in lengths.items() if 0 < length <= 25), key=lengths.__getitem__)
    return (medium or short)[:MAX_ATTENTION_FIGURES]


def _length_rows(preflight: Record) -> list[list[str]]:
    """Return the rows of the table of sentence lengths: label, mean, median, 95th percentile, maximum and total.

    `preflight` is the content of preflight.json, the check of the data before training. Rows are the words, characters
    and tokens of source and target; feature vectors have no words and characters, and text alone has no target.
    """
    return [
        [f"{column} {unit}", f"{stats['mean']:.1f}", *(f"{stats[key]:,}" for key in ("median", "p95", "max", "total"))]
        for column in ("source", "target")
        if preflight[column]
        for unit in ("words", "characters", "tokens")
        if (stats := preflight[column][unit]) is not None
    ]
