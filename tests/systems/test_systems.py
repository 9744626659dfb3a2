"""The named systems: their sizes, what can be set, and their weights counted by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dragoman.errors import UserError
from dragoman.models import EncoderDecoder
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.spec import find_specs
from dragoman.systems import SYSTEMS, VocabularySizes, get_system
from dragoman.systems.setting_help import SETTING_HELP

SEPARATE, JOINT = VocabularySizes(30, 20), VocabularySizes(37000, 37000, joint=True)
SIZES = [(name, size) for name, one in SYSTEMS.items() for size in one.sizes]


def count(spec: EncoderDecoder) -> int:
    with torch.device("meta"):  # shapes without memory
        return sum(weight.numel() for weight in spec.build().parameters())


# ---- weights counted by hand


def transformer_weights(d: int, layers: int, inner: int, tables: int, vocabulary: int) -> int:
    """Attention: four d × d with biases. Feed-forward: d × inner and back, with biases. A norm: 2d."""
    attention = 4 * (d * d + d)
    feed_forward = (d * inner + inner) + (inner * d + d)
    encoder_layer = attention + feed_forward + 2 * 2 * d
    decoder_layer = 2 * attention + feed_forward + 3 * 2 * d
    return layers * (encoder_layer + decoder_layer) + tables * vocabulary * d


def test_transformer_base_has_63_million_parameters() -> None:
    """6 · (3,152,384 + 4,204,032) + 37,000 · 512; the paper's table 3 rounds to 65 million."""
    assert count(SYSTEMS["transformer"].spec(JOINT)) == 63_082_496 == transformer_weights(512, 6, 2048, 1, 37000)


def test_transformer_big_has_214_million_parameters() -> None:
    """6 · (12,596,224 + 16,796,672) + 37,000 · 1024; 213 million in the paper's table 3."""
    big = SYSTEMS["transformer"].spec(JOINT, "big")
    assert count(big) == 214_245_376 == transformer_weights(1024, 6, 4096, 1, 37000)
    assert [part.heads for part in find_specs(big, SelfAttention)] == [16, 16]


def test_pre_norm_adds_a_norm_at_the_end_of_either_stack() -> None:
    settings: dict[str, Any] = {"model_dim": 16, "heads": 2, "layers": 2, "ffn_dim": 8}
    post = count(SYSTEMS["transformer"].spec(JOINT, **settings))
    assert post == transformer_weights(16, 2, 8, 1, 37000)
    assert count(SYSTEMS["transformer"].spec(JOINT, **settings, pre_norm=True)) == post + 2 * 2 * 16


def test_shared_and_tied_embeddings() -> None:
    settings: dict[str, Any] = {"model_dim": 16, "heads": 2, "layers": 1, "ffn_dim": 8}
    body = transformer_weights(16, 1, 8, 0, 0)
    assert count(SYSTEMS["transformer"].spec(SEPARATE, **settings)) == body + (30 + 20) * 16
    assert count(SYSTEMS["transformer"].spec(SEPARATE, **settings, tied_embeddings=False)) == body + (30 + 20 + 20) * 16
    joint = VocabularySizes(30, 30, joint=True)
    assert count(SYSTEMS["transformer"].spec(joint, **settings)) == body + 30 * 16
    assert count(SYSTEMS["transformer"].spec(joint, **settings, tied_embeddings=False)) == body + 2 * 30 * 16


def lstm(inputs: int, d: int) -> int:
    """Four gates, each from the input and from the last state; torch has two biases for each."""
    return 4 * (inputs * d + d * d + 2 * d)


def gru(inputs: int, d: int) -> int:
    return lstm(inputs, d) // 4 * 3


def test_sutskever_has_the_384_million_parameters_of_the_paper() -> None:
    """384M, of which 64M are recurrent connections (§3.4): 4 layers of 1000, 160,000 and 80,000 words."""
    recurrent = 2 * 4 * lstm(1000, 1000)
    assert round(recurrent, -6) == 64_000_000
    weights = count(SYSTEMS["sutskever"].spec(VocabularySizes(160_000, 80_000), "big"))
    assert weights == recurrent + (160_000 + 80_000 + 80_000) * 1000 + 80_000
    assert round(weights, -6) == 384_000_000


