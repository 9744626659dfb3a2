"""`dragoman quickstart`: train a small translator in two minutes; `dragoman phrasebook`: write its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dragoman.cli.checks import check_system
from dragoman.cli.inputs import PairFormat, read_pairs
from dragoman.cli.options import program_name
from dragoman.cli.train import resume_run
from dragoman.console import log, print_lines
from dragoman.errors import UserError
from dragoman.run_files import is_run_folder

PHRASEBOOK_PAIRS = 40_000
#: learns the phrasebook in about a minute and a half on two cores; a slower machine may take five minutes for it
QUICK_TRAINING: dict[str, Any] = {
    "data.max_length": 64,
    "system.size": "tiny",
    "training.batch_tokens": 512,
    "training.steps": 1300,
    "training.minutes": 5,
    "training.schedule": "cosine",
    "training.warmup_steps": 100,
    "training.label_smoothing": 0.0,
    "training.validation_interval": 650,
    "training.validation_sentences": 200,
    "training.patience": None,
    "training.average_checkpoints": False,
    "training.keep_history": 12,
}


def quickstart(
    folder: Annotated[Path, typer.Argument(help="Run folder to create, for the trained model.")] = Path(
        "runs/quickstart"
    ),
    system: Annotated[str, "System to train; see 'dragoman systems'."] = "bahdanau",
) -> None:
    """Train and evaluate a small translator on the phrasebook, and show translations.

    The phrasebook is a grammar that generates English sentences with German translations. No test sentence occurs in
    the training data.
    """
    check_system(system)
    corpus = folder.with_name(f"{folder.name}-phrasebook")
    write_phrasebook(corpus, PHRASEBOOK_PAIRS)

    from dragoman import config as configuration
    from dragoman import evaluation
    from dragoman.api.train_run import start_training
    from dragoman.lens.text_view import alignment_lines
    from dragoman.run import load
    from dragoman.run_files import CONFIG_FILE
    from dragoman.systems import get_system

    if is_run_folder(folder):
        trained = configuration.from_yaml(folder / CONFIG_FILE).system.name
        if trained != system:
            raise UserError(
                f"{folder} already holds a model of the system {trained}: choose another folder for the system {system}"
            )
        summary = resume_run(folder, settings={})
    else:
        files = {"source": "train.en", "target": "train.de", "valid_source": "valid.en", "valid_target": "valid.de"}
        values = QUICK_TRAINING | {f"data.{name}": str(corpus / file) for name, file in files.items()}
        # Fewer than two epochs: there is no overfitting that dropout would have to prevent.
        dropout = {name: 0.0 for name in get_system(system).settings() if name.endswith("dropout")}
        values |= {"system.name": system, "system.settings": dropout}
        summary = start_training(folder, configuration.replace_settings(configuration.Config(), values))
    if summary is None:  # in all but the first of several processes
        return
    if summary.interrupted:
        log(f"stopped; continue with: {program_name()} quickstart {folder}")
        raise typer.Exit(130)
    run = load(folder, device="cpu")
    sources, references = read_pairs(corpus / "test.en", corpus / "test.de", PairFormat())
    translations = run.translate(sources)
    texts = [translation.text for translation in translations]
    print()
    print(evaluation.exact_match(texts, references))
    print(evaluation.bleu(texts, references))
    print()
    for index in range(0, len(sources), max(1, len(sources) // 4)):  # about four examples
        lines = alignment_lines(sources[index], texts[index], translations[index].alignment or [])
        print_lines([*(f"  {line}" for line in lines), ""])
    program = program_name()
    print(f"""Next steps:
  read the report         open {folder}/report.html
  inspect translations    {program} serve {folder}, and open http://127.0.0.1:5000
  translate               echo 'The old man reads the book.' | {program} translate {folder}
  see its attention       {program} show {folder} 'The old man reads the book.'
  train on your own text  {program} train runs/mine --source my.en --target my.de
  train another system    {program} quickstart runs/transformer --system transformer
  list all systems        {program} systems""")


def write_phrasebook(corpus: Path, pairs: int) -> None:
    """Write the phrasebook, sentence pairs that a grammar generates, to the folder `corpus` unless it exists.

    `pairs` is the number of training pairs; there are validation and test pairs, too.
    """
    from dragoman.data import phrasebook

    if not corpus.exists():
        log(f"writing {pairs:,} sentence pairs of the phrasebook to {corpus}")
        phrasebook.write(corpus, pairs=pairs)


def phrasebook(
    folder: Annotated[
        Path,
        typer.Argument(
            help="Folder to create for the phrasebook, an English and German corpus that a grammar generates: "
            "files of a training, a validation and a test set."
        ),
    ],
    pairs: Annotated[
        int,
        typer.Option(
            help="Number of sentence pairs in the training set; a validation and a test set are generated, too.", min=1
        ),
    ] = 20_000,
    seed: Annotated[int, "Random seed of the sentences."] = 0,
) -> None:
    """Write sentence pairs of the phrasebook with gold alignments.

    The phrasebook is a grammar of English and German that generates sentence pairs. Training, validation and test sets
    are written as .en, .de and .align files (“0-0 1-2”: source word-target word, counted from 0).
    """
    from dragoman.data.phrasebook import write

    write(folder, pairs=pairs, seed=seed)
    log(f"wrote {pairs:,} training pairs, and validation and test pairs with unseen sentences, to {folder}")
    log(f"next: {program_name()} train runs/phrasebook --source {folder}/train.en --target {folder}/train.de")
