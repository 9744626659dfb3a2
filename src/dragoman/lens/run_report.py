"""The report of a run: one page that says what was trained, how well it went, what it says and what it looks at."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from dragoman import checkpoint, config
from dragoman.lens.axes import Points, format_number
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

NAME = "report.html"
SHOWN, LOOKS, STAGES = 5, 3, 10  # samples, attention pictures, stages of a translation

Record = dict[str, Any]


def write_report(run: Run) -> Path:
    """Write the report into the run's folder."""
    path = run.folder / NAME
    write_file(path, run_report(run))
    return path


def run_report(run: Run) -> str:
    """The report as HTML."""
    name = run.folder.resolve().name
    metrics, samples = run.metrics(), read_samples(run.folder)
    preflight = _preflight(run.folder)
    last = samples[max(samples)] if samples else []
    sections = {
        "scores": ("Scores", _scores(run, metrics)),
        "curves": ("Curves", _curves(metrics)),
        "says": ("What it says", _repairs(samples) if _corrupts(run) else _says(samples)),
        "looks": ("What it looks at", _looks(run, [] if _corrupts(run) else last)),
        "data": ("The data", preflight_section(preflight)),
        "settings": ("Settings", _settings(run)),
        "next": ("What to do next", _next(run, last)),
    }
    links = [tag("a", title, href=f"#{key}") for key, (title, _) in sections.items()]
    return document(
        f"{name}: a run of Dragoman",
        tag("header", tag("h1", name), paragraph(_summary(run, metrics, preflight), kind="lead"), tag("nav", *links)),
        *(section(key, title, content) for key, (title, content) in sections.items()),
    )


# ---- what the folder holds


