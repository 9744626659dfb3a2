"""The Transformer's variants: their blocks in plain tensor operations, and equal to other libraries' models."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dragoman.errors import UserError
from dragoman.models import DecoderOnlyModel, EncoderDecoderModel, count_parameters
from dragoman.parts.attention import SelfAttention
from dragoman.parts.experts import MixtureOfExperts, NoisyTopKGating
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.parts.positions import NoPosition, Rotary, Shaw
from dragoman.parts.spec import differences, find_specs, replace_everywhere
from dragoman.parts.stack import PostNorm, Stack
from dragoman.parts.visibility import Causal, Full, Window
from dragoman.systems import SYSTEMS, VocabularySizes

JOINT = VocabularySizes(11, 11, joint=True)
SMALL: dict[str, Any] = {"model_dim": 8, "layers": 2, "heads": 2, "dropout": 0.0}
Weights = dict[str, Tensor]


def spec_of(name: str, **settings: Any) -> Any:
    known = SYSTEMS[name].settings()
    quiet = {"attention_dropout": 0.0} if "attention_dropout" in known else {}
    return SYSTEMS[name].spec(JOINT, "tiny", **(SMALL | quiet | settings))


def model_of(name: str, **settings: Any) -> Any:
    """Every weight random, biases and norms too."""
    model = spec_of(name, **settings).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return model


def lm_logits(model: DecoderOnlyModel, tokens: Tensor) -> Tensor:
    """The whole of B T tokens without a source."""
    rows, width = tokens.shape
    none = torch.zeros(rows, dtype=torch.long)
    return model(tokens[:, :0], none, tokens, torch.full((rows,), width))


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))


def attention(weights: Weights, name: str, x: Tensor, heads: int, seen: Tensor, kv_heads: int, rotary: bool) -> Tensor:
    """softmax(QKᵀ/√E) V head by head for one row, T D; `seen` T T."""
    width = weights[f"{name}.output.weight"].shape[1] // heads
    projected = linear(weights, f"{name}.project", x).split(width, -1)
    outputs = []
    for h in range(heads):
        group = h * kv_heads // heads
        query, key, value = projected[h], projected[heads + group], projected[heads + kv_heads + group]
        if rotary:
            query, key = turned(query), turned(key)
        scores = (query @ key.T / math.sqrt(width)).masked_fill(~seen, -math.inf)
        outputs.append(scores.softmax(-1) @ value)
    return linear(weights, f"{name}.output", torch.cat(outputs, -1))


def turned(x: Tensor) -> Tensor:
    """T E: the complex numbers x_i + i·x_{i+E/2} times e^{i·pos·10000^(−2i/E)}."""
    width = x.shape[1]
    angle = torch.arange(len(x))[:, None] * 10000 ** (-torch.arange(0, width, 2) / width)
    z = torch.complex(x[:, : width // 2], x[:, width // 2 :]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


# ---- other positions


def test_shaw_differs_from_the_transformer_only_in_positions() -> None:
    plain, relative = spec_of("transformer"), spec_of("shaw", max_distance=4)
    assert {path for path, _, _ in differences(plain, relative)} == {
        f"{stack}.{place}position" for stack in ("encoder", "decoder") for place in ("", "block[0].body.")
    }
    assert [part.position for part in find_specs(relative, SelfAttention)] == [Shaw(4)] * 2
    assert [part.position for part in find_specs(relative, Stack)] == [NoPosition()] * 2


def test_roformer_is_the_transformer_with_rotary_positions() -> None:
    assert spec_of("roformer", pre_norm=True) == spec_of("transformer", pre_norm=True, position_encoding="rotary")


@torch.no_grad()
def test_shaw_encoder_depends_only_on_distances() -> None:
    """The same words further on in the row look the same to each other."""
    model = model_of("shaw", max_distance=2)
    words = torch.randn(1, 5, 8)
    here, there = (SequenceLayout(torch.arange(5)[None] + first) for first in (0, 100))
    y = model.encoder(words, Context(here)).output
    torch.testing.assert_close(model.encoder(words, Context(there))[0], y)
    assert not torch.allclose(model.encoder(words.flip(1), Context(here))[0].flip(1), y, atol=1e-3)


@torch.no_grad()
def test_rotary_encoder_equals_roformer_in_hugging_face() -> None:
    """RoFormer turns neighbours (x_2i, x_2i+1), we turn (x_i, x_i+E/2): its rows of W_Q and W_K in another order."""
    theirs_of = pytest.importorskip("transformers.models.roformer.modeling_roformer")
    config = theirs_of.RoFormerConfig(
        vocab_size=11, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20
    )
    theirs = theirs_of.RoFormerModel(config).eval()
    for name, weight in theirs.named_parameters():
        if "embed_positions" not in name:  # sines, not learned
            nn.init.normal_(weight, std=0.5)
    block = (
        PostNorm(SelfAttention(2, visibility=Full(), position=Rotary())),
        PostNorm(FeedForward(20, "gelu")),
    )
    ours = Stack(block, 2).build(16)
    ours.load_state_dict(
        from_bert(theirs.encoder.state_dict(), 2, lambda w: w.unflatten(0, (2, 4, 2)).transpose(1, 2).flatten(0, 2))
    )
    for norm in (module for module in ours.modules() if isinstance(module, nn.LayerNorm)):
        norm.eps = config.layer_norm_eps
    tokens, lengths = torch.randint(11, (2, 6)), torch.tensor([6, 4])
    real = torch.arange(6) < lengths[:, None]
    expected = theirs(tokens, attention_mask=real.long()).last_hidden_state
    y = ours(theirs.embeddings(tokens), Context(SequenceLayout.padded(6, lengths))).output
    torch.testing.assert_close(y[real], expected[real], atol=1e-5, rtol=1e-5)


def from_bert(theirs: Weights, layers: int, order: Callable[[Tensor], Tensor] = lambda weight: weight) -> Weights:
    """A BERT-like encoder's weights under our names; `order` sorts the rows of W_Q and W_K."""
    ours: Weights = {}
    for i in range(layers):
        at = f"layer.{i}."
        for kind in ("weight", "bias"):
            query, key, value = (theirs[f"{at}attention.self.{name}.{kind}"] for name in ("query", "key", "value"))
            ours[f"layers.{i}.0.body.project.{kind}"] = torch.cat((order(query), order(key), value))
            ours[f"layers.{i}.0.body.output.{kind}"] = theirs[f"{at}attention.output.dense.{kind}"]
            ours[f"layers.{i}.0.after.{kind}"] = theirs[f"{at}attention.output.LayerNorm.{kind}"]
            ours[f"layers.{i}.1.body.widen.{kind}"] = theirs[f"{at}intermediate.dense.{kind}"]
            ours[f"layers.{i}.1.body.narrow.{kind}"] = theirs[f"{at}output.dense.{kind}"]
            ours[f"layers.{i}.1.after.{kind}"] = theirs[f"{at}output.LayerNorm.{kind}"]
    return ours


