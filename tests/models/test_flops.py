"""The cost in floating-point operations: against torch's own counter for every system, and worked by hand."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dragoman.models import DecoderOnly, ModelSpec, ReplacedTokens, count_flops, training_flops
from dragoman.parts.attention import SelfAttention
from dragoman.parts.positions import Shaw
from dragoman.parts.stack import Residual, Stack
from dragoman.systems import SYSTEMS, VocabularySizes

SOURCE, TARGET = 11, 9

#: each system, and the choices whose cost has a formula of its own
CASES: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in SYSTEMS} | {
    "transformer copying": ("transformer", {"copying": True, "coverage_loss": 1.0}),
    "bahdanau copying": ("bahdanau", {"copying": True}),
    "bytenet copying": ("bytenet", {"copying": True}),
    "luong dot": ("luong", {"attention_score": "dot"}),
    "luong scaled dot": ("luong", {"attention_score": "scaled-dot"}),
    "luong concat, both ways": ("luong", {"attention_score": "concat", "encoder_direction": "both"}),
    "luong without input feeding": ("luong", {"input_feeding": False}),
    "rnn-lm plain": ("rnn-lm", {"cell": "rnn"}),
    "rnn-lm gru": ("rnn-lm", {"cell": "gru"}),
    "bow attention": ("bow", {"pooling": "attention"}),
    "bahdanau reset before": ("bahdanau", {"cell": "gru-reset-before"}),
    "hard-monotonic jumps": ("hard-monotonic", {"order": 1, "max_jump": 3}),
    "hard-monotonic any jumps": ("hard-monotonic", {"order": 1, "monotonic": False}),
    "hard-monotonic any order": ("hard-monotonic", {"monotonic": False, "tied_embeddings": True}),
    "gnmt residual": ("gnmt", {"layers": 4}),
    "deep-att deep": ("deep-att", {"layers": 3, "decoder_layers": 4}),
    "deep-att shallow": ("deep-att", {"layers": 1, "decoder_layers": 1}),
    "transformer-dmca short blocks": ("transformer-dmca", {"block_size": 3, "stride": 2, "kernel_size": 3}),
    "transformer-dmca whole blocks": ("transformer-dmca", {"block_size": 5, "stride": 4, "kernel_size": 1}),
    "transformer batch norm": ("transformer", {"norm": "batch", "pre_norm": True}),
    "transformer alibi": ("transformer", {"position_encoding": "alibi"}),
    "transformer rotary": ("transformer", {"position_encoding": "rotary", "norm": "rms", "tied_embeddings": False}),
    "transformer narrow values": ("transformer", {"head_dim": 12, "value_dim": 5}),
    "transformer without projections": ("transformer", {"self_attention_projections": False}),
    "transformer concatenated": ("transformer", {"position_dim": 20}),
    "shaw wide values": ("shaw", {"value_dim": 24}),
    "shaw keys alone": ("shaw", {"max_distance": 3, "relative_values": False}),
    "moe one of three": ("moe", {"experts": 3, "experts_per_token": 1}),
    "moe-2017 three of five": ("moe-2017", {"layers": 3, "experts": 5, "experts_per_token": 3}),
    "moe-2017 projected": ("moe-2017", {"cell_dim": 96}),
    "luong tanh product": ("luong", {"attention_score": "tanh-product"}),
    "bytenet far extended": ("bytenet", {"unfolding_ratio": 1.5, "unfolding_offset": 4.0}),
    "llama one key head": ("llama", {"kv_heads": 1}),
    "palm narrow heads": ("palm", {"head_dim": 6}),
    "t5 gated": ("t5", {"gated_ffn": True}),
    "bert narrow embeddings": ("bert", {"embedding_dim": 24}),
    "speech by eights": ("speech", {"feature_dim": 7, "stride": 8}),
    "speech frame by frame": ("speech", {"feature_dim": 7, "stride": 1}),
}


def small_spec(case: str) -> ModelSpec:
    name, settings = CASES[case]
    known = SYSTEMS[name].settings()
    small = {key: value for key, value in {"model_dim": 64, "layers": 2, "heads": 4}.items() if key in known}
    return SYSTEMS[name].spec(VocabularySizes(50, 50, joint=True), "tiny", **(small | settings))


def counted_by_torch(spec: ModelSpec, source: int = SOURCE, target: int = TARGET) -> int:
    """Torch sees every matrix product of a forward pass, once its attention and LSTM kernels are written out for it."""
    model = spec.build().eval()
    features = model.source_features
    read = torch.randint(4, 50, (1, source)) if features is None else torch.rand(1, source, features)
    written = torch.randint(4, 50, (1, target))
    plain = torch.backends.mkldnn.flags(enabled=False)
    with torch.no_grad(), plain, sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(read, torch.tensor([source]), written, torch.tensor([target]))
    return counter.get_total_flops()


written_out = pytest.mark.filterwarnings("ignore:TF32 acceleration:UserWarning")  # said by torch of other machines


@written_out
@pytest.mark.parametrize("case", CASES)
def test_flops_equal_torchs_counter(case: str) -> None:
    spec = small_spec(case)
    assert count_flops(spec, SOURCE, TARGET) == counted_by_torch(spec)


@written_out
@pytest.mark.parametrize(("source", "target"), [(0, 7), (1, 1), (12, 5)])
@pytest.mark.parametrize("name", ["gpt", "rnn-lm", "transformer-dmca"])
def test_a_decoder_alone_may_have_no_source(name: str, source: int, target: int) -> None:
    spec = small_spec(name)
    assert count_flops(spec, source, target) == counted_by_torch(spec, source, target)


@written_out
def test_shared_position_is_counted_in_each_layer() -> None:
    layer = Residual(SelfAttention(heads=1))
    spec = DecoderOnly(16, 50, Stack((layer,), depth=3, position=Shaw(clip=2)))
    assert count_flops(spec, 4, 5) == counted_by_torch(spec, 4, 5)


def test_transformer_base_by_hand() -> None:
    """Vaswani et al. (2017), table 3: N = 6, D = 512, inside 2048; S words in the source, T in the target."""
    S, T, D, F, V, N = 30, 20, 512, 2048, 37000, 6
    projections, feed_forward = 2 * 4 * D * D, 2 * 2 * D * F  # a token: queries, keys, values and output; in and out
    encoder = S * (projections + feed_forward) + 4 * S * S * D
    decoder = T * (projections + feed_forward) + 4 * T * T * D
    cross = T * 2 * 2 * D * D + S * 2 * 2 * D * D + 4 * T * S * D  # queries and output; keys and values of the source
    output = T * 2 * D * V
    spec = SYSTEMS["transformer"].spec(VocabularySizes(V, V, joint=True), "base")
    assert count_flops(spec, S, T) == N * (encoder + decoder + cross) + output
    assert training_flops(spec, S, T) == 3 * (N * (encoder + decoder + cross) + output)


def test_lstm_by_hand() -> None:
    """Sutskever et al. (2014): four gates, each from the layer below and from the last state."""
    S, T, D, V, L = 30, 20, 1000, 80000, 4
    spec = SYSTEMS["sutskever"].spec(VocabularySizes(V, V, joint=True), "big")
    assert count_flops(spec, S, T) == (S + T) * L * 4 * 2 * (D * D + D * D) + T * 2 * D * V


def test_unselected_experts_cost_nothing() -> None:
    few, many = (small_spec_of_moe(experts) for experts in (4, 8))
    routers = 2 * (SOURCE + TARGET) * 64 * (8 - 4)  # one mixture in each stack of two layers
    assert count_flops(many, SOURCE, TARGET) - count_flops(few, SOURCE, TARGET) == routers


def small_spec_of_moe(experts: int) -> ModelSpec:
    return SYSTEMS["moe"].spec(VocabularySizes(50, 50, joint=True), "tiny", model_dim=64, layers=2, experts=experts)


def test_training_counts_the_generator_in() -> None:
    spec = small_spec("electra")
    assert isinstance(spec, ReplacedTokens)
    both = count_flops(spec.generator, SOURCE, 0) + count_flops(spec.discriminator, SOURCE, 0)
    assert training_flops(spec, SOURCE, 0) == 3 * both
