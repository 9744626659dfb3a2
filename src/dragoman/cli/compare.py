"""`dragoman compare`: train several systems on the same data with the same budget and compare them."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_device, check_system
from dragoman.cli.inputs import FileLayout, read_pairs
from dragoman.cli.options import Json, Settings, program_name
from dragoman.cli.quickstart import PHRASEBOOK_PAIRS, write_phrasebook
from dragoman.config import parse_settings
from dragoman.console import log, print_json
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.config import Config
    from dragoman.evaluation.system_comparison import RunResult, SystemComparison
    from dragoman.training.comparison_training import ComparisonBudget

DEFAULT_SYSTEMS = (
    "rnn-lm,sutskever,cho,bahdanau,luong,gnmt,convs2s,bytenet,transformer,shaw,roformer,t5,transformer-d,moe"
)
#: settings and budget for the phrasebook: most systems learn it in a few minutes on two cores
PHRASEBOOK_TRAINING: dict[str, Any] = {"batch_tokens": 1024, "label_smoothing": 0.0}
PHRASEBOOK_TARGET_TOKENS = 1_000_000
MAX_PRINTED_DIFFERENCES = 10  # between two systems; comparison.html and comparison.md have all
NUMBER_SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}  # the factor of each, in lower case

#: options of `compare`, and the settings that they set
COMPARE_OPTIONS = {
    "--source": "data.source",
    "--target": "data.target",
    "--valid-source": "data.valid_source",
    "--valid-target": "data.valid_target",
}


@dataclass(frozen=True)
class BudgetOptions:
    """Options for the training budget of each system; at most one of them may be given."""

    target_tokens: Annotated[
        str | None,
        "Training budget of each run in target tokens, such as 500k or 20M. Default: from the size of the corpus, "
        f"{PHRASEBOOK_TARGET_TOKENS:,} for the phrasebook.",
        "N",
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(
            help="Training budget of each run (a system with one seed), as a number of optimizer steps.", min=1
        ),
    ] = None
    flops: Annotated[
        str | None, "Training budget of each run in FLOPs, counted from the architecture, such as 1e13.", "N"
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Training budget of each run (a system with one seed) in minutes; the results then depend on "
            "the speed of the machine.",
            min=0,
        ),
    ] = None

    def budget(self, phrasebook: bool) -> ComparisonBudget:
        """Return the training budget of each system; more than one option is a UserError.

        The default is a number of target tokens: fixed if the data are the `phrasebook` (generated sentence pairs),
        otherwise derived from the corpus size.
        """
        from dragoman.training.comparison_training import ComparisonBudget

        amounts = {
            "tokens": None if self.target_tokens is None else parse_amount(self.target_tokens, "--target-tokens"),
            "steps": self.steps,
            "flops": None if self.flops is None else parse_amount(self.flops, "--flops"),
            "minutes": self.minutes,
        }
        budgets = {kind: amount for kind, amount in amounts.items() if amount is not None}
        if len(budgets) > 1:
            options = " and ".join("--target-tokens" if kind == "tokens" else f"--{kind}" for kind in budgets)
            raise UserError(
                f"the training budget of a comparison is set by one option, but {options} are given: use only one of "
                "them"
            )
        if not budgets:  # an amount of None follows from the corpus size
            return ComparisonBudget("tokens", float(PHRASEBOOK_TARGET_TOKENS) if phrasebook else None)
        ((kind, amount),) = budgets.items()
        return ComparisonBudget(kind, float(amount))  # type: ignore[arg-type]


@dataclass(frozen=True)
class TableOptions:
    """Files and formats in which the result of a comparison is written."""

    csv: Annotated[Path | None, "Write the table of all systems to this file, as CSV.", "FILE"] = None
    latex: Annotated[
        Path | None, "Write the table of all systems to this file, as LaTeX with the package booktabs.", "FILE"
    ] = None
    as_json: Json = False

    def write(self, comparison: SystemComparison) -> None:
        """Write the table of all systems to the files of --csv and --latex; print the comparison as text or JSON."""
        from dragoman.evaluation import format_csv, format_latex
        from dragoman.storage import write_file

        # a row of each system: name of the column → its value
        rows = [system.quality() | system.cost() for system in comparison.systems]
        if self.csv is not None:
            write_file(self.csv, format_csv(rows))
        if self.latex is not None:
            write_file(self.latex, format_latex(rows))
        if self.as_json:
            print_json(comparison.to_dict())
        else:
            print(text_report(comparison))


def compare(
    folder: Annotated[
        Path, typer.Argument(help="Folder to which the trained runs and the results of the comparison are written.")
    ] = Path("runs/compare"),
    systems: Annotated[
        str,
        "Systems, comma-separated; see 'dragoman systems'. A system may have settings of its own: "
        "transformer@size=big@dropout=0.3. NAME+OBJECTIVE is trained further with another objective: gnmt+reward.",
    ] = DEFAULT_SYSTEMS,
    seeds: Annotated[str, "Random seeds, comma-separated; each system is trained with each."] = "1",
    ensembles: Annotated[
        bool, "Also evaluate the ensemble of each system: the averaged probabilities of its runs with all --seeds."
    ] = False,
    metrics: Annotated[
        str | None,
        "Metrics of texts, comma-separated, such as rouge-l,bleu; differences are tested by the first. Default: those "
        "that suit the references, such as bleu,chrf,exact-match for sentences.",
    ] = None,
    *,
    settings: Annotated[dict[str, Any], COMPARE_OPTIONS],
    test_source: Annotated[Path | None, "Source file of the test set."] = None,
    test_target: Annotated[Path | None, "Target file of the test set; omit for TSV and JSON lines."] = None,
    size: Annotated[str, "Model size: tiny, small, base or big."] = "tiny",
    budget_options: BudgetOptions,
    device: Annotated[str, "Device: auto, cpu, cuda or mps."] = "auto",
    set_settings: Settings = None,
    output: TableOptions,
) -> None:
    """Train systems on the same data with the same budget, and compare them with significance tests.

    Without files, the phrasebook is used: sentence pairs that a grammar of English and German generates. All systems
    see the same batches. Each system and seed has its own run folder. An interrupted comparison continues with the same
    command; systems and seeds can be added to a finished one. Writes comparison.html and comparison.md.
    """
    names = [name.strip() for name in systems.split(",") if name.strip()]
    for name in names:
        check_system(_system_name(name))
    check_device(device)
    metric_names = [name.strip() for name in (metrics or "").split(",") if name.strip()]
    phrasebook = "data.source" not in settings
    if phrasebook and (settings or test_source or test_target):
        raise UserError(
            "files are given, but not the source side of the training data: name it with --source, or leave out all "
            "files to compare the systems on the phrasebook (generated sentence pairs)"
        )
    _check_files(settings | parse_settings(set_settings or []), test_source, test_target)

    from dragoman.evaluation import check_metric_names, choose_metrics
    from dragoman.evaluation.system_comparison import SystemComparison
    from dragoman.lens.comparison_report import write_comparison
    from dragoman.text.normalization import TextNormalizer
    from dragoman.training import comparison_training as training
    from dragoman.training.resolve import resolve_features_column

    training.check_systems(names)
    check_metric_names(metric_names)
    if any(name.startswith("comet") for name in metric_names):
        raise UserError(
            "'dragoman compare' does not support comet, which also reads the sources: leave it out of --metrics "
            f"{metrics}"
        )
    seed_list = parse_seeds(seeds)
    if ensembles and len(seed_list) < 2:
        raise UserError(
            "--ensembles combines the runs of a system with different seeds, but --seeds names only one seed: name at "
            "least two, such as --seeds 1,2,3"
        )
    budget = budget_options.budget(phrasebook)
    # training and validation files with absolute paths, by the dotted names of their settings
    files = {name: [str(Path(file).resolve()) for file in paths] for name, paths in settings.items()}
    if phrasebook:
        files, test_source, test_target = phrasebook_files(folder)
    if test_source is None:
        raise UserError(
            "a comparison needs a test set, but none is given: name its files with --test-source and --test-target, "
            "or one TSV or JSON lines file with both sides as --test-source"
        )
    config = _shared_config(files, size, device, budget, phrasebook, set_settings or [])
    # the test set has the columns of the training files, and references are normalized as their text
    layout = FileLayout.from_settings(resolve_features_column(config).data)
    sources, references = read_pairs(test_source, test_target, layout, "--test-target")
    references = list(map(TextNormalizer.from_settings(config.text).normalize_letters, references))
    if not metric_names:
        choice = choose_metrics(references, sources)
        metric_names = [name for name in choice.metrics if name != "ter"]  # TER takes long for many systems
        log(f"metrics: {', '.join(metric_names)} ({choice.reason}; others: --metrics)")
    training.check_settings(names, config)
    folder.mkdir(parents=True, exist_ok=True)
    training.save_or_check_settings(folder, config, budget)
    results = _train_and_evaluate(folder, names, seed_list, config, budget, sources, references, metric_names, device)
    for name in names if ensembles else []:
        log(f"{name}: translating the test set with the ensemble of {len(seed_list)} seeds")
        members = [result for result in results if result.system == name]
        results.append(training.evaluate_ensemble(folder, name, members, sources, device))
    is_time_budget = budget.kind == "minutes"
    comparison = SystemComparison(
        results, sources, references, str(budget), machine_dependent=is_time_budget, metrics=metric_names
    )
    page = write_comparison(folder, comparison, [program_name(), *sys.argv[1:]])
    output.write(comparison)
    log(f"page with all comparisons and figures: {page}")


def _system_name(label: str) -> str:
    """Return the system of a value of --systems: "gnmt" for "gnmt+reward@size=big".

    "@" precedes settings, and "+" the objective of a second training.
    """
    return re.split("[@+]", label)[0]


def _check_files(settings: dict[str, Any], test_source: Path | None, test_target: Path | None) -> None:
    """Raise a UserError if a file of the training or test set cannot be opened.

    `settings` has the training files and their format by the dotted names of settings, such as "data.source".
    `test_source` None: there are no files of a test set to check.
    """
    from dragoman.config import Config, replace_settings
    from dragoman.data.corpus import Corpus

    data = replace_settings(Config(), settings).data
    for source, target in zip(data.source, data.target or [None] * len(data.source)):
        Corpus.from_settings(data, source, target).check()
    if test_source is not None:
        FileLayout.from_settings(data).corpus(test_source, test_target).check()


def _train_and_evaluate(
    folder: Path,
    systems: list[str],
    seeds: list[int],
    config: Config,
    budget: ComparisonBudget,
    sources: list[str],
    references: list[str],
    metrics: list[str],
    device: str,
) -> list[RunResult]:
    """Train each system with each seed, and evaluate it on the test set; return a result for each run.

    Runs with a saved result on the same test set are not repeated.

    Args:
        folder: contains the folders of all runs.
        systems: values of --systems, possibly with settings or a second objective: "transformer@size=big".
        seeds: random seeds; each gives a run of every system.
        config: the settings that all systems share.
        budget: amount of training of each run, such as a number of steps.
        sources, references: the test set.
        metrics: names of the metrics that are printed after each run.
        device: on which the test set is translated.
    """
    from dragoman.evaluation import evaluate
    from dragoman.training import comparison_training as training

    runs = [(name, seed_index, seed) for name in systems for seed_index, seed in enumerate(seeds)]
    log(f"{len(runs)} trainings (systems: {len(systems)}, seeds: {len(seeds)}), budget: {budget}")
    results = []
    display = training.ComparisonDisplay(systems, len(seeds))
    with display.bar:
        for number, (name, seed_index, seed) in enumerate(runs, 1):
            display.start_run(name, seed_index, f"{name}, seed {seed} ({number} of {len(runs)})")
            # the number is the fraction of the run that the progress bar shows as finished
            if result := training.saved_result(folder, name, seed, sources, references):
                display.show(1.0, "finished before")
                display.message("already finished")
            else:
                display.show(0.0, "preparing")
                training.train_system(folder, name, seed, config, budget, display)
                display.show(1.0, "translating the test set")
                result = training.evaluate_run(folder, name, seed, sources, references, device)
                scores = evaluate(metrics, result.texts, references).values()
                display.finish(
                    f"{result.steps:,} steps, {result.target_tokens:,} target tokens in {result.seconds:.0f} s, "
                    + ", ".join(f"{score.name} {score.formatted}" for score in scores)
                )
            results.append(result)
    return results


def _shared_config(
    files: dict[str, list[str]],
    size: str,
    device: str,
    budget: ComparisonBudget,
    phrasebook: bool,
    set_settings: list[str],
) -> Config:
    """Return the configuration that all systems of the comparison share, without the name of a system.

    Args:
        files: training and validation files, by the dotted names of their settings.
        size: size of the models: tiny, small, base or big.
        device: on which the systems are trained.
        budget: a time budget needs a learning-rate schedule that does not depend on the number of steps.
        phrasebook: whether the data are short generated sentences, which need other settings than a real corpus.
        set_settings: values of --set, such as training.learning_rate=1e-3, which override all others.
    """
    from dragoman import config as configuration
    from dragoman.training.comparison_training import SAME_FOR_ALL

    # SAME_FOR_ALL: training settings of all systems, with batches that do not depend on the system
    training = SAME_FOR_ALL | {"schedule": "inverse-sqrt" if budget.kind == "minutes" else "cosine", "device": device}
    training |= PHRASEBOOK_TRAINING if phrasebook else {}
    values: dict[str, Any] = {f"training.{name}": value for name, value in training.items()}
    values |= {**files, "data.max_length": 64 if phrasebook else 256, "system.size": size}
    values |= {"system.settings.dropout": 0.0} if phrasebook else {}
    config = configuration.replace_settings(configuration.Config(), values)
    return configuration.override_settings(config, set_settings)


def text_report(comparison: SystemComparison) -> str:
    """Return the comparison as text: tables of quality and cost, significance tests, and findings in sentences.

    Of the tests of differences between systems, those with the smallest p-values are shown, at most
    MAX_PRINTED_DIFFERENCES; `method` describes the test. `signature` says how the first metric was computed, if it has
    variants.
    """
    from dragoman.evaluation import format_table
    from dragoman.systems.published_results import published_rows

    seeds = ", ".join(map(str, comparison.seeds))
    several = f"; mean ± standard deviation of {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    lines = [
        f"Quality on {comparison.sentences:,} test sentences{several}",
        format_table([system.quality() for system in comparison.systems]),
        "",
        f"Training cost (seeds {seeds}; tokens/s, seconds and device FLOPs as measured on this machine)",
        format_table([system.cost() for system in comparison.systems]),
        "training FLOPs: operations of the model, counted. device FLOPs: seconds × the speed of large matrix products.",
    ]
    if published := published_rows([_system_name(system.name) for system in comparison.systems]):
        lines += ["", "As published, on other data", format_table(published)]
    if differences := sorted(comparison.differences, key=lambda difference: difference.adjusted_p_value):
        printed = differences[:MAX_PRINTED_DIFFERENCES]
        lines += ["", f"Differences: {comparison.method}", format_table([difference.row() for difference in printed])]
        if len(differences) > len(printed):
            lines.append(f"… {len(differences) - len(printed)} more in comparison.md")
    lines += ["", *comparison.findings()]
    lines += [f"{comparison.metric_name} signature: {comparison.signature}"] if comparison.signature else []
    return "\n".join(lines)


def phrasebook_files(folder: Path) -> tuple[dict[str, list[str]], Path, Path]:
    """Write the phrasebook (generated sentence pairs) to FOLDER/phrasebook unless it exists.

    Returns the settings of its training and validation files, and its test source and target.
    """
    corpus = (folder / "phrasebook").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    write_phrasebook(corpus, PHRASEBOOK_PAIRS)
    files = {
        "data.source": [str(corpus / "train.en")],
        "data.target": [str(corpus / "train.de")],
        "data.valid_source": [str(corpus / "valid.en")],
        "data.valid_target": [str(corpus / "valid.de")],
    }
    return files, corpus / "test.en", corpus / "test.de"


def parse_amount(text: str, option: str) -> float:
    """Parse the value of `option`, a number such as 500000, 500k, 20M or 1e13; the suffixes are k, M, G and T.

    Commas and underscores between digits are ignored. Other text is a UserError.
    """
    number = text.strip().lower().replace(",", "").replace("_", "")
    factor = NUMBER_SUFFIXES.get(number[-1:], 1.0)
    try:
        return factor * float(number[:-1] if factor > 1 else number)
    except ValueError:
        raise UserError(f"{option} must be a number such as 500000, 500k or 1e13, got {text!r}") from None


def parse_seeds(text: str) -> list[int]:
    """Parse the value of --seeds: different integers from 0 on, separated by commas; other text is a UserError."""
    numbers = [number.strip() for number in text.split(",") if number.strip()]
    if not numbers or not all(number.isdecimal() for number in numbers):
        raise UserError(f"--seeds must be integers separated by commas, such as 1,2,3, got {text!r}")
    seeds = list(map(int, numbers))
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {text} contains a seed twice: name every seed once")
    return seeds
