"""The tokenizers of a run: learned from its text, those of the run that it starts from, or others that are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dragoman.config import Config, TextConfig
from dragoman.data import Pair, Preflight, Reading
from dragoman.data.passes import Say, Survey
from dragoman.data.preflight import known_fertility
from dragoman.errors import UserError
from dragoman.run import is_run, read_tokenizers
from dragoman.text import Tokenizer, learn
from dragoman.text.adopted import adopted, open_tokenizers
from dragoman.text.tokenizer import LABEL
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
    """Those of the run to start from, those that are named, or learned ones; tags are always learned."""
    choices: list[Choice] = []
    if origin and config.text.tokenizer_from:
        raise UserError("--start-from keeps the tokenizers of that run: leave --tokenizer-from out")
    if config.text.tokenizer_from:
        tokenizers = _opened(Path(config.text.tokenizer_from), reading)
        config = replace(config, text=_described(config.text, tokenizers))
    elif origin:
        tokenizers, asked, default = origin.tokenizers, config.text, TextConfig()
        if (asked.tokenizer, asked.vocab_size, asked.shared_vocabulary, asked.space_marker) != (
            default.tokenizer,
            default.vocab_size,
            default.shared_vocabulary,
            default.space_marker,
        ):
            raise UserError(
                "the tokenizers of the run to start from are kept: leave out text.tokenizer, vocab_size, "
                "shared_vocabulary and space_marker"
            )
        text = replace(
            origin.config.text,
            bpe_dropout=asked.bpe_dropout,
            normalize_whitespace=asked.normalize_whitespace,
            source_word_vectors=asked.source_word_vectors,
            target_word_vectors=asked.target_word_vectors,
        )
        config = replace(config, text=text)
    else:
        config, choices = choose_vocabulary(config, survey.words)
        say(f"learning a vocabulary of {config.text.tokenizer} pieces from {survey.pairs:,} {reading.name}")
        tokenizers = _learn(config, reading, pairs, survey.pairs)
        choices = [_with_actual_size(choice, tokenizers) for choice in choices]
    if reading.labels:
        tags = learn((pair.target or "" for pair in pairs()), "label", 100_000)
        tokenizers = (tokenizers[0], tags)
    if any(config.data.corpus_tags) and not origin:
        source, target = tokenizers
        tagged = source.with_tags([tag for tag in dict.fromkeys(config.data.corpus_tags) if tag])
        tokenizers = tagged, tagged if target is source else target
    return config, tokenizers, choices


def _with_actual_size(choice: Choice, tokenizers: tuple[Tokenizer, Tokenizer]) -> Choice:
    """The choice of `text.vocab_size` with the learned size, where the text has fewer pieces than allowed."""
    sizes = sorted({tokenizer.size for tokenizer in tokenizers})
    if sizes[-1] >= int(str(choice.value)):
        return choice
    reason = f"all different pieces of the text; the limit is {choice.value:,}, {choice.reason}"
    return replace(choice, value=" and ".join(str(size) for size in sizes), reason=reason)


def with_fertility(
    preflight: Preflight, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], origin: Origin | None
) -> Preflight:
    """The report with what is known of the text that the tokenizers were learned from, if it is another text."""
    folder = origin.folder if origin else Path(config.text.tokenizer_from) if config.text.tokenizer_from else None
    if folder is None or tokenizers[0].kind in ("byte", "character"):
        return preflight
    known: tuple[float | None, float | None] = None, None
    try:
        values = json.loads((folder / "preflight.json").read_text(encoding="utf-8"))
        source, target = read_tokenizers(folder)
        known = known_fertility(values, source is target)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        pass  # a run that was imported, or a file
    if tokenizers[1].kind == LABEL:
        known = known[0], None
    return replace(preflight, fertility=known, learned=False)


def _opened(path: Path, reading: Reading) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a run, or of a file or folder from elsewhere, as this reading uses them."""
    source, target = _adopted(*read_tokenizers(path)) if is_run(path) else open_tokenizers(path)
    if reading.signals:
        source = target
    if reading.labels:
        target = source
    if reading.sides == 1 and source is not target:
        raise UserError(f"{path} has a tokenizer for each side, but a text alone needs one: name a file instead")
    if target.kind == LABEL:
        raise UserError(f"{path} tags words: its target has no tokenizer of text; name another run")
    return source, target


def _adopted(source: Tokenizer, target: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    first = adopted(source)
    return first, first if target is source else adopted(target)


def _described(asked: TextConfig, tokenizers: tuple[Tokenizer, Tokenizer]) -> TextConfig:
    """The settings with the properties of the tokenizers; an error where they contradict them."""
    source, target = tokenizers
    default = TextConfig()
    found = {
        "tokenizer": target.kind,
        "vocab_size": None,
        "shared_vocabulary": source is target,
        "space_marker": target.marker,
    }
    for name, value in found.items():
        if getattr(asked, name) not in (getattr(default, name), value):
            raise UserError(
                f"text.{name}={getattr(asked, name)} was given, but the tokenizer of {asked.tokenizer_from} is fixed: "
                f"leave text.{name} out"
            )
    return replace(asked, **found)  # type: ignore[arg-type]


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
        return learn(
            texts((sides[0], sides[1])), config.text.tokenizer, config.text.vocab_size or 8000, config.text.space_marker
        )

    if config.text.shared_vocabulary or reading.sides == 1 or reading.labels or reading.signals:
        joint = one(not reading.signals, not reading.labels)
        return joint, joint
    return one(True, False), one(False, True)