# ---- where and how it is normalised

Norm = Callable[[Weights, str, Tensor], Tensor]


def layer_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    z = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
    return z * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weights[f"{name}.weight"]


def batch_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    """Over all tokens of a batch, here one row."""
    z = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    return z * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def frozen_batch_norm(weights: Weights, name: str, x: Tensor) -> Tensor:
    z = (x - weights[f"{name}.running_mean"]) / (weights[f"{name}.running_var"] + 1e-5).sqrt()
    return z * weights[f"{name}.weight"] + weights[f"{name}.bias"]


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize(
    ("kind", "training", "norm"),
    [
        ("layer", False, layer_norm),
        ("rms", False, rms_norm),
        ("batch", True, batch_norm),
        ("batch", False, frozen_batch_norm),
    ],
)
@torch.no_grad()
def test_encoder_equals_plain_operations(kind: str, training: bool, norm: Norm, pre_norm: bool) -> None:
    model = model_of("transformer", norm=kind, pre_norm=pre_norm)
    for name, buffer in model.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand_like(buffer))
    weights = {name: tensor.clone() for name, tensor in model.encoder.state_dict().items()}
    x = y = torch.randn(5, 8)
    y = model.encoder.position.embed(y[None], SequenceLayout.padded(5, torch.tensor([5])))[0]
    for i in range(2):
        for part, body in enumerate((attend_all, feed_forward)):
            at = f"layers.{i}.{part}"
            if pre_norm:
                y = y + body(weights, f"{at}.body", norm(weights, f"{at}.before", y))
            else:
                y = norm(weights, f"{at}.after", y + body(weights, f"{at}.body", y))
    expected = norm(weights, "norm", y) if pre_norm else y
    padded = torch.cat((torch.cat((x, torch.full((2, 8), 9.0)))[None], torch.full((1, 7, 8), 9.0)))  # one row empty
    given = model.train(training).encoder(padded, Context(SequenceLayout.padded(7, torch.tensor([5, 0])))).output
    torch.testing.assert_close(given[0, :5], expected, atol=1e-5, rtol=1e-4)


