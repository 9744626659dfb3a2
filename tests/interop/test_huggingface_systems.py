"""Our named systems are the published models: their specs are those that checkpoints of such models give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from huggingface_tiny import ENCODER, VOCABULARY, bart, bert, electra, gpt2, llama, roberta, t5

from dragoman.interop.huggingface import read_checkpoint
from dragoman.models import ReplacedTokens
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.embedding import Embedding
from dragoman.parts.spec import replace_everywhere
from dragoman.systems import SYSTEMS, Vocabulary

WORDS = Vocabulary(VOCABULARY, VOCABULARY, joint=True)
SIZES: dict[str, Any] = {"width": 12, "layers": 2, "heads": 3, "inner": 14, "longest": 13}


def published(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return read_checkpoint(folder).spec


def test_bert(tmp_path: Path) -> None:
    assert SYSTEMS["bert"].spec(WORDS, **SIZES) == published(bert("ForPreTraining"), tmp_path)


def test_roberta(tmp_path: Path) -> None:
    """Theirs keeps a vector for the one kind of segment that there is."""
    theirs = published(roberta(type_vocab_size=1, max_position_embeddings=15), tmp_path)
    assert SYSTEMS["roberta"].spec(WORDS, **SIZES) == replace(theirs, types=0)


def test_electra(tmp_path: Path) -> None:
    """Both networks, which are published as two checkpoints; the smaller has a third of the heads."""
    ours = SYSTEMS["electra"].spec(WORDS, **(SIZES | {"inner": 15}), embedding=8, generator=3)
    assert isinstance(ours, ReplacedTokens)
    assert ours.discriminator == published(electra(intermediate_size=15), tmp_path / "discriminator")
    small = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 5}
    assert ours.generator == published(electra("ForMaskedLM", **(ENCODER | small)), tmp_path / "generator")


def test_bart(tmp_path: Path) -> None:
    sizes = {"encoder_attention_heads": 3, "decoder_attention_heads": 3, "encoder_ffn_dim": 14, "decoder_ffn_dim": 14}
    theirs = published(bart(**sizes, max_position_embeddings=13), tmp_path)
    assert SYSTEMS["bart"].spec(WORDS, **SIZES, decoder_layers=1) == theirs


def test_t5(tmp_path: Path) -> None:
    """Theirs has the scale of scores and embeddings in the first weights; ours writes it out."""
    for gated in (False, True):
        kind = "gated-gelu" if gated else "relu"
        model = t5(d_model=15, feed_forward_proj=kind, vocab_size=VOCABULARY + 7)
        theirs = published(model, tmp_path / kind)
        sizes = {"width": 15, "layers": 2, "decoder_layers": 3, "heads": 3, "inner": 11, "sentinels": 7}
        ours = SYSTEMS["t5"].spec(WORDS, **sizes, gated=gated)
        for attention in (SelfAttention, CrossAttention):
            ours = replace_everywhere(ours, attention, scale=1.0, width=5)
        assert replace(ours, embedding=Embedding(), output_scaled=True) == theirs  # type: ignore[type-var]


def test_gpt(tmp_path: Path) -> None:
    sizes = {"width": 12, "layers": 3, "heads": 3, "longest": 13}
    assert SYSTEMS["gpt"].spec(WORDS, **sizes, inner=40) == published(gpt2(n_inner=40), tmp_path)


def test_llama(tmp_path: Path) -> None:
    theirs = published(llama(), tmp_path)
    sizes = {"width": 24, "layers": 2, "heads": 4, "kv_heads": 2, "inner": 18}
    ours = SYSTEMS["llama"].spec(WORDS, **sizes, epsilon=1e-6)
    assert replace_everywhere(ours, SelfAttention, width=6) == theirs
