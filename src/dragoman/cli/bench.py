"""`dragoman bench`: how fast this machine trains and translates, and where the time goes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dragoman.cli.checks import check_device, check_run, check_system
from dragoman.cli.inputs import Input
from dragoman.cli.options import Checkpoint, Device, Json, RunFolder, log, print_json, with_common_options
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.run import translation_speed as speed
    from dragoman.training.speed import Machine, Speed

app = typer.Typer(
    help="This machine's speeds, beside the peers that are installed; where the time goes.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
@with_common_options
def train(
    system: Annotated[str, typer.Option(help="Systems that translate, such as transformer,luong.")] = "transformer",
    size: Annotated[str | None, typer.Option(help="Sizes, such as tiny,small; by the device if not given.")] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Target tokens a batch; 25,000 on a GPU, 4,096 elsewhere.", min=100)
    ] = None,
    vocabulary: Annotated[int, typer.Option(help="Tokens of the joint vocabulary.", min=100)] = 8000,
    steps: Annotated[int | None, typer.Option(help="Steps a round; 20 on a GPU, 2 elsewhere.", min=1)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    as_json: Json = False,
) -> None:
    """This machine's training speed on synthetic sentences.

    Where Hugging Face's transformers is installed, its Marian of the same sizes takes turns with the transformer in a
    plain loop, and the ratio is printed. All peers (eole and JoeyNMT too) are run by benchmarks/training.py of the
    source tree.
    """
    for name in system.split(","):
        check_system(name)
    check_device(device)

    from dragoman.run import select_device
    from dragoman.training.speed import about, measure

    keep_freed_memory()
    where = select_device(device)
    gpu = where.type == "cuda"
    sizes = (size or ("base,big" if gpu else "tiny,small")).split(",")
    here = about(where, "bfloat16" if gpu else "float32")
    speeds = []
    for name in system.split(","):
        for one in sizes:
            log(f"measuring {name} ({one})")
            speeds.append(
                measure(
                    name,
                    one,
                    tokens=tokens or (25_000 if gpu else 4_096),
                    vocabulary=vocabulary,
                    steps=steps or (20 if gpu else 2),
                    device=where,
                    here=here,
                )
            )
    if as_json:
        from dataclasses import asdict

        print_json({"machine": asdict(here), "speeds": [speed.to_dict() for speed in speeds]})
    else:
        print("\n".join(_table(here, speeds)))


def _table(here: Machine, speeds: list[Speed]) -> list[str]:
    lines = [
        f"{here.device}, PyTorch {here.torch}, {here.precision}; matrices are multiplied at {here.matmul_tflops:.3g} "
        "TFLOP/s",
        f"{'':22}{'parameters':>12}{'tokens/s':>11}{'first step':>12}{'TFLOP/s':>10}{'of peak':>9}{'Marian':>11}"
        f"{'ours is':>9}",
    ]
    for one in speeds:
        row = f"{f'{one.system} {one.size}':22}{one.parameters:>12,}{one.tokens_per_second:>11,.0f}"
        row += f"{one.first_step:>10.1f} s{one.tflops:>10.3g}{one.share_of_matmul:>9.1%}"
        if one.marian is not None and one.times_as_fast is not None:
            row += f"{one.marian:>11,.0f}{one.times_as_fast:>8.2f}×"
        lines.append(row)
    return lines


@app.command()
@with_common_options
def step(
    run: RunFolder,
    steps: Annotated[int, typer.Option(help="Steps to measure.", min=1)] = 8,
    warm_up: Annotated[int, typer.Option(help="Steps before them.", min=1)] = 4,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; that of the run if not given.")] = None,
    as_json: Json = False,
) -> None:
    """Where the time of a training step goes: a few steps of a run's model on its data.

    The run is not changed. Waiting for data, forward, backward and optimiser are timed one after the other, which is a
    little slower than training, where they overlap; tokens a second are those of training.
    """
    if device is not None and device.split(":")[0] not in ("cpu", "cuda"):
        raise UserError(f"a step is measured on cpu or cuda, not on {device}")
    check_run(run)

    from dragoman.training.profiling import profile_run

    found = profile_run(run, steps, warm_up, device)
    print_json(found.to_dict()) if as_json else print("\n".join(found.lines()))


@app.command()
@with_common_options
def translate(
    run: RunFolder,
    file: Annotated[
        Path | None,
        typer.Argument(help="Sentences to translate; the run's validation data if not given.", show_default=False),
    ] = None,
    batches: Annotated[str, typer.Option(help="Sentences a batch.")] = "1,16,64",
    beams: Annotated[str | None, typer.Option(help="Widths of beams; 1 and the run's own if not given.")] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure each of them, at most about.", min=0)] = 5.0,
    as_json: Json = False,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
) -> None:
    """How fast a run translates on this machine: by batch and beam, and where the time goes.

    Tokens are those that were written, END counted in, and times are from text to text. Sentences of like length are
    translated together, as those of a file are. Peers with the same weights are run by benchmarks/decoding.py of the
    source tree.
    """
    check_run(run, checkpoint, device)
    if file is not None:
        Input(file).check()

    from dragoman import load
    from dragoman.run import translation_speed as speed
    from dragoman.run.device_info import device_name

    keep_freed_memory()
    loaded = load(run, checkpoint, device)
    texts = list(islice(Input(file).sources(), 4096)) if file else speed.validation_texts(loaded, 4096)
    widths = _numbers("beams", beams) if beams else sorted({1, loaded.beam_config().size})
    found = []
    for width in widths:
        for batch in _numbers("batches", batches):
            log(f"measuring batches of {batch:,} with a beam of {width}")
            found.append(speed.measure_speed(loaded, texts, batch, loaded.beam_config(width), seconds))
    here = f"{device_name(loaded.device)}, PyTorch {_version()}"
    if as_json:
        print_json({"run": str(run), "machine": here, "speeds": [one.to_dict() for one in found]})
    else:
        print("\n".join(_speeds(f"{run}: {here}", found)))


def _speeds(head: str, found: list[speed.SpeedMeasurement]) -> list[str]:
    """A table, and below it the memory."""
    names = next((list(one.shares) for one in found if one.shares), [])
    lines = [
        head,
        f"{'beam':>4}{'batch':>7}{'sentences/s':>13}{'tokens/s':>11}{'first token':>14}"
        + "".join(f"{name:>12}" for name in names),
    ]
    for one in found:
        row = f"{one.beam:>4}{one.batch:>7,}{one.sentences_per_second:>13,.1f}{one.tokens_per_second:>11,.0f}"
        row += f"{1000 * one.first_token:>11,.1f} ms"
        lines.append(row + "".join(f"{one.shares[name]:>12.1%}" if one.shares else f"{'–':>12}" for name in names))
    return [*lines, f"{max(one.peak_memory for one in found) / 2**30:.2f} GiB of memory at most"]


def _numbers(name: str, text: str) -> list[int]:
    """Numbers of at least 1 with commas between them."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = [0]
    if min(numbers) < 1:
        raise UserError(f"--{name} wants whole numbers of at least 1, such as 1,16,64, but got {text!r}")
    return numbers


def _version() -> str:
    import torch

    return torch.__version__
