"""BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA and RoFormer give what transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_tiny import (
    SIDES,
    VOCABULARY,
    batch,
    bert,
    built,
    change,
    close_encoder,
    distilbert,
    electra,
    read,
    roberta,
    roformer,
    xlm_roberta,
)
from safetensors.torch import load_file, save_file

from dragoman.errors import UserError
from dragoman.interop.huggingface import ConvertedCheckpoint, read_checkpoint
from dragoman.models import EncoderOnly, count_parameters
from dragoman.parts.attention import SelfAttention
from dragoman.parts.mixer import SequenceLayout
from dragoman.parts.positions import Learned
from dragoman.parts.spec import find_specs
from dragoman.text.framing import Framing


def spec_of(checkpoint: ConvertedCheckpoint) -> EncoderOnly:
    assert isinstance(checkpoint.spec, EncoderOnly)
    return checkpoint.spec


# ---- BERT


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tie_word_embeddings": False, "type_vocab_size": 1},
        {"hidden_act": "gelu_new", "type_vocab_size": 3, "layer_norm_eps": 1e-3},
        {"hidden_act": "relu", "hidden_size": 35, "num_attention_heads": 5, "num_hidden_layers": 1},
        {"hidden_act": "silu", "num_attention_heads": 1, "num_hidden_layers": 3},
    ],
    ids=str,
)
def test_bert_masked_lm(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = bert("ForMaskedLM", **settings)
    checkpoint, mine = read(model, tmp_path)
    close_encoder(model, mine, settings.get("type_vocab_size", 2))
    assert spec_of(checkpoint).tied_embeddings is settings.get("tie_word_embeddings", True)
    assert checkpoint.framing.pad == 0


def test_bert_for_pretraining(tmp_path: Path) -> None:
    model = bert("ForPreTraining")
    _, mine = read(model, tmp_path)
    close_encoder(model, mine, kinds=2)
    ids = torch.randint(4, VOCABULARY, (2, 6))
    pooled = mine.pooler(mine.forward_features(ids, SequenceLayout.padded(6, torch.tensor([6, 6])))[0])
    torch.testing.assert_close(pooled, model(ids).seq_relationship_logits, atol=1e-5, rtol=1e-5)


FAMILIES = [bert, roberta, xlm_roberta, distilbert, electra, roformer]
PLACED = (bert, distilbert, electra)  # must be told the positions of tokens after padding


@pytest.mark.parametrize("make", FAMILIES)
def test_token_classification(tmp_path: Path, make: Any) -> None:
    names = {0: "noun", 1: "verb", 2: "other"}
    model = make("ForTokenClassification", id2label=names, label2id={name: i for i, name in names.items()})
    checkpoint, mine = read(model, tmp_path)
    close_encoder(model, mine, kinds=0 if make is distilbert else 2, placed=make in PLACED)
    assert checkpoint.labels == ("noun", "verb", "other")
    assert checkpoint.system == "tagger"
    assert mine.vocab_size == 3


@pytest.mark.parametrize("make", FAMILIES)
def test_hidden_states_of_the_base_model(tmp_path: Path, make: Any) -> None:
    model = make("Model")
    checkpoint, mine = read(model, tmp_path)
    close_encoder(model, mine, kinds=0 if make is distilbert else 2, placed=make in PLACED)
    assert spec_of(checkpoint).num_labels == 0


NAMES = {"id2label": {0: "bad", 1: "so so", 2: "good"}, "label2id": {"bad": 0, "so so": 1, "good": 2}}


@pytest.mark.parametrize("make", FAMILIES)
def test_sequence_classification(tmp_path: Path, make: Any) -> None:
    """The label of a text is that of its first token, after a dense layer with the activation of the family."""
    settings = {"activation" if make is distilbert else "hidden_act": "silu"}
    model = make("ForSequenceClassification", **NAMES, **settings)
    checkpoint, mine = read(model, tmp_path)
    assert (checkpoint.labels, checkpoint.system, mine.usage.command) == (
        ("bad", "so so", "good"),
        "classifier",
        "classify",
    )
    ids, real = batch((9, 5, 2), 9, pad=1)
    if make is not roberta and make is not xlm_roberta:
        ids = ids.masked_fill(~real, 0)
    expected = model(input_ids=ids, attention_mask=real.long()).logits
    torch.testing.assert_close(mine(ids, real.sum(1))[:, 0], expected, atol=1e-5, rtol=1e-5)


def test_other_problem_types_are_refused(tmp_path: Path) -> None:
    for name, settings in {
        "problem_type 'multi_label_classification'": {"problem_type": "multi_label_classification"},
        "problem_type 'regression'": {"problem_type": "regression"},
        "num_labels 1": {"num_labels": 1},
    }.items():
        bert("ForSequenceClassification", **settings).save_pretrained(tmp_path)
        with pytest.raises(UserError, match=f"{name}, which is not supported"):
            read_checkpoint(tmp_path)
    change(tmp_path, id2label={"0": "yes", "1": "yes"})
    with pytest.raises(UserError, match="id2label must give every label its own name"):
        read_checkpoint(tmp_path)


def test_old_names_of_norms_and_unused_heads(tmp_path: Path) -> None:
    """The published BERT: gamma and beta, the next sentence's head beside that of masked words, stored buffers."""
    model = bert("ForMaskedLM")
    model.save_pretrained(tmp_path)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    weights = {}
    for name, weight in load_file(tmp_path / "model.safetensors").items():
        for new, before in old.items():
            name = name.replace(new, before)
        weights[name] = weight
    assert "bert.embeddings.LayerNorm.gamma" in weights
    weights["bert.pooler.dense.weight"], weights["bert.pooler.dense.bias"] = torch.zeros(12, 12), torch.zeros(12)
    weights["cls.seq_relationship.weight"], weights["cls.seq_relationship.bias"] = torch.zeros(2, 12), torch.zeros(2)
    weights["bert.embeddings.position_ids"] = torch.arange(13)[None]
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"].clone()
    save_file(weights, tmp_path / "model.safetensors")
    checkpoint, mine = built(tmp_path)
    close_encoder(model, mine, kinds=2)
    assert spec_of(checkpoint).tied_embeddings