def test_numbers_of_parameters_of_recurrent_systems() -> None:
    d, tables = 10, (30 + 20 + 20) * 10 + 20  # source, target and output, with the output's bias
    maxout = 2 * d * 3 * d + 2 * d
    one: dict[str, Any] = {"model_dim": d, "layers": 1, "tied_embeddings": False}
    cho = gru(d, d) + gru(2 * d, d) + 2 * (d * d + d) + maxout  # c = tanh(V h), s_0 = tanh(V' c)
    assert count(SYSTEMS["cho"].spec(SEPARATE, **one)) == cho + tables
    additive = 2 * d * d + d
    start = d // 2 * d + d  # from ←h_1, half as wide
    bahdanau = 2 * gru(d, d // 2) + gru(2 * d, d) + additive + start + maxout
    assert count(SYSTEMS["bahdanau"].spec(SEPARATE, **one)) == bahdanau + tables
    luong = lstm(d, d) + lstm(2 * d, d) + d * d + 2 * d * d  # general score, W_c
    assert count(SYSTEMS["luong"].spec(SEPARATE, **one)) == luong + tables
    assert count(SYSTEMS["luong"].spec(SEPARATE, **one | {"tied_embeddings": True})) == luong + tables - 20 * d
    assert count(SYSTEMS["luong"].spec(SEPARATE, **one, input_feeding=False)) == luong - 4 * d * d + tables


# ---- sizes and settings


@pytest.mark.exhaustive
@pytest.mark.parametrize(("name", "size"), SIZES)
def test_every_size_builds(name: str, size: str) -> None:
    assert count(SYSTEMS[name].spec(SEPARATE, size)) > 0


def test_every_system_has_the_same_sizes() -> None:
    assert {tuple(system.sizes) for system in SYSTEMS.values()} == {("tiny", "small", "base", "big")}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("luong", "t5", "llama") else pytest.mark.exhaustive) for name in SYSTEMS],
)
def test_every_size_is_larger_than_the_last(name: str) -> None:
    counts = [count(SYSTEMS[name].spec(SEPARATE, size)) for size in SYSTEMS[name].sizes]
    assert counts == sorted(counts)


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_a_summary(name: str) -> None:
    one = get_system(name)
    assert one is SYSTEMS[name]
    assert len(one.summary) > 20
    assert "(" not in one.summary
    assert 2009 < one.year < 2030
    assert all(set(settings) <= set(one.settings()) for settings in one.sizes.values())
    assert {"model_dim", "layers", "dropout"} <= set(one.settings())


def test_settings_override_the_size() -> None:
    spec = SYSTEMS["transformer"].spec(SEPARATE, "tiny", heads=2)
    assert spec.dim == 128
    assert (
        {part.heads for part in find_specs(spec, SelfAttention)}
        == {part.heads for part in find_specs(spec, CrossAttention)}
        == {2}
    )


def test_dropout_settings_reach_their_parts() -> None:
    settings = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3}
    spec = SYSTEMS["transformer"].spec(SEPARATE, "tiny", **settings)
    assert {part.dropout for part in find_specs(spec, SelfAttention)} == {0.2}
    assert {part.dropout for part in find_specs(spec, CrossAttention)} == {0.2}
    assert {part.dropout for part in find_specs(spec, FeedForward)} == {0.3}
    assert spec.encoder.dropout == spec.decoder.dropout == 0.1


