"""`dragoman show`: what is in a run, and what it thinks of a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from dragoman.cli import look
from dragoman.cli.checks import check_run
from dragoman.cli.look import Target
from dragoman.cli.options import (
    Checkpoint,
    Device,
    Json,
    RunFolder,
    beam_config,
    log,
    print_json,
    program,
    with_common_options,
)
from dragoman.cli.pictures import Dark, Png, Svg, draw, print_lines
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.lens.gradients import GradientReach
    from dragoman.run import Run


class WithDefault(TyperGroup):
    """A first word that is no command names a run folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=WithDefault,
    help="What is in a run, and what it thinks: of a sentence, of places, of words that stand far away.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


# ---- a run, or a sentence at a glance


@app.command("run")
@with_common_options
def show_run(
    run: RunFolder,
    sentence: Annotated[
        str | None, typer.Argument(help="A sentence to translate and look into.", show_default=False)
    ] = None,
    target: Target = None,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """What is in a run; of a sentence its n-best list, word alignment and attention. 'run' may be left out."""
    check_run(run, checkpoint, device)

    from dragoman import load

    loaded = load(run, checkpoint, device)
    if sentence is None:
        _show_run(loaded, as_json)
    else:
        _show_sentence(loaded, sentence, target, (svg, png, dark), as_json)


def _show_run(run: Run, as_json: bool) -> None:
    from dragoman.models import count_parameters, model_to_dict

    valid = [record for record in run.metrics() if record["kind"] in ("valid", "averaged")]
    about = {
        "run": str(run.folder),
        "system": run.config.system.name,
        "size": run.config.system.size,
        "parameters": count_parameters(run.spec),
        "source vocabulary": run.source_tokenizer.vocab_size,
        "target vocabulary": run.target_tokenizer.vocab_size,
        "tokenizer": f"{run.source_tokenizer.kind}{', joint' if run.config.text.shared_vocabulary else ''}",
        "checkpoints": run.checkpoints(),
        "best": run.checkpoint,
        "last validation": valid[-1] if valid else None,
    }
    if as_json:
        print_json(about | {"spec": model_to_dict(run.spec)})
        return
    for name, value in about.items():
        if isinstance(value, list):
            value = ", ".join(value)
        elif isinstance(value, dict):
            value = ", ".join(
                f"{key} {item:,.4g}" if isinstance(item, float) else f"{key} {item}" for key, item in value.items()
            )
        print(f"{name:18}{value:,}" if isinstance(value, int) else f"{name:18}{value}")
    log(f"look at {run.folder}/report.html, or into a sentence: {program()} show {run.folder} 'A sentence.'")


def _show_sentence(
    run: Run, sentence: str, target: str | None, files: tuple[Path | None, Path | None, bool], as_json: bool
) -> None:
    from dragoman.lens.charts import attention_heatmap
    from dragoman.lens.text_view import alignment_lines, attention_heatmap_lines

    best = run.translate([sentence], search=beam_config(run, None, None, best=3))[0]
    text = best.text if target is None else target
    attention = run.attention(sentence, text)
    draw(lambda: [attention_heatmap(attention)], *files)
    ranked = [(one.score, one.text) for one in (best, *best.alternatives)]
    if as_json:
        print_json(
            {
                "source": sentence,
                "target": text,
                "n_best": [{"score": score, "text": one} for score, one in ranked],
                "source_pieces": attention.source,
                "target_pieces": attention.target,
                "alignment": attention.alignment,
                "cross": None if attention.cross is None else attention.cross.tolist(),
                "attention": {path: weights.tolist() for path, weights in attention.weights.items()},
            }
        )
        return
    for score, one in ranked:
        print(f"{score:9.3f}  {one}")
    print()
    if attention.cross is None:
        print("there is nothing to align: no part of this system looks from a decoder at an encoder")
        return
    print_lines(alignment_lines(sentence, text, attention.alignment))
    print()
    print_lines(attention_heatmap_lines(attention))


# ---- of no sentence

for command in (look.attention, look.alternatives, look.layers, look.beam):
    app.command()(with_common_options(command))
app.command("all")(with_common_options(look.everything))


@app.command()
@with_common_options
def positions(
    run: RunFolder,
    count: Annotated[int, typer.Option(help="How many places.", min=2)] = 64,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """How the model tells places apart, and how alike they are to it."""
    check_run(run, checkpoint, device)

    from dragoman import load
    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.model_figures import positions_figure
    from dragoman.lens.position_encodings import position_encodings
    from dragoman.lens.text_view import position_lines

    found = position_encodings(load(run, checkpoint, device).model, count)
    if (svg or png) and not found:
        raise UserError(f"there is nothing to draw: no part of {run} is told places")
    draw(lambda: map(positions_figure, found), svg, png, dark)
    if as_json:
        print_json(to_jsonable(found))
        return
    print_lines(position_lines(found))


@app.command()
@with_common_options
def gradients(
    run: RunFolder,
    sentence: Annotated[
        str | None, typer.Argument(help="A sentence; those of the last validation if not given.", show_default=False)
    ] = None,
    target: Annotated[str | None, typer.Option(help="Its translation; the run's own if not given.")] = None,
    beside: Annotated[list[Path], typer.Option(metavar="RUN", help="Another run. May be repeated.")] = [],  # noqa: B006
    of: Annotated[
        Literal["encoder", "source", "target"] | None,
        typer.Option(help="What is drawn; the encoder where there is one."),
    ] = None,
    sentences: Annotated[int, typer.Option(help="How many validation sentences.", min=1)] = 12,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """How far a gradient reaches: what words that stand far away could still change."""
    for folder in (run, *beside):
        check_run(folder, checkpoint, device)

    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.model_figures import gradients_figure
    from dragoman.lens.text_view import gradient_lines

    measured = _gradients([run, *beside], sentence, target, sentences, checkpoint, device)
    drawn = of or ("encoder" if "encoder" in measured[0].curves else "target")
    draw(lambda: [gradients_figure(measured, drawn)], svg, png, dark)
    if as_json:
        print_json(to_jsonable(measured))
        return
    for one in measured:
        print(f"{one.system}, {one.sentences} sentences")
        print_lines([*gradient_lines(one), ""])


def _gradients(
    runs: Sequence[Path], sentence: str | None, target: str | None, sentences: int, checkpoint: str, device: str
) -> list[GradientReach]:
    """Of all runs over the same sentences, which are the first run's."""
    from dragoman import load
    from dragoman.lens.gradients import measure_gradient_reach as measure
    from dragoman.lens.run_report import read_samples

    loaded = [load(one, checkpoint, device) for one in runs]
    first = loaded[0]
    if sentence is not None:
        pairs = [(sentence, target or first.translate([sentence], alignment=False)[0].text)]
    else:
        samples = read_samples(first.folder)
        pairs = [(one.source, one.reference) for one in samples[max(samples)][:sentences]] if samples else []
        if not pairs:
            raise UserError(f"{first.folder} has no validation sentences: give a sentence")
    sources, targets = zip(*pairs)
    return [measure(one, sources, targets) for one in loaded]