def test_tied_matrix_that_differs_from_the_embeddings_is_kept(tmp_path: Path) -> None:
    bert("ForMaskedLM").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["cls.predictions.decoder.weight"] = torch.randn(VOCABULARY, 12)
    weights["cls.predictions.decoder.bias"] = torch.randn(VOCABULARY)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    checkpoint, mine = built(tmp_path)
    close_encoder(model, mine, kinds=2)
    assert not spec_of(checkpoint).tied_embeddings


def test_dropouts(tmp_path: Path) -> None:
    checkpoint, _ = read(bert("ForMaskedLM", hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2), tmp_path)
    assert {part.dropout for part in find_specs(checkpoint.spec, SelfAttention)} == {0.2}
    assert spec_of(checkpoint).encoder.dropout == 0.3
    assert spec_of(checkpoint).encoder.block[1].dropout == 0.3  # type: ignore[attr-defined]


# ---- RoBERTa


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"type_vocab_size": 1, "hidden_act": "relu"},  # the head's stays GELU
        {"tie_word_embeddings": False},
        {"pad_token_id": 3, "max_position_embeddings": 14},
        {"pad_token_id": 0, "max_position_embeddings": 10},
    ],
    ids=str,
)
def test_roberta_masked_lm(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = roberta("ForMaskedLM", **settings)
    checkpoint, mine = read(model, tmp_path)
    pad = settings.get("pad_token_id", 1)
    close_encoder(model, mine, settings.get("type_vocab_size", 2), placed=False, pad=pad)
    longest = settings.get("max_position_embeddings", 13) - pad - 1
    assert next(find_specs(checkpoint.spec, Learned)).max_length == longest
    assert checkpoint.framing == Framing(pad, 0, 2, source_prefix=(0,), source_suffix=(2,), suppressed=())


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_token_id": 3, "max_position_embeddings": 20, "hidden_act": "gelu_new", "type_vocab_size": 1},
        {"tie_word_embeddings": False, "hidden_size": 20, "num_attention_heads": 2, "num_hidden_layers": 1},
    ],
    ids=str,
)
def test_xlm_roberta(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Positions begin after the id of padding."""
    model = xlm_roberta("ForMaskedLM", **settings)
    checkpoint, mine = read(model, tmp_path)
    pad = settings.get("pad_token_id", 1)
    close_encoder(model, mine, settings.get("type_vocab_size", 2), placed=False, pad=pad)
    assert (
        next(find_specs(checkpoint.spec, Learned)).max_length == settings.get("max_position_embeddings", 13) - pad - 1
    )
    assert checkpoint.framing == Framing(pad, 0, 2, source_prefix=(0,), source_suffix=(2,), suppressed=())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation": "relu", "tie_word_embeddings": False, "n_layers": 3},
        {"sinusoidal_pos_embds": True, "dim": 20, "n_heads": 5, "hidden_dim": 9},
    ],
    ids=str,
)
def test_distilbert(tmp_path: Path, settings: dict[str, Any]) -> None:
    """No token types; the activation of the encoder is that of the head."""
    model = distilbert("ForMaskedLM", **settings)
    checkpoint, mine = read(model, tmp_path)
    close_encoder(model, mine, kinds=0)
    assert spec_of(checkpoint).token_types == 0
    assert count_parameters(checkpoint.spec) == sum(weight.numel() for weight in model.parameters())


# ---- ELECTRA


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"embedding_size": 12},
        {"embedding_size": 20, "hidden_act": "relu", "type_vocab_size": 1},
        {"tie_word_embeddings": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["ForMaskedLM", "ForPreTraining"])
def test_electra(tmp_path: Path, kind: str, settings: dict[str, Any]) -> None:
    model = electra(kind, **settings)
    checkpoint, mine = read(model, tmp_path)
    close_encoder(model, mine, settings.get("type_vocab_size", 2))
    assert spec_of(checkpoint).num_labels == (1 if kind == "ForPreTraining" else None)


# ---- RoFormer


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"embedding_size": 10, "type_vocab_size": 3},
        {"embedding_size": 10, "tie_word_embeddings": False, "hidden_act": "gelu_new"},
        {"hidden_size": 20, "num_attention_heads": 1},
        {"hidden_size": 36, "num_attention_heads": 2, "num_hidden_layers": 1},
        {"rotary_value": True},
        {"rotary_value": True, "hidden_size": 20, "num_attention_heads": 2, "embedding_size": 8},
    ],
    ids=str,
)
def test_roformer(tmp_path: Path, settings: dict[str, Any]) -> None:
    model = roformer("ForMaskedLM", **settings)
    checkpoint, mine = read(model, tmp_path)
    # values that are rotated by their positions show the padding before them, which theirs counts
    sides = SIDES[:1] if settings.get("rotary_value") else SIDES
    close_encoder(model, mine, settings.get("type_vocab_size", 2), placed=False, sides=sides)
    assert checkpoint.system == "bert"


def test_every_converted_weight_is_a_parameter(tmp_path: Path) -> None:
    """As many numbers as theirs, tied ones counted once, sines and cosines not at all."""
    for make in (bert, electra, roformer):
        model = make("ForMaskedLM")
        checkpoint, _ = read(model, tmp_path / make.__name__)
        sines = sum(w.numel() for name, w in model.named_parameters() if "embed_positions" in name)
        assert count_parameters(checkpoint.spec) == sum(w.numel() for w in model.parameters()) - sines


def test_two_labels_by_default(tmp_path: Path) -> None:
    model = bert("ForTokenClassification")
    checkpoint, _ = read(model, tmp_path)
    change(tmp_path, id2label=None, label2id=None)
    assert built(tmp_path)[0].labels == checkpoint.labels == ("LABEL_0", "LABEL_1")
