"""`dragoman show attention|alternatives|layers|beam|all`: what a run thinks of a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, beam_config, print_json
from dragoman.cli.pictures import Dark, Png, Svg, draw, print_lines
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.lens import Inspection

Sentence = Annotated[str, typer.Argument(help="The sentence to look into.", show_default=False)]
Target = Annotated[str | None, typer.Option(help="Look into this translation instead of the one that is found.")]
Prefix = Annotated[str | None, typer.Option(help="How the translation that is searched for shall begin.")]
Width = Annotated[int | None, typer.Option("--beam", help="Width of the beam; as the run's configuration says.", min=1)]


def attention(
    run: RunFolder,
    sentence: Sentence,
    target: Target = None,
    kind: Annotated[
        Literal["cross", "encoder", "decoder"] | None, typer.Option(help="Only looks at the source, or within a side.")
    ] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer, counted from 1.", min=1)] = None,
    head: Annotated[int | None, typer.Option(help="Only this head, counted from 1.", min=1)] = None,
    beam: Width = None,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """What every layer and head looked at, and how widely."""
    check_run(run, checkpoint, device)

    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.sentence_figures import attention_figure, select_attention
    from dragoman.lens.text_view import attention_lines, entropy_lines

    seen = _look(run, checkpoint, device, sentence, target, beam)
    found = select_attention(seen, kind, layer, head)
    draw(lambda: [attention_figure(seen, found, head)], svg, png, dark)
    if as_json:
        print_json(
            to_jsonable({"source": seen.source, "target": seen.target, "alignment": seen.alignment, "attention": found})
        )
        return
    print_lines([*attention_lines(found), "", *entropy_lines(found)])


def alternatives(
    run: RunFolder,
    sentence: Sentence,
    target: Target = None,
    prefix: Prefix = None,
    count: Annotated[int, typer.Option(help="How many alternatives.", min=1)] = 5,
    beam: Width = None,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """How likely every word was, and what else was likely."""
    check_run(run, checkpoint, device)

    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.sentence_figures import alternatives_figure
    from dragoman.lens.text_view import alternative_lines

    seen = _look(run, checkpoint, device, sentence, target, beam, prefix, count)
    draw(lambda: [alternatives_figure(seen)], svg, png, dark)
    if as_json:
        print_json(
            to_jsonable({"source": seen.source, "target": seen.target, "score": seen.score, "steps": seen.steps})
        )
        return
    print_lines(alternative_lines(seen))


def layers(
    run: RunFolder,
    sentence: Sentence,
    target: Target = None,
    beam: Width = None,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """What the model would say if it ended after each of its layers."""
    check_run(run, checkpoint, device)

    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.sentence_figures import layers_figure
    from dragoman.lens.text_view import layer_lines

    seen = _look(run, checkpoint, device, sentence, target, beam)
    draw(lambda: [layers_figure(seen)], svg, png, dark)
    if as_json:
        print_json(to_jsonable({"source": seen.source, "target": seen.target, "layers": seen.layers}))
        return
    print_lines(layer_lines(seen))


def beam(
    run: RunFolder,
    sentence: Sentence,
    prefix: Prefix = None,
    width: Width = None,
    penalty: Annotated[float | None, typer.Option(help="Length penalty α; as the run says.")] = None,
    pruned: Annotated[bool, typer.Option("--pruned", help="Show what was pruned at once as well.")] = False,
    svg: Svg = None,
    png: Png = None,
    dark: Dark = False,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """The whole beam as a tree: what was kept, pruned and finished."""
    check_run(run, checkpoint, device)

    from dragoman import load
    from dragoman.lens import inspect_sentence
    from dragoman.lens.inspection_types import to_jsonable
    from dragoman.lens.sentence_figures import beam_tree_figure
    from dragoman.lens.text_view import beam_tree_lines

    loaded = load(run, checkpoint, device)
    seen = inspect_sentence(loaded, sentence, search=beam_config(loaded, width, penalty), prefix=prefix)
    tree = seen.beam
    assert tree is not None
    draw(lambda: [beam_tree_figure(tree, note=sentence)], svg, png, dark)
    if as_json:
        print_json(to_jsonable({"source": seen.source, "target": seen.target, "beam": tree}))
        return
    print_lines(beam_tree_lines(tree, pruned))


def everything(
    run: RunFolder,
    sentence: Sentence,
    target: Target = None,
    prefix: Prefix = None,
    beam: Width = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Everything about a sentence as one JSON document."""
    check_run(run, checkpoint, device)
    print_json(_look(run, checkpoint, device, sentence, target, beam, prefix).to_dict())


def _look(
    folder: Path,
    checkpoint: str,
    device: str,
    sentence: str,
    target: str | None,
    beam: int | None,
    prefix: str | None = None,
    alternatives: int = 5,
) -> Inspection:
    from dragoman import load
    from dragoman.lens import inspect_sentence

    run = load(folder, checkpoint, device)
    if target is not None and beam is not None:
        raise UserError("a translation that is given is not searched for: leave out --beam")
    search = None if beam is None else beam_config(run, beam, None)
    return inspect_sentence(run, sentence, target, search=search, prefix=prefix, alternatives=alternatives)
