"""Examples of pretraining, rendered as text: a corrupted input and its target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dragoman.data import BatchRow, TokenStore
from dragoman.objectives.denoising import sentinel_ids
from dragoman.objectives.objective import Objective

ROWS_TRIED = 30  # rows of the store among which examples of each kind are looked for
MAX_PRETRAINING_EXAMPLES = 3


@dataclass(frozen=True)
class PretrainingExample:
    """A corrupted input and its target; `note` says what else the model gets or predicts."""

    input: str
    target: str
    note: str = ""

    def lines(self) -> list[str]:
        """Return the example as two lines of text, input and target."""
        note = f"  ({self.note})" if self.note else ""
        return [f"input   {self.input}{note}", f"target  {self.target}"]


def pretraining_examples(objective: Objective, store: TokenStore, seed: int) -> list[PretrainingExample]:
    """Return an example of each kind of corrupted training text, such as each attention mask of UniLM.

    They come from the first texts of a store; `seed` decides which tokens are corrupted. An objective that corrupts
    nothing has none.
    """
    examples: dict[str, PretrainingExample] = {}  # the first one of each kind, by its note
    for index in range(min(ROWS_TRIED, len(store))):
        row = corrupt_row(objective, store, index, seed)
        if row is None:
            break
        example = render_row(objective, row)
        examples.setdefault(example.note, example)
    return list(examples.values())[:MAX_PRETRAINING_EXAMPLES]


def corrupt_row(objective: Objective, store: TokenStore, index: int, seed: int) -> BatchRow | None:
    """Return the training example of text number `index` of the store, corrupted with random numbers by `seed`.

    None if the objective corrupts nothing.
    """
    if not objective.corrupts_input or objective.build_row is None:
        return None
    return objective.build_row(store, index, np.random.default_rng((seed, index)))


def render_row(objective: Objective, row: BatchRow) -> PretrainingExample:
    """Render a training example (a row of token ids and labels) as text, with names for masks and other symbols.

    If the labels belong to source tokens (`labels_source`), the target shows the labeled spans, separated by "…".
    """
    if not objective.labels_source:
        target = _render(objective, row.target)
    else:
        is_labeled = np.asarray(row.target) != objective.task.framing.pad
        borders = np.flatnonzero(np.diff(is_labeled, prepend=False, append=False))  # start, end, start, end, …
        target = " … ".join(_render(objective, row.target[start:end]) for start, end in borders.reshape(-1, 2))
    return PretrainingExample(input=_render(objective, row.source), target=target, note=objective.describe_row(row))


def _render(objective: Objective, ids: Sequence[int] | np.ndarray) -> str:
    """Decode token ids as text, in which masks, sentinels and separators appear by their names."""
    tokenizer, model = objective.task.target_tokenizer, objective.task.model
    sentinels = sentinel_ids(tokenizer, model.vocab_size)
    names = {token: f"<extra_id_{number}>" for number, token in enumerate(sentinels)}  # token id → name
    symbols = {tokenizer.mask: "<mask>", tokenizer.sep: "<sep>", tokenizer.cls: "<cls>"}
    names |= {token: name for token, name in symbols.items() if token is not None}  # None: the tokenizer lacks it
    rendered: list[str] = []  # texts and names, in the order of the tokens
    pending: list[int] = []  # tokens since the last named one
    for token in [*map(int, ids), None]:  # None marks the end
        if token is not None and token not in names:
            pending.append(token)
            continue
        rendered += [tokenizer.decode(pending).strip(), "" if token is None else names[token]]
        pending = []
    return " ".join(text for text in rendered if text)
