"""A new language for a trained model: nothing changes for the old ones before training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from conftest_training import small_config
from test_resume import train
from tokenizers import models, pre_tokenizers, trainers

import dragoman
from dragoman import checkpoint
from dragoman.config import Config, LoRAConfig, TextConfig
from dragoman.errors import UserError
from dragoman.run import read_framing, read_spec, read_tokenizers
from dragoman.training.prepare import prepare_run
from dragoman.training.warm_start import ParentRun

GREEK = str.maketrans("abdeghiklmnoprstu", "αβδεγηικλμνοπρστυ")
CYRILLIC = str.maketrans("abdeghiklmnoprstu", "абдегхиклмнопрсту")


def rewrite(corpus: Path, script: dict[int, str], name: str) -> str:
    """Write the German training text in other letters."""
    path = corpus / f"train.{name}"
    path.write_text((corpus / "train.de").read_text(encoding="utf-8").lower().translate(script), encoding="utf-8")
    return str(path)


def extended(corpus: Path, parent: Path, language: str, target: str, **text: Any) -> Config:
    config = small_config(corpus, steps=2, validation_interval=2, start_from=str(parent))
    data = replace(
        config.data,
        source=(str(corpus / "train.en"),) * 2,
        target=(target, str(corpus / "train.de")),
        valid_source=(),
        valid_target=(),
        corpus_languages=(f"en:{language}", "en:de"),
    )
    return replace(config, data=data, text=TextConfig(add_language=language, **text))


def test_old_language_loses_nothing(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    target = rewrite(corpus, GREEK, "el")
    log: list[str] = []
    run = tmp_path / "run"
    prepare_run(run, extended(corpus, origin_run, "el", target), log.append)
    old_tokenizer, _ = read_tokenizers(origin_run)
    tokenizer, _ = read_tokenizers(run)
    old_size, size = old_tokenizer.vocab_size, tokenizer.vocab_size
    german = (corpus / "train.de").read_text(encoding="utf-8").splitlines()[:20]
    assert tokenizer.encode_batch(german) == old_tokenizer.encode_batch(german)
    greek = Path(target).read_text(encoding="utf-8").splitlines()[0]
    assert len(tokenizer.encode(greek)) < len(old_tokenizer.encode(greek)) / 2
    assert tokenizer.decode(tokenizer.encode(greek)) == greek
    # weights at the start: all old rows, and logits of old tokens for the old pair, are unchanged
    weights = checkpoint.read_tensors(run / "initial", "model")
    before = ParentRun.open(str(origin_run)).weights()
    assert read_spec(run).vocabulary_sizes == (size, size)  # type: ignore[attr-defined]
    assert all(torch.equal(weights[name][: len(weight)], weight) for name, weight in before.items())
    framing, old_framing = read_framing(run), read_framing(origin_run)
    codes = framing.languages
    assert codes is not None
    assert codes.target == "el"
    assert codes.ids == {"de": old_framing.bos, "el": size - 1}
    assert replace(framing.for_languages(target="de"), suppressed=old_framing.suppressed) == old_framing
    code_row = weights["target_embedding.weight"][size - 1]
    assert torch.equal(code_row, before["target_embedding.weight"][old_framing.bos])
    piece = next(index for index in range(old_size, size) if tokenizer.tokens([index])[0] == "α")
    bytes_of_piece = before["target_embedding.weight"][old_tokenizer.piece_ids("α")]
    torch.testing.assert_close(weights["target_embedding.weight"][piece], bytes_of_piece.mean(0))
    assert any("new language el: its code starts as that of de" in line for line in log)
    assert any("pieces are added" in line for line in log)
    train(run)
    loaded = dragoman.load(run, device="cpu")
    assert loaded.languages == ["de", "el"]
    assert loaded.framing.bos == size - 1
    # and another one, with LoRA: extended embeddings are trained beside the adapters
    config = extended(corpus, run, "ru", rewrite(corpus, CYRILLIC, "ru"), similar_language="el", max_new_pieces=30)
    prepare_run(tmp_path / "third", replace(config, lora=LoRAConfig(rank=2)), log.append)
    third, _ = read_tokenizers(tmp_path / "third")
    assert third.vocab_size == size + 31
    assert third.encode(greek) == tokenizer.encode(greek)
    trained = checkpoint.read_values(tmp_path / "third" / "initial")["new_weights"]
    assert "target_embedding.weight" in trained


def test_a_run_with_an_imported_tokenizer_and_corpus_tags_learns_a_language(corpus: Path, tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (corpus / "train.en", corpus / "train.de")]
    library = tokenizers.Tokenizer(models.WordLevel(unk_token="<unk>"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.train_from_iterator(texts, trainers.WordLevelTrainer(special_tokens=["<unk>"], show_progress=False))
    library.save(str(tmp_path / "tokenizer.json"))
    config = small_config(corpus, steps=1, validation_sentences=0, average_checkpoints=False)
    data = replace(config.data, corpus_tags=("news",))
    text = TextConfig(tokenizer_from=str(tmp_path / "tokenizer.json"))
    prepare_run(tmp_path / "origin", replace(config, data=data, text=text), lambda text: None)
    train(tmp_path / "origin")
    config = extended(corpus, tmp_path / "origin", "el", rewrite(corpus, GREEK, "el"), max_new_pieces=30)
    config = replace(config, data=replace(config.data, corpus_tags=("news", "news")))
    prepare_run(tmp_path / "run", config, lambda text: None)
    (old_tokenizer, _), (tokenizer, _) = map(read_tokenizers, (tmp_path / "origin", tmp_path / "run"))
    size = old_tokenizer.vocab_size
    assert tokenizer.tags == old_tokenizer.tags == {"news": size - 1}
    assert tokenizer.vocab_size == size + 31
    assert read_spec(tmp_path / "run").vocabulary_sizes == (size + 31, size + 31)  # type: ignore[attr-defined]
    assert tokenizer.tokens([read_framing(tmp_path / "run").languages.ids["el"]]) == ["<2el>"]  # type: ignore[union-attr]
    train(tmp_path / "run")
    assert dragoman.load(tmp_path / "run", device="cpu").languages == ["de", "el"]


def test_wrong_requests(corpus: Path, origin_run: Path, tmp_path: Path) -> None:
    config = extended(corpus, origin_run, "el", str(corpus / "train.de"))
    unused = replace(config, data=replace(config.data, corpus_languages=("en:de", "en:de")))
    with pytest.raises(UserError, match="no training corpus is in the new language 'el'"):
        prepare_run(tmp_path / "run", unused, lambda text: None)
    alone = replace(config, training=replace(config.training, start_from=None))
    with pytest.raises(UserError, match="--add-language el extends a trained model"):
        prepare_run(tmp_path / "run", alone, lambda text: None)
    with pytest.raises(UserError, match="names a language of the model that resembles the one to add"):
        TextConfig(similar_language="de")
