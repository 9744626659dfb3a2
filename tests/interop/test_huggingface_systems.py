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
from dragoman.systems import SYSTEMS, VocabularySizes

WORDS = VocabularySizes(VOCABULARY, VOCABULARY, joint=True)
SIZES: dict[str, Any] = {"model_dim": 12, "layers": 2, "heads": 3, "ffn_dim": 14, "max_positions": 13}


def published(model: Any, folder: Path) -> Any:
    model.save_pretrained(folder)
    return read_checkpoint(folder).spec


def test_bert(tmp_path: Path) -> None:
    assert SYSTEMS["bert"].spec(WORDS, **SIZES) == published(bert("ForPreTraining"), tmp_path)


def test_roberta(tmp_path: Path) -> None:
    """Theirs keeps a vector for the one kind of segment that there is."""
    theirs = published(roberta(type_vocab_size=1, max_position_embeddings=15), tmp_path)
    assert SYSTEMS["roberta"].spec(WORDS, **SIZES) == replace(theirs, token_types=0)


def test_electra(tmp_path: Path) -> None:
    """Both networks, which are published as two checkpoints; the smaller has a third of the heads."""
    ours = SYSTEMS["electra"].spec(WORDS, **(SIZES | {"ffn_dim": 15}), embedding_dim=8, generator_divisor=3)
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
        sizes = {"model_dim": 15, "layers": 2, "decoder_layers": 3, "heads": 3, "ffn_dim": 11, "sentinels": 7}
        ours = SYSTEMS["t5"].spec(WORDS, **sizes, gated_ffn=gated)
        for attention in (SelfAttention, CrossAttention):
            ours = replace_everywhere(ours, attention, scale=1.0, head_dim=5)
        assert replace(ours, embedding=Embedding(), output_scaled=True) == theirs  # type: ignore[type-var]


def test_gpt(tmp_path: Path) -> None:
    sizes = {"model_dim": 12, "layers": 3, "heads": 3, "max_positions": 13}
    assert SYSTEMS["gpt"].spec(WORDS, **sizes, ffn_dim=40) == published(gpt2(n_inner=40), tmp_path)


def test_llama(tmp_path: Path) -> None:
    theirs = published(llama(), tmp_path)
    sizes = {"model_dim": 24, "layers": 2, "heads": 4, "kv_heads": 2, "ffn_dim": 18}
    ours = SYSTEMS["llama"].spec(WORDS, **sizes, norm_eps=1e-6)
    assert replace_everywhere(ours, SelfAttention, head_dim=6) == theirs