def attend_all(weights: Weights, name: str, x: Tensor) -> Tensor:
    return attention(weights, name, x, 2, torch.ones(len(x), len(x), dtype=torch.bool), 2, rotary=False)


def feed_forward(weights: Weights, name: str, x: Tensor) -> Tensor:
    return linear(weights, f"{name}.narrow", linear(weights, f"{name}.widen", x).relu())


# ---- mixture of experts


def test_every_second_feed_forward_layer_is_a_mixture_of_experts() -> None:
    spec = spec_of("moe", layers=4, decoder_layers=2, experts=3)
    assert (spec.encoder.depth, spec.decoder.depth) == (2, 1)
    assert [type(part.body).__name__ for part in spec.encoder.block] == [
        "SelfAttention",
        "FeedForward",
        "SelfAttention",
        "MixtureOfExperts",
    ]
    assert [type(part.body).__name__ for part in spec.decoder.block[3:]] == [
        "SelfAttention",
        "CrossAttention",
        "MixtureOfExperts",
    ]
    assert {(part.num_experts, part.top_k) for part in find_specs(spec, MixtureOfExperts)} == {(3, 2)}
    with pytest.raises(UserError, match=r"experts in every second layer, but system\.settings\.layers=3 is odd"):
        spec_of("moe", layers=3)


def test_every_mixture_of_experts_has_a_balance_loss_in_training() -> None:
    model = model_of("moe", layers=4)
    assert isinstance(model, EncoderDecoderModel)
    tokens, layout = torch.randint(4, 11, (2, 5)), SequenceLayout.padded(5, torch.tensor([5, 3]))
    for training, losses in ((True, 4), (False, 0)):
        features = model.train(training).forward_features(tokens, layout, tokens, layout)
        assert len(features.auxiliary_losses) == losses
        assert all(0.005 < float(loss.detach()) <= 0.01 * 4 for loss in features.auxiliary_losses)


def test_transformer_dmca_has_one_mixture_of_experts_in_the_middle() -> None:
    """LMLML (Liu et al. 2018, §4.2.4) with the third feed-forward layer replaced and nothing else."""
    for layers, replaced in ((5, 5), (4, 5), (3, 3), (1, 1)):
        plain, mixed = (SYSTEMS[f"transformer-dmca{name}"].spec(JOINT, layers=layers) for name in ("", "-moe"))
        changes = list(differences(plain, mixed))
        assert [path for path, _, _ in changes] == [f"decoder.block[{replaced}].body"]
        (_, expert, mixture) = changes[0]
        assert mixture == MixtureOfExperts(expert, 128, 2, NoisyTopKGating(0.01, 0.01))


# ---- decoders alone


@torch.no_grad()
def test_gpt3_equals_plain_operations() -> None:
    """Everything before me in the first layer, my last three places in the second."""
    model = model_of("gpt3", attention_window=3)
    weights, tokens = model.state_dict(), torch.randint(11, (1, 7))
    i, j = torch.arange(7)[:, None], torch.arange(7)
    x = weights["target_embedding.weight"][tokens[0]] + weights["decoder.position.table.weight"][:7]
    for layer, seen in enumerate((j <= i, (j <= i) & (j > i - 3))):
        at = f"decoder.layers.0.{2 * layer}"
        z = layer_norm(weights, f"{at}.before", x)
        x = x + attention(weights, f"{at}.body", z, 2, seen, 2, rotary=False)
        at = f"decoder.layers.0.{2 * layer + 1}"
        inner = linear(weights, f"{at}.body.widen", layer_norm(weights, f"{at}.before", x))
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        x = x + linear(weights, f"{at}.body.narrow", inner)
    expected = layer_norm(weights, "decoder.norm", x) @ weights["target_embedding.weight"].T
    torch.testing.assert_close(lm_logits(model, tokens)[0], expected, atol=1e-4, rtol=1e-4)


def test_gpt3_with_a_wide_window_equals_gpt() -> None:
    narrow = spec_of("gpt3", layers=4, attention_window=3)
    assert [part.visibility for part in find_specs(narrow, SelfAttention)] == [Causal(), Window(3)]
    everything = replace_everywhere(narrow, SelfAttention, visibility=Causal()).build().eval()
    wide = spec_of("gpt3", layers=4, attention_window=9).build().eval()
    gpt = spec_of("gpt", layers=4).build().eval()
    gpt.load_state_dict(
        {doubled(name): weight for name, weight in wide.state_dict().items() if "table" not in name}, False
    )
    gpt.decoder.position.table.weight.data = wide.decoder.position.table.weight.data
    everything.load_state_dict(wide.state_dict())
    tokens = torch.randint(11, (2, 9))
    for other in (gpt, everything):
        torch.testing.assert_close(lm_logits(other, tokens), lm_logits(wide, tokens))
    with pytest.raises(UserError, match=r"windowed attention, but system\.settings\.layers=3 is odd"):
        spec_of("gpt3", layers=3)


