"""`dragoman show`: what a run contains, and how it translates a sentence."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from dragoman.cli.options import (
    BeamSize,
    Json,
    LanguageModelOptions,
    LengthPenalty,
    ModelOptions,
    RunFolder,
    add_command,
    beam_config,
    program_name,
)
from dragoman.console import log, print_json, print_lines
from dragoman.errors import UserError, unknown_name
from dragoman.run_files import history_steps, is_ensemble_folder, is_run_folder, read_ensemble

if TYPE_CHECKING:
    from dragoman.lens import Inspection
    from dragoman.lens.gradients import GradientReach
    from dragoman.run import Run

Sentence = Annotated[
    str,
    typer.Argument(
        help="Sentence to inspect, in the source language; or, for a model of images or speech, the path of an "
        "image or sound file."
    ),
]
Target = Annotated[str | None, "Inspect this translation instead of the one the run finds."]
Prefix = Annotated[str | None, "Beginning that the translation must have."]


class DefaultToRun(TyperGroup):
    """A group of commands that calls its command `run` if the first argument is not the name of a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the command `run` unless the first argument is a command or asks for help.

        So `show RUN` means `show run RUN`. A misspelt command, which is no folder either, is a UserError.
        """
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            if not Path(args[0]).exists() and difflib.get_close_matches(args[0], self.commands, n=1):
                raise unknown_name("command of show", args[0], self.commands)
            args = ["run", *args]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class FigureOutputOptions:
    """Format of the result, and files for figures."""

    svg: Annotated[Path | None, "Write the figure to this file, as SVG.", "FILE"] = None
    png: Annotated[Path | None, "Write the figure to this file, as PNG.", "FILE"] = None
    dark: Annotated[bool, "Use a dark background in the PNG."] = False
    as_json: Json = False

    @property
    def has_figure(self) -> bool:
        """Whether a file for the figure was named."""
        return self.svg is not None or self.png is not None

    def print(self, document: Any, lines: Iterable[str], draw: Callable[[], Iterable[str]]) -> None:
        """Print the result, with --json as a JSON document, otherwise as lines; write its figures for --svg and --png.

        `document` may contain dataclasses and tensors. `draw` returns figures as SVG texts; it is called only if they
        are written.
        """
        from dragoman.lens.inspection_types import to_jsonable

        for number, figure in enumerate(draw() if self.has_figure else [], 1):
            self._write_figure(figure, number)
        print_json(to_jsonable(document)) if self.as_json else print_lines(lines)

    def _write_figure(self, figure: str, number: int) -> None:
        """Write an SVG figure to the files of --svg and --png.

        `number` counts the figures from 1; from the second one on, it is part of the file names, as in figure-2.svg.
        """
        from dragoman.lens.svg import svg_to_png
        from dragoman.storage import write_file

        for path in filter(None, (self.svg, self.png)):
            numbered = path if number == 1 else path.with_name(f"{path.stem}-{number}{path.suffix}")
            write_file(numbered, figure if path is self.svg else svg_to_png(figure, self.dark))
            log(f"wrote {numbered}")


@dataclass(frozen=True)
class ShowOptions(LanguageModelOptions, FigureOutputOptions):
    """Options of all commands: the output, and the model."""


@dataclass(frozen=True)
class InspectionOptions:
    """The translation that is inspected."""

    target: Target = None
    beam_size: BeamSize = None

    def inspect(self, run: Run, sentence: str, prefix: str | None = None, alternatives: int = 5) -> Inspection:
        """Inspect the translation of a sentence: --target, or the one that the run finds.

        `prefix` is how a translation that the run finds must begin (None: anyhow), `alternatives` the number of most
        probable tokens that are listed for each position. --beam-size together with --target is a UserError.
        """
        from dragoman.lens import inspect_sentence

        if self.target is not None and self.beam_size is not None:
            raise UserError(
                "--beam-size applies to the search for a translation, but --target gives one: leave --beam-size out"
            )
        search = None if self.beam_size is None else beam_config(run, self.beam_size)
        return inspect_sentence(run, sentence, self.target, search=search, prefix=prefix, alternatives=alternatives)


def show_run(
    run: RunFolder,
    sentence: Annotated[
        str | None, typer.Argument(help="Source sentence whose translation is shown. Default: describe the run.")
    ] = None,
    target: Target = None,
    *,
    options: ShowOptions,
) -> None:
    """Describe a run; with a sentence, show its n-best list, word alignment and attention. 'run' may be omitted."""
    loaded = options.open(run)
    if sentence is None:
        _describe_run(loaded, options.as_json)
    else:
        _show_sentence(loaded, sentence, target, options)


def _describe_run(run: Run, as_json: bool) -> None:
    """Print what a run folder contains: system, parameters, vocabulary, checkpoints and the last validation.

    `run.member_folders` are the folders of the runs of an ensemble, or the one folder of a single run.
    """
    from dragoman.models import count_parameters, model_to_dict
    from dragoman.training.display import format_validation

    # validations of single checkpoints, and of their average
    validations = [record for record in run.metrics() if record["kind"] in ("valid", "averaged")]
    kinds = " and ".join(dict.fromkeys([run.source_tokenizer.kind, run.target_tokenizer.kind]))
    past_steps = history_steps(run.member_folders[0])  # whose weights --keep-history has kept
    description: dict[str, Any] = {
        "run": str(run.folder),
        **({"ensemble of": [path.name for path in run.member_folders]} if run.ensemble_members else {}),
        "system": run.config.system.name,
        "size": run.config.system.size,
        "parameters": count_parameters(run.spec),
        "source vocabulary": run.source_tokenizer.vocab_size,
        "target vocabulary": run.target_tokenizer.vocab_size,
        **({"languages": run.languages} if run.languages else {}),
        "tokenizer": f"{kinds}{', shared' if run.config.text.shared_vocabulary else ''}",
        "checkpoints": run.checkpoints(),
        **({"history": past_steps} if past_steps else {}),
        "best": run.checkpoint,
        "last validation": validations[-1] if validations else None,
    }
    if as_json:
        print_json(description | {"spec": model_to_dict(run.spec)})
        return
    for name, value in description.items():
        if name == "last validation":
            value = format_validation(value) if value else "none"
        if name == "history":
            value = f"steps {', '.join(f'{step:,}' for step in value)}, see 'show history'"
        if name == "languages":
            pair = [code or "any" for code in run.language_pair]  # the default languages; None: none
            default = "" if pair == ["any", "any"] else f", by default from {pair[0]} to {pair[1]}"
            value = f"{len(run.languages)}, see 'show languages'{default}"
        text = ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value
        print(f"{name:18}{text}")
    if is_ensemble_folder(run.folder):
        from dragoman.api.seed_training import report_lines

        print("\n".join(report_lines(read_ensemble(run.folder)["report"])))
    command = f"{program_name()} show {run.folder} 'A sentence.'"
    log(f"see {run.member_folders[0]}/report.html, or inspect a sentence: {command}")


def languages(run: RunFolder, *, as_json: Json = False) -> None:
    """List the languages of a multilingual model: the codes for --from and --to, and their names."""
    from dragoman.run import read_framing
    from dragoman.text.language_names import language_name

    options = ModelOptions(device="cpu")
    options.check(run)
    # the framing, special tokens and language codes, is a file of a run folder; other checkpoints have to be loaded
    framing = read_framing(run) if is_run_folder(run) else options.load(run).model_framing
    codes = framing.languages
    if codes is None:
        raise UserError(
            f"the model in {run} translates one language pair and has no language codes to list: leave out --from and "
            "--to in other commands"
        )
    if as_json:
        default = {"source": codes.source, "target": codes.target}
        print_json({"languages": {code: language_name(code) for code in codes.ids}, "default": default})
        return
    marks = {codes.source: "  (default source)", codes.target: "  (default target)"}
    width = max(map(len, codes.ids))
    print_lines(f"{code:{width}}  {language_name(code)}{marks.get(code, '')}".rstrip() for code in codes.ids)


def _show_sentence(run: Run, sentence: str, target: str | None, options: ShowOptions) -> None:
    """Print the three best translations of a sentence, and alignment and attention of the best one or of `target`.

    `options` say whether text or JSON is printed, and to which files a heatmap of the attention is written.
    """
    from dragoman.lens.charts import attention_heatmap
    from dragoman.lens.text_view import alignment_lines, attention_heatmap_lines

    search = beam_config(run, beam_size=None, n_best=3)  # None: that of the run, but at least 3
    best = run.translate([sentence], search=search)[0]
    text = best.text if target is None else target
    attention = run.attention(sentence, text)
    ranked = [best, *best.alternatives]
    document = {
        "source": sentence,
        "target": text,
        "n_best": [{"score": hypothesis.score, "text": hypothesis.text} for hypothesis in ranked],
        "source_tokens": attention.source,
        "target_tokens": attention.target,
        "alignment": attention.alignment,
        "cross": attention.cross,  # target × source tokens: mean of heads and layers; None without cross-attention
        "attention": attention.weights,  # of each layer, by its name: heads × tokens × tokens
    }
    lines = [*(f"{hypothesis.score:9.3f}  {hypothesis.text}" for hypothesis in ranked), ""]
    if attention.cross is None:
        lines.append("no alignment: this system has no attention from decoder to encoder")
    else:
        lines += [*alignment_lines(sentence, text, attention.alignment), "", *attention_heatmap_lines(attention)]
    options.print(document, lines, lambda: [attention_heatmap(attention)])


def _inspection_fields(inspection: Inspection, *names: str) -> dict[str, Any]:
    """Return fields of an inspection by name, for JSON: `source`, `target` and those in `names`."""
    return {name: getattr(inspection, name) for name in ("source", "target", *names)}


def attention(
    run: RunFolder,
    sentence: Sentence,
    *,
    inspection: InspectionOptions,
    kind: Annotated[
        Literal["cross", "encoder", "decoder"] | None, "Show only this kind of attention. Default: all."
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option(help="Show only the attention of this layer, counted from 1. Default: all layers.", min=1),
    ] = None,
    head: Annotated[
        int | None,
        typer.Option(help="Show only this attention head of each layer, counted from 1. Default: all heads.", min=1),
    ] = None,
    options: ShowOptions,
) -> None:
    """Show the attention weights of every layer and head, and their entropy."""
    loaded = options.open(run)

    from dragoman.lens import figures, text_view

    result = inspection.inspect(loaded, sentence)
    maps = figures.select_attention(result, kind, layer, head)
    lines = [*text_view.attention_lines(maps), "", *text_view.entropy_lines(maps)]
    document = _inspection_fields(result, "alignment") | {"attention": maps}
    options.print(document, lines, lambda: [figures.attention_figure(result, maps, head)])


def alternatives(
    run: RunFolder,
    sentence: Sentence,
    *,
    inspection: InspectionOptions,
    prefix: Prefix = None,
    top_k: Annotated[
        int, typer.Option(help="Number of most probable tokens shown for each position of the translation.", min=1)
    ] = 5,
    options: ShowOptions,
) -> None:
    """Show the probability of every token, and the most probable alternatives."""
    loaded = options.open(run)

    from dragoman.lens import figures, text_view

    result = inspection.inspect(loaded, sentence, prefix, top_k)
    document = _inspection_fields(result, "score", "steps", "generation_probs")
    options.print(document, text_view.alternative_lines(result), lambda: [figures.alternatives_figure(result)])


def layers(run: RunFolder, sentence: Sentence, *, inspection: InspectionOptions, options: ShowOptions) -> None:
    """Show what the model would predict if it ended after each of its layers (logit lens)."""
    loaded = options.open(run)

    from dragoman.lens import figures, text_view

    result = inspection.inspect(loaded, sentence)
    options.print(
        _inspection_fields(result, "layers"), text_view.layer_lines(result), lambda: [figures.layers_figure(result)]
    )


def walk(
    run: RunFolder,
    sentence: Sentence,
    *,
    inspection: InspectionOptions,
    step: Annotated[
        int,
        typer.Option(
            help="Number of the target token whose prediction is followed through the model, counted from 1.", min=1
        ),
    ] = 1,
    position: Annotated[
        int,
        typer.Option(help="Number of the source token whose states in the encoder are shown, counted from 1.", min=1),
    ] = 1,
    head: Annotated[
        int,
        typer.Option(
            help="Number of the attention head whose queries, keys and weights are shown, counted from 1.", min=1
        ),
    ] = 1,
    as_json: Json = False,
    options: LanguageModelOptions,
) -> None:
    """Follow one prediction through the model: the numbers of every layer, from the embedding to the probabilities."""
    loaded = options.open(run)

    from dragoman.lens import text_view
    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.walk import walk_through

    result = inspection.inspect(loaded, sentence)
    last_step = max(1, len(result.steps))
    if not 1 <= step <= last_step:
        raise UserError(
            f"--step is the number of a token of the translation, from 1 to {last_step}, but is {step}: choose one in "
            "this range"
        )
    source_tokens = len(result.source.tokens) if result.source is not None else 1
    if position > source_tokens:
        raise UserError(
            f"--position is the number of a token of the source, from 1 to {source_tokens}, but is {position}: choose "
            "one in this range"
        )
    source = None if result.source is None else sentence  # None: a language model has no source
    # the target tokens before the predicted one; an encoder-only model has none
    tokens = [prediction.token_id for prediction in result.steps[: step - 1]] if loaded.model.can_generate else []
    walked = walk_through(loaded, source, tokens, position=position - 1, head=head)
    print_json(to_jsonable(walked)) if as_json else print_lines(text_view.walk_lines(walked))


def experts(run: RunFolder, sentence: Sentence, *, inspection: InspectionOptions, options: ShowOptions) -> None:
    """Show to which experts each token is sent, with their gates (weights), in every mixture of experts."""
    loaded = options.open(run)

    from dragoman.lens import text_view
    from dragoman.lens.charts import heatmap

    result = inspection.inspect(loaded, sentence)
    if not result.experts:
        raise UserError(
            f"the model in {run} has no mixtures of experts to show: use a run of a system such as moe-2017, moe or "
            "transformer-dmca-moe"
        )

    def draw() -> Iterable[str]:
        """Yield a heatmap for each mixture of experts: the gates of tokens (rows) by experts (columns)."""
        for layer in result.experts:
            expert_numbers = [str(number) for number in range(1, layer.gates.shape[-1] + 1)]
            yield heatmap(layer.gates, layer.tokens, expert_numbers, f"Experts of {layer.layer}", "gates")

    options.print(_inspection_fields(result, "experts"), text_view.expert_lines(result.experts), draw)


def beam(
    run: RunFolder,
    sentence: Sentence,
    prefix: Prefix = None,
    beam_size: BeamSize = None,
    length_penalty: LengthPenalty = None,
    pruned: Annotated[bool, "Also show hypotheses that were pruned in the step in which they were created."] = False,
    *,
    options: ShowOptions,
) -> None:
    """Show the beam search as a tree: kept, pruned and finished hypotheses."""
    loaded = options.open(run)

    from dragoman.lens import figures, text_view

    result = loaded.lens(sentence, search=beam_config(loaded, beam_size, length_penalty), prefix=prefix)
    tree = result.beam
    assert tree is not None  # a beam search is recorded
    document = _inspection_fields(result, "beam")
    options.print(
        document, text_view.beam_tree_lines(tree, pruned), lambda: [figures.beam_tree_figure(tree, note=sentence)]
    )


def everything(
    run: RunFolder,
    sentence: Sentence,
    *,
    inspection: InspectionOptions,
    prefix: Prefix = None,
    model: LanguageModelOptions,
) -> None:
    """Print the complete inspection of a sentence as one JSON document."""
    loaded = model.open(run)
    print_json(inspection.inspect(loaded, sentence, prefix).to_dict())


def positions(
    run: RunFolder,
    num_positions: Annotated[
        int,
        typer.Option(
            help="Number of token positions whose position encodings are shown, from the first position of a "
            "sentence on.",
            min=2,
        ),
    ] = 64,
    *,
    options: ShowOptions,
) -> None:
    """Show the position encodings of the model and the similarities between positions."""
    loaded = options.open(run)

    from dragoman.lens import figures, text_view
    from dragoman.lens.position_encodings import position_encodings

    encodings = position_encodings(loaded.model, num_positions)
    if options.has_figure and not encodings:
        raise UserError(f"the model of {run} has no position encoding that could be drawn: leave --svg and --png out")
    options.print(encodings, text_view.position_lines(encodings), lambda: map(figures.positions_figure, encodings))


def history(
    run: RunFolder,
    sentence: Sentence,
    target: Annotated[str | None, "Translation whose probability is followed. Default: the one the run finds."] = None,
    beam_size: BeamSize = None,
    max_checkpoints: Annotated[
        int,
        typer.Option(
            help="Maximum number of checkpoints to compare; if the run has more, evenly spaced ones are chosen, "
            "with the first and the last.",
            min=2,
        ),
    ] = 24,
    *,
    options: ShowOptions,
) -> None:
    """Show how the translation of a sentence changed in training, checkpoint by checkpoint.

    'dragoman train --keep-history N' keeps the weights of up to N steps, from the first on; 20 are enough. Without this
    option, a run has only its best and latest checkpoints.
    """
    loaded = options.open(run)
    if loaded.model.source_features is not None or not loaded.model.can_generate:
        raise UserError(
            f"the model in {run} does not translate text, but this command shows how a translation changed in "
            "training: name a run that translates text"
        )

    from dragoman.evaluation import format_table
    from dragoman.lens.charts import line_chart
    from dragoman.lens.training_history import history_checkpoints, history_rows, sentence_history

    steps = history_checkpoints(loaded, max_checkpoints)
    if not steps:
        raise UserError(
            f"{run} has no checkpoints of training steps to compare: name a run that was trained with 'dragoman "
            "train', best with --keep-history 20, which keeps the weights of up to 20 steps"
        )
    search = None if beam_size is None else beam_config(loaded, beam_size)
    final = target or loaded.translate([sentence], search=search, alignment=False)[0].text
    entries = list(sentence_history(loaded, sentence, final, steps, search))
    if len(steps) < 3:
        log(
            f"{run} has the checkpoints of only {len(steps)} training steps: to see how a run learns, train one with "
            "--keep-history 20, which keeps the weights of up to 20 steps"
        )

    def draw() -> Iterable[str]:
        """Yield a line chart: the log probability of the final translation by training step."""
        points = [(entry.step, entry.final.score) for entry in entries]
        yield line_chart({"log p": points}, "Probability of the final translation", y_label="log p")

    lines = [format_table(history_rows(entries)), "", f"final: {final}"]
    options.print({"source": sentence, "final": final, "history": entries}, lines, draw)


def saliency(run: RunFolder, sentence: Sentence, target: Target = None, *, options: ShowOptions) -> None:
    """Show how strongly each source and earlier target token influences each token of the translation.

    The influence is the norm of the gradient of the token's log-probability with respect to an embedding, as a share of
    these norms. Unlike attention it covers the whole model.
    """
    loaded = options.open(run)

    from dragoman.lens.charts import heatmap
    from dragoman.lens.saliency import measure_saliency
    from dragoman.lens.text_view import LEGEND, heatmap_lines

    text = target or loaded.translate([sentence], alignment=False)[0].text
    result = measure_saliency(loaded, sentence, text)
    lines = [f"source     {sentence}", f"target     {text}", ""]
    lines += heatmap_lines(result.source, result.target_tokens, result.source_tokens)
    lines += [*heatmap_lines(result.target, result.target_tokens, result.input_tokens)]
    lines.append(LEGEND.replace("attention weight", "share of the gradient norm"))

    def draw() -> Iterable[str]:
        """Yield two heatmaps: the influence of source tokens, and that of earlier target tokens."""
        shares = "share of the gradient norm"
        yield heatmap(result.source, result.target_tokens, result.source_tokens, "Saliency of source tokens", shares)
        yield heatmap(result.target, result.target_tokens, result.input_tokens, "Saliency of target tokens", shares)

    options.print({"source": sentence, "target": text, "saliency": result}, lines, draw)


def gradients(
    run: RunFolder,
    sentence: Annotated[
        str | None,
        typer.Argument(
            help="Source sentence, or text for a language model, for which gradients are measured. Default: sentences "
            "of the last validation."
        ),
    ] = None,
    target: Annotated[str | None, "Translation of the sentence. Default: the one the run finds."] = None,
    compare_with: Annotated[
        list[Path] | None, "Another run, drawn beside RUN for comparison. Repeatable.", "RUN"
    ] = None,
    component: Annotated[
        Literal["encoder", "source", "target"] | None,
        "Gradients that are drawn. encoder: of encoder states by source tokens; source, target: of predictions by "
        "source or target tokens. Default: encoder, if there is one, else target.",
    ] = None,
    max_sentences: Annotated[
        int,
        typer.Option(
            help="Maximum number of validation sentences for which gradients are measured, if no sentence is given.",
            min=1,
        ),
    ] = 12,
    *,
    options: ShowOptions,
) -> None:
    """Show how far gradients reach: their norm by the distance between tokens."""
    folders = [run, *(compare_with or [])]
    options.check(*folders)

    from dragoman.lens import figures, text_view

    measured = _measure_gradients([options.load(folder) for folder in folders], sentence, target, max_sentences)
    drawn = component or ("encoder" if "encoder" in measured[0].curves else "target")
    lines = [
        f"{reach.system}, {reach.sentences} sentence{'' if reach.sentences == 1 else 's'}\n"
        + "\n".join([*text_view.gradient_lines(reach), ""])
        for reach in measured
    ]
    options.print(measured, lines, lambda: [figures.gradients_figure(measured, drawn)])


def _measure_gradients(
    runs: Sequence[Run], sentence: str | None, target: str | None, max_sentences: int
) -> list[GradientReach]:
    """Measure how far gradients reach in each run, on the same sentences for all.

    These are `sentence` with the translation `target` (None: the one that the first run finds), or without a sentence
    up to `max_sentences` of the first run's last validation, with their references; without any, it is a UserError. If
    all runs are language models, the sentence is their text, and `target` is not used.
    """
    from dragoman.lens.gradients import measure_gradient_reach
    from dragoman.lens.run_report import read_samples

    first = runs[0]
    if sentence is not None and all(run.is_language_model for run in runs):
        return [measure_gradient_reach(run, sources=None, targets=[sentence]) for run in runs]
    if sentence is not None:
        pairs = [(sentence, target or first.translate([sentence], alignment=False)[0].text)]
    else:
        samples = read_samples(first.folder)  # by the step of their validation
        last_samples = samples[max(samples)][:max_sentences] if samples else []
        pairs = [(sample.source, sample.reference) for sample in last_samples]
        if not pairs:
            raise UserError(
                f"{first.folder} has no validation sentences for which gradients can be measured: give a sentence as "
                "an argument after the run folder"
            )
    sources, targets = zip(*pairs)
    return [measure_gradient_reach(run, sources, targets) for run in runs]


app = typer.Typer(
    cls=DefaultToRun,
    help="Describe a run, list its languages, or show how it translates: attention, alternatives, layers, walk, "
    "experts, beam, positions, history, saliency, gradients.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
add_command(app, show_run, "run")
for _command in (
    languages,
    attention,
    alternatives,
    layers,
    walk,
    experts,
    beam,
    positions,
    history,
    saliency,
    gradients,
):
    add_command(app, _command)
add_command(app, everything, "all")
