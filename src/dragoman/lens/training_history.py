"""How the translation of a sentence changed in training: one entry for each checkpoint of a run that was kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from dragoman.errors import UserError
from dragoman.lens.axes import evenly_spaced
from dragoman.lens.inspection_types import Inspection, TokenizedText
from dragoman.run import Alignment, Run, load
from dragoman.run_files import checkpoints_by_step
from dragoman.search import SearchConfig


class CheckpointStep(NamedTuple):
    """A step of the training and the name of its checkpoint."""

    step: int
    checkpoint: str


@dataclass(frozen=True)
class ForcedTranslation:
    """A translation with its probability, alignment and attention under one checkpoint."""

    target: TokenizedText
    score: float  # log p
    token_scores: tuple[float, ...]  # log p of every token
    cross_attention: Tensor | None  # T S: mean over heads and layers; None without cross-attention
    alignment: Alignment | None  # (source word, target word)
    finished: bool  # whether it ends with EOS, not at the length limit

    @classmethod
    def from_inspection(cls, inspection: Inspection) -> ForcedTranslation:
        """Take the translation of an inspection (`Run.lens`) with its probability, attention and alignment."""
        assert inspection.target is not None
        return cls(
            target=inspection.target,
            score=inspection.score,
            token_scores=tuple(step.log_probability for step in inspection.steps),
            cross_attention=inspection.cross_attention,
            alignment=inspection.alignment,
            finished=inspection.finished,
        )


@dataclass(frozen=True)
class HistoryEntry:
    """What one checkpoint makes of a sentence.

    Attributes:
        step: number of optimizer steps of the checkpoint.
        checkpoint: its name, which --checkpoint accepts.
        source: the sentence.
        found: the translation that the checkpoint finds by search; None if it generates no token, not even EOS.
        final: the translation of the final model, which the checkpoint scores by teacher forcing.
    """

    step: int
    checkpoint: str
    source: TokenizedText
    found: ForcedTranslation | None
    final: ForcedTranslation


def history_checkpoints(run: Run, max_count: int | None = None) -> list[CheckpointStep]:
    """Return the training step and the name of each checkpoint in a run folder, in the order of steps.

    If there are more than `max_count`, evenly spaced ones are selected; None returns all. `member_folders` are the run
    folders of an ensemble, for which this is a UserError, or the one folder of a single model.
    """
    member_folders = run.member_folders
    if len(member_folders) > 1:
        raise UserError(
            f"{run.folder} is an ensemble, but only the training history of a single model can be shown: name one of "
            f"its runs, such as {member_folders[0]}"
        )
    steps = [CheckpointStep(step, name) for step, name in checkpoints_by_step(member_folders[0]).items()]
    return steps if max_count is None else evenly_spaced(steps, max_count)


def open_checkpoint(run: Run, name: str) -> Run:
    """Load the checkpoint called `name` from the folder of a run, on the run's device and for its language pair."""
    return load(run.folder, checkpoint_name=name, device=str(run.device)).with_languages(*run.language_pair)


def inspect_checkpoint(
    run: Run, step: CheckpointStep, source: str, final: str, search: SearchConfig | None = None
) -> HistoryEntry:
    """Translate a sentence with one checkpoint, and let the same checkpoint score the translation of the final model.

    Args:
        run: the checkpoint, loaded by `open_checkpoint`.
        step: the training step and the name of the checkpoint.
        final: the translation of the final model, which is scored by teacher forcing.
        search: search configuration; None for the default of the run.

    The entry's `found` is None if the checkpoint generates no token at all.
    """
    forced = run.lens(source, final)  # inspects the given translation; without one, the translation that is found
    try:
        found = ForcedTranslation.from_inspection(run.lens(source, search=search))
    except UserError:  # the translation is empty, and there is nothing to inspect
        found = None
    assert forced.source is not None
    final_translation = ForcedTranslation.from_inspection(forced)
    return HistoryEntry(step.step, step.checkpoint, forced.source, found=found, final=final_translation)


def sentence_history(
    run: Run, source: str, final: str, steps: list[CheckpointStep], search: SearchConfig | None = None
) -> Iterator[HistoryEntry]:
    """Yield an entry for each checkpoint of `steps`: its translation of `source`, and its score for `final`.

    `final` is the translation of the final model. Only one checkpoint is in memory at a time. `search` is None for the
    search configuration of the run.
    """
    for step in steps:
        yield inspect_checkpoint(open_checkpoint(run, step.checkpoint), step, source, final, search)


def history_rows(entries: list[HistoryEntry]) -> list[dict[str, Any]]:
    """Return a table row for each checkpoint: its step, its translation with log p, and log p of the final translation.

    `entry.found` is the checkpoint's own translation (None if it generated nothing), `entry.final` that of the final
    model.
    """
    return [
        {
            "step": entry.step,
            "log p": None if entry.found is None else round(entry.found.score, 2),
            "log p of the final": round(entry.final.score, 2),
            "translation": "(nothing)" if entry.found is None else entry.found.target.text or "(empty)",
        }
        for entry in entries
    ]
