"""Marian, BART, mBART and T5 give the logits that transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_tiny import (
    SIDES,
    T5,
    bart,
    built,
    change,
    close_seq2seq,
    m2m100,
    marian,
    mbart,
    pegasus,
    read,
    t5,
    theirs,
    umt5,
)
from safetensors.torch import load_file, save_file

from dragoman.interop.huggingface import ConvertedCheckpoint
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.positions import Learned
from dragoman.parts.spec import find_specs
from dragoman.text.framing import Framing

ACTIVATIONS = ["relu", "gelu", "gelu_new", "gelu_fast", "silu", "swish", "quick_gelu", "tanh", "linear"]


def spec_of(checkpoint: ConvertedCheckpoint) -> EncoderDecoder:
    assert isinstance(checkpoint.spec, EncoderDecoder)
    return checkpoint.spec


# ---- Marian


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_embedding": True},
        {"tie_word_embeddings": False},
        {"share_encoder_decoder_embeddings": False},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31, "tie_word_embeddings": False},
        {"d_model": 15, "encoder_attention_heads": 1, "decoder_attention_heads": 5},  # an odd width
        {"d_model": 40, "encoder_layers": 1, "decoder_layers": 3, "encoder_attention_heads": 5},
        {"vocab_size": 33, "decoder_vocab_size": 40},  # of no effect on tables that are shared
    ],
    ids=str,
)
def test_marian(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = marian(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine)
    tie = settings.get("tie_word_embeddings", True)
    share = settings.get("share_encoder_decoder_embeddings", True)
    assert (spec_of(checkpoint).tied_embeddings, spec_of(checkpoint).shared_embeddings) == (tie, tie and share)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(tmp_path: Path, activation: str) -> None:
    model = marian(activation_function=activation)
    close_seq2seq(model, read(model, tmp_path)[1])


def test_marian_reads_more_positions_than_its_table_has(tmp_path: Path) -> None:
    _, mine = read(marian(), tmp_path)
    logits = mine(torch.full((1, 40), 5), torch.tensor([40]), torch.full((1, 30), 6), torch.tensor([30]))
    assert logits.isfinite().all()


def test_stored_sinusoids_of_marian_are_not_used(tmp_path: Path) -> None:
    model = marian()
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for side in ("encoder", "decoder"):
        table = getattr(model.model, side).embed_positions.weight.detach()
        weights[f"model.{side}.embed_positions.weight"] = table.half()
    save_file(weights, tmp_path / "model.safetensors")
    close_seq2seq(model, built(tmp_path)[1])


def test_published_marian_configuration(tmp_path: Path) -> None:
    """A configuration with everything that older versions wrote, and no file of its own for generation."""
    model = marian(scale_embedding=True, activation_function="swish")
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change(
        tmp_path,
        _num_labels=3,
        add_bias_logits=False,
        add_final_layer_norm=False,
        bad_words_ids=[[1]],
        bos_token_id=0,
        classif_dropout=0.0,
        classifier_dropout=0.0,
        extra_pos_embeddings=58101,
        gradient_checkpointing=False,
        id2label={"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
        label2id={"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
        max_length=512,
        normalize_before=False,
        normalize_embedding=False,
        num_beams=6,
        num_hidden_layers=2,
        static_position_embeddings=True,
    )
    checkpoint, mine = built(tmp_path)
    close_seq2seq(model, mine)
    assert checkpoint.framing.suppressed == (1,)
    assert (checkpoint.generation["num_beams"], checkpoint.generation["max_length"]) == (6, 512)


def test_framing_of_marian(tmp_path: Path) -> None:
    model = marian(pad_token_id=20, decoder_start_token_id=20, eos_token_id=3)
    model.generation_config.bad_words_ids = [[20], [4, 5]]
    model.generation_config.num_beams = 6
    model.generation_config.max_length = 512
    checkpoint, _ = read(model, tmp_path)
    assert checkpoint.framing == Framing(20, 20, 3, source_prefix=(), source_suffix=(3,), suppressed=(20,))
    assert checkpoint.generation["num_beams"] == 6
    assert checkpoint.generation["max_length"] == 512
    assert checkpoint.generation["bad_words_ids"] == [[20], [4, 5]]
    assert checkpoint.system == "transformer"


# ---- BART and mBART


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_embedding": True, "activation_function": "relu"},
        {"tie_word_embeddings": False},
        {"d_model": 21, "encoder_attention_heads": 7, "decoder_attention_heads": 3},
        {"encoder_layers": 1, "decoder_layers": 3, "activation_function": "gelu_new"},
    ],
    ids=str,
)
@pytest.mark.parametrize("make", [bart, mbart])
def test_bart_and_mbart(tmp_path: Path, make: Any, settings: dict[str, Any]) -> None:
    model = make(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine)
    assert next(find_specs(checkpoint.spec, Learned)).max_length == 11
    assert spec_of(checkpoint).tied_embeddings is settings.get("tie_word_embeddings", True)


@pytest.mark.parametrize(
    "settings", [{}, {"scale_embedding": True, "d_model": 15, "encoder_attention_heads": 5}], ids=str
)
def test_pegasus(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = pegasus(decoder_attention_heads=3, **settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine)
    assert checkpoint.framing == Framing(0, 0, 1, source_prefix=(), source_suffix=(1,), suppressed=())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"scale_embedding": False, "activation_function": "gelu"},
        {"tie_word_embeddings": False, "encoder_layers": 1, "decoder_layers": 3},
        {"d_model": 15, "encoder_attention_heads": 1, "decoder_attention_heads": 5},  # an odd width
    ],
    ids=str,
)
def test_m2m100(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = m2m100(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine, SIDES)
    assert checkpoint.framing == Framing(1, 2, 2, source_prefix=(), source_suffix=(2,), suppressed=())


def test_positions_of_m2m100_begin_after_the_padding_token(tmp_path: Path) -> None:
    model = m2m100(pad_token_id=3)
    source, target = torch.randint(4, 29, (2, 9)), torch.randint(4, 29, (2, 30))  # longer than the table of positions
    expected = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
    mine = read(model, tmp_path)[1]
    logits = mine(source, torch.tensor([9, 9]), target, torch.tensor([30, 30]))
    torch.testing.assert_close(logits, expected.detach(), atol=1e-5, rtol=1e-5)


def test_published_nllb_configuration(tmp_path: Path) -> None:
    """Weights under all names that older versions stored, and the fields of the published configuration."""
    model = m2m100(encoder_attention_heads=4, decoder_attention_heads=4)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for name in ("encoder.embed_tokens", "decoder.embed_tokens"):
        weights[f"model.{name}.weight"] = weights["model.shared.weight"].clone()
    weights["lm_head.weight"] = weights["model.shared.weight"].clone()
    weights["model.encoder.embed_positions.weights"] = torch.zeros(13, 12)  # which no version reads
    save_file(weights, tmp_path / "model.safetensors")
    (tmp_path / "generation_config.json").unlink()
    change(
        tmp_path,
        decoder_layerdrop=0,
        encoder_layerdrop=0,
        max_length=200,
        num_hidden_layers=2,
        tokenizer_class="NllbTokenizer",
        torch_dtype="float32",
    )
    checkpoint, mine = built(tmp_path)
    close_seq2seq(model, mine)
    assert spec_of(checkpoint).shared_embeddings
    assert spec_of(checkpoint).tied_embeddings
    assert checkpoint.generation["max_length"] == 200


def test_framing_and_dropout_of_bart(tmp_path: Path) -> None:
    model = bart(dropout=0.4, attention_dropout=0.3, activation_dropout=0.2)
    model.generation_config.forced_bos_token_id = 0
    checkpoint, _ = read(model, tmp_path)
    assert checkpoint.framing == Framing(
        1, 2, 2, source_prefix=(0,), source_suffix=(2,), forced_bos=(0,), suppressed=()
    )
    assert {part.dropout for part in find_specs(checkpoint.spec, SelfAttention)} == {0.3}
    assert {part.dropout for part in find_specs(checkpoint.spec, CrossAttention)} == {0.3}
    assert {part.dropout for part in find_specs(checkpoint.spec, FeedForward)} == {0.2}
    assert spec_of(checkpoint).encoder.dropout == 0.4


@pytest.mark.parametrize("make", [marian, bart, mbart])
def test_the_base_model_alone_is_the_same_model(tmp_path: Path, make: Any) -> None:
    """The published BART has the weights of its base model, and no output layer but the table of embeddings."""
    model = make()
    with torch.no_grad():
        model.final_logits_bias.zero_()
    model.model.save_pretrained(tmp_path)
    close_seq2seq(model, built(tmp_path)[1])


def test_embeddings_that_older_versions_shared_though_untied(tmp_path: Path) -> None:
    model = bart(tie_word_embeddings=False)
    with torch.no_grad():
        for side in (model.model.encoder, model.model.decoder):
            side.embed_tokens.weight.copy_(model.model.shared.weight)
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for side in ("encoder", "decoder"):
        del weights[f"model.{side}.embed_tokens.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    checkpoint, mine = built(tmp_path)
    close_seq2seq(model, mine)
    assert spec_of(checkpoint).shared_embeddings
    assert not spec_of(checkpoint).tied_embeddings


def test_fields_of_older_configurations(tmp_path: Path) -> None:
    """What configurations said before their models were told apart by name."""
    model = mbart()
    model.save_pretrained(tmp_path)
    change(
        tmp_path,
        normalize_before=True,
        normalize_embedding=True,
        add_final_layer_norm=True,
        static_position_embeddings=False,
        extra_pos_embeddings=2,
        add_bias_logits=False,
        num_hidden_layers=2,
        gradient_checkpointing=False,
        _num_labels=3,
        classif_dropout=0.1,
        task_specific_params={"translation": {"num_beams": 5}},
    )
    close_seq2seq(model, built(tmp_path)[1])


# ---- T5


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        {"feed_forward_proj": "gated-silu"},
        {"feed_forward_proj": "gelu", "num_decoder_layers": 1, "layer_norm_epsilon": 0.01},
        {"relative_attention_num_buckets": 6, "relative_attention_max_distance": 5},
        {"d_model": 40, "d_kv": 12, "num_heads": 1},
    ],
    ids=str,
)
def test_t5(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = t5(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine, SIDES)
    assert spec_of(checkpoint).output_scaled is settings.get("tie_word_embeddings", True)
    assert spec_of(checkpoint).tied_embeddings
    assert checkpoint.framing == Framing(0, 0, 1, source_prefix=(), source_suffix=(1,), suppressed=())


def test_t5_with_an_output_matrix_of_its_own(tmp_path: Path) -> None:
    """As version 1.1 is published: the matrix is stored, and the configuration says that nothing is tied."""
    t5(feed_forward_proj="gated-gelu").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = torch.randn_like(weights["shared.weight"])
    weights["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = torch.zeros(32, 3)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    change(tmp_path, tie_word_embeddings=False, scale_decoder_outputs=None, n_positions=512)
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="eager").eval()
    torch.testing.assert_close(model.lm_head.weight.detach(), weights["lm_head.weight"])
    checkpoint, mine = built(tmp_path)
    close_seq2seq(model, mine)
    assert not spec_of(checkpoint).tied_embeddings
    assert not spec_of(checkpoint).output_scaled


def test_the_base_model_of_t5_is_the_same_model(tmp_path: Path) -> None:
    model = t5()
    model.save_pretrained(tmp_path)
    change(tmp_path, architectures=["T5Model"])
    close_seq2seq(model, built(tmp_path)[1])


def test_mt5(tmp_path: Path) -> None:
    model = theirs("MT5ForConditionalGeneration", "MT5Config", **T5)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine)
    assert not spec_of(checkpoint).output_scaled


@pytest.mark.parametrize(
    "settings",
    [{}, {"feed_forward_proj": "relu", "relative_attention_num_buckets": 6, "relative_attention_max_distance": 5}],
    ids=str,
)
def test_umt5_has_position_biases_in_each_layer(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = umt5(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_seq2seq(model, mine, SIDES)
    assert spec_of(checkpoint).output_scaled
    assert sum("position.table" in name for name, _ in mine.named_parameters()) == 5  # layers of encoder and decoder
