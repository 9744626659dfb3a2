"""Generated corpora of tasks: training, validation and test sets without overlap, the same for the same seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from dragoman.data import phrasebook
from dragoman.data.generated_media import MEDIA_TASKS, write_media
from dragoman.data.inflection_grammar import inflection_example
from dragoman.data.task_grammars import (
    GeneratedExample,
    answer_example,
    dialogue_example,
    python_example,
    span_example,
    split_of,
    tree_example,
)
from dragoman.errors import UserError, unknown_name
from dragoman.storage import atomic_folder

TRIES_PER_EXAMPLE = 100  # draws of a grammar before it counts as exhausted


def generate_splits(
    sample: Callable[[Random], GeneratedExample], train: int, valid: int, test: int, seed: int
) -> dict[str, list[GeneratedExample]]:
    """Draw distinct examples from a grammar (`sample`), as many as the arguments train, valid and test say.

    A checksum of the input decides the split of an example, so that no test input is ever trained on, for all sizes and
    seeds: 1/16 each for validation and test. After TRIES_PER_EXAMPLE draws for each example (and for 100 more, which
    count for small sizes), there is a UserError.
    """
    random, sizes = Random(seed), {"train": train, "valid": valid, "test": test}
    examples: dict[str, dict[str, GeneratedExample]] = {name: {} for name in sizes}
    for _ in range(TRIES_PER_EXAMPLE * (100 + sum(sizes.values()))):
        if all(len(examples[name]) == size for name, size in sizes.items()):
            return {name: list(split.values()) for name, split in examples.items()}
        example = sample(random)
        name = split_of(example.key)  # of the input
        if len(examples[name]) < sizes[name]:
            examples[name].setdefault(example.key, example)
    raise UserError(
        f"the grammar that generates the examples has too few different ones for {train:,} training, {valid:,} "
        f"validation and {test:,} test examples: lower these numbers"
    )


def write_examples(
    folder: Path,
    sample: Callable[[Random], GeneratedExample],
    *,
    train: int = 20_000,
    valid: int = 500,
    test: int = 500,
    seed: int = 0,
    low: int = 0,
) -> None:
    """Write the splits of a generated task to a new folder: NAME.tsv, or NAME.jsonl for dialogues.

    There are `train`, `valid` and `test` examples, drawn by `sample`. The first `low` training examples are written to
    train-low as well, a low-resource training set; 0: no such file.
    """
    with atomic_folder(folder) as partial_folder:
        for name, examples in generate_splits(sample, train, valid, test, seed).items():
            is_dialogue = bool(examples and examples[0].turns)
            # lines of JSON, or of source and target separated by a tab
            lines = [json.dumps({"turns": example.turns}) if is_dialogue else example.columns for example in examples]
            suffix = "jsonl" if is_dialogue else "tsv"
            file_sizes = {name: len(lines)} | ({f"{name}-low": low} if low and name == "train" else {})  # lines
            for file_name, size in file_sizes.items():
                text = "".join(f"{line}\n" for line in lines[:size])
                (partial_folder / f"{file_name}.{suffix}").write_text(text, encoding="utf-8")


#: generators by name: functions of the new folder and of settings such as train, valid, test and seed
GENERATORS: Mapping[str, Callable[..., None]] = {
    "phrasebook": phrasebook.write,
    "qa-span": partial(write_examples, sample=span_example),
    "qa": partial(write_examples, sample=answer_example),
    "dialogue": partial(write_examples, sample=dialogue_example),
    "tree": partial(write_examples, sample=tree_example),
    "python": partial(write_examples, sample=python_example),
    "inflection": partial(write_examples, sample=inflection_example),
    **{task: partial(write_media, task=task) for task in MEDIA_TASKS},
}


def write_generated(name: str, folder: Path, settings: Mapping[str, Any]) -> None:
    """Write the corpus of the generator `name` to a new folder; `settings` are arguments of the generator.

    An unknown generator, and arguments that it does not have, are UserErrors.
    """
    if name not in GENERATORS:
        raise unknown_name("generator", name, GENERATORS)
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        GENERATORS[name](folder, **settings)
    except TypeError as error:
        raise UserError(
            f"the generator {name} of the corpus does not accept its settings ({error}): correct "
            "[generator_settings] in the task recipe"
        ) from None