def read_samples(folder: Path) -> dict[int, list[ValidationSample]]:
    """What was said at each validation, by its step."""
    return {
        # A line ends at a line feed alone: the sentences may hold other separators.
        int(path.stem): [
            ValidationSample(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line
        ]
        for path in sorted((folder / "samples").glob("*.jsonl"))
        if path.stem.isdecimal()
    }


def _preflight(folder: Path) -> Record | None:
    path = folder / "preflight.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _progress(run: Run, metrics: list[Record]) -> Record:
    """How far training has come: what the last checkpoint says, or else the last measurement."""
    last = run.folder / CHECKPOINT_DIR / "last"
    known = checkpoint.read_values(last).get("progress", {}) if last.exists() else {}
    return known or next((record for record in reversed(metrics) if "seconds" in record), {})


def _best(run: Run, metrics: list[Record]) -> Record | None:
    """The validation of the best checkpoint: the one that training selected, or that of the averaged weights."""
    averaged = [record for record in metrics if record["kind"] == "averaged"]
    valid = [record for record in metrics if record["kind"] == "valid"]
    if averaged or not valid:
        return averaged[-1] if averaged else None
    selected = [record for record in valid if record["step"] == _progress(run, metrics).get("best_step")]
    return selected[-1] if selected else min(valid, key=lambda record: record["loss"])


# ---- the sections

#: what a validation measures: its name in the metrics, in the report, and how it is written
MEASURED: list[tuple[str, str, Callable[[float], str]]] = [
    ("bleu", "BLEU", "{:.2f}".format),
    ("exact_match", "exactly right", "{:.1f} %".format),
    ("accuracy", "accuracy", "{:.1f} %".format),
    ("perplexity", "perplexity", lambda value: _figure(value)),
    ("loss", "loss", "{:.3f}".format),
]


def _summary(run: Run, metrics: list[Record], preflight: Record | None) -> str:
    settings = run.config.system
    system, progress = SYSTEMS.get(settings.name or ""), _progress(run, metrics)
    paper = f" (“{system.paper}”, {system.year})" if system else ""
    size = f" in size {settings.size}" if settings.size else ""
    out = [f"This is the system {settings.name}{paper}{size}, with {count_parameters(run.spec):,} parameters."]
    pairs = f" from {preflight['pairs']:,} sentence pairs" if preflight else ""
    if progress.get("step"):
        tokens = f" and {progress['target_tokens']:,} target tokens" if "target_tokens" in progress else ""
        out.append(f"It has learned{pairs} for {_duration(progress['seconds'])}: {progress['step']:,} steps{tokens}.")
    else:
        out.append(f"It is to learn{pairs}, and has not done a step yet.")
    best, count = _best(run, metrics), sum(record["kind"] == "valid" for record in metrics)
    if best is None:
        return " ".join([*out, "It was stopped before its first validation, so nobody knows yet how good it is."])
    which = {
        "averaged": f"The mean of the last {best.get('checkpoints')} checkpoints, better than any one of them,",
        "valid": f"The best of its {count:,} validations, at step {best['step']:,}," if count > 1 else "Its validation",
    }[best["kind"]]
    if "bleu" in best:
        exact = f"{best['exact_match']:.1f}\u00a0% of the sentences exactly as in the reference"
        found = f"BLEU {best['bleu']:.1f} (of 100), {exact},"
    else:
        found = f"{best.get('accuracy', 0.0):.1f}\u00a0% of the answers right"
    out.append(f"{which} found {found} and perplexity {_figure(best['perplexity'])}.")
    return " ".join(out)


def _scores(run: Run, metrics: list[Record]) -> Markup:
    best, valid = _best(run, metrics), [record for record in metrics if record["kind"] == "valid"]
    if best is None:
        return paragraph("There are no scores before the first validation.")
    named = {"mean of checkpoints" if best["kind"] == "averaged" else "best validation": best}
    if valid and valid[-1] is not best:
        named["last validation"] = valid[-1]
    columns = [(key, label, form) for key, label, form in MEASURED if key in best]
    rows = [(name, f"{r['step']:,}", *(form(r[key]) for key, _, form in columns)) for name, r in named.items()]
    meanings = (
        "Perplexity is among how many pieces the model hesitates when it is given the reference so far: 1 is best. "
        "Loss is its logarithm. Accuracy is how often the likeliest piece was the right one."
    )
    if "bleu" in best:
        meanings = (
            "BLEU measures from 0 to 100 how many sequences of words are shared with the reference; “exactly right” is "
            f"the share of sentences that equal it. Both are of validation sentences decoded by "
            f"{best.get('search', 'greedy')} search. "
        ) + meanings
    heading = ("", "step", *(label for _, label, _ in columns))
    return join(table(heading, rows), paragraph(meanings, kind="faint"))


def _curves(metrics: list[Record]) -> Markup:
    def points(kind: str, name: str) -> Points:
        return [(record["step"], record[name]) for record in metrics if record["kind"] == kind and name in record]

    # The training loss has label smoothing in it; its perplexity has not, and so compares with the validation's.
    training = [(step, math.log(perplexity)) for step, perplexity in points("train", "perplexity") if perplexity > 0]
    measured = {"BLEU": points("valid", "bleu"), "exactly right, %": points("valid", "exact_match")}
    measured = measured if measured["BLEU"] else {"accuracy, %": points("valid", "accuracy")}
    pictures = [
        figure(
            line_chart(
                {"training": training, "validation": points("valid", "loss")},
                "Loss",
                y_label="−log p of a target piece",
            ),
            "Lower is better. Where validation turns up while training goes on down, it learns by heart. Training is "
            "measured with dropout, and so may lie above validation.",
        ),
        figure(
            line_chart(measured, "Translation quality" if "BLEU" in measured else "Accuracy"),
            "Higher is better: validation sentences, "
            + (
                "translated without a look at the reference."
                if "BLEU" in measured
                else "how often the answer is right."
            ),
        ),
        figure(
            line_chart({"learning rate": points("train", "learning_rate")}, "Learning rate"),
            "How large a step it takes: it warms up to the peak, then slows down.",
        ),
        figure(
            line_chart({"speed": points("train", "tokens_per_second")}, "Speed", y_label="target pieces a second"),
            "Higher is faster. Dips are validations, or other work of the machine.",
        ),
    ]
    return tag("div", *pictures, class_="wide")


def _says(samples: dict[int, list[ValidationSample]]) -> Markup:
    if not samples or not samples[max(samples)]:
        return paragraph("Nothing: samples are translations of validation sentences, and there were none.")
    last = max(samples)
    cards = [_card(sample) for sample in samples[last]]
    more = [collapsible(f"{len(cards) - SHOWN} more", *cards[SHOWN:])] if len(cards) > SHOWN else []
    return join(
        paragraph(
            f"Validation sentences at step {last:,}, as the model translates them on its own. ",
            tag("mark", "Marked"),
            " words are not in the reference; ",
            tag("mark", "underlined", class_="missed"),
            " words of the reference are missing.",
        ),
        *cards[:SHOWN],
        *more,
        _stages({step: said[0] for step, said in samples.items() if said}),
    )


def _corrupts(run: Run) -> bool:
    """Whether it is pretrained on corrupted texts, which its samples are then."""
    return run.objective is not None and run.objective.corrupts_input


def _repairs(samples: dict[int, list[ValidationSample]]) -> Markup:
    """Corrupted validation texts, their targets and the predictions, of the last validation."""
    last = samples[max(samples)] if samples else []
    if not last:
        return paragraph("Nothing: there was no validation yet.")
    cards = [
        definition_list(
            {
                "input": text(truncate(one.source)),
                "target": mark_differences(one.reference, one.translation or one.reference, "missed"),
            }
            | ({"prediction": mark_differences(one.translation, one.reference)} if one.translation else {})
        )
        for one in last
    ]
    return join(
        paragraph(f"Validation texts at step {max(samples):,}, corrupted as in pretraining, and what was to be found."),
        *cards,
    )


def _card(sample: ValidationSample) -> Markup:
    right = sample.translation == sample.reference
    translation = (
        mark_differences(sample.translation, sample.reference) if sample.translation else text("(nothing)", "faint")
    )
    return definition_list(
        {
            "source": text(truncate(sample.source)),
            "reference": mark_differences(sample.reference, sample.translation, "missed"),
            "translation": join(translation, tag("span", " ✓ exactly right", class_="good")) if right else translation,
        }
    )


def _stages(firsts: dict[int, ValidationSample]) -> Markup:
    """How the translation of the first sample changed."""
    changed: list[tuple[int, ValidationSample]] = []
    for step, sample in firsts.items():
        if not changed or sample.translation != changed[-1][1].translation:
            changed.append((step, sample))
    if len(changed) < 2:
        return Markup()
    chosen = _spread(changed, STAGES)
    first = chosen[0][1]
    rows = [(f"{step:,}", mark_differences(sample.translation, sample.reference)) for step, sample in chosen]
    rows.append(("reference", text(truncate(first.reference))))
    fewer = f", {len(chosen)} of {len(changed)} changes" if len(chosen) < len(changed) else ""
    return join(
        tag("h3", "How it came to say that"),
        paragraph("“", text(truncate(first.source)), f"” at the step from which it was translated so{fewer}:"),
        table(("step", "translation"), rows, numeric=False),
    )


def _looks(run: Run, samples: list[ValidationSample]) -> Markup:
    if run.model.source_features is not None:
        return paragraph("It looks at vectors, which cannot be shown as words.")
    pictures = []
    for number, source in enumerate(_short_sources(samples), 1):
        translation = run.translate([source], alignment=False)[0].text
        attention = word_attention(run, source, translation)
        if attention.cross is None:
            return paragraph(
                "This system has no attention: it reads the whole source into a state of fixed size and writes "
                "from that alone, so there is no look to show."
                if not attention.weights
                else "In this system no decoder looks at an encoder: source and target are one sequence."
            )
        if attention.target:
            picture = attention_heatmap(attention, f"Sentence {number}")
            pictures.append(figure(picture, text(source), " → ", text(translation), scroll=True))
    if not pictures:
        return paragraph("Nothing: it is shown for translations of validation sentences, and there were none.")
    return join(
        paragraph(
            "Each row is a word that the model wrote, each column a word of the source. The stronger the colour of a "
            "square, the more the model looked at that source word when it wrote the word of the row; a row adds up "
            "to 100 %. “(end)” is the mark after the last source word."
        ),
        tag("div", *pictures, class_="wide"),
        paragraph(
            "This is the mean over all heads and layers, and over the pieces that a word is written in; the "
            f"translations are by the checkpoint {run.checkpoint}, with beam search.",
            kind="faint",
        ),
    )


def _short_sources(samples: list[ValidationSample]) -> list[str]:
    """A few sentences of a length that is worth looking at, or else the shortest."""
    sources = list(dict.fromkeys(sample.source for sample in samples if split_words(sample.source)))
    handy = [source for source in sources if 4 <= len(split_words(source)) <= 10]
    shortest = sorted(
        (source for source in sources if len(split_words(source)) <= 25), key=lambda source: len(split_words(source))
    )
    return (handy or shortest)[:LOOKS]


def _settings(run: Run) -> Markup:
    spec = yaml.safe_dump(model_to_dict(run.spec), sort_keys=False, allow_unicode=True)
    return join(
        collapsible("The configuration, with everything that was chosen", tag("pre", config.to_yaml(run.config))),
        collapsible("The model, part by part", tag("pre", spec)),
    )


def _next(run: Run, samples: list[ValidationSample]) -> Markup:
    folder = shlex.quote(str(run.folder))
    source = shlex.quote(next(iter(_short_sources(samples)), "A sentence."))
    commands = {
        "translate a file": f"dragoman translate {folder} INPUT > OUTPUT",
        "score a test set": f"dragoman evaluate {folder} --source SOURCE --reference REFERENCE",
        "look into a sentence": f"dragoman show {folder} {source}",
        "train on": f"dragoman train {folder} --resume",
    }
    if run.model.source_features is not None:
        del commands["look into a sentence"]
    usage = run.usage
    if usage is not None and usage.command != "translate":
        commands = {
            usage.purpose: f"dragoman {usage.command} {folder} INPUT > OUTPUT",
            "train on": commands["train on"],
        }
        commands |= {"start another run from it": f"dragoman train NEW --start-from {folder} --source SOURCE …"}
    return table(("to", "say"), [(name, tag("code", command)) for name, command in commands.items()], numeric=False)


# ---- figures and words


def _figure(perplexity: float) -> str:
    return f"{perplexity:.2f}" if perplexity < 1000 else format_number(perplexity)


def _duration(seconds: float) -> str:
    minutes, hours = round(seconds / 60), round(seconds / 3600, 1)
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 100 else f"{hours:g} hours"


def _spread(items: list[tuple[int, ValidationSample]], most: int) -> list[tuple[int, ValidationSample]]:
    """So many of the items at most, evenly spread, first and last among them."""
    if len(items) <= most:
        return items
    return [items[round(n * (len(items) - 1) / (most - 1))] for n in range(most)]
