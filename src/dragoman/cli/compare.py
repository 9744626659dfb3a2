"""`dragoman compare`: the textbook's table on your data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.common import Json, parallel, print_json, program, say
from dragoman.errors import UserError

PAIRS = 40_000
LINE = "rnn-lm,sutskever,cho,bahdanau,luong,gnmt,convs2s,bytenet,transformer,shaw,roformer,t5,transformer-d,moe"
#: a recipe under which every system learns the phrasebook within minutes on two cores
RECIPE: dict[str, Any] = {
    "recipe": "plain",
    "tokens": 1024,
    "schedule": "inverse-sqrt",
    "warmup": 100,
    "label_smoothing": 0.0,
}
Files = list[str] | None


def compare(
    folder: Annotated[Path, typer.Argument(help="Where to put the runs and the table.")] = Path("runs/compare"),
    systems: Annotated[str, typer.Option(help="Which systems, comma-separated: see 'dragoman systems'.")] = LINE,
    source: Annotated[Files, typer.Option(metavar="FILE", help="Source text; the phrasebook if not given.")] = None,
    target: Annotated[Files, typer.Option(metavar="FILE", help="Target text.")] = None,
    valid_source: Annotated[Files, typer.Option(metavar="FILE", help="Validation source.")] = None,
    valid_target: Annotated[Files, typer.Option(metavar="FILE", help="Validation target.")] = None,
    test_source: Annotated[Path | None, typer.Option(help="Test source, on which they are compared.")] = None,
    test_target: Annotated[Path | None, typer.Option(help="Test target.")] = None,
    size: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "tiny",
    minutes: Annotated[float, typer.Option(help="Training time of each system.", min=0)] = 0.75,
    steps: Annotated[int | None, typer.Option(help="Stop each after so many steps.", min=1)] = None,
    seed: Annotated[int, typer.Option(help="Another seed gives other runs.")] = 1,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting. May be repeated.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train systems on the same data with the same budget and print the textbook's table.

    Parameters, quality, perplexity, training cost in floating-point operations and seconds, one row a system, and a
    page with pictures. Each system has a run folder of its own; started again, it goes on where it stopped.
    """
    from dragoman import config as configuration
    from dragoman.data import phrasebook
    from dragoman.evaluation import table
    from dragoman.lens.comparison import write_comparison
    from dragoman.training.comparison import check_settings, check_systems, findings, measure, train_one
    from dragoman.training.display import display

    names = [name.strip() for name in systems.split(",") if name.strip()]
    check_systems(names)
    files: dict[str, Any] = {"source": source, "target": target}
    files |= {"valid_source": valid_source, "valid_target": valid_target}
    if not source:
        if target or valid_source or valid_target or test_source or test_target:
            raise UserError("files were named without a --source: name it too, or leave all out for the phrasebook")
        corpus = folder / "phrasebook"
        if not corpus.exists():
            say(f"writing {PAIRS:,} sentence pairs of the phrasebook to {corpus}")
            folder.mkdir(parents=True, exist_ok=True)
            phrasebook.write(corpus, pairs=PAIRS)
        files = {f"{kind}source": [str(corpus / f"{name}.en")] for kind, name in (("", "train"), ("valid_", "valid"))}
        files |= {f"{kind}target": [str(corpus / f"{name}.de")] for kind, name in (("", "train"), ("valid_", "valid"))}
        test_source, test_target = corpus / "test.en", corpus / "test.de"
    if test_source is None or test_target is None:
        raise UserError("systems are compared on a test set: name it with --test-source and --test-target")
    sources, references = parallel(test_source, test_target)
    values = {
        "data": {name: value for name, value in files.items() if value} | {"longest": 64 if not source else 256},
        "system": {"size": size, "settings": {"dropout": 0.0} if not source else {}},
        "training": (RECIPE if not source else {})
        | {"minutes": minutes, "steps": steps, "seed": seed, "device": device, "patience": None, "average": False}
        | {"validate_every": 100_000, "validate_sentences": 0, "best_by": "loss"},
    }
    config = configuration.with_settings(configuration.from_dict(values), settings or [])
    check_settings(names, config)
    folder.mkdir(parents=True, exist_ok=True)
    trained = []
    for number, name in enumerate(names, 1):
        say(f"{name} ({number} of {len(names)})")
        run = train_one(folder, name, config, display(), say)
        trained.append(measure(run, sources, references))
        say(f"  BLEU {trained[-1].bleu.figure}, {trained[-1].exact.figure} % exactly right")
    page = write_comparison(folder, trained, [program(), *sys.argv[1:]])
    if as_json:
        print_json({"systems": [one.row() | {"BLEU": one.bleu.value, "exact %": one.exact.value} for one in trained]})
        return
    print(table([one.row() for one in trained]))
    print()
    for line in findings(trained):
        print(line)
    say(f"look at:  {page}")
