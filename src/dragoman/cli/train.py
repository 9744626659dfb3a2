"""`dragoman train`: from text files to a trained model."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_run, check_training, is_run
from dragoman.cli.inputs import SourceKey, TargetKey
from dragoman.cli.options import Json, complete_runs, complete_systems, log, print_json, program
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.run import Run
    from dragoman.training.process_group import ProcessGroup

Files = list[str] | None


def train(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder to make.", show_default=False)],
    source: Annotated[
        Files,
        typer.Option(
            metavar="FILE",
            help="Source text, one sentence a line; TSV or JSON lines with both sides; .npz. May be repeated.",
        ),
    ] = None,
    target: Annotated[
        Files, typer.Option(metavar="FILE", help="Target text, line by line with the source. May be repeated.")
    ] = None,
    valid_source: Annotated[
        Files, typer.Option(metavar="FILE", help="Validation source; some training pairs are held out if not given.")
    ] = None,
    valid_target: Annotated[Files, typer.Option(metavar="FILE", help="Validation target.")] = None,
    test_source: Annotated[
        Files, typer.Option(metavar="FILE", help="Test source, to be told how much of it stands in train.")
    ] = None,
    test_target: Annotated[Files, typer.Option(metavar="FILE", help="Test target.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="Settings as YAML. Of a run's config.yaml, those set by hand: what stands there under 'chosen' is "
            "chosen anew."
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(help="Which system: see 'dragoman systems'.", autocompletion=complete_systems)
    ] = None,
    size: Annotated[str | None, typer.Option(help="tiny, small, base or big.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="How to train: modern, textbook (as the paper did) or plain; the best known.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="What to learn: translation, language, masked, denoising …; by system and data."),
    ] = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            metavar="RUN", help="Begin with another run's weights, tokenizers and system.", autocompletion=complete_runs
        ),
    ] = None,
    tokenizer_from: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Use this tokenizer, but no weights: a run, a SentencePiece .model or a Hugging Face tokenizer.json.",
        ),
    ] = None,
    source_vectors: Annotated[
        str | None, typer.Option(metavar="FILE", help="Word vectors to begin with: word2vec, GloVe or fastText.")
    ] = None,
    target_vectors: Annotated[str | None, typer.Option(metavar="FILE", help="The same for the target.")] = None,
    steps: Annotated[int | None, typer.Option(help="Stop after N steps.", min=1)] = None,
    epochs: Annotated[int | None, typer.Option(help="Stop after N passes over the data.", min=1)] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after N minutes, validations included; the learning-rate schedule fits the time.", min=0
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Another seed gives another run.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    format: Annotated[str | None, typer.Option(help="text, tsv or jsonl; by the files' names if not given.")] = None,
    source_key: SourceKey = None,
    target_key: TargetKey = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any setting, such as training.learning_rate=1e-3. May be repeated."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue exactly where the run stopped; with a larger --steps, --epochs or --minutes, extend it.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """From two text files to a trained model.

    With a source alone, a text, the system is pretrained on it: a language model, masked words, denoising. Words and
    tags as source and target train a tagger, dialogues as JSON lines with "turns" a system that replies.

    Everything that is not given is chosen by the amount of data and the device, and said. Ctrl-C stops after the step
    at hand, saves, and prints the command that goes on.

    On several GPUs or machines: torchrun --nproc-per-node 8 -m dragoman train RUN …
    """
    from dragoman import config as configuration

    options = {
        "system.name": system,
        "system.size": size,
        "training.recipe": recipe,
        "objective.name": objective,
        "training.start_from": start_from,
        "text.tokenizer_from": tokenizer_from,
        "text.source_word_vectors": source_vectors,
        "text.target_word_vectors": target_vectors,
        "training.steps": steps,
        "training.epochs": epochs,
        "training.minutes": minutes,
        "training.seed": seed,
        "training.device": device,
        "data.format": format,
        "data.source_column": source_key,
        "data.target_column": target_key,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    given |= configuration.parse_settings(settings or [])
    files = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    files |= {"test_source": test_source, "test_target": test_target}
    if resume:
        if config or any(files.values()):
            raise UserError("--resume goes on with the run's own data and settings: leave --config and the files out")
        check_run(run)
        outcome = continue_run(run, given)
    elif int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)) and is_run(run):  # torchrun has started all anew
        outcome = continue_run(run, {})
    else:
        base = (
            configuration.without_automatic_settings(configuration.from_yaml(config))
            if config
            else configuration.Config()
        )
        given |= {f"data.{name}": value for name, value in files.items() if value}
        wanted = configuration.replace_settings(base, given)
        if int(os.environ.get("WORLD_SIZE", 1)) == 1:  # of several processes the first one checks, for all
            check_training(run, wanted)
        outcome = start_run(run, wanted)
    finish(run, outcome, as_json)


def start_run(run: Path, config: Config) -> dict[str, object]:
    """Prepare and train a new run."""
    from dragoman.training.process_group import ProcessGroup, accumulate_for_processes

    world = ProcessGroup.join()
    config, choices = accumulate_for_processes(config, world)
    with world.report_lost_process(
        lambda: f"another process ended while {run} was made: see what it said, and start again"
    ):
        world.on_first_rank(lambda: make_run(run, config, choices))
    return train_run(run, None, world)


def make_run(run: Path, config: Config, choices: list[str]) -> None:
    """Prepare a run, and say what was found and chosen."""
    from dragoman.training.prepare import prepare_run

    prepared = prepare_run(run, config, log)
    log("")
    for line in prepared.preflight.lines():
        log(line)
    log("")
    for example in prepared.examples:
        for line in ("an example of what it learns:", *(f"  {line}" for line in example.lines())):
            log(line)
    if prepared.examples:
        log("")
    chosen = prepared.config.system
    size = f" ({chosen.size})" if chosen.size else ""
    log(f"{chosen.name}{size}, {prepared.parameters:,} parameters, objective {prepared.config.objective.name}")
    log("chosen for you:")
    for choice in (*choices, *prepared.choices):
        log(f"  {choice}")
    log("choose otherwise with --set NAME=VALUE; 'dragoman systems' lists the systems")
    log("")


def continue_run(run: Path, settings: dict[str, Any]) -> dict[str, object]:
    """Go on with a run where it stopped."""
    from dragoman import config as configuration
    from dragoman.run import CONFIG_FILE, read_spec
    from dragoman.training.process_group import ProcessGroup
    from dragoman.training.training_budget import change_resumed_run

    def change() -> Config:
        read_spec(run)  # says so if it is no run
        saved = configuration.from_yaml(run / CONFIG_FILE)
        return change_resumed_run(run, settings) if settings else saved

    world = ProcessGroup.join()
    with world.report_lost_process(
        lambda: f"another process ended while {run} was opened: see what it said, and start again"
    ):
        changed = world.on_first_rank(change)
    return train_run(run, changed, world)


def train_run(run: Path, config: Config | None, world: ProcessGroup) -> dict[str, object]:
    """Train a run from where it stands; of many processes only the first comes back from it."""
    from dragoman.training.display import SilentDisplay, make_display
    from dragoman.training.trainer import Trainer

    trainer = Trainer(run, SilentDisplay() if world.rank else make_display(), config, world)
    if not world.rank and config is not None:
        log(trainer.budget.resume_message(trainer.state, f"{program()} train {shlex.quote(str(run))}"))
    if not world.rank and trainer.strategy.name:
        log(f"{world.world_size} processes, weights {trainer.strategy.name}")
    outcome = trainer.train()
    world.destroy()
    if world.rank:
        raise typer.Exit()
    return report(run, outcome)


def report(run: Path, outcome: object) -> dict[str, object]:
    """Write report.html, and say what came out."""
    from dragoman.lens.run_report import write_report
    from dragoman.run import load, read_metrics
    from dragoman.training.trainer import TrainingOutcome

    assert isinstance(outcome, TrainingOutcome)
    loaded = load(run, device="cpu")
    write_report(loaded)
    progress = outcome.state
    valid = [record for record in read_metrics(run) if record["kind"] in ("valid", "averaged")]
    kind, step = ("averaged", progress.step) if outcome.averaged_checkpoints else ("valid", progress.best_step)
    best: dict[str, Any] = next(
        (record for record in reversed(valid) if (record["kind"], record["step"]) == (kind, step)), {}
    )
    return {
        "run": str(run),
        "use": loaded.usage.command if loaded.usage else None,
        "hints": hints(loaded),
        "interrupted": outcome.interrupted,
        "reason": outcome.reason,
        "step": progress.step,
        "epoch": progress.data_position.epoch,
        "target_tokens": progress.target_tokens,
        "seconds": round(progress.seconds, 1),
        "averaged": outcome.averaged_checkpoints,
        "best": best,
    }


def hints(run: Run) -> dict[str, str]:
    """Commands that say what to do with a trained run."""
    found = {}
    if run.usage is not None:
        found["use it"] = run.usage.hint(program(), str(run.folder), run.model.source_features is not None)
    if run.objective is not None and run.objective.data_format == "text":
        files = "--source FILE --target FILE" if run.model.can_generate else "--source WORDS_AND_TAGS.tsv"
        found["fine-tune"] = f"{program()} train NEW_RUN --start-from {shlex.quote(str(run.folder))} {files}"
    return found


def finish(run: Path, outcome: dict[str, object], as_json: bool) -> None:
    name = shlex.quote(str(run))
    log(f"step {outcome['step']:,}: stopped: {outcome['reason']}")
    if outcome["interrupted"]:
        log(f"nothing is lost; go on with:  {program()} train {name} --resume")
    else:
        best = outcome["best"]
        if isinstance(best, dict) and best:
            kind = (
                f"the mean of {best['checkpoints']} checkpoints"
                if best["kind"] == "averaged"
                else f"step {best['step']:,}"
            )
            from dragoman.training.display import format_metrics

            log(f"best: {kind}, validation {format_metrics(best)}, perplexity {best['perplexity']:.2f}")
        log(f"look at:    {run}/report.html")
        hints = outcome["hints"]
        assert isinstance(hints, dict)
        for what, command in hints.items():
            log(f"{what + ':':12}{command}")
    if as_json:
        print_json(outcome)
