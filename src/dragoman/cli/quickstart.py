"""`dragoman quickstart`: a translator in two minutes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_system
from dragoman.cli.inputs import FileLayout, read_pairs
from dragoman.cli.options import log, program
from dragoman.errors import UserError

PAIRS = 40_000
#: learns the phrasebook in about a minute and a half on two cores
RECIPE = {
    "batch_tokens": 512,
    "steps": 1300,
    "minutes": 1.9,
    "schedule": "cosine",
    "warmup_steps": 100,
    "label_smoothing": 0.0,
}


def quickstart(
    folder: Annotated[Path, typer.Argument(help="Where to put it.")] = Path("runs/quickstart"),
    system: Annotated[str, typer.Option(help="Which system to train.")] = "bahdanau",
) -> None:
    """Train, evaluate and show a small translator on the phrasebook.

    The phrasebook is a grammar that makes English sentences with their German translations; the sentences on which the
    translator is tested are none that it has seen.
    """
    check_system(system)

    from dragoman import config as configuration
    from dragoman import evaluation
    from dragoman.cli.train import continue_run, start_run
    from dragoman.data import phrasebook
    from dragoman.lens.text_view import alignment_lines
    from dragoman.run import CONFIG_FILE, is_run_folder, load
    from dragoman.systems import get_system as known_system

    corpus = folder.with_name(f"{folder.name}-phrasebook")
    if not corpus.exists():
        log(f"writing {PAIRS:,} sentence pairs of the phrasebook to {corpus}")
        phrasebook.write(corpus, pairs=PAIRS)
    if is_run_folder(folder):
        trained = configuration.from_yaml(folder / CONFIG_FILE).system.name
        if trained != system:
            raise UserError(f"{folder} holds a run of {trained}: name another folder for {system}")
        outcome = continue_run(folder, {})
    else:
        # fewer than two epochs: nothing is memorized that dropout would have to prevent
        no_dropout = {name: 0.0 for name in known_system(system).settings() if name.endswith("dropout")}
        values = {
            "data": {
                "source": [str(corpus / "train.en")],
                "target": [str(corpus / "train.de")],
                "valid_source": [str(corpus / "valid.en")],
                "valid_target": [str(corpus / "valid.de")],
                "max_length": 64,
            },
            "system": {"name": system, "size": "tiny", "settings": no_dropout},
            "training": RECIPE
            | {"validation_interval": 650, "validation_sentences": 200, "patience": None, "average_checkpoints": False},
        }
        outcome = start_run(folder, configuration.from_dict(values))
    if outcome["interrupted"]:
        log(f"stopped; go on with: {program()} quickstart {folder}")
        raise typer.Exit(130)
    run = load(folder, device="cpu")
    sources, references = read_pairs(corpus / "test.en", corpus / "test.de", FileLayout())
    translations = run.translate(sources)
    texts = [t.text for t in translations]
    right = sum(text == reference for text, reference in zip(texts, references))
    print()
    print(
        f"{right} of {len(sources)} sentences that it had never seen are translated exactly right "
        f"({100 * right / len(sources):.1f} %)"
    )
    print(evaluation.bleu(texts, references))
    print()
    for n in range(0, len(sources), max(1, len(sources) // 4)):
        for line in alignment_lines(sources[n], texts[n], translations[n].alignment or []):
            print(f"  {line}")
        print()
    me = program()
    print(f"""What to do next:
  look at it             open {folder}/report.html
  see what it thinks     {me} serve {folder}, and open http://127.0.0.1:5000
  translate              echo 'The old man reads the book.' | {me} translate {folder}
  see what it looks at   {me} show {folder} 'The old man reads the book.'
  use your own text      {me} train runs/mine --source my.en --target my.de
  another system         {me} quickstart runs/transformer --system transformer
  every system           {me} systems""")
