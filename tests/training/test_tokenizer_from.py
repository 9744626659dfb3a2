"""Runs that share a vocabulary: with other seeds, and with a tokenizer from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import tokenizers
from conftest_training import small_config
from tokenizers import decoders, models, pre_tokenizers, trainers

import dragoman
from dragoman.config import Config, TextConfig
from dragoman.errors import UserError
from dragoman.training.display import SilentDisplay
from dragoman.training.prepare import prepare_run
from dragoman.training.trainer import Trainer


def without_validation(config: Config) -> Config:
    return replace(config, data=replace(config.data, valid_source=(), valid_target=()))


def quiet(text: str) -> None:
    pass


def trained(folder: Path, config: Config) -> Path:
    prepare_run(folder, config, quiet)
    Trainer(folder, SilentDisplay()).train()
    return folder


def with_text(config: Config, **text: object) -> Config:
    return replace(config, text=replace(TextConfig(), **text))  # type: ignore[arg-type]


def test_runs_with_other_seeds_can_be_ensembled(corpus: Path, tmp_path: Path) -> None:
    runs = [
        trained(tmp_path / f"run{seed}", without_validation(small_config(corpus, seed=seed, steps=2)))
        for seed in (1, 2)
    ]
    assert len({(run / "tokenizer.json").read_text(encoding="utf-8") for run in runs}) == 1
    for name in ("source.tokens", "target.tokens"):
        assert len({next((run / "data" / "valid").rglob(name)).read_bytes() for run in runs}) == 1
    first, second = map(dragoman.load, runs)
    assert first.model.state_dict().keys() == second.model.state_dict().keys()
    assert first.ensemble(second).translate(["The dog sleeps."])[0].text


def test_tokenizer_of_another_run(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, steps=2)
    first = trained(tmp_path / "first", config)
    half = tmp_path / "half"
    half.mkdir()
    for name in ("train.en", "train.de"):
        lines = (corpus / name).read_text(encoding="utf-8").splitlines(keepends=True)
        (half / name).write_text("".join(lines[:100]), encoding="utf-8")
    data = replace(config.data, source=(str(half / "train.en"),), target=(str(half / "train.de"),))
    second = trained(tmp_path / "second", with_text(replace(config, data=data), tokenizer_from=str(first)))
    assert (first / "tokenizer.json").read_bytes() == (second / "tokenizer.json").read_bytes()
    one, two = dragoman.load(first), dragoman.load(second)
    assert two.config.text.tokenizer == "bpe"
    assert one.ensemble(two).translate(["The dog sleeps."])[0].text


def test_hugging_face_tokenizer(corpus: Path, tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=350, initial_alphabet=alphabet, show_progress=False)
    library.train([str(corpus / "train.en"), str(corpus / "train.de")], trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    config = with_text(small_config(corpus, steps=2), tokenizer_from=str(tmp_path / "tokenizer.json"))
    run = dragoman.load(trained(tmp_path / "run", config))
    (tmp_path / "tokenizer.json").unlink()  # the run needs it no more
    text = "The dog sleeps."
    assert run.source_tokenizer.decode(run.source_tokenizer.encode(text)) == text
    assert run.translate([text])[0].tokens
    with pytest.raises(UserError, match="was given, but the tokenizer"):
        prepare_run(
            tmp_path / "other",
            replace(config, text=replace(config.text, tokenizer="unigram", tokenizer_from=str(run.folder))),
            quiet,
        )


def test_start_from_conflicts_with_tokenizer_from(corpus: Path, tmp_path: Path) -> None:
    config = small_config(corpus, steps=2)
    run = trained(tmp_path / "run", config)
    both = with_text(config, tokenizer_from=str(run))
    both = replace(both, training=replace(both.training, start_from=str(run)))
    with pytest.raises(UserError, match="leave out --tokenizer-from"):
        prepare_run(tmp_path / "other", both, quiet)
    assert not (tmp_path / "other").exists()


def text_alone(corpus: Path, *languages: str) -> Config:
    config = with_text(small_config(corpus, "bart"), vocab_size=1000)
    sources = tuple(str(corpus / f"train.{language}") for language in languages)
    return replace(config, data=replace(config.data, source=sources, target=(), valid_source=(), valid_target=()))


def test_warning_for_a_tokenizer_of_another_language(corpus: Path, tmp_path: Path) -> None:
    prepare_run(tmp_path / "german", text_alone(corpus, "de"), quiet)
    prepare_run(tmp_path / "both", text_alone(corpus, "en", "de"), quiet)
    pairs = small_config(corpus)
    alone = prepare_run(tmp_path / "alone", with_text(pairs, tokenizer_from=str(tmp_path / "german")), quiet).preflight
    (warning,) = [warning for warning in alone.warnings if "per character" in warning]
    found, usual = alone.source.tokens_per_character, alone.usual_tokens_per_character[0]
    assert found is not None
    assert usual is not None
    assert warning.startswith(f"the tokenizer splits the source into short tokens, {found:.2f} per character")
    assert f"({usual:.2f} on the text that it was learned from)" in warning
    good = prepare_run(tmp_path / "good", with_text(pairs, tokenizer_from=str(tmp_path / "both")), quiet).preflight
    assert not [warning for warning in good.warnings if "per character" in warning]
    # what a tokenizer was learned from is known in the second generation too
    again = prepare_run(tmp_path / "again", with_text(pairs, tokenizer_from=str(tmp_path / "alone")), quiet).preflight
    assert again.usual_tokens_per_character == alone.usual_tokens_per_character
    assert warning in again.warnings
