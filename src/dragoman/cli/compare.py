"""`dragoman compare`: train several systems on the same data with the same budget and compare them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.checks import check_device, check_system
from dragoman.cli.inputs import FileLayout, check_file, read_pairs
from dragoman.cli.options import Json, log, print_json, program
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.evaluation.system_comparison import SystemComparison
    from dragoman.training.comparison_training import ComparisonBudget

PAIRS = 40_000
SYSTEMS = "rnn-lm,sutskever,cho,bahdanau,luong,gnmt,convs2s,bytenet,transformer,shaw,roformer,t5,transformer-d,moe"
#: Settings and budget for the phrasebook: enough to learn it with most systems, a few minutes per system on two cores.
PHRASEBOOK: dict[str, Any] = {"batch_tokens": 1024, "label_smoothing": 0.0}
PHRASEBOOK_TOKENS = 1_000_000
SHOWN = 10  # differences printed; more are on the page
SUFFIXES = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
Files = list[str] | None


def compare(
    folder: Annotated[Path, typer.Argument(help="Folder for the runs and the results.")] = Path("runs/compare"),
    systems: Annotated[str, typer.Option(help="Systems, comma-separated: see 'dragoman systems'.")] = SYSTEMS,
    seeds: Annotated[str, typer.Option(help="Random seeds, comma-separated: each system is trained with each.")] = "1",
    source: Annotated[Files, typer.Option(metavar="FILE", help="Source text. Default: the phrasebook.")] = None,
    target: Annotated[Files, typer.Option(metavar="FILE", help="Target text.")] = None,
    valid_source: Annotated[Files, typer.Option(metavar="FILE", help="Validation source.")] = None,
    valid_target: Annotated[Files, typer.Option(metavar="FILE", help="Validation target.")] = None,
    test_source: Annotated[Path | None, typer.Option(help="Test source, on which systems are compared.")] = None,
    test_target: Annotated[Path | None, typer.Option(help="Test target; none for TSV and JSON lines.")] = None,
    size: Annotated[str, typer.Option(help="tiny, small, base or big.")] = "tiny",
    tokens: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="Budget: training target tokens per system, such as 500k or 20M. This is the default budget; "
            f"without N it follows from the size of the corpus ({PHRASEBOOK_TOKENS:,} for the phrasebook).",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: training steps per system.", min=1)] = None,
    flops: Annotated[
        str | None, typer.Option(metavar="N", help="Budget: counted training FLOPs per system, such as 1e13.")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(help="Budget: training time per system. Results then depend on the machine and its load.", min=0),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting. May be repeated.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as CSV.")] = None,
    latex: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table as LaTeX (booktabs).")] = None,
    as_json: Json = False,
) -> None:
    """Train systems on the same data with the same budget, and compare them with significance tests.

    All systems see the same batches. Each system and seed has its own run folder. An interrupted comparison continues
    with the same command; systems and seeds can be added to a finished one. Writes comparison.html and comparison.md.
    """
    names = [name.strip() for name in systems.split(",") if name.strip()]
    for name in names:
        check_system(name)
    check_device(device)
    if not source and (target or valid_source or valid_target or test_source or test_target):
        raise UserError("files were named without a --source: name it too, or leave all out for the phrasebook")
    for path in (*(source or []), *(target or []), test_source, test_target):
        if path is not None:
            check_file(Path(path))

    from dragoman import config as configuration
    from dragoman.evaluation import bleu, exact_match, format_csv, format_latex
    from dragoman.evaluation.system_comparison import SystemComparison
    from dragoman.lens.comparison_report import write_comparison
    from dragoman.storage import write_file
    from dragoman.training.comparison_display import ComparisonDisplay
    from dragoman.training.comparison_training import (
        SAME_FOR_ALL,
        check_request,
        check_settings,
        check_systems,
        evaluate_run,
        saved_result,
        train_system,
    )

    check_systems(names)
    numbers = parse_seeds(seeds)
    budget = choose_budget(tokens, steps, flops, minutes, phrasebook=not source)
    named = {"source": source, "target": target, "valid_source": valid_source, "valid_target": valid_target}
    files: dict[str, Any] = {name: [str(Path(file).resolve()) for file in some] for name, some in named.items() if some}
    if not source:
        files, test_source, test_target = phrasebook_files(folder)
    if test_source is None:
        raise UserError("systems are compared on a test set: name it with --test-source and --test-target")
    values = {
        "data": files | {"max_length": 64 if not source else 256},
        "system": {"size": size, "settings": {"dropout": 0.0} if not source else {}},
        "training": SAME_FOR_ALL
        | {"schedule": "inverse-sqrt" if budget.kind == "minutes" else "cosine", "device": device}
        | (PHRASEBOOK if not source else {}),
    }
    config = configuration.override_settings(configuration.from_dict(values), settings or [])
    columns = FileLayout(config.data.format, config.data.source_column, config.data.target_column)
    sources, references = read_pairs(test_source, test_target, columns, "--test-target")
    check_settings(names, config)
    folder.mkdir(parents=True, exist_ok=True)
    check_request(folder, config, budget)
    runs = [(name, number, seed) for name in names for number, seed in enumerate(numbers)]
    log(f"{len(runs)} trainings (systems: {len(names)}, seeds: {len(numbers)}), budget: {budget}")
    results = []
    with ComparisonDisplay(names, len(numbers)) as display:
        for count, (name, number, seed) in enumerate(runs, 1):
            label = f"{name}, seed {seed} ({count} of {len(runs)})"
            if result := saved_result(folder, name, seed, sources, references):
                display.skip(name, number, f"{label}: finished before")
            else:
                shown = display.run(name, number, label)
                train_system(folder, name, seed, config, budget, shown)
                shown.measuring()
                result = evaluate_run(folder, name, seed, sources, references, device)
                quality = f"BLEU {bleu(result.texts, references).formatted}"
                exact = exact_match(result.texts, references).formatted
                shown.finish(
                    f"{result.steps:,} steps, {result.target_tokens:,} target tokens in {result.seconds:.0f} s, "
                    f"{quality}, exact {exact} %"
                )
            results.append(result)
    comparison = SystemComparison(results, sources, references, str(budget), budget.kind == "minutes")
    page = write_comparison(folder, comparison, [program(), *sys.argv[1:]])
    rows = [one.quality() | one.cost() for one in comparison.systems]
    if csv is not None:
        write_file(csv, format_csv(rows))
    if latex is not None:
        write_file(latex, format_latex(rows))
    if as_json:
        print_json(comparison.to_dict())
    else:
        print(text_report(comparison))
    log(f"page with all comparisons and pictures: {page}")


def text_report(comparison: SystemComparison) -> str:
    """Two tables, the tests and the findings."""
    from dragoman.evaluation import format_table

    seeds = ", ".join(map(str, comparison.seeds))
    several = f"; mean ± standard deviation of {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    parts = [
        f"Quality on {comparison.sentences:,} test sentences{several}",
        format_table([one.quality() for one in comparison.systems]),
        "",
        f"Training cost (seeds {seeds}; tokens/s and seconds as measured on this machine)",
        format_table([one.cost() for one in comparison.systems]),
    ]
    if differences := sorted(comparison.differences, key=lambda one: one.adjusted_p_value):
        parts += ["", f"Differences: {comparison.method}", format_table([one.row() for one in differences[:SHOWN]])]
        if len(differences) > SHOWN:
            parts.append(f"… {len(differences) - SHOWN} more in comparison.md")
    parts += ["", *comparison.findings(), f"BLEU signature: {comparison.signature}"]
    return "\n".join(parts)


def phrasebook_files(folder: Path) -> tuple[dict[str, Any], Path, Path]:
    """Write the phrasebook into the folder if it is not there; its training, validation and test files."""
    from dragoman.data import phrasebook

    corpus = (folder / "phrasebook").resolve()
    if not corpus.exists():
        log(f"writing {PAIRS:,} sentence pairs of the phrasebook to {folder / 'phrasebook'}")
        folder.mkdir(parents=True, exist_ok=True)
        phrasebook.write(corpus, pairs=PAIRS)
    files = {
        f"{prefix}{side}": [str(corpus / f"{part}.{language}")]
        for prefix, part in (("", "train"), ("valid_", "valid"))
        for side, language in (("source", "en"), ("target", "de"))
    }
    return files, corpus / "test.en", corpus / "test.de"


def choose_budget(
    tokens: str | None, steps: int | None, flops: str | None, minutes: float | None, phrasebook: bool
) -> ComparisonBudget:
    """The one budget that was given, or the default one."""
    from dragoman.training.comparison_training import ComparisonBudget

    given = {
        "tokens": None if tokens is None else parse_amount(tokens, "--tokens"),
        "steps": steps,
        "flops": None if flops is None else parse_amount(flops, "--flops"),
        "minutes": minutes,
    }
    chosen = {kind: amount for kind, amount in given.items() if amount is not None}
    if len(chosen) > 1:
        raise UserError(f"a comparison has one budget, but got {' and '.join(f'--{kind}' for kind in chosen)}")
    for kind, amount in chosen.items():
        return ComparisonBudget(kind, float(amount))  # type: ignore[arg-type]
    return ComparisonBudget("tokens", float(PHRASEBOOK_TOKENS) if phrasebook else None)


def parse_amount(text: str, option: str) -> float:
    """A number such as 500000, 500k, 20M or 1e13."""
    number = text.strip().lower().replace(",", "").replace("_", "")
    factor = SUFFIXES.get(number[-1:], 1.0)
    try:
        return factor * float(number[:-1] if factor > 1 else number)
    except ValueError:
        raise UserError(f"{option} must be a number such as 500000, 500k or 1e13, but is {text!r}") from None


def parse_seeds(text: str) -> list[int]:
    """Whole numbers, comma-separated."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() for part in parts):
        raise UserError(f"--seeds must be whole numbers separated by commas, such as 1,2,3, but is {text!r}")
    seeds = list(map(int, parts))
    if len(set(seeds)) < len(seeds):
        raise UserError(f"a seed is named twice in --seeds {text}: each can be used once")
    return seeds