def doubled(name: str) -> str:
    """A block of four parts as two blocks of two."""
    if not name.startswith("decoder.layers."):
        return name
    _, _, block, part, *rest = name.split(".")
    return ".".join(("decoder", "layers", str(2 * int(block) + int(part) // 2), str(int(part) % 2), *rest))


@torch.no_grad()
def test_palm_equals_plain_operations() -> None:
    """x + W_O attention(z) + W₂(silu(W₁ z) ⊙ V z), z = norm(x) without bias; one key head; embeddings times √D."""
    model = model_of("palm", head_dim=6)
    weights, tokens = model.state_dict(), torch.randint(11, (1, 7))
    assert not [name for name in weights if name.endswith("bias")]
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    x = math.sqrt(8) * weights["target_embedding.weight"][tokens[0]]
    for i in range(2):
        at = f"decoder.layers.{i}.0"
        z = F.layer_norm(x, (8,)) * weights[f"{at}.norm.weight"]
        looked = attention(weights, f"{at}.bodies.0", z, 2, seen, 1, rotary=True)
        gated, gate = linear(weights, f"{at}.bodies.1.widen", z), linear(weights, f"{at}.bodies.1.gate", z)
        x = x + looked + linear(weights, f"{at}.bodies.1.narrow", gated * torch.sigmoid(gated) * gate)
    h = F.layer_norm(x, (8,)) * weights["decoder.norm.weight"]
    expected = h @ weights["target_embedding.weight"].T
    torch.testing.assert_close(lm_logits(model, tokens)[0], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@torch.no_grad()
def test_llama_equals_hugging_face(kv_heads: int) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=20,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=kv_heads,
        rms_norm_eps=1e-3,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
    )
    theirs = transformers.LlamaForCausalLM(config).eval()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.5)
    settings = {"kv_heads": kv_heads, "ffn_dim": 20, "norm_eps": 1e-3, "rope_base": 500.0}
    ours = model_of("llama", model_dim=16, heads=4, **settings)
    weights = theirs.state_dict()
    mine = {
        "target_embedding.weight": weights["model.embed_tokens.weight"],
        "decoder.norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for i in range(2):
        at, here = f"model.layers.{i}.", f"decoder.layers.{i}."
        projections = [weights[f"{at}self_attn.{name}_proj.weight"] for name in "qkv"]
        mine |= {
            f"{here}0.before.weight": weights[f"{at}input_layernorm.weight"],
            f"{here}0.body.project.weight": torch.cat(projections),
            f"{here}0.body.output.weight": weights[f"{at}self_attn.o_proj.weight"],
            f"{here}1.before.weight": weights[f"{at}post_attention_layernorm.weight"],
            f"{here}1.body.widen.weight": weights[f"{at}mlp.gate_proj.weight"],
            f"{here}1.body.gate.weight": weights[f"{at}mlp.up_proj.weight"],
            f"{here}1.body.narrow.weight": weights[f"{at}mlp.down_proj.weight"],
        }
    ours.load_state_dict(mine, strict=False)
    assert mine.keys() == dict(ours.named_parameters()).keys()
    tokens = torch.randint(11, (2, 9))
    torch.testing.assert_close(lm_logits(ours, tokens), theirs(tokens).logits, atol=1e-4, rtol=1e-4)


def test_chat_has_the_spec_of_gpt() -> None:
    assert spec_of("chat", max_positions=50) == spec_of("gpt", max_positions=50)


# ---- unilm: one stack, three masks


@torch.no_grad()
def test_prefix_mask_is_bidirectional_over_the_source_and_causal_over_the_target() -> None:
    model = model_of("unilm")
    source, target = torch.randint(4, 11, (1, 5)), torch.randint(4, 11, (1, 4))

    def states(source: Tensor, target: Tensor) -> Tensor:
        """What leaves the stack at every place of the joint sequence."""
        layout = SequenceLayout.padded(9, torch.tensor([9]))
        return model.forward_tokens(torch.cat((source, target), 1), layout, torch.tensor([5]))[0][0]

    def moved(source: Tensor, target: Tensor) -> list[bool]:
        return ((states(source, target) - before).abs().amax(-1) > 1e-6).tolist()

    before = states(source, target)
    other_source, other_target = source.clone(), target.clone()
    other_source[0, 3] = (source[0, 3] - 3) % 7 + 4
    other_target[0, 2] = (target[0, 2] - 3) % 7 + 4
    assert moved(other_source, target) == [True] * 9  # before it as well
    assert moved(source, other_target) == [False] * 7 + [True] * 2


@torch.no_grad()
def test_without_a_source_unilm_is_a_language_model() -> None:
    model = model_of("unilm")
    causal = replace_everywhere(model.spec, SelfAttention, visibility=Causal()).build().eval()
    causal.load_state_dict(model.state_dict())
    tokens = torch.randint(11, (2, 6))
    torch.testing.assert_close(lm_logits(model, tokens), lm_logits(causal, tokens), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_unilm_over_a_prefix_equals_bert_in_hugging_face() -> None:
    """The encoder and the head of masked words, its segment vectors at zero."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=11,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=20,
        layer_norm_eps=1e-5,
    )
    theirs = transformers.BertForMaskedLM(config).eval()
    for weight in theirs.parameters():
        nn.init.normal_(weight, std=0.5)
    theirs.bert.embeddings.token_type_embeddings.weight.zero_()
    weights = theirs.state_dict()
    encoder = {name.removeprefix("bert.encoder."): weight for name, weight in weights.items()}
    mine = {f"decoder.{name}": weight for name, weight in from_bert(encoder, 2).items()} | {
        "decoder.position.table.weight": weights["bert.embeddings.position_embeddings.weight"],
        "target_embedding.weight": weights["bert.embeddings.word_embeddings.weight"],
        "output.bias": weights["cls.predictions.bias"],
    }
    for kind in ("weight", "bias"):
        mine[f"decoder.input_norm.{kind}"] = weights[f"bert.embeddings.LayerNorm.{kind}"]
        mine[f"output.transform.dense.{kind}"] = weights[f"cls.predictions.transform.dense.{kind}"]
        mine[f"output.transform.norm.{kind}"] = weights[f"cls.predictions.transform.LayerNorm.{kind}"]
    ours = model_of("unilm", max_positions=20)
    ours.load_state_dict(mine | {"output.weight": mine["target_embedding.weight"]})
    tokens, lengths = torch.randint(11, (2, 6)), torch.tensor([6, 3])
    real = torch.arange(6) < lengths[:, None]
    logits = ours.output(ours.forward_tokens(tokens, SequenceLayout.padded(6, lengths), lengths)[0])
    expected = theirs(tokens, attention_mask=real.long()).logits
    torch.testing.assert_close(logits[real], expected[real], atol=1e-4, rtol=1e-4)


def test_unilm_does_not_support_packing() -> None:
    assert not model_of("unilm").supports_packing
    assert model_of("gpt").supports_packing


# ---- sizes of the papers


@pytest.mark.parametrize(
    ("name", "size", "vocabulary", "settings", "billions"),
    [
        ("gpt3", "base", 50257, {}, 0.125),  # table 2.1
        ("gpt3", "big", 50257, {}, 175),
        ("palm", "base", 256_000, {}, 8.63),  # table 1
        ("palm", "base", 256_000, {"model_dim": 8192, "layers": 64, "heads": 32}, 62.5),
        ("palm", "big", 256_000, {}, 540.35),
        ("llama", "base", 32_000, {}, 6.7),  # table 2
        ("llama", "base", 32_000, {"model_dim": 5120, "layers": 40, "heads": 40}, 13.0),
        ("llama", "base", 32_000, {"model_dim": 6656, "layers": 60, "heads": 52}, 32.5),
        ("llama", "base", 32_000, {"model_dim": 8192, "layers": 80, "heads": 64}, 65.2),
        ("unilm", "big", 28_996, {}, 0.335),  # BERT large
    ],
)
def test_sizes_equal_the_papers(
    name: str, size: str, vocabulary: int, settings: dict[str, Any], billions: float
) -> None:
    spec = SYSTEMS[name].spec(VocabularySizes(vocabulary, vocabulary), size, **settings)
    assert count_parameters(spec) / 1e9 == pytest.approx(billions, rel=0.01)


def test_ffn_dim_of_llama_equals_the_papers() -> None:
    """2/3 · 4D, rounded up to a multiple of 256; 8 for a width of 128."""
    inner = {
        width: next(find_specs(SYSTEMS["llama"].spec(JOINT, model_dim=width), FeedForward)).inner_dim
        for width in (4096, 5120, 128)
    }
    assert inner == {4096: 11008, 5120: 13824, 128: 344}
