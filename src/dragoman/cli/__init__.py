"""The command line: one module per command. torch is imported only when a command runs."""

from __future__ import annotations

import io
import os
import sys
import traceback
from typing import Annotated

import typer

from dragoman import __version__
from dragoman.cli import (
    compare,
    diagnose,
    evaluate,
    fill,
    generate,
    import_,
    learn_shortlist,
    phrasebook,
    quickstart,
    score,
    serve,
    settings_reference,
    show,
    systems,
    tag,
    train,
    translate,
    tune,
)
from dragoman.cli.options import add_command
from dragoman.errors import UserError

app = typer.Typer(
    name="dragoman",
    help="Sequence-to-sequence learning: train, translate, evaluate and inspect models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
show_app = typer.Typer(
    cls=show.DefaultToRun,
    help="Describe a run, or show how it translates: attention, alternatives, layers, beam, positions, gradients.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _print_version(requested: bool) -> None:
    if requested:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


add_command(app, quickstart.quickstart)
add_command(app, phrasebook.phrasebook)
add_command(app, train.train, settings=train.TRAIN_OPTIONS)
add_command(app, translate.translate)
add_command(app, tune.tune)
add_command(app, generate.generate)
add_command(app, tag.tag)
add_command(app, fill.fill)
add_command(app, evaluate.evaluate)
add_command(app, score.score)
add_command(app, learn_shortlist.shortlist)
add_command(app, systems.systems)
add_command(app, settings_reference.settings)
add_command(app, compare.compare, settings=compare.COMPARE_OPTIONS)
add_command(app, diagnose.diagnose)
add_command(app, serve.serve)
add_command(app, import_.import_, "import")
add_command(show_app, show.show_run, "run")
add_command(show_app, show.attention)
add_command(show_app, show.alternatives)
add_command(show_app, show.layers)
add_command(show_app, show.beam)
add_command(show_app, show.positions)
add_command(show_app, show.gradients)
add_command(show_app, show.everything, "all")
app.add_typer(show_app, name="show")


def main() -> None:
    """Run the command line. Exit codes: 0 success, 2 error of the user, 1 error of the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        app()
    except UserError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("dragoman: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("dragoman: this is a bug in dragoman; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
