"""The command line: one module a command, each thin; what is heavy is imported when a command runs."""

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
    phrasebook,
    quickstart,
    score,
    serve,
    shortlist,
    show,
    systems,
    tag,
    train,
    translate,
    tune,
)
from dragoman.cli.options import with_common_options
from dragoman.errors import UserError


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"dragoman {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="dragoman",
    help="Sequence-to-sequence learning: train, translate, evaluate and look inside.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the program itself."""


for command in (
    quickstart.quickstart,
    phrasebook.phrasebook,
    train.train,
    translate.translate,
    tune.tune,
    generate.generate,
    tag.tag,
    fill.fill,
    evaluate.evaluate,
    score.score,
    shortlist.shortlist,
    systems.systems,
    compare.compare,
    diagnose.diagnose,
    serve.serve,
):
    app.command()(with_common_options(command))
app.command("import")(with_common_options(import_.import_))
app.add_typer(show.app, name="show")


def main() -> None:
    """Exit 0 done, 2 the user's mistake in one sentence, 1 our fault."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        app()
    except UserError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("dragoman: stopped", file=sys.stderr)
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print(
            "dragoman: this is a fault of the program, not yours; please report it with the lines above",
            file=sys.stderr,
        )
        sys.exit(1)
