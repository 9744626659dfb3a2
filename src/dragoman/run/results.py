"""What a run gives back."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Alignment = list[tuple[int, int]]  # (source word, target word)


@dataclass(frozen=True)
class Translation:
    """A translation: its text, log p(y|x), pieces, word alignment, and the next best ones if they were asked for."""

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    alignment: Alignment | None = None
    alternatives: list[Translation] = field(default_factory=list)
    finished: bool = True  # False: cut off at the length limit
    whole: bool = True  # False: the source was longer than the run reads, and only its beginning was translated
    proven_optimal: bool | None = (
        None  # by exact search: is there none better? False: its bound ended it before that was known
    )
    copied: bool = False  # True: the source has no letters and was copied; the model was not asked, and the score is 0
    token_scores: list[float] | None = None  # log p of every token, END last where it was reached; if asked for


@dataclass(frozen=True)
class ScoredText:
    """log p(y|x), in all and for every piece, END last."""

    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class SentenceAttention:
    """Every attention of one sentence pair: by the path of its part, H T S, with the pieces on either side."""

    source: list[str]
    target: list[str]  # row t was looked at to choose this piece
    weights: dict[str, Tensor]
    cross: Tensor | None  # T S: the looks at the source, mean over heads and layers
    alignment: Alignment


@dataclass(frozen=True)
class TaggedSentence:
    """A sentence's words, the likeliest tag of each, and its probability; words past the longest source have none."""

    words: list[str]
    tags: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class FillResult:
    """A text with its gaps filled in, for every gap the likeliest choices with their probabilities, and other texts.

    The choices of an encoder are pieces, each with its own probability. Those of an encoder–decoder are spans, with the
    probability of all spans of the text together; a run that writes the whole text anew has none. `alternatives`: the
    next best texts with log p, of an encoder–decoder.
    """

    text: str
    choices: list[list[tuple[str, float]]]
    alternatives: list[tuple[str, float]] = field(default_factory=list)
