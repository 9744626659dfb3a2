"""Examples of pretraining: a corrupted input and its target, as text that people can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.data import BatchRow, TokenStore
from dragoman.objectives.denoising import sentinel_ids
from dragoman.objectives.objective import Objective

TRIED = 30  # rows that are looked at for examples
MOST = 3  # examples


@dataclass(frozen=True)
class PretrainingExample:
    """A corrupted input, its target, and what else the model is told or asked."""

    input: str
    target: str
    note: str = ""

    def lines(self) -> list[str]:
        note = f"  ({self.note})" if self.note else ""
        return [f"input   {self.input}{note}", f"target  {self.target}"]


def pretraining_examples(objective: Objective, store: TokenStore, seed: int) -> list[PretrainingExample]:
    """One example of each kind that the objective makes, such as each mask of UniLM; none if it corrupts nothing."""
    found: dict[str, PretrainingExample] = {}
    for n in range(min(TRIED, len(store))):
        row = corrupt_row(objective, store, n, seed)
        if row is None:
            break
        one = render_row(objective, row)
        found.setdefault(one.note, one)
    return list(found.values())[:MOST]


def corrupt_row(objective: Objective, store: TokenStore, index: int, seed: int) -> BatchRow | None:
    """A row of a store as the objective corrupts it; None if it corrupts nothing."""
    if not objective.corrupts_input or objective.make_row is None:
        return None
    return objective.make_row(store, index, np.random.default_rng((seed, index)))


def render_row(objective: Objective, row: BatchRow) -> PretrainingExample:
    """A row as text: masks, sentinels and separators are written out."""
    pad = objective.task.framing.pad
    if not objective.aligned:
        return PretrainingExample(
            _text(objective, row.source), _text(objective, row.target), objective.describe_row(row)
        )
    asked = np.asarray(row.target) != pad
    borders = np.flatnonzero(np.diff(asked, prepend=False, append=False))
    parts = [_text(objective, row.target[begin:end]) for begin, end in borders.reshape(-1, 2)]
    return PretrainingExample(_text(objective, row.source), " … ".join(parts), objective.describe_row(row))


def _text(objective: Objective, ids: Sequence[int] | np.ndarray) -> str:
    tokenizer, model = objective.task.target_tokenizer, objective.task.model
    names = {number: f"<extra_id_{n}>" for n, number in enumerate(sentinel_ids(tokenizer, model.vocab_size))}
    symbols = {tokenizer.mask: "<mask>", tokenizer.sep: "<sep>", tokenizer.cls: "<cls>"}
    names |= {number: name for number, name in symbols.items() if number is not None}
    parts: list[str] = []
    plain: list[int] = []
    for token in [*map(int, ids), None]:
        if token is not None and token not in names:
            plain.append(token)
            continue
        parts += [tokenizer.decode(plain).strip(), "" if token is None else names[token]]
        plain = []
    return " ".join(part for part in parts if part)
