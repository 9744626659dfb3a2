"""Commands and the options that several of them share.

A command is a function. A parameter whose type is a dataclass stands for a group of options, one for each field, so
that every option is declared once. Options of settings take their help text from the declaration of the setting.
"""

from __future__ import annotations

import inspect
import os
import shutil
import sys
import typing
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dragoman import console
from dragoman.builtin_names import system_names
from dragoman.cli.checks import check_run
from dragoman.config import SECTIONS, setting_type, settings_of
from dragoman.errors import UserError
from dragoman.legacy import renamed_option
from dragoman.processes import THREAD_VARIABLES
from dragoman.run_files import is_ensemble_folder, is_run_folder

if TYPE_CHECKING:
    from dragoman.parts.inference import InferencePrecision
    from dragoman.run import Run
    from dragoman.search import Beam


def complete_runs(incomplete: str) -> list[str]:
    """Shell completion: run folders whose path begins with the typed text, and other folders, which may contain runs.

    Other folders end with a slash.
    """
    parent = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        folders = sorted(path for path in parent.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError:
        return []
    matching = [path for path in folders if str(path).startswith(incomplete)]
    return [f"{path}{'' if is_run_folder(path) or is_ensemble_folder(path) else '/'}" for path in matching]


def complete_systems(incomplete: str) -> list[str]:
    """Shell completion: names of systems that begin with the typed text."""
    return [name for name in system_names() if name.startswith(incomplete)]


def setting_option(setting: str, *flags: str) -> Any:
    """Declare an option with the help text and choices of a setting, such as "training.steps".

    The name of the option is that of its parameter unless `flags` are given, such as "--from".
    """
    section, _, name = setting.partition(".")
    declaration = settings_of(SECTIONS[section])[name]
    # `auto` says how a value is chosen if the setting is not given
    text = declaration.help + (f" Default: {declaration.auto}." if declaration.auto else "")
    metavar = "|".join(declaration.choices) or None
    if typing.get_origin(declaration.hint) is tuple:  # a list: of languages, of files, or of patterns of weight names
        metavar = "FROM:TO" if name.endswith("languages") else "FILE" if section == "data" else "PATTERN"
        text = f"{text} Repeatable."
    completions = {"system.name": complete_systems, "training.start_from": complete_runs}
    return typer.Option(*flags, help=text, metavar=metavar, show_default=False, autocompletion=completions.get(setting))


RunFolder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="Run folder: a model with its tokenizer and settings, created by 'dragoman train' or 'dragoman import'.",
        autocompletion=complete_runs,
    ),
]
InputFile = Annotated[Path | None, typer.Argument(help="Input file, one text per line. Default: standard input.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
BeamSize = Annotated[int | None, setting_option("search.beam_size")]
LengthPenalty = Annotated[float | None, setting_option("search.length_penalty")]
SourceLanguage = Annotated[str, setting_option("data.source_language", "--from")]
TargetLanguage = Annotated[str, setting_option("data.target_language", "--to")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Change any setting of the configuration ('dragoman settings' lists them), such as "
        "training.learning_rate=1e-3. Repeatable.",
    ),
]


@dataclass(frozen=True)
class CommonOptions:
    """Options of every command."""

    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results and errors, but no progress.")] = False
    threads: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of CPU threads. Default: number of cores.")
    ] = None

    def apply(self) -> None:
        """Make --quiet hide messages, and --threads set the number of CPU threads of all libraries.

        Libraries read environment variables such as OMP_NUM_THREADS (`THREAD_VARIABLES`) when they are imported.
        """
        console.quiet = self.quiet
        if self.threads is not None:
            os.environ |= dict.fromkeys(THREAD_VARIABLES, str(self.threads))
            # torch may be imported already if Python calls the command
            if torch := sys.modules.get("torch"):
                torch.set_num_threads(self.threads)


@dataclass(frozen=True)
class ModelOptions:
    """Which weights of a run are loaded, and where."""

    checkpoint: Annotated[
        str, "Checkpoint: best (by validation), last, averaged (mean of several), or a step such as 000500."
    ] = "best"
    device: Annotated[str, "Device: auto, cpu, cuda, cuda:N or mps."] = "auto"

    def check(self, *folders: str | Path) -> None:
        """Raise a UserError for a missing run folder or checkpoint, or an unknown device, without importing torch."""
        for folder in folders:
            check_run(folder, self.checkpoint, self.device)

    def load(self, folder: str | Path, precision: InferencePrecision = "float32") -> Run:
        """Load the chosen checkpoint of a run on the chosen device; `precision` is the number format of its weights."""
        from dragoman import load

        return load(folder, self.checkpoint, self.device, weights=precision)

    def open(self, folder: str | Path) -> Run:
        """Check a run folder and load the run."""
        self.check(folder)
        return self.load(folder)