@pytest.mark.parametrize(
    ("name", "size", "settings", "message"),
    [
        ("transformer", "bsae", {}, "unknown size 'bsae': did you mean 'base'?"),
        ("transformer", "xxl", {}, "unknown size 'xxl': supported: base, big, small, tiny"),
        ("transformer", "base", {"head": 4}, "unknown setting of transformer 'head': did you mean 'heads'?"),
        ("transformer", "base", {"heads": "8"}, "transformer.heads must be int, but is '8'"),
        ("transformer", "base", {"heads": 8.0}, "transformer.heads must be int, but is 8.0"),
        ("transformer", "base", {"heads": True}, "transformer.heads must be int, but is True"),
        ("transformer", "base", {"heads": None}, "transformer.heads must be int, but is None"),
        (
            "transformer",
            "base",
            {"heads": 0},
            "the setting transformer.heads must be at least 1, but is 0: change it",
        ),
        (
            "transformer",
            "base",
            {"layers": -2},
            "the setting transformer.layers must be at least 1, but is -2: change it",
        ),
        (
            "transformer",
            "base",
            {"ffn_dim": 0},
            "the setting transformer.ffn_dim must be at least 1, but is 0: change it",
        ),
        ("transformer", "base", {"ffn_dim": "4d"}, "transformer.ffn_dim must be int or None, but is '4d'"),
        ("transformer", "base", {"pre_norm": 1}, "transformer.pre_norm must be bool, but is 1"),
        ("transformer", "base", {"dropout": "0.1"}, "transformer.dropout must be float, but is '0.1'"),
        ("transformer", "base", {"dropout": True}, "transformer.dropout must be float, but is True"),
        (
            "transformer",
            "base",
            {"dropout": 1.5},
            "the setting transformer.dropout must be at least 0 and below 1, but is 1.5: change it",
        ),
        (
            "luong",
            "base",
            {"dropout": -0.1},
            "the setting luong.dropout must be at least 0 and below 1, but is -0.1: change it",
        ),
        (
            "luong",
            "base",
            {"encoder_direction": "left"},
            "luong.encoder_direction must be 'forward' or 'backward' or 'both', but is 'left'",
        ),
    ],
)
def test_invalid_settings_are_refused(name: str, size: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        SYSTEMS[name].spec(SEPARATE, size, **settings)
    assert str(error.value) == message


def test_valid_settings_of_every_type_are_accepted() -> None:
    SYSTEMS["transformer"].spec(SEPARATE, dropout=0, ffn_dim=None, decoder_layers=1, pre_norm=True)
    SYSTEMS["luong"].spec(SEPARATE, encoder_direction="both", attention_score="dot")


def test_unknown_system_suggests_the_nearest() -> None:
    with pytest.raises(UserError) as error:
        get_system("tranformer")
    assert str(error.value) == "unknown system 'tranformer': did you mean 'transformer'?"
    with pytest.raises(UserError, match="unknown system 'pharaoh': supported: bahdanau, "):
        get_system("pharaoh")


def test_model_dim_must_be_divisible_by_heads() -> None:
    with pytest.raises(UserError, match="model_dim=512 is not divisible by 7 heads"):
        SYSTEMS["transformer"].spec(SEPARATE, heads=7).build()


@pytest.mark.parametrize(
    ("system", "settings", "ratio"),
    [
        ("transformer", {}, 4),
        ("transformer", {"gated_ffn": True}, 8 / 3),
        ("speech", {"gated_ffn": True}, 8 / 3),
        ("t5", {"gated_ffn": True}, 4),
        ("gpt", {}, 4),
        ("palm", {}, 4),
        ("llama", {}, 8 / 3),
    ],
)
def test_the_default_ffn_dim_is_that_of_its_help(system: str, settings: dict[str, Any], ratio: float) -> None:
    """4 · model_dim, or about 8/3 · model_dim if they are gated, except in palm and t5."""
    assert "about 8/3 · `model_dim` if they are gated, except in palm and t5" in SETTING_HELP["ffn_dim"]
    spec = SYSTEMS[system].spec(JOINT, model_dim=384, heads=8, layers=1, **settings)
    parts = list(find_specs(spec, FeedForward))
    assert parts
    assert [part.inner_dim or 4 * 384 for part in parts] == pytest.approx([ratio * 384] * len(parts), rel=0.01)


def test_every_setting_is_explained() -> None:
    names = {name for system in SYSTEMS.values() for name in system.settings()}
    assert names == SETTING_HELP.keys()
