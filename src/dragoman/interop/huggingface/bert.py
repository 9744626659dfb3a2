"""BERT, RoBERTa, ELECTRA and RoFormer: encoders alone, with one of several heads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.conversion import Conversion, is_tied, names
from dragoman.interop.huggingface.hf_config import Settings
from dragoman.interop.huggingface.weights import Change, Origin, Stored, layer, unchanged, without_first
from dragoman.models import EncoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, NoPosition, Rotary, Sinusoidal, SinusoidalPosition
from dragoman.parts.spec import Spec
from dragoman.parts.stack import PostNorm, Stack
from dragoman.parts.visibility import Full
from dragoman.text.framing import Framing

TABLE = "embeddings.word_embeddings.weight"
POOLER = r"pooler\..*"
BUFFERS = r"embeddings\.(position_ids|token_type_ids)"

Head = Callable[[Settings, Stored, "Body"], Conversion]


@dataclass(frozen=True)
class Build:
    """A family's defaults, for what its configuration does not say."""

    system: str
    vocabulary: int
    width: int = 768
    heads: int = 12
    inner: int = 3072
    factored: bool = False  # the embeddings may be narrower than the model
    embedding: int | None = None


BERT = Build("bert", 30522)
ROBERTA = Build("roberta", 50265)
ELECTRA = Build("electra", 30522, 256, 4, 1024, factored=True, embedding=128)
ROFORMER = Build("bert", 50000, factored=True)


@dataclass(frozen=True)
class Positions:
    """How the body is told of positions: below its layers, within them, or both."""

    below: Spec = field(default_factory=NoPosition)
    within: Spec = field(default_factory=NoPosition)
    origins: dict[str, Origin] = field(default_factory=dict)
    queries: Change = unchanged  # what becomes of the rows of queries, keys and values
    computed: dict[str, SinusoidalPosition] = field(default_factory=dict)


@dataclass(frozen=True)
class Body:
    """Everything below the head."""

    system: str
    spec: EncoderOnly
    norm: LayerNorm
    origins: dict[str, Origin]
    framing: Framing
    computed: dict[str, SinusoidalPosition]


# ---- bodies


def bert(settings: Settings) -> Body:
    return _body(settings, BERT, _learned(settings, 0), _unframed(settings))


def electra(settings: Settings) -> Body:
    return _body(settings, ELECTRA, _learned(settings, 0), _unframed(settings))


def roberta(settings: Settings) -> Body:
    """Positions are counted from after the number of the padding symbol."""
    pad, begin, end = (settings.symbol(f"{name}_token_id", n) for name, n in (("pad", 1), ("bos", 0), ("eos", 2)))
    framing = Framing(pad, begin, end, source_prefix=(begin,), source_suffix=(end,), suppressed=())
    return _body(settings, ROBERTA, _learned(settings, settings.get("pad_token_id", 1) + 1), framing)


def roformer(settings: Settings) -> Body:
    """Rotary positions, which pair neighbours where ours pair the halves of a head."""
    settings.expect("rotary_value", False)
    settings.whole("max_position_embeddings", 1536)  # the sines are computed for any length
    heads = settings.whole("num_attention_heads", ROFORMER.heads)
    width = settings.whole("hidden_size", ROFORMER.width) // heads
    table = {"encoder.embed_positions.weight": Sinusoidal(sines_first=True).build(width)}
    rotary = Positions(within=Rotary(), queries=_halves_of_pairs(heads), computed=table)
    return _body(settings, ROFORMER, rotary, _unframed(settings))


def _learned(settings: Settings, offset: int) -> Positions:
    """Learned positions, the table's first rows left out where no position uses them."""
    longest = settings.whole("max_position_embeddings", 512) - offset
    if longest < 1:
        raise UserError(f"{settings.path}: max_position_embeddings must be above {offset}, but is {longest + offset}")
    table = Origin(("embeddings.position_embeddings.weight",), without_first(offset))
    return Positions(Learned(longest), origins={"encoder.position.table.weight": table})


def _body(settings: Settings, build: Build, positions: Positions, framing: Framing) -> Body:
    settings.expect("is_decoder", False)
    settings.expect("add_cross_attention", False)
    settings.expect("position_embedding_type", "absolute")
    width = settings.whole("hidden_size", build.width)
    embedding = settings.whole("embedding_size", build.embedding or width) if build.factored else width
    narrow = None if embedding == width else embedding
    dropout, norm = settings.number("hidden_dropout_prob", 0.1), LayerNorm(settings.number("layer_norm_eps", 1e-12))
    attention = SelfAttention(
        settings.whole("num_attention_heads", build.heads),
        visibility=Full(),
        position=positions.within,
        dropout=settings.number("attention_probs_dropout_prob", 0.1),
    )
    feed_forward = FeedForward(
        settings.whole("intermediate_size", build.inner), settings.activation("hidden_act", "gelu")
    )
    stack = Stack(
        (PostNorm(attention, norm, dropout), PostNorm(feed_forward, norm, dropout)),
        settings.whole("num_hidden_layers", 12),
        positions.below,
        dropout,
        input_norm=norm,
        input_dim=narrow,
    )
    spec = EncoderOnly(
        width,
        settings.whole("vocab_size", build.vocabulary),
        stack,
        Embedding(width=narrow),
        token_types=settings.whole("type_vocab_size", 2),
        initialization=Normal(settings.number("initializer_range", 0.02)),
    )
    origins = positions.origins | _origins(spec, positions.queries)
    return Body(build.system, spec, norm, origins, framing, positions.computed)


