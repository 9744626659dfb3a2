"""`dragoman show`: what is in a run, and how it translates a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.common import Checkpoint, Device, Json, RunFolder, beam_settings, print_json, program, say

if TYPE_CHECKING:
    from dragoman.run import Run


def show(
    run: RunFolder,
    sentence: Annotated[
        str | None, typer.Argument(help="A sentence to translate and look into.", show_default=False)
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Look into this translation instead of the one that is found.")
    ] = None,
    svg: Annotated[Path | None, typer.Option(help="Write the attention as a picture.")] = None,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """Show what is in a run, or look into a sentence.

    A sentence is translated, and its n-best list, word alignment and attention are shown.
    """
    from dragoman import load

    loaded = load(run, checkpoint, device)
    if sentence is None:
        _show_run(loaded, as_json)
    else:
        _show_sentence(loaded, sentence, target, svg, as_json)


def _show_run(run: Run, as_json: bool) -> None:
    from dragoman.models import count_parameters, model_to_dict

    valid = [record for record in run.metrics() if record["kind"] in ("valid", "averaged")]
    about = {
        "run": str(run.folder),
        "system": run.config.system.name,
        "size": run.config.system.size,
        "parameters": count_parameters(run.spec),
        "source vocabulary": run.source_tokenizer.size,
        "target vocabulary": run.target_tokenizer.size,
        "tokenizer": f"{run.source_tokenizer.kind}{', joint' if run.config.text.joint else ''}",
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
    say(f"look at {run.folder}/report.html, or into a sentence: {program()} show {run.folder} 'A sentence.'")


def _show_sentence(run: Run, sentence: str, target: str | None, svg: Path | None, as_json: bool) -> None:
    from dragoman.lens.alignment import alignment_lines, heat_lines
    from dragoman.lens.pictures import attention_picture
    from dragoman.storage import write_file

    best = run.translate([sentence], search=beam_settings(run, None, None, best=3))[0]
    text = best.text if target is None else target
    attention = run.attention(sentence, text)
    if svg:
        write_file(svg, attention_picture(attention))
        say(f"wrote {svg}")
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
    for line in alignment_lines(sentence, text, attention.alignment):
        print(line)
    print()
    for line in heat_lines(attention):
        print(line)
