"""The command line: one module per command, imported when the command runs."""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dragoman import __version__
from dragoman.errors import UserError

# by the name of a command: "module:function" in this package, and the summary in the help text
COMMANDS = {
    "quickstart": ("quickstart:quickstart", "Train a small translator on generated sentences, and try it."),
    "phrasebook": ("quickstart:phrasebook", "Write generated sentence pairs with gold alignments."),
    "train": ("train:train", "Train a model from text files."),
    "prepare": ("prepare_command:prepare", "Clean and tokenize the text of a training, also on a Ray cluster."),
    "watch": ("watch:watch", "Show a training on a web page of this machine."),
    "recipe": ("recipe:recipe", "Train and score a known task with one command, or list the tasks."),
    "sweep": ("sweep:sweep", "Try settings on one corpus, and rank the configurations."),
    "translate": ("translate:translate", "Translate a file or standard input."),
    "tune-search": ("search_commands:tune_search", "Choose beam size and length penalty of a run anew."),
    "tune": ("search_commands:tune", "Find the reranking weights that maximize BLEU or chrF."),
    "generate": ("line_commands:generate", "Continue texts with a language model."),
    "tag": ("line_commands:tag", "Tag the words of a file or of standard input."),
    "classify": ("line_commands:classify", "Classify the texts of a file or of standard input."),
    "fill": ("line_commands:fill", "Fill every <mask> in a text."),
    "evaluate": ("evaluate:evaluate", "Score translations, tags or labels of a test set."),
    "score": ("score:score", "Print log probabilities of translations or texts."),
    "shortlist": ("search_commands:shortlist", "Learn which target tokens each source token needs."),
    "bpe": ("bpe:bpe", "Show how byte-pair encoding is learned, merge by merge."),
    "systems": ("reference:systems", "List all systems, describe one, or compare two."),
    "settings": ("reference:settings", "List and explain all settings."),
    "compare": ("compare:compare", "Train several systems on the same data and compare them."),
    "diagnose": ("diagnose:diagnose", "Measure known failures of translation."),
    "serve": ("serve:serve", "Serve runs over HTTP, with a web page."),
    "import": ("import_:import_", "Convert a Hugging Face checkpoint to a run folder."),
    "export": ("export:export", "Write a run in the format of another library, and verify it."),
    "show": ("show:app", "Describe a run, or show how it translates a sentence."),
}


class LazyGroup(TyperGroup):
    """The group of all commands. The module of a command is imported when the command runs."""

    def __init__(self, **attributes: Any) -> None:
        """Create the group with the names of all commands (`COMMANDS`); their values are None until they are imported.

        `attributes` are the arguments of `TyperGroup`.
        """
        super().__init__(**attributes)
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import the module of a command and return the command; None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        from dragoman.cli.options import build_command

        location, _ = COMMANDS[cmd_name]  # such as "train:train", and the summary
        module, attribute = location.split(":")  # attribute: a function, or a Typer app with subcommands
        return build_command(getattr(import_module(f"dragoman.cli.{module}"), attribute), name=cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and summaries of all commands to the help text, without importing their modules."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


app = typer.Typer(
    name="dragoman",
    cls=LazyGroup,
    help="Sequence-to-sequence learning: train, translate, evaluate and inspect models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    """Callback of --version: print the version and exit if the option was given (`requested`)."""
    if requested:
        print(f"dragoman {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Accept the options of the program itself, before the name of a command: --version, which its callback handles."""


def main() -> None:
    """Run the command line.

    Exit codes: 0 success, 2 error of the user, 1 error of the program or closed output, 130 interrupted by Ctrl-C.
    """
    # fewer garbage collections: importing torch allocates a million objects, none of which can be collected
    gc.set_threshold(100_000, 10, 10)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8")
    try:
        app()
    except UserError as error:
        print(f"dragoman: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
        # else Python would fail again when it flushes standard output at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print("dragoman: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception:
        traceback.print_exc()
        print("dragoman: this is a bug in dragoman; please report it with the lines above", file=sys.stderr)
        sys.exit(1)
