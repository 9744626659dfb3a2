"""What the methods of a run return."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

Alignment = list[tuple[int, int]]  # (source word, target word)


@dataclass(frozen=True)
class Translation:
    """A translation.

    Attributes:
        score: log p(y|x)
        tokens: readable tokens, without BOS and EOS
        alignment: word alignment; None if it was not requested or the model has no attention
        alternatives: the next best translations, if the search returns several (`n_best`)
        finished: False if the translation was truncated at the length limit
        truncated_source: True if the source was longer than `search.max_source_length` and only its beginning was
            translated
        proven_optimal: for exact search, whether no better translation exists; False if the search gave up before
        copied: True if the source has no letters and was copied; the score is 0
        token_scores: log p of every token, EOS last if it was generated; None if not requested
    """

    text: str
    score: float
    tokens: list[str] = field(default_factory=list)
    alignment: Alignment | None = None
    alternatives: list[Translation] = field(default_factory=list)
    finished: bool = True
    truncated_source: bool = False
    proven_optimal: bool | None = None
    copied: bool = False
    token_scores: list[float] | None = None


@dataclass(frozen=True)
class StreamedTokens:
    """The part of a translation that has become certain since the last one; all texts joined are the translation.

    Attributes:
        text: final text; empty if a token is only part of a character
        score: log p of the tokens; None if they are the common prefix of several hypotheses
        tentative_text: how the best hypothesis continues at the moment; it may change
        translation: the complete translation, with the last part
    """

    text: str
    tokens: list[str] = field(default_factory=list)
    score: float | None = None
    tentative_text: str = ""
    translation: Translation | None = None


@dataclass(frozen=True)
class ScoredText:
    """log p(y|x), in total and for every token, EOS last."""

    score: float
    tokens: list[str]
    token_scores: list[float]


@dataclass(frozen=True)
class SentenceAttention:
    """The attention weights of a sentence pair.

    Attributes:
        source: the source tokens, framing included; for images and speech the encoder's positions from 1
        target: the tokens that are predicted, one for each row of the weights
        weights: H T S for each attention layer, by the path of its module
        cross: T S, the cross-attention averaged over heads and layers; None if the model has none
        alignment: the word alignment that follows from `cross`
    """

    source: list[str]
    target: list[str]
    weights: dict[str, Tensor]
    cross: Tensor | None
    alignment: Alignment


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, the most probable tag of each, and its probability; truncated words have no tag."""

    words: list[str]
    tags: list[str]
    probabilities: list[float]


@dataclass(frozen=True)
class Classification:
    """The most probable label of a text, and the probabilities of all labels, the highest first.

    `truncated_source`: the text was longer than `search.max_source_length`, and only its beginning was classified.
    """

    label: str
    probabilities: dict[str, float]
    truncated_source: bool = False


@dataclass(frozen=True)
class FillResult:
    """A text with its gaps filled.

    Attributes:
        choices: for every gap the most probable fillers with their probabilities. Those of an encoder are single
            tokens; those of an encoder–decoder are spans, with the probability of all spans of the text together.
            Empty for a run that generates the whole text.
        alternatives: the next best texts with log p, for an encoder–decoder
    """

    text: str
    choices: list[list[tuple[str, float]]]
    alternatives: list[tuple[str, float]] = field(default_factory=list)
