"""GPT-2, LLaMA, Mistral and Qwen2 give the logits that transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_tiny import built, change, close_decoder, gpt2, llama, mistral, qwen2, read
from safetensors.torch import load_file, save_file

from dragoman.interop.huggingface import ConvertedCheckpoint
from dragoman.models import DecoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.positions import InterpolatedRotary, Llama3Rotary, Rotary
from dragoman.parts.spec import find_specs
from dragoman.text.framing import Framing


def spec_of(checkpoint: ConvertedCheckpoint) -> DecoderOnly:
    assert isinstance(checkpoint.spec, DecoderOnly)
    return checkpoint.spec


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False, "n_inner": 17},
        {"activation_function": "relu", "layer_norm_epsilon": 1e-3, "n_head": 1},
        {"activation_function": "gelu", "n_embd": 35, "n_head": 5, "n_layer": 1},
        {"scale_attn_weights": False},
        {"scale_attn_by_inverse_layer_idx": True},
        {"scale_attn_by_inverse_layer_idx": True, "scale_attn_weights": False, "reorder_and_upcast_attn": True},
    ],
    ids=str,
)
def test_gpt2(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = gpt2(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_decoder(model, mine)
    assert spec_of(checkpoint).tied_embeddings is settings.get("tie_word_embeddings", True)


def test_published_gpt2_configuration(tmp_path: Path) -> None:
    """The base model's names alone, with the masks that once were stored."""
    model = gpt2()
    model.transformer.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert "h.0.attn.c_attn.weight" in weights
    for i in range(3):
        weights[f"h.{i}.attn.bias"] = torch.ones(1, 1, 13, 13).tril()
        weights[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(weights, tmp_path / "model.safetensors")
    change(tmp_path, architectures=["GPT2LMHeadModel"], n_ctx=13)
    close_decoder(model, built(tmp_path)[1])


def test_framing_and_dropout_of_gpt2(tmp_path: Path) -> None:
    checkpoint, _ = read(gpt2(resid_pdrop=0.1, embd_pdrop=0.2, attn_pdrop=0.3), tmp_path)
    assert checkpoint.framing == Framing(3, 2, 3, source_prefix=(), source_suffix=(), suppressed=())
    assert spec_of(checkpoint).decoder.dropout == 0.2
    assert {part.dropout for part in find_specs(checkpoint.spec, SelfAttention)} == {0.3}
    assert spec_of(checkpoint).decoder.block[0].dropout == 0.1  # type: ignore[attr-defined]


ROPE = {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": True, "num_key_value_heads": 1},
        {"num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True},
        {"head_dim": 10, "hidden_act": "gelu", "rms_norm_eps": 0.01},
        {"hidden_size": 36, "num_attention_heads": 6, "num_key_value_heads": 3, "num_hidden_layers": 1},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 100.0}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 100.0, "original_max_position_embeddings": 16}},
        {"rope_parameters": LLAMA3 | {"rope_theta": 1000.0}},
    ],
    ids=str,
)
def test_llama(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = llama(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_decoder(model, mine)
    assert spec_of(checkpoint).tied_embeddings is settings.get("tie_word_embeddings", False)
    assert checkpoint.framing == Framing(2, 1, 2, source_prefix=(1,), source_suffix=(), suppressed=())


@pytest.mark.parametrize(
    ("fields", "position"),
    [
        ({}, Rotary(10000.0)),
        ({"rope_theta": 300.0}, Rotary(300.0)),
        ({"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}}, InterpolatedRotary(300.0, 2.0)),
        ({"rope_scaling": LLAMA3}, Llama3Rotary(10000.0, 4.0, 1.0, 4.0, 32)),
    ],
    ids=str,
)
def test_rotary_positions_of_older_configurations(tmp_path: Path, fields: dict[str, Any], position: Any) -> None:
    llama().save_pretrained(tmp_path)
    change(tmp_path, rope_parameters=None, **fields)
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    checkpoint, mine = built(tmp_path)
    close_decoder(model, mine)
    assert next(find_specs(checkpoint.spec, SelfAttention)).position == position


SLIDING = {"use_sliding_window": True, "sliding_window": 3}


@pytest.mark.parametrize(
    ("make", "settings", "windows"),
    [
        (mistral, {}, {4096}),
        (mistral, {"sliding_window": None, "tie_word_embeddings": True, "head_dim": 8}, {None}),
        (mistral, {"sliding_window": 3, "num_key_value_heads": 1, "hidden_act": "gelu"}, {3}),
        (mistral, {"sliding_window": 1, "num_hidden_layers": 1, "rope_parameters": ROPE}, {1}),
        (qwen2, {}, {None}),
        (qwen2, {"sliding_window": 3, "tie_word_embeddings": True, "max_window_layers": 0}, {None}),  # not used
        (qwen2, SLIDING | {"max_window_layers": 0, "num_key_value_heads": 2}, {3}),
        (qwen2, SLIDING | {"max_window_layers": 1, "num_hidden_layers": 3, "num_key_value_heads": 4}, {None, 3}),
        (qwen2, SLIDING | {"max_window_layers": 5, "rope_parameters": ROPE}, {None}),
        (qwen2, SLIDING | {"layer_types": ["sliding_attention", "full_attention"]}, {None, 3}),
    ],
)
def test_windows_and_biases(tmp_path: Path, make: Any, settings: dict[str, Any], windows: set[int | None]) -> None:
    """Mistral and Qwen2, with windows shorter than the texts."""
    model = make(**settings)
    checkpoint, mine = read(model, tmp_path)
    close_decoder(model, mine)
    parts = list(find_specs(checkpoint.spec, SelfAttention))
    assert {getattr(part.visibility, "size", None) for part in parts} == windows
    assert {(part.bias, part.output_bias) for part in parts} == ({(True, False)} if make is qwen2 else {(False, None)})


def test_published_qwen2_configuration(tmp_path: Path) -> None:
    """A window that is not used, and no layer types."""
    model = qwen2(num_key_value_heads=2)
    model.save_pretrained(tmp_path)
    older = {"sliding_window": 131072, "use_sliding_window": False, "layer_types": None, "rope_parameters": None}
    change(tmp_path, **older, rope_theta=10000.0, max_window_layers=28)
    close_decoder(model, built(tmp_path)[1])


def test_missing_special_tokens(tmp_path: Path) -> None:
    model = llama()
    model.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    change(tmp_path, pad_token_id=-1, max_sequence_length=64)
    assert built(tmp_path)[0].framing.pad == 2


def test_several_eos_tokens(tmp_path: Path) -> None:
    model = llama(eos_token_id=[7, 8], pad_token_id=5)
    checkpoint, _ = read(model, tmp_path)
    assert checkpoint.framing.eos == 7
    assert checkpoint.framing.pad == 5
    assert checkpoint.generation["eos_token_id"] == [7, 8]