def choose_languages(run: Run, source: str, target: str) -> Run:
    """Return a multilingual run for the languages of --from and --to; "" keeps its default language.

    A run whose model has no language codes is returned as it is, and the source language is ignored if the model reads
    only the code of the target. This is no error, because --from and --to may also describe the columns of a file.
    """
    # `model_framing`: the special tokens that the model expects around source and target, language codes among them
    codes = run.model_framing.languages
    if codes is None:
        return run
    told_source = (source or None) if codes.reads_source_code else None
    return run.with_languages(told_source, target or None)


@dataclass(frozen=True)
class LanguageModelOptions(ModelOptions):
    """Which weights are loaded, and for which languages of a multilingual model."""

    source_language: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="LANGUAGE",
            help="Source language, for a multilingual model: a code such as eng_Latn or en. Default: that of "
            "the model.",
        ),
    ] = ""
    target_language: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="LANGUAGE",
            help="Target language, for a multilingual model: a code such as deu_Latn or de. Default: that of "
            "the model.",
        ),
    ] = ""

    def load(self, folder: str | Path, precision: InferencePrecision = "float32") -> Run:
        """Load the chosen checkpoint of a run for the languages of --from and --to.

        Languages for a run that is not multilingual are a UserError. `precision` is the number format of the weights.
        """
        run = super().load(folder, precision)
        return run.with_languages(self.source_language or None, self.target_language or None)


@dataclass(frozen=True)
class PrecisionOptions:
    """Number format of the weights in inference."""

    int8: Annotated[bool, "Quantize weights to int8: faster on a CPU, slightly less accurate."] = False
    bfloat16: Annotated[bool, "Compute in bfloat16: faster on a GPU, slightly less accurate."] = False

    @property
    def precision(self) -> InferencePrecision:
        """The number format that was chosen, by default float32; --int8 together with --bfloat16 is a UserError."""
        if self.int8 and self.bfloat16:
            raise UserError("--int8 is for CPUs and --bfloat16 for GPUs: use one of them")
        return "int8" if self.int8 else "bfloat16" if self.bfloat16 else "float32"


class Command(TyperCommand):
    """A command whose error messages also know options of earlier versions, and environment variables."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; raise a UserError for an option that was renamed, or a wrong environment variable.

        It says the new name of the option, or which variable has the wrong value. Other errors are those of Typer.
        """
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            option = getattr(error, "option_name", None)  # of NoSuchOption
            if renamed := renamed_option(self.name, option):
                raise UserError(f"the option {option} is now called {renamed}: use the new name") from None
            parameter, reason = getattr(error, "param", None), getattr(error, "message", "")  # of BadParameter
            source = None if parameter is None else ctx.get_parameter_source(parameter.name)
            if getattr(source, "name", "") == "ENVIRONMENT" and reason:
                variable = _environment_variable(parameter, ctx)
                # Typer validates values by pydantic, which writes "Value error, …."
                reason = reason.removeprefix("Value error, ").removesuffix(".")
                raise UserError(
                    f"the environment variable {variable} has a wrong value: {reason[:1].lower()}{reason[1:]}; correct "
                    "or unset it"
                ) from None
            raise


def _environment_variable(parameter: Any, ctx: Any) -> str:
    """Return the name of the environment variable from which a parameter of a command has its value.

    It is one that the parameter declares and that is set, or else the prefix of the context with the parameter's name,
    such as DRAGOMAN_SERVE_PORT.
    """
    names = [parameter.envvar] if isinstance(parameter.envvar, str) else [*(parameter.envvar or ())]
    names.append(f"{ctx.auto_envvar_prefix}_{parameter.name.upper()}")
    return next((name for name in names if name in os.environ), names[-1])


def build_command(target: Callable[..., None] | typer.Typer, name: str) -> Any:
    """Return the command called `name` that runs the function `target`, or the group of commands of a Typer app.

    The group has the name of its app, so that `name` is not used for it.
    """
    if isinstance(target, typer.Typer):
        return typer.main.get_group(target)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    add_command(app, target, name)
    return typer.main.get_command(app)


