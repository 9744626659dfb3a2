"""Every system, small enough to check by brute force.

The laws compute in float64 (see `conftest.py`): an error in the code is then larger than `TOLERANCE` by orders of
magnitude, and the rounding of any processor smaller. Rounding also cannot decide between two tokens or two experts.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from dragoman import checkpoint
from dragoman.models import DecoderOnly, EncoderDecoder, Model, ModelSpec
from dragoman.search import SpecialTokens
from dragoman.systems import SYSTEMS, VocabularySizes

SYMBOLS = SpecialTokens(bos=2, eos=3, suppressed=(0, 1, 2))
VOCABULARY = 13
ROUNDING = 2e-4  # in float32, relative to a number's size: 6e-8 an operation, some thousand operations in a row
TOLERANCE = {"atol": 1e-9, "rtol": 1e-9}  # float64 rounds to 1e-16; some thousand operations add up to 1e-13

#: each system in its own words, and every choice that a system offers
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {name: (name, {}) for name in SYSTEMS} | {
    "transformer pre-norm": ("transformer", {"pre_norm": True, "decoder_layers": 1}),
    "transformer rotary": ("transformer", {"position_encoding": "rotary", "pre_norm": True}),
    "transformer learned": ("transformer", {"position_encoding": "learned", "max_positions": 40}),
    "transformer rms": ("transformer", {"norm": "rms", "pre_norm": True}),
    "transformer untied": ("transformer", {"tied_embeddings": False}),
    "transformer without projections": ("transformer", {"self_attention_projections": False}),
    "transformer wide values": ("transformer", {"value_dim": 7}),
    "transformer narrow values": ("transformer", {"head_dim": 5, "value_dim": 2, "query_key_norm": True}),
    "transformer concatenated": ("transformer", {"position_dim": 6}),
    "transformer concatenated learned": (
        "transformer",
        {"position_encoding": "learned", "position_dim": 4, "max_positions": 40, "tied_embeddings": False},
    ),
    "transformer copying": ("transformer", {"copying": True, "coverage_loss": 1.0}),
    "bahdanau copying": ("bahdanau", {"copying": True}),
    # the only attention is the one that copies, and the encoder's output is longer than the source
    "bytenet copying": ("bytenet", {"copying": True}),
    "luong without input feeding": ("luong", {"input_feeding": False}),
    "luong both ways": ("luong", {"encoder_direction": "both"}),
    "luong dot": ("luong", {"attention_score": "dot"}),
    "luong scaled dot": ("luong", {"attention_score": "scaled-dot"}),
    "luong concat": ("luong", {"attention_score": "concat"}),
    "bow sum": ("bow", {"pooling": "sum"}),
    "bow attention": ("bow", {"pooling": "attention"}),
    "cho reset before": ("cho", {"cell": "gru-reset-before", "layers": 1}),
    "bahdanau reset before": ("bahdanau", {"cell": "gru-reset-before", "layers": 2}),
    "bahdanau lstm": ("bahdanau", {"cell": "lstm"}),
    "rnn-lm reset before": ("rnn-lm", {"cell": "gru-reset-before"}),
    "bahdanau general": ("bahdanau", {"attention_score": "general"}),
    "bahdanau deep": ("bahdanau", {"layers": 2}),
    "transformer-dmca short blocks": ("transformer-dmca", {"block_size": 4}),
    "transformer-dmca overlapping": ("transformer-dmca", {"block_size": 3, "stride": 2, "kernel_size": 3}),
    "transformer-dmca with gaps": ("transformer-dmca", {"block_size": 5, "stride": 3, "kernel_size": 1}),
    "hard-monotonic jumps": ("hard-monotonic", {"order": 1, "max_jump": 2}),
    "hard-monotonic any order": ("hard-monotonic", {"monotonic": False, "tied_embeddings": True}),
    "hard-monotonic any jumps": ("hard-monotonic", {"order": 1, "monotonic": False, "decoder_layers": 2}),
    "gnmt residual": ("gnmt", {"layers": 4}),
    "gnmt shallow": ("gnmt", {"layers": 1}),
    "deep-att deep": ("deep-att", {"layers": 3, "decoder_layers": 4}),
    "deep-att shallow": ("deep-att", {"layers": 1, "decoder_layers": 1}),
    "transformer batch norm": ("transformer", {"norm": "batch", "pre_norm": True}),
    "transformer alibi": ("transformer", {"position_encoding": "alibi"}),
    "shaw wide values": ("shaw", {"value_dim": 6}),
    "shaw clipped": ("shaw", {"max_distance": 2}),
    "shaw keys alone": ("shaw", {"max_distance": 3, "relative_values": False, "pre_norm": True}),
    "roformer pre-norm": ("roformer", {"pre_norm": True, "rope_base": 100.0}),
    "roformer values": ("roformer", {"rotary_values": True, "pre_norm": True}),
    "moe": ("moe", {"ffn_dim": 40}),
    "moe one of three": ("moe", {"ffn_dim": 32, "experts": 3, "experts_per_token": 1, "pre_norm": True}),
    "moe-2017": ("moe-2017", {"ffn_dim": 24}),
    "moe-2017 shallow": ("moe-2017", {"layers": 1, "ffn_dim": 24, "experts": 3}),
    "moe-2017 every expert": ("moe-2017", {"layers": 3, "ffn_dim": 24, "experts": 2, "experts_per_token": 2}),
    "moe-2017 projected": ("moe-2017", {"ffn_dim": 24, "cell_dim": 22}),
    "luong tanh product": ("luong", {"attention_score": "tanh-product"}),
    "transformer-dmca-moe": ("transformer-dmca-moe", {"ffn_dim": 24, "experts": 4, "block_size": 4}),
    "gpt3 narrow": ("gpt3", {"attention_window": 3, "layers": 4}),
    "palm narrow heads": ("palm", {"head_dim": 6, "tied_embeddings": False}),
    "llama one key head": ("llama", {"kv_heads": 1, "tied_embeddings": True}),
    "llama windowed": ("llama", {"attention_window": 3, "query_key_value_bias": True, "layers": 2}),
    "unilm-masked untied": ("unilm-masked", {"tied_embeddings": False, "max_positions": 40}),
    "unilm untied": ("unilm", {"tied_embeddings": False}),
    "convs2s wide kernel": (
        "convs2s",
        {"kernel_size": 4, "decoder_layers": 1, "max_positions": 40, "tied_embeddings": False},
    ),
    "bytenet short sets": ("bytenet", {"blocks_per_layer": 2, "kernel_size": 2, "tied_embeddings": False}),
    "bytenet not extended": ("bytenet", {"unfolding_ratio": 1.0}),
    "bytenet far extended": ("bytenet", {"unfolding_ratio": 1.5, "unfolding_offset": 4.0}),
    "t5": ("t5", {"sentinels": None}),  # so that what it may write can be counted
    "t5 gated": (
        "t5",
        {
            "sentinels": None,
            "gated_ffn": True,
            "tied_embeddings": False,
            "position_buckets": 6,
            "max_distance": 5,
            "decoder_layers": 1,
        },
    ),
    "bart untied": ("bart", {"tied_embeddings": False, "shared_embeddings": False, "max_positions": 40}),
    "bert narrow embeddings": ("bert", {"embedding_dim": 6, "token_types": 3}),
    "bert untied": ("bert", {"tied_embeddings": False}),
    "electra apart": ("electra", {"embedding_dim": None, "generator_divisor": 2, "shared_embeddings": False}),
    "vision": ("vision", {"feature_dim": 6}),
    "vision untied": ("vision", {"feature_dim": 6, "max_positions": 40, "decoder_layers": 1, "tied_embeddings": False}),
    "speech": ("speech", {"feature_dim": 5, "stride": 2}),
    "speech by fours": ("speech", {"feature_dim": 5}),
    "speech full rate": ("speech", {"feature_dim": 5, "stride": 2, "full_rate_convolution": True}),
    "speech frame by frame": ("speech", {"feature_dim": 5, "stride": 1, "decoder_layers": 1}),
}

#: variants whose sources contain feature symbols: the last ids of the vocabulary
FEATURE_SYMBOLS = 4
WITH_FEATURES = {
    "transformer features": ("transformer", {}),
    "transformer rotary features": ("transformer", {"position_encoding": "rotary", "pre_norm": True}),
    "transformer learned features": ("transformer", {"position_encoding": "learned", "max_positions": 40}),
    "t5 features": ("t5", {"sentinels": None}),
    "bahdanau features": ("bahdanau", {}),
    "gpt features": ("gpt", {}),
    "hard-monotonic features": ("hard-monotonic", {}),
}
VARIANTS |= WITH_FEATURES

#: The systems of the default run, one of each kind of decoder state, position, visibility and input that the code
#: outside `parts/` can tell apart. `make laws` runs the laws over all of VARIANTS.
REPRESENTATIVES = (
    "bahdanau",  # recurrent, the source's annotations give the first state
    "luong",  # recurrent, input feeding
    "hard-monotonic",  # a distribution over alignments as state
    "convs2s",  # convolutional buffers as state
    "transformer",
    "shaw",  # attention with relative positions in keys and values
    "transformer batch norm",  # statistics over a batch
    "transformer-dmca short blocks",  # local and compressed attention
    "gpt",  # source and target are one sequence, limited positions
    "moe",  # mixture of experts
    "speech",  # reads vectors
    "bert",  # labels its source
    "electra",  # two models in one
)


def laws_over(variants: Iterable[str], always: Iterable[str] = REPRESENTATIVES) -> pytest.MarkDecorator:
    """Parametrise `variant`; those that are not in `always` run in `make laws` alone."""
    always = set(always)
    return pytest.mark.parametrize(
        "variant", [pytest.param(one, marks=() if one in always else pytest.mark.exhaustive) for one in variants]
    )


def small_spec(variant: str, vocabulary: int = VOCABULARY) -> ModelSpec:
    name, settings = VARIANTS[variant]
    known = SYSTEMS[name].settings()
    small = {key: value for key, value in {"model_dim": 16, "layers": 2, "heads": 4}.items() if key in known}
    spec = SYSTEMS[name].spec(VocabularySizes(vocabulary, vocabulary, joint=True), "tiny", **(small | settings))
    if variant not in WITH_FEATURES:
        return spec
    return spec.with_feature_symbols(vocabulary - FEATURE_SYMBOLS, FEATURE_SYMBOLS, invariant_positions=True)


@cache
def generates(variant: str) -> bool:
    """Whether the system generates tokens; the others label their source."""
    return isinstance(small_spec(variant), EncoderDecoder | DecoderOnly)


WRITERS = [variant for variant in VARIANTS if generates(variant)]
ENCODERS = [variant for variant in VARIANTS if not generates(variant)]
every_system = laws_over(VARIANTS)
every_writer = laws_over(WRITERS)
#: for strategies and engines, which see only the state of the decoder: one system for each kind of state
DECODER_STATES = ("bahdanau", "hard-monotonic", "convs2s", "transformer", "gpt", "speech")
every_decoder_state = laws_over(WRITERS, always=DECODER_STATES)
every_encoder = laws_over(ENCODERS)
#: those that are checked in float32 too; no mixture of experts, where rounding may choose another expert
in_float32 = pytest.mark.parametrize("variant", ["bahdanau", "luong", "convs2s", "transformer", "shaw", "gpt"])


def small_model(variant: str, vocabulary: int = VOCABULARY) -> Model:
    """Weights larger than usual, so that outputs differ clearly and mistakes show."""
    model = deepcopy(_small_model(variant, vocabulary, torch.get_default_dtype()))
    torch.manual_seed(0)
    return model


@cache
def _small_model(variant: str, vocabulary: int, dtype: torch.dtype) -> Model:
    torch.manual_seed(0)
    model = small_spec(variant, vocabulary).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0).add_(torch.randn_like(weight) * 0.1)
        if checkpoint.named_weights(model).keys() - dict(model.named_parameters()).keys():
            see_much(model, variant, vocabulary)
    return model


def exact(model: Model) -> Model:
    """The same weights in float64."""
    return deepcopy(model).double()


def see_much(model: Model, variant: str, vocabulary: int) -> None:
    """Running statistics as after training: without them nothing would be normalised."""
    some = pairs(variant, vocabulary)
    model.train()
    for _ in range(50):
        with torch.enable_grad():
            model(some.source, some.source_lengths, some.target, some.target_lengths)
    model.eval()


@dataclass
class Pairs:
    """Padded sources and framed-in targets of different lengths."""

    source: Tensor
    source_lengths: Tensor
    target: Tensor
    target_lengths: Tensor


def pairs(variant: str, vocabulary: int = VOCABULARY) -> Pairs:
    """Pairs as the variant's model reads them."""
    generator = torch.Generator().manual_seed(1)
    source = torch.randint(4, vocabulary, (3, 7), generator=generator)
    target = torch.randint(4, vocabulary, (3, 6), generator=generator)
    target[:, 0] = SYMBOLS.bos
    return Pairs(as_read(variant, source), torch.tensor([7, 5, 2]), target, torch.tensor([6, 4, 3]))


def as_read(variant: str, tokens: Tensor) -> Tensor:
    """Tokens as they are, or, for a model that reads vectors, a vector in the place of each: B S F."""
    spec = small_spec(variant)
    if not isinstance(spec, EncoderDecoder) or spec.input is None:
        return tokens
    vectors = torch.randn(VOCABULARY, spec.input.features, generator=torch.Generator().manual_seed(3))
    return vectors[tokens]
