"""BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA and RoFormer: encoders with one of several heads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dragoman.errors import UserError
from dragoman.interop.huggingface.bert_families import WORD_EMBEDDINGS, BertFamily
from dragoman.interop.huggingface.conversion import Conversion, WeightTransform, permutation, without_first_rows
from dragoman.interop.huggingface.hf_config import HFConfig
from dragoman.interop.huggingface.safetensors_weights import StoredWeights
from dragoman.models import EncoderOnly
from dragoman.parts.attention import SelfAttention
from dragoman.parts.embedding import Embedding, Transform
from dragoman.parts.feedforward import FeedForward
from dragoman.parts.initialization import Normal
from dragoman.parts.norm import LayerNorm
from dragoman.parts.positions import Learned, NoPosition, Rotary, Sinusoidal
from dragoman.parts.stack import PostNorm, Stack
from dragoman.parts.visibility import Full
from dragoman.text.framing import Framing

#: patterns of the names of weights of other heads, and of buffers
UNUSED_WEIGHTS = (r"pooler\..*", r"cls\.seq_relationship\..*", r"embeddings\.(position_ids|token_type_ids)")

#: fields of DistilBERT that only other tasks read, and how its position table, which is stored, was initialized
TASK_FIELDS = ("qa_dropout", "seq_classif_dropout", "sinusoidal_pos_embds", "tie_weights_")

#: adds an output layer to the converted encoder (the last argument); not every head needs all arguments
Head = Callable[[BertFamily, HFConfig, StoredWeights, Conversion], Conversion]


def convert_encoder(family: BertFamily, head: Head, config: HFConfig, weights: StoredWeights) -> Conversion:
    """Convert a checkpoint of BERT or a similar encoder (`family`), with the output layer that `head` adds."""
    return head(family, config, weights, _encoder_without_head(family, config))


def _encoder_without_head(family: BertFamily, config: HFConfig) -> Conversion:
    """Return our spec (description) of the encoder without an output layer, and where its weights are stored.

    Fields of config.json are read with transformers' defaults or those of the `family`; unsupported values
    (`config.expect`) raise an error.
    """
    config.expect("is_decoder", False)
    config.expect("add_cross_attention", False)
    config.expect("position_embedding_type", "absolute")
    name = family.field_name  # BERT's name of a field → the family's
    heads = config.integer(name("num_attention_heads"), family.heads)
    dim, embedding_dim = config.integer(name("hidden_size"), family.hidden_size), _embedding_dim(family, config)
    # rows of the position table that no token uses: RoBERTa numbers positions from the padding token's id + 1
    unused_rows = config.get("pad_token_id", 1) + 1 if family.positions_after_padding else 0
    max_positions = config.integer("max_position_embeddings", 512)
    if max_positions <= unused_rows:
        raise UserError(
            f"{config.path}: positions are numbered from pad_token_id + 1 = {unused_rows}, so that "
            f"max_position_embeddings must be larger than this, but is {max_positions}: correct one of the two fields"
        )
    config.ignore(*TASK_FIELDS)  # fields of DistilBERT that change nothing here
    transforms: dict[str, WeightTransform] = {"encoder.position.table": without_first_rows(unused_rows)}
    computed = {}
    rotary_values = family.rotary and config.boolean("rotary_value", False)
    if family.rotary:
        transforms = _rotary_transforms(heads, rotary_values)
        # stored sinusoids, which our model computes instead
        computed = {"encoder.embed_positions.weight": Sinusoidal(sines_first=True).build(dim // heads)}
    dropout, norm = config.number(name("hidden_dropout_prob"), 0.1), _norm(family, config)
    attention = SelfAttention(
        heads,
        visibility=Full(),
        position=Rotary() if family.rotary else NoPosition(),
        dropout=config.number(name("attention_probs_dropout_prob"), 0.1),
        rotary_values=rotary_values,
    )
    ffn_dim = config.integer(name("intermediate_size"), family.ffn_dim)
    feed_forward = FeedForward(ffn_dim, activation=config.activation(name("hidden_act"), "gelu"))
    stack = Stack(
        tuple(PostNorm(part, norm=norm, dropout=dropout) for part in (attention, feed_forward)),
        depth=config.integer(name("num_hidden_layers"), family.layers),
        position=NoPosition() if family.rotary else Learned(max_positions - unused_rows),
        dropout=dropout,
        input_norm=norm,
        input_dim=embedding_dim,
    )
    spec = EncoderOnly(
        dim,
        config.integer("vocab_size", family.vocab_size),
        stack,
        Embedding(width=embedding_dim),
        token_types=config.integer("type_vocab_size", family.token_types) if family.token_types else 0,
        initialization=Normal(config.number("initializer_range", 0.02)),
    )
    return Conversion(
        family.system,
        spec,
        family.modules,
        _framing(family, config),
        transforms,
        unused=UNUSED_WEIGHTS,
        computed=computed,
    )


def _norm(family: BertFamily, config: HFConfig) -> LayerNorm:
    """Return the layer norm of all layers, whose ε is a constant of the family or, if that is None, in config.json."""
    return LayerNorm(config.number("layer_norm_eps", 1e-12) if family.norm_eps is None else family.norm_eps)


def _embedding_dim(family: BertFamily, config: HFConfig) -> int | None:
    """Return the dimension of the embeddings if it differs from that of the model, else None.

    Only some families, such as ELECTRA, have a field for it.
    """
    dim = config.integer(family.field_name("hidden_size"), family.hidden_size)
    embedding_dim = (
        config.integer("embedding_size", family.embedding_size or dim) if family.separate_embedding_size else dim
    )
    return None if embedding_dim == dim else embedding_dim


def _rotary_transforms(heads: int, rotary_values: bool) -> dict[str, WeightTransform]:
    """Return transforms that reorder queries and keys and, if they are rotated too, values, for rotary positions.

    RoFormer rotates pairs of neighboring dimensions of a head, our attention pairs the first half of a head with the
    second. If values are reordered, so are the columns of the output matrix, which reads them.
    """
    rotated = 3 if rotary_values else 2  # of queries, keys and values, in this order

    def reorder_projection(rows: Tensor, layer: int) -> Tensor:
        """Reorder the rows of queries and keys, and values if `rotated` is 3; all are stacked in one matrix or bias.

        H: heads, E: dimension of a head. The order is the same in every `layer`.
        """
        by_head = rows.unflatten(0, (3, heads, -1, 2))  # (q k v) H E/2 2 …
        reordered = by_head[:rotated].transpose(2, 3).flatten(0, 3)  # the first of every pair, then the second
        return torch.cat((reordered, by_head[rotated:].flatten(0, 3)))

    def reorder_output(weight: Tensor, layer: int) -> Tensor:
        """Reorder the columns of the output matrix, D × heads · head width, like the values that it reads.

        Its bias stays. The order is the same in every `layer`.
        """
        if weight.dim() < 2:
            return weight
        # in each head, the first of every pair, then the second
        return weight.unflatten(1, (heads, -1, 2)).transpose(2, 3).flatten(1)

    transforms: dict[str, WeightTransform] = {"encoder.layers.*.0.body.project": permutation(reorder_projection)}
    return transforms | ({"encoder.layers.*.0.body.output": permutation(reorder_output)} if rotary_values else {})


def _framing(family: BertFamily, config: HFConfig) -> Framing:
    """Return the padding token and the special tokens around a text ("framing").

    config.json has them for RoBERTa and XLM-RoBERTa only, the families whose positions start after the padding token's
    id. For the others they stay empty here, and the tokenizer adds them later.
    """
    if not family.positions_after_padding:
        return Framing(
            config.token_id("pad_token_id", 0), bos=0, eos=0, source_prefix=(), source_suffix=(), suppressed=()
        )
    bos, eos = config.token_id("bos_token_id", 0), config.token_id("eos_token_id", 2)
    pad = config.token_id("pad_token_id", 1)
    return Framing(pad, bos, eos, source_prefix=(bos,), source_suffix=(eos,), suppressed=())


def no_head(family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion) -> Conversion:
    """Add no output layer to the encoder `body`: the model returns the hidden states of the last layer.

    `family` and `weights` are not needed: all heads have the same signature (`Head`).
    """
    config.boolean("tie_word_embeddings", True)  # without effect: read so that it is not refused as unknown
    return _with_head(body, {}, num_labels=0, tied_embeddings=False)


def token_classification(family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion) -> Conversion:
    """Add the output layer of a token classifier to the encoder `body`: a label for every token.

    `family` and `weights` are not needed: all heads have the same signature (`Head`).
    """
    config.boolean("tie_word_embeddings", True)  # without effect: read so that it is not refused as unknown
    labels = config.label_names()
    conversion = _with_head(body, {"output": "classifier"}, num_labels=len(labels), tied_embeddings=False)
    return replace(conversion, system="tagger", labels=labels)


def sequence_classification(
    family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion
) -> Conversion:
    """Add the output layers of a text classifier to the encoder `body`: a label from the state of the first token.

    Only one label per text is supported: neither several independent ones nor a number (regression). `weights` are
    not needed: all heads have the same signature (`Head`).
    """
    config.boolean("tie_word_embeddings", True)  # without effect: read so that it is not refused as unknown
    labels, problem = config.label_names(), config.get("problem_type", None)
    if problem not in (None, "single_label_classification"):
        raise config.unsupported("problem_type", problem, "only single_label_classification is")
    if len(labels) < 2:
        raise config.unsupported("num_labels", len(labels), "a model with one output predicts a number (regression)")
    modules = {"output.transform.dense": family.pooler, "output": family.classifier}
    activation = family.pooler_activation or config.activation(family.field_name("hidden_act"), "gelu")
    transform = Transform(activation)
    conversion = _with_head(
        body, modules, num_labels=len(labels), tied_embeddings=False, transform=transform, one_label_per_sequence=True
    )
    return replace(conversion, system="classifier", labels=labels)


def replaced_token_detection(
    family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion
) -> Conversion:
    """Add the output layer of ELECTRA's discriminator to the encoder `body`: whether each token was replaced.

    `family` and `weights` are not needed: all heads have the same signature (`Head`).
    """
    config.boolean("tie_word_embeddings", True)  # without effect: read so that it is not refused as unknown
    modules = {
        "output.transform.dense": "discriminator_predictions.dense",
        "output": "discriminator_predictions.dense_prediction",
    }
    transform = Transform(config.activation("hidden_act", "gelu"))
    # one label: the logit of "replaced"
    return _with_head(body, modules, num_labels=1, tied_embeddings=False, transform=transform)


def masked_lm(family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion) -> Conversion:
    """Add the output layer of masked language modeling to the encoder `body`: logits of masked tokens.

    It is a dense layer and a norm, then the tied embeddings or an output matrix of its own. It is tied if config.json
    says so and no other matrix is stored.
    """
    activation = family.head_activation or config.activation(family.field_name("hidden_act"), "gelu")
    matrix, bias = f"{family.output}.weight", weights.first_present(f"{family.output}.bias", family.output_bias)
    tied = config.boolean("tie_word_embeddings", True) and weights.equal(WORD_EMBEDDINGS, matrix)
    modules = {
        "output.transform.dense": family.transform_dense,
        "output.transform.norm": family.transform_norm,
        "output.weight": matrix,
        "output.bias": bias,
    }
    # width None: that of the tied embedding table, or else that of the model
    transform = Transform(
        activation, norm=_norm(family, config), width=None if tied else _embedding_dim(family, config)
    )
    unused = tuple(map(re.escape, (matrix, f"{family.output}.bias", family.output_bias)))  # copies, if tied
    return _with_head(body, modules, unused, tied_embeddings=tied, transform=transform)


def pretraining(family: BertFamily, config: HFConfig, weights: StoredWeights, body: Conversion) -> Conversion:
    """Add the output layers of BERT's pretraining to the encoder `body`.

    They predict masked tokens and, from the first token, whether the second sentence follows the first (2 labels).
    """
    modules = {"pooler.dense": "pooler.dense", "pooler.output": "cls.seq_relationship"}
    return _with_head(masked_lm(family, config, weights, body), modules, pooled_labels=2)


def _with_head(body: Conversion, modules: dict[str, str], unused: tuple[str, ...] = (), **changes: Any) -> Conversion:
    """Return the conversion of the encoder `body` with an output layer.

    Args:
        body: spec of the encoder, and where its weights are stored.
        modules: names of our modules of the output layer → names of the checkpoint's modules.
        unused: patterns of names of stored weights that the model does not need.
        changes: fields of the model's spec that get other values.
    """
    spec = replace(body.spec, **changes)  # type: ignore[type-var]  # every spec is a dataclass
    return replace(body, spec=spec, modules={**body.modules, **modules}, unused=(*body.unused, *unused))
