"""What a run reads: texts as token ids with the symbols around them, or vectors, cut at the longest source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from dragoman.data.data_formats import encode_dialogue
from dragoman.data.feature_files import check_features
from dragoman.errors import UserError, unknown_name
from dragoman.run.labeling import add_framing
from dragoman.text.sentences import SplitText, split_sentences
from dragoman.text.untranslatable import is_untranslatable
from dragoman.text.whitespace import normalize_whitespace

if TYPE_CHECKING:
    from dragoman.run.run import Run

Source = str | NDArray[Any]  # a text, or vectors in its place, S F
Tag = str | Sequence[str] | None  # for all texts, or one for each; None: as the run would


def is_empty(source: Source) -> bool:
    return not source.strip() if isinstance(source, str) else not len(source)


def normalize_source(run: Run, source: Source) -> Source:
    """A source as the run was trained to read it: with normalised white space, unless the run does without."""
    if not run.config.text.normalize_whitespace or not isinstance(source, str):
        return source
    if run.config.objective.name == "dialogue":  # tabs separate the turns
        return "\t".join(map(normalize_whitespace, source.split("\t")))
    return normalize_whitespace(source)


def normalize_text(run: Run, text: str) -> str:
    """A target or a text alone, with normalised white space unless the run does without."""
    return normalize_whitespace(text) if run.config.text.normalize_whitespace else text


def is_copied(run: Run, source: Source) -> bool:
    """Whether a source is copied rather than translated: it has no letters, and the run copies such lines."""
    return bool(run.config.search.copy_untranslatable) and isinstance(source, str) and is_untranslatable(source)


def split_into_sentences(run: Run, text: str) -> SplitText:
    """The sentences of a text, none longer than the run reads, nor than the sentences that it was trained on."""

    def tokens(sentence: str) -> int:
        return len(run.source_tokenizer.encode(normalize_text(run, sentence)))

    return split_sentences(text, tokens, min(max_source_tokens(run), run.config.data.max_length))


def tag_ids(run: Run, count: int, tag: Tag) -> list[list[int]]:
    """What stands before each of some texts: the symbol of a tag, or nothing for ''."""
    if tag is None:
        tag = next(iter(run.config.data.corpus_tags), "")
    names, known = [tag] * count if isinstance(tag, str) else tag, run.source_tokenizer.tags
    if wrong := [name for name in names if name and name not in known]:
        raise unknown_name("tag", wrong[0], known) if known else UserError(f"{run.folder} was trained without tags")
    return [[known[name]] if name else [] for name in names]


def encode_without_framing(run: Run, sources: Sequence[Source], tag: Tag = None) -> list[Any]:
    """Token ids without the symbols around them, or vectors, of any length."""
    features = run.model.source_features
    if features is not None:
        return [check_features(source, features) for source in sources]
    texts = [text for source in sources if isinstance(text := normalize_source(run, source), str)]
    if len(texts) < len(sources):
        raise UserError(f"{run.folder} reads text, but was given arrays: use a run of a system that reads them")
    if not run.is_dialogue:
        tags = tag_ids(run, len(texts), tag)
        return [[*before, *ids] for before, ids in zip(tags, run.source_tokenizer.encode_batch(list(texts)))]
    if any(text.count("\t") % 2 for text in texts):
        raise UserError("a dialogue is gone on with after the other's turn: an odd number of turns is expected")
    turns = (run.source_tokenizer.encode_batch(text.split("\t")) for text in texts)  # a dialogue so far
    return [[*encode_dialogue(some, run.framing)[0][len(run.framing.source_prefix) :]] for some in turns]


def max_source_tokens(run: Run) -> int:
    """How many tokens of a source are read, without the symbols around it."""
    return max(1, run.max_source_length - len(run.framing.source_prefix) - len(run.framing.source_suffix))


def frame_source(run: Run, ids: Any) -> Any:
    cut = ids[: max_source_tokens(run)]
    return cut if run.model.source_features is not None else add_framing(cut, run.framing)
