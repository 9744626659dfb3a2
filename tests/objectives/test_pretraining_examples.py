"""Examples of pretraining as people read them: a corrupted input and its target."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dragoman.data import EncodedPair, SentencePair, TokenStore, write_store
from dragoman.models import meta_model
from dragoman.objectives import TaskContext, build_objective
from dragoman.objectives.pretraining_examples import PretrainingExample, pretraining_examples
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer

TEXT = ["the old man reads a book .", "she sees the tree ! he sees a dog .", "we read in the old park ."] * 10
TOKENIZER = learn_tokenizer(TEXT, "word", 100)
VOCABULARY = VocabularySizes(TOKENIZER.vocab_size, TOKENIZER.vocab_size, joint=True)


@pytest.fixture
def store(tmp_path: Path) -> TokenStore:
    pair = SentencePair("x", None, "corpus", 1)
    rows = [EncodedPair(pair, ids, None) for ids in TOKENIZER.encode_batch(TEXT)]
    return write_store(tmp_path / "store", [rows], 260)


def shown(system: str, name: str, store: TokenStore, **settings: Any) -> list[PretrainingExample]:
    spec = SYSTEMS[system].spec(VOCABULARY, "tiny")
    material = TaskContext(meta_model(spec), TOKENIZER, TOKENIZER, spec.default_framing)
    return pretraining_examples(build_objective(name, material, settings), store, seed=1)


def test_masked_example(store: TokenStore) -> None:
    """With every word asked for, and so every word but those kept or replaced masked, the target is the text itself."""
    (one,) = shown("roberta", "masked-lm", store, mask_rate=1.0)
    assert one.target == TEXT[0]
    assert "<mask>" in one.input
    assert one.input.startswith("<cls> ")
    assert one.input.endswith(" <sep>")
    (few,) = shown("roberta", "masked-lm", store, mask_rate=0.3)
    assert " … " in few.target
    assert set(few.target.split()) - {"…"} <= set(TEXT[0].split())


def test_next_sentence_examples(store: TokenStore) -> None:
    found = shown("bert", "masked-lm", store, next_sentence=True)
    assert {one.note for one in found} == {"the second sentence is the next one", "the second sentence is a random one"}
    assert all(one.input.count("<sep>") == 2 for one in found)


def test_span_corruption_example(store: TokenStore) -> None:
    (one,) = shown("t5", "span-corruption", store, mask_rate=0.5, mean_span_length=2.0)
    names = re.findall(r"<extra_id_\d+>", one.target)
    spans = dict(zip(names, re.split(r" ?<extra_id_\d+> ?", one.target)[1:]))
    assert names == [f"<extra_id_{n}>" for n in range(len(names))]
    assert re.sub(r"<extra_id_\d+>", lambda found: spans[found[0]], one.input) == TEXT[0]


def test_denoising_target_is_the_whole_text(store: TokenStore) -> None:
    (one,) = shown("bart", "denoising", store)
    assert one.target == TEXT[0]
    assert "<mask>" in one.input


def test_replaced_token_example(store: TokenStore) -> None:
    (one,) = shown("electra", "replaced-token-detection", store)
    assert "discriminator" in one.note
    assert "<mask>" in one.lines()[0]


def test_unified_examples(store: TokenStore) -> None:
    found = {re.sub(r"\d+", "N", one.note): one for one in shown("unilm", "unified-lm", store)}
    assert found.keys() == {
        "bidirectional mask",
        "left-to-right mask",
        "bidirectional over the first N tokens",
    }
    assert found["left-to-right mask"].target in TEXT
    assert " <sep> " in found["bidirectional over the first N tokens"].input


def test_no_examples_without_corruption(store: TokenStore) -> None:
    assert shown("gpt", "causal-lm", store) == []