def add_command(app: typer.Typer, function: Callable[..., None], name: str | None = None) -> None:
    """Add a function to a Typer app as the command `name` (default: the function's name).

    Besides the annotations of Typer, a parameter may have these types:

    - `Annotated[type, help]` or `Annotated[type, help, metavar]`: an option; one of type bool is a flag.
    - a dataclass: a group of options, one for each field.
    - `Annotated[dict[str, Any], {"--steps": "training.steps"}]`: options that set single settings. The function gets
      the values of those that were used, by the dotted names of the settings.
    """
    parameters: list[inspect.Parameter] = []  # one for each option or argument
    groups: dict[str, type[Any]] = {}  # dataclasses by the name of the function's parameter
    settings: dict[str, dict[str, str]] = {}  # `{"--steps": "training.steps"}` by the name of the parameter
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if isinstance(parameter.annotation, type) and is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            parameters += _group_parameters(parameter.annotation)
        elif typing.get_args(parameter.annotation)[:1] == (dict[str, Any],):  # Annotated[dict[str, Any], …]
            options = settings[parameter.name] = parameter.annotation.__metadata__[0]
            parameters += [_setting_parameter(option, setting) for option, setting in options.items()]
        else:
            parameters.append(_typer_parameter(parameter))
    parameters += _group_parameters(CommonOptions)

    @wraps(function)
    def call(**values: Any) -> None:
        """Call the function with the values of the options; those of a group become one object."""
        _build_group(CommonOptions, values).apply()  # --quiet and --threads
        arguments = {parameter: _build_group(group, values) for parameter, group in groups.items()}
        for parameter, options in settings.items():
            by_setting = {setting: values.pop(_parameter_name(option)) for option, setting in options.items()}
            # without options that were not given: None, or [] for a repeatable one
            arguments[parameter] = {setting: value for setting, value in by_setting.items() if value not in (None, [])}
        function(**arguments, **values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app.command(name, cls=Command)(call)


def _typer_parameter(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return a keyword-only parameter whose annotation Typer understands.

    `Annotated[type, help]` and `Annotated[type, help, metavar]` become `Annotated[type, typer.Option(…)]`; other
    annotations are kept.
    """
    annotation = parameter.annotation
    kind, *metadata = typing.get_args(annotation) or (annotation,)
    if typing.get_origin(annotation) is Annotated and isinstance(metadata[0], str):
        # by default Typer declares --NAME and --no-NAME for a Boolean
        flags = [f"--{parameter.name.replace('_', '-')}"] if kind is bool else []
        option = typer.Option(*flags, help=metadata[0], metavar=metadata[1] if metadata[1:] else None)
        annotation = Annotated[kind, option]
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=annotation)


def _group_parameters(group: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters of the options of a group, one for each field of the dataclass `group`."""
    return [_typer_parameter(parameter) for parameter in inspect.signature(group, eval_str=True).parameters.values()]


def _build_group(group: type[Any], values: dict[str, Any]) -> Any:
    """Construct an option group (a dataclass) from the values of its options, which are removed from `values`."""
    return group(**{field.name: values.pop(field.name) for field in fields(group)})


def _parameter_name(option: str) -> str:
    """Return the name of the function parameter of an option: `learning_rate` for `--learning-rate`.

    It is `header` for `--header/--no-header`, and `from_` for `--from`, because `from` is a keyword of Python.
    """
    name = option.partition("/")[0].lstrip("-").replace("-", "_")
    return f"{name}_" if iskeyword(name) else name


def _setting_parameter(option: str, setting: str) -> inspect.Parameter:
    """Return the parameter of an option such as --steps that sets a setting such as training.steps.

    The option accepts any value of the type; the configuration validates its range or choices.
    """
    hint = setting_type(setting)
    possible_types = (hint, *typing.get_args(hint))  # int | None has the arguments int and None
    kind: Any = next((kind for kind in (bool, int, float) if kind in possible_types), str)
    if typing.get_origin(hint) is tuple:  # a list: the option is repeatable
        kind = list[str]
    annotation = Annotated[kind | None, setting_option(setting, option)]
    name = _parameter_name(option)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def program_name() -> str:
    """Return the command that runs this program, for messages: "dragoman" if the shell finds it.

    Otherwise it is the path of the program, or "python -m dragoman".
    """
    if shutil.which("dragoman"):
        return "dragoman"
    path = Path(sys.argv[0])
    return os.path.relpath(path) if path.name == "dragoman" else "python -m dragoman"


def beam_config(run: Run, beam_size: int | None, length_penalty: float | None = None, n_best: int = 1) -> Beam:
    """Return the run's beam search with the changes of the command line (None: no change).

    `n_best` is the number of hypotheses to return. Without `beam_size`, the run's beam is enlarged to `n_best` if it is
    smaller.
    """
    beam = run.beam_config(beam_size)
    size = beam.size if beam_size is not None else max(beam.size, n_best)
    penalty = beam.length_penalty if length_penalty is None else length_penalty
    return replace(beam, size=size, n_best=n_best, length_penalty=penalty)
