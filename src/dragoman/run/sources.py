"""What a run reads: texts as token ids with the symbols around them, or vectors, cut at the longest source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dragoman.data.reading import dialogue
from dragoman.data.signals import checked
from dragoman.errors import UserError, unknown
from dragoman.run.labels import framed

if TYPE_CHECKING:
    from dragoman.run.run import Run

Source = str | NDArray[Any]  # a text, or vectors in its place, S F
Tag = str | Sequence[str] | None  # for all texts, or one for each; None: as the run would


def is_empty(source: Source) -> bool:
    return not source.strip() if isinstance(source, str) else not len(source)


def tags_of(run: Run, count: int, tag: Tag) -> list[list[int]]:
    """What stands before each of some texts: the symbol of a tag, or nothing for ''."""
    if tag is None:
        tag = next(iter(run.config.data.tags), "")
    names, known = [tag] * count if isinstance(tag, str) else tag, run.source_tokenizer.tags
    if wrong := [name for name in names if name and name not in known]:
        raise unknown("tag", wrong[0], known) if known else UserError(f"{run.folder} was trained without tags")
    return [[known[name]] if name else [] for name in names]


def ids_of(run: Run, sources: Sequence[Source], tag: Tag = None) -> list[Any]:
    """Token ids without the symbols around them, or vectors, of any length."""
    features = run.model.source_features
    if features is not None:
        return [checked(source, features) for source in sources]
    texts = [source for source in sources if isinstance(source, str)]
    if len(texts) < len(sources):
        raise UserError(f"{run.folder} reads text, but was given arrays: use a run of a system that reads them")
    if not run.in_turns:
        tags = tags_of(run, len(texts), tag)
        return [[*before, *ids] for before, ids in zip(tags, run.source_tokenizer.encode_batch(list(texts)))]
    if any(text.count("\t") % 2 for text in texts):
        raise UserError("a dialogue is gone on with after the other's turn: an odd number of turns is expected")
    turns = (run.source_tokenizer.encode_batch(text.split("\t")) for text in texts)  # a dialogue so far
    return [[*dialogue(some, run.framing)[0][len(run.framing.before) :]] for some in turns]


def room_for(run: Run) -> int:
    """How many tokens of a source are read, without the symbols around it."""
    return max(1, run.longest_source - len(run.framing.before) - len(run.framing.after))


def framed_source(run: Run, ids: Any) -> Any:
    cut = ids[: room_for(run)]
    return cut if run.model.source_features is not None else framed(cut, run.framing)
