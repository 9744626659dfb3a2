"""What a run does with the rows of a block: it translates, scores, continues, tags, classifies or fills them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dragoman.bulk.block_worker import ProcessRows, Rows
from dragoman.bulk.row_formats import RowResult
from dragoman.memory import keep_freed_memory

if TYPE_CHECKING:
    from dragoman.run import Run

#: called with a run, rows, the index of the first row, and options
ApplyRun = Callable[..., list[RowResult]]


@dataclass(frozen=True)
class RowTask:
    """What is done with every row: a function of this module, its options, and the columns of its results."""

    apply: ApplyRun
    results: Mapping[str, type]
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRows:
    """Opens a run in a worker process, and returns the function that maps rows with it."""

    load: Callable[[], Run]
    task: RowTask

    def __call__(self) -> ProcessRows:
        """Load the run, and return the function that processes rows with it."""
        keep_freed_memory()  # searches allocate and free the same large tensors again and again
        return partial(self.task.apply, self.load(), **self.task.options)


def translate_rows(
    run: Run, rows: Rows, first_index: int, *, search: dict[str, Any], **options: Any
) -> list[RowResult]:
    """Translate rows of one text each; a result has the translation and its number of tokens.

    Args:
        run: the opened run.
        rows: the rows of a block, each a tuple of one text.
        first_index: index of the first row in the job, which seeds sampling.
        search: the search configuration as JSON values.
        options: further arguments of `Run.translate_stream`.
    """
    from dragoman.search import search_from_dict

    texts = (text for (text,) in rows)
    results = run.translate_stream(texts, search_from_dict(search), first_index=first_index, **options)
    return [RowResult((result.text,), num_tokens=len(result.tokens)) for result in results]


def generate_rows(run: Run, rows: Rows, first_index: int, *, search: dict[str, Any]) -> list[RowResult]:
    """Continue prompts, or reply to dialogues, which are rows of one text each.

    `search` is the search configuration as JSON values; `first_index`, the index of the first row in the job, seeds
    sampling.
    """
    from dragoman.search import search_from_dict

    results = run.generate([text for (text,) in rows], search_from_dict(search), first_index=first_index)
    return [RowResult((result.text,), num_tokens=len(result.tokens)) for result in results]


def score_rows(run: Run, rows: Rows, first_index: int) -> list[RowResult]:
    """Compute log p(y|x) of rows of a source x and a target y, or log p(y) of rows of one text y.

    `first_index` is not used: nothing is sampled.
    """
    *sources, targets = map(list, zip(*rows))  # columns: `sources` is empty, or has one column
    results = run.score(sources[0] if sources else None, targets)
    return [RowResult((result.score,), num_tokens=len(result.tokens)) for result in results]


def tag_rows(run: Run, rows: Rows, first_index: int) -> list[RowResult]:
    """Tag the words (with parts of speech, for example) of rows of one text each; the result has a tag per word.

    `first_index` is not used: nothing is sampled.
    """
    results = run.tag([text for (text,) in rows])
    return [RowResult((" ".join(result.tags),), num_tokens=len(result.tags)) for result in results]


def classify_rows(run: Run, rows: Rows, first_index: int) -> list[RowResult]:
    """Return the most probable label of each text, which counts as one token, and its probability.

    `first_index` is not used: nothing is sampled.
    """
    results = run.classify([text for (text,) in rows])
    return [RowResult((result.label, result.probabilities[result.label]), num_tokens=1) for result in results]


def fill_rows(run: Run, rows: Rows, first_index: int) -> list[RowResult]:
    """Fill the gaps (`<mask>`) of rows of one text each with the most probable choice; a gap counts as one token.

    `first_index` is not used: nothing is sampled.
    """
    results = run.fill([text for (text,) in rows], top_k=1)
    return [RowResult((result.text,), num_tokens=len(result.choices)) for result in results]