def _origins(spec: EncoderOnly, queries: Change) -> dict[str, Origin]:
    found = {"source_embedding.weight": Origin((TABLE,))}
    found |= layer("types", "embeddings.token_type_embeddings", bias=False)
    found |= layer("encoder.input_norm", "embeddings.LayerNorm")
    if spec.encoder.input_dim:
        found |= layer("encoder.project", "embeddings_project")
    for i in range(spec.encoder.depth):
        ours, theirs = f"encoder.layers.{i}", f"encoder.layer.{i}"
        look = f"{theirs}.attention.self"
        found |= layer(f"{ours}.0.body.project", f"{look}.query", f"{look}.key", f"{look}.value", change=queries)
        found |= layer(f"{ours}.0.body.output", f"{theirs}.attention.output.dense")
        found |= layer(f"{ours}.0.after", f"{theirs}.attention.output.LayerNorm")
        found |= layer(f"{ours}.1.body.widen", f"{theirs}.intermediate.dense")
        found |= layer(f"{ours}.1.body.narrow", f"{theirs}.output.dense")
        found |= layer(f"{ours}.1.after", f"{theirs}.output.LayerNorm")
    return found


def _halves_of_pairs(heads: int) -> Change:
    """Rows of queries, keys and values; in each head of the first two, pairs of neighbours become pairs of halves."""

    def change(rows: Tensor) -> Tensor:
        by_head = rows.unflatten(0, (3, heads, -1, 2))  # (q k v) H E/2 2 …
        turned = by_head[:2].transpose(2, 3).flatten(0, 3)  # the first of every pair, then the second
        return torch.cat((turned, by_head[2].flatten(0, 2)))

    return change


def _unframed(settings: Settings) -> Framing:
    """The symbols around a text are the tokenizer's to know."""
    return Framing(
        pad=settings.symbol("pad_token_id", 0), bos=0, eos=0, source_prefix=(), source_suffix=(), suppressed=()
    )


# ---- heads


def states(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """No head at all: what comes out is the last layer's states."""
    settings.flag("tie_word_embeddings", True)
    return _reading(body, replace(body.spec, num_labels=0, tied_embeddings=False), {}, POOLER)


def labels(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """One of the labels for every word."""
    settings.flag("tie_word_embeddings", True)
    found = settings.labels()
    spec = replace(body.spec, num_labels=len(found), tied_embeddings=False)
    return replace(_reading(body, spec, layer("output", "classifier"), POOLER), system="tagger", labels=found)


def replaced(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """ELECTRA's discriminator: was the word replaced?"""
    settings.flag("tie_word_embeddings", True)
    activation = settings.activation("hidden_act", "gelu")
    spec = replace(body.spec, num_labels=1, tied_embeddings=False, transform=Transform(activation))
    origins = layer("output.transform.dense", "discriminator_predictions.dense")
    return _reading(body, spec, origins | layer("output", "discriminator_predictions.dense_prediction"))


def masked(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """BERT's and RoFormer's guess at masked words."""
    transform = Transform(settings.activation("hidden_act", "gelu"), body.norm)
    head = "cls.predictions"
    found = _masked(settings, stored, body, transform, f"{head}.transform.dense", f"{head}.transform.LayerNorm", head)
    return replace(found, unused=(*found.unused, POOLER, r"cls\.seq_relationship\..*"))


def masked_and_next(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """The same, and whether the second sentence follows the first."""
    found = masked(settings, stored, body)
    assert isinstance(found.spec, EncoderOnly)
    pooled = layer("pooler.dense", "pooler.dense") | layer("pooler.output", "cls.seq_relationship")
    return replace(found, spec=replace(found.spec, pooled_labels=2), origins=found.origins | pooled)


def masked_roberta(settings: Settings, stored: Stored, body: Body) -> Conversion:
    transform = Transform("gelu", body.norm)
    found = _masked(settings, stored, body, transform, "lm_head.dense", "lm_head.layer_norm", "lm_head")
    return replace(found, unused=(*found.unused, POOLER))


def masked_electra(settings: Settings, stored: Stored, body: Body) -> Conversion:
    """ELECTRA's generator."""
    head, transform = "generator_predictions", Transform("gelu", body.norm)
    return _masked(settings, stored, body, transform, f"{head}.dense", f"{head}.LayerNorm", "generator_lm_head")


def _masked(
    settings: Settings, stored: Stored, body: Body, transform: Transform, dense: str, norm: str, head: str
) -> Conversion:
    """One more layer, then the table of embeddings or a matrix of its own."""
    inner = head if head == "generator_lm_head" else f"{head}.decoder"
    matrix, bias = f"{inner}.weight", stored.first(f"{inner}.bias", f"{head}.bias")
    tied = is_tied(stored, settings.flag("tie_word_embeddings", True), TABLE, matrix)
    narrow = body.spec.embedding.width
    spec = replace(body.spec, tied_embeddings=tied, transform=replace(transform, width=None if tied else narrow))
    origins = layer("output.transform.dense", dense) | layer("output.transform.norm", norm)
    origins["output.bias"] = Origin((bias,))
    if not tied:
        origins["output.weight"] = Origin((matrix,))
    return _reading(body, spec, origins, *names(matrix, f"{inner}.bias", f"{head}.bias"))


def _reading(body: Body, spec: EncoderOnly, head: dict[str, Origin], *unused: str) -> Conversion:
    unused = (BUFFERS, *unused)
    return Conversion(body.system, spec, body.origins | head, body.framing, unused=unused, computed=body.computed)
