"""The encoder families of BERT: defaults of their configurations, and the names of their fields and modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dragoman.parts.feedforward import Activation

WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
BERT_MODULES = {
    "source_embedding": "embeddings.word_embeddings",
    "types": "embeddings.token_type_embeddings",
    "encoder.position.table": "embeddings.position_embeddings",
    "encoder.input_norm": "embeddings.LayerNorm",
    "encoder.project": "embeddings_project",
    "encoder.layers.*.0.body.project": "encoder.layer.*.attention.self.{query,key,value}",
    "encoder.layers.*.0.body.output": "encoder.layer.*.attention.output.dense",
    "encoder.layers.*.0.norm": "encoder.layer.*.attention.output.LayerNorm",
    "encoder.layers.*.1.body.widen": "encoder.layer.*.intermediate.dense",
    "encoder.layers.*.1.body.narrow": "encoder.layer.*.output.dense",
    "encoder.layers.*.1.norm": "encoder.layer.*.output.LayerNorm",
}
DISTILBERT_MODULES = BERT_MODULES | {
    "encoder.layers.*.0.body.project": "transformer.layer.*.attention.{q_lin,k_lin,v_lin}",
    "encoder.layers.*.0.body.output": "transformer.layer.*.attention.out_lin",
    "encoder.layers.*.0.norm": "transformer.layer.*.sa_layer_norm",
    "encoder.layers.*.1.body.widen": "transformer.layer.*.ffn.lin1",
    "encoder.layers.*.1.body.narrow": "transformer.layer.*.ffn.lin2",
    "encoder.layers.*.1.norm": "transformer.layer.*.output_layer_norm",
}
DISTILBERT_FIELDS = {
    "hidden_size": "dim",
    "num_attention_heads": "n_heads",
    "num_hidden_layers": "n_layers",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}


@dataclass(frozen=True)
class BertFamily:
    """What differs between families of BERT: defaults and names of the fields of config.json, and names of modules."""

    system: str
    vocab_size: int
    transform_dense: str
    transform_norm: str
    output: str  # matrix of the output layer, if it is not tied
    output_bias: str
    hidden_size: int = 768
    heads: int = 12
    ffn_dim: int = 3072
    separate_embedding_size: bool = False  # embeddings may be narrower than the model
    embedding_size: int | None = None  # hidden_size by default
    rotary: bool = False
    positions_after_padding: bool = False  # the first position is the row after the id of the padding token
    modules: Mapping[str, str] = field(default_factory=lambda: BERT_MODULES)  # of the encoder: our names → theirs
    field_names: Mapping[str, str] = field(default_factory=dict)  # fields of config.json: BERT's name → this family's
    head_activation: Activation | None = None  # of the masked language modeling head; None: that of the encoder
    layers: int = 12
    token_types: int = 2  # 0: the family has none
    norm_eps: float | None = None  # a constant of the family; None: the field layer_norm_eps
    pooler: str = "classifier.dense"  # of the sequence classification head, and its output layer
    classifier: str = "classifier.out_proj"
    pooler_activation: Activation | None = "tanh"  # None: that of the encoder

    def field_name(self, name: str) -> str:
        """Return this family's name of a field that BERT's config.json calls `name`."""
        return self.field_names.get(name, name)


BERT = BertFamily(
    "bert",
    30522,
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.decoder",
    "cls.predictions.bias",
    pooler="pooler.dense",
    classifier="classifier",
)
ROFORMER = replace(
    BERT,
    vocab_size=50000,
    separate_embedding_size=True,
    rotary=True,
    pooler="classifier.dense",
    classifier="classifier.out_proj",
    pooler_activation=None,
)
ROBERTA = BertFamily(
    "roberta",
    50265,
    "lm_head.dense",
    "lm_head.layer_norm",
    "lm_head.decoder",
    "lm_head.bias",
    positions_after_padding=True,
    head_activation="gelu",
)
XLM_ROBERTA = replace(ROBERTA, vocab_size=30522)  # transformers' default; the published models state 250,002
DISTILBERT = BertFamily(
    "bert",
    30522,
    "vocab_transform",
    "vocab_layer_norm",
    "vocab_projector",
    "vocab_projector.bias",
    layers=6,
    token_types=0,
    modules=DISTILBERT_MODULES,
    field_names=DISTILBERT_FIELDS,
    norm_eps=1e-12,
    pooler="pre_classifier",
    classifier="classifier",
    pooler_activation="relu",
)
ELECTRA = BertFamily(
    "electra",
    30522,
    "generator_predictions.dense",
    "generator_predictions.LayerNorm",
    "generator_lm_head",
    "generator_lm_head.bias",
    hidden_size=256,
    heads=4,
    ffn_dim=1024,
    separate_embedding_size=True,
    embedding_size=128,
    head_activation="gelu",
    pooler_activation="gelu",
)
