"""The tokenizers of a run: learned from its text, or those of the run that it starts from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from dragoman.config import Config, TextConfig
from dragoman.data import Pair, Reading
from dragoman.data.passes import Say, Survey
from dragoman.errors import UserError
from dragoman.text import Tokenizer, learn
from dragoman.training.beginning import Origin
from dragoman.training.choices import Choice, choose_vocabulary

LEARN_FROM = 1_000_000  # pairs, evenly spread, that a tokenizer is learned from


def tokenizers_for(
    config: Config,
    reading: Reading,
    pairs: Callable[[], Iterator[Pair]],
    survey: Survey,
    origin: Origin | None,
    say: Say,
) -> tuple[Config, tuple[Tokenizer, Tokenizer], list[Choice]]:
    """Those of the run to start from, or learned ones; tags are always learned."""
    choices: list[Choice] = []
    if origin:
        tokenizers, asked, default = origin.tokenizers, config.text, TextConfig()
        if (asked.kind, asked.size, asked.joint, asked.marker) != (
            default.kind,
            default.size,
            default.joint,
            default.marker,
        ):
            raise UserError("the tokenizers of the run to start from are kept: leave text.kind, size, joint and marker")
        text = replace(
            origin.config.text,
            dropout=asked.dropout,
            source_vectors=asked.source_vectors,
            target_vectors=asked.target_vectors,
        )
        config = replace(config, text=text)
    else:
        config, choices = choose_vocabulary(config, survey.words)
        say(f"learning a vocabulary of {config.text.kind} pieces from {survey.pairs:,} {reading.name}")
        tokenizers = _learn(config, reading, pairs, survey.pairs)
        choices = [_with_actual_size(choice, tokenizers) for choice in choices]
    if reading.labels:
        tags = learn((pair.target or "" for pair in pairs()), "label", 100_000)
        tokenizers = (tokenizers[0], tags)
    if any(config.data.tags) and not origin:
        source, target = tokenizers
        tagged = source.with_tags([tag for tag in dict.fromkeys(config.data.tags) if tag])
        tokenizers = tagged, tagged if target is source else target
    return config, tokenizers, choices


def _with_actual_size(choice: Choice, tokenizers: tuple[Tokenizer, Tokenizer]) -> Choice:
    """The choice of `text.size` with the size that was learned, where the text has fewer pieces than were allowed."""
    sizes = sorted({tokenizer.size for tokenizer in tokenizers})
    if sizes[-1] >= int(str(choice.value)):
        return choice
    reason = f"all different pieces of the text; the limit is {choice.value:,}, {choice.reason}"
    return replace(choice, value=" and ".join(str(size) for size in sizes), reason=reason)


def _learn(
    config: Config, reading: Reading, pairs: Callable[[], Iterator[Pair]], count: int
) -> tuple[Tokenizer, Tokenizer]:
    every = -(-count // LEARN_FROM)

    def texts(sides: tuple[bool, bool]) -> Iterator[str]:
        for number, pair in enumerate(pairs()):
            if number % every == 0:
                if sides[0]:
                    yield pair.source
                if sides[1] and pair.target is not None:
                    yield pair.target

    def one(*sides: bool) -> Tokenizer:
        return learn(texts((sides[0], sides[1])), config.text.kind, config.text.size or 8000, config.text.marker)

    if config.text.joint or reading.sides == 1 or reading.labels or reading.signals:
        joint = one(not reading.signals, not reading.labels)
        return joint, joint
    return one(True, False), one(False, True)
