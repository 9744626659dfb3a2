"""The tokenizers of a run: learned from its text, those of the run that it starts from, or others that are named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from dragoman.config import Config, TextConfig
from dragoman.data import DataFormat, Preflight, SentencePair
from dragoman.data.corpus_passes import CorpusSurvey, Log
from dragoman.data.preflight import training_fertility
from dragoman.errors import UserError
from dragoman.run import is_run_folder, read_tokenizers
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.text.remapped_tokenizer import open_tokenizers, with_own_special_tokens
from dragoman.text.tokenizer import LABEL_TYPE
from dragoman.training.defaults import Choice, choose_vocab_size
from dragoman.training.warm_start import ParentRun

LEARN_FROM = 1_000_000  # pairs, evenly spread, that a tokenizer is learned from


def make_tokenizers(
    config: Config,
    reading: DataFormat,
    pairs: Callable[[], Iterator[SentencePair]],
    survey: CorpusSurvey,
    origin: ParentRun | None,
    say: Log,
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
        config, choices = choose_vocab_size(config, survey.words)
        say(f"learning a vocabulary of {config.text.tokenizer} pieces from {survey.pairs:,} {reading.item_name}")
        tokenizers = _learn(config, reading, pairs, survey.pairs)
        choices = [_with_actual_size(choice, tokenizers) for choice in choices]
    if reading.target_is_tags:
        tags = learn_tokenizer((pair.target or "" for pair in pairs()), "label", 100_000)
        tokenizers = (tokenizers[0], tags)
    if any(config.data.corpus_tags) and not origin:
        source, target = tokenizers
        tagged = source.with_tags([tag for tag in dict.fromkeys(config.data.corpus_tags) if tag])
        tokenizers = tagged, tagged if target is source else target
    return config, tokenizers, choices


def _with_actual_size(choice: Choice, tokenizers: tuple[Tokenizer, Tokenizer]) -> Choice:
    """The choice of `text.vocab_size` with the learned size, where the text has fewer pieces than allowed."""
    sizes = sorted({tokenizer.vocab_size for tokenizer in tokenizers})
    if sizes[-1] >= int(str(choice.value)):
        return choice
    reason = f"all different pieces of the text; the limit is {choice.value:,}, {choice.reason}"
    return replace(choice, value=" and ".join(str(size) for size in sizes), reason=reason)


def with_fertility(
    preflight: Preflight, config: Config, tokenizers: tuple[Tokenizer, Tokenizer], origin: ParentRun | None
) -> Preflight:
    """The report with what is known of the text that the tokenizers were learned from, if it is another text."""
    folder = origin.folder if origin else Path(config.text.tokenizer_from) if config.text.tokenizer_from else None
    if folder is None or tokenizers[0].kind in ("byte", "character"):
        return preflight
    known: tuple[float | None, float | None] = None, None
    try:
        values = json.loads((folder / "preflight.json").read_text(encoding="utf-8"))
        source, target = read_tokenizers(folder)
        known = training_fertility(values, source is target)
    except (OSError, ValueError, KeyError, TypeError, UserError):
        pass  # a run that was imported, or a file
    if tokenizers[1].kind == LABEL_TYPE:
        known = known[0], None
    return replace(preflight, fertility=known, learned=False)


def _opened(path: Path, reading: DataFormat) -> tuple[Tokenizer, Tokenizer]:
    """The tokenizers of a run, or of a file or folder from elsewhere, as this reading uses them."""
    source, target = _adopted(*read_tokenizers(path)) if is_run_folder(path) else open_tokenizers(path)
    if reading.source_is_features:
        source = target
    if reading.target_is_tags:
        target = source
    if not reading.has_target and source is not target:
        raise UserError(f"{path} has a tokenizer for each side, but a text alone needs one: name a file instead")
    if target.kind == LABEL_TYPE:
        raise UserError(f"{path} tags words: its target has no tokenizer of text; name another run")
    return source, target


def _adopted(source: Tokenizer, target: Tokenizer) -> tuple[Tokenizer, Tokenizer]:
    first = with_own_special_tokens(source)
    return first, first if target is source else with_own_special_tokens(target)


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
    config: Config, reading: DataFormat, pairs: Callable[[], Iterator[SentencePair]], count: int
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
        return learn_tokenizer(
            texts((sides[0], sides[1])), config.text.tokenizer, config.text.vocab_size or 8000, config.text.space_marker
        )

    if config.text.shared_vocabulary or not reading.is_translation:
        joint = one(not reading.source_is_features, not reading.target_is_tags)
        return joint, joint
    return one(True, False), one(False, True)
