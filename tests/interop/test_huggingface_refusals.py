"""What cannot be read exactly is refused in one sentence that names it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_tiny import (
    bart,
    bert,
    built,
    change,
    close_decoder,
    close_encoder,
    close_seq2seq,
    electra,
    gpt2,
    llama,
    marian,
    mbart,
    read,
    roberta,
    roformer,
    t5,
)
from safetensors.torch import load_file, save_file

from dragoman.errors import UserError
from dragoman.interop.huggingface import read_checkpoint

FAMILIES = (marian, bart, mbart, t5, bert, roberta, electra, roformer, gpt2, llama)
SAVED: dict[str, Any] = {make.__name__: make for make in FAMILIES}


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One checkpoint of every family; nothing in here is changed."""
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, make in SAVED.items():
        make().save_pretrained(folder / name)
    return folder


def copy(saved: Path, family: str, to: Path) -> Path:
    for file in (saved / family).iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def refused(folder: Path) -> str:
    with pytest.raises(UserError) as error:
        read_checkpoint(folder)
    return str(error.value)


# ---- fields of config.json


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("marian", {"activation_function": "mish"}, "activation_function 'mish'"),
        ("marian", {"static_position_embeddings": False}, "static_position_embeddings False"),
        ("marian", {"normalize_before": True}, "normalize_before True"),
        ("marian", {"normalize_embedding": True}, "normalize_embedding True"),
        ("bart", {"normalize_before": True}, "normalize_before True"),
        ("bart", {"add_final_layer_norm": True}, "add_final_layer_norm True"),
        ("bart", {"normalize_embedding": False}, "normalize_embedding False"),
        ("bart", {"static_position_embeddings": True}, "static_position_embeddings True"),
        ("bart", {"extra_pos_embeddings": 1}, "extra_pos_embeddings 1"),
        ("bart", {"add_bias_logits": True}, "add_bias_logits True"),
        ("bart", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings False"),
        ("bart", {"is_decoder": True}, "is_decoder True"),
        ("mbart", {"normalize_before": False}, "normalize_before False"),
        ("t5", {"is_decoder": True}, "is_decoder True"),
        ("t5", {"feed_forward_proj": "gated-mish", "dense_act_fn": None}, "feed_forward_proj 'mish'"),
        ("bert", {"is_decoder": True}, "is_decoder True"),
        ("bert", {"add_cross_attention": True}, "add_cross_attention True"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type 'relative_key'"),
        ("bert", {"hidden_act": "leaky_relu"}, "hidden_act 'leaky_relu'"),
        ("bert", {"embedding_size": 8}, "embedding_size 8"),
        ("bert", {"pruned_heads": {"0": [1]}}, "pruned_heads {'0': [1]}"),
        ("bert", {"quantization_config": {"bits": 4}}, "quantization_config {'bits': 4}"),
        ("roberta", {"position_embedding_type": "relative_key_query"}, "position_embedding_type 'relative_key_query'"),
        ("electra", {"hidden_act": "relu2"}, "hidden_act 'relu2'"),
        ("gpt2", {"add_cross_attention": True}, "add_cross_attention True"),
        ("gpt2", {"activation_function": "gelu_10"}, "activation_function 'gelu_10'"),
        ("llama", {"sliding_window": 16}, "sliding_window 16"),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "rope_type 'yarn'"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ("llama", {"rope_parameters": {"rope_type": "default", "mrope_section": [1]}}, "mrope_section [1]"),
        ("llama", {"layer_types": ["sliding_attention"]}, "layer_types ['sliding_attention']"),
        ("llama", {"a_field_of_tomorrow": 3}, "a_field_of_tomorrow 3"),
    ],
    ids=str,
)
def test_unsupported_fields_are_refused(
    saved: Path, tmp_path: Path, family: str, fields: dict[str, Any], said: str
) -> None:
    change(copy(saved, family, tmp_path), **fields)
    message = refused(tmp_path)
    assert f"config.json has {said}, which is not supported: " in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("family", "fields", "said"),
    [
        ("bart", {"d_model": "12"}, "d_model must be a whole number above 0, but is '12'"),
        ("bart", {"encoder_layers": 0}, "encoder_layers must be a whole number above 0, but is 0"),
        ("bart", {"dropout": "much"}, "dropout must be a number, but is 'much'"),
        ("bart", {"scale_embedding": 1}, "scale_embedding must be true or false, but is 1"),
        ("bart", {"num_hidden_layers": 7}, "with the same meaning (encoder_layers 2 and num_hidden_layers 7)"),
        ("bart", {"eos_token_id": "end"}, "eos_token_id must be a token id, but is 'end'"),
        ("t5", {"feed_forward_proj": "gated-gelu-new"}, "feed_forward_proj must be an activation"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "need the field factor, which is missing"),
        ("llama", {"rope_parameters": [1]}, "must be a JSON object, but is [1]"),
        ("roberta", {"max_position_embeddings": 2}, "max_position_embeddings must be larger than this, but is 2"),
        ("bert", {"architectures": None}, "has no field 'architectures': add it with the class name"),
    ],
    ids=str,
)
def test_invalid_fields_are_refused(
    saved: Path, tmp_path: Path, family: str, fields: dict[str, Any], said: str
) -> None:
    if "eos_token_id" in fields:
        copy(saved, family, tmp_path)
        (tmp_path / "generation_config.json").unlink()
    else:
        copy(saved, family, tmp_path)
    change(tmp_path, **fields)
    assert said in refused(tmp_path)


def test_labels_must_be_numbered_from_0(tmp_path: Path) -> None:
    bert("ForTokenClassification").save_pretrained(tmp_path)
    change(tmp_path, id2label={"0": "noun", "2": "verb"})
    assert "id2label must number its labels 0, 1, 2" in refused(tmp_path)


def test_harmless_fields_are_accepted(saved: Path, tmp_path: Path) -> None:
    change(
        copy(saved, "llama", tmp_path),
        pretraining_tp=2,
        use_cache=False,
        torch_dtype="float16",
        initializer_range=0.5,
        chunk_size_feed_forward=3,
        auto_map={},
        sliding_window=None,
        a_switch_of_tomorrow=False,
    )
    read_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["MixtralForCausalLM", "NllbMoeForConditionalGeneration", "BertForQuestionAnswering"])
def test_unsupported_architecture_is_refused(saved: Path, tmp_path: Path, name: str) -> None:
    change(copy(saved, "llama", tmp_path), architectures=[name])
    message = refused(tmp_path)
    assert f"holds a model of class {name}, which cannot be imported: supported are MarianMTModel, " in message
    assert "LlamaForCausalLM" in message


# ---- files


def test_missing_folder_and_files(saved: Path, tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere").endswith(
        "is not a folder: name the folder of a checkpoint, with config.json and model.safetensors"
    )
    assert "has no file config.json" in refused(tmp_path)
    copy(saved, "bert", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "has no weights: expected model.safetensors, or model.safetensors.index.json" in refused(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"anything")
    message = refused(tmp_path)
    assert "a pickle file, which can execute any program" in message
    assert "t.BertForMaskedLM.from_pretrained(" in message


def test_the_command_that_converts_a_pickle_file(tmp_path: Path) -> None:
    model, folder = marian(), tmp_path / "it's mine"
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    command = shlex.split(refused(folder).rpartition("with the command ")[2])
    assert command[:2] == ["python", "-c"]
    exec(command[2])  # what the message says to run
    close_seq2seq(model, built(folder)[1])


@pytest.mark.parametrize("content", ["{", "[]", "3"])
def test_a_damaged_configuration(saved: Path, tmp_path: Path, content: str) -> None:
    (copy(saved, "bert", tmp_path) / "config.json").write_text(content)
    assert "config.json is damaged: " in refused(tmp_path)


def test_damaged_weights(saved: Path, tmp_path: Path) -> None:
    file = copy(saved, "bert", tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])
    assert "model.safetensors is truncated or damaged, get it again: " in refused(tmp_path)


@pytest.mark.parametrize("family", ["marian", "bert", "gpt2", "llama"])
def test_shards(tmp_path: Path, family: str) -> None:
    model = SAVED[family]()
    _, mine = read(model, tmp_path, max_shard_size="3KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    assert not (tmp_path / "model.safetensors").exists()
    {"marian": close_seq2seq, "bert": close_encoder}.get(family, close_decoder)(model, mine)


def test_incomplete_shards(tmp_path: Path) -> None:
    SAVED["bert"]().save_pretrained(tmp_path, max_shard_size="3KB")
    index = tmp_path / "model.safetensors.index.json"
    whole = index.read_text()
    place = json.loads(whole)["weight_map"]
    first = sorted(set(place.values()))[0]
    change(tmp_path, index.name, weight_map=place | {"a.b": first})
    assert f"{first} lacks the weight a.b that model.safetensors.index.json lists" in refused(tmp_path)
    some = next(name for name, file in place.items() if file == first)
    change(tmp_path, index.name, weight_map={name: file for name, file in place.items() if name != some})
    assert f"does not list the weight {some}, which one of the weight files holds" in refused(tmp_path)
    change(tmp_path, index.name, weight_map=place | {some: "../config.json"})
    assert "must give a file in the same folder for every weight" in refused(tmp_path)
    index.write_text("{}")
    assert "model.safetensors.index.json is damaged" in refused(tmp_path)
    index.write_text(whole)
    (tmp_path / first).write_bytes((tmp_path / first).read_bytes()[:-1])
    assert f"{first} is truncated or damaged, get it again" in refused(tmp_path)
    (tmp_path / first).unlink()
    assert f"{first} is missing, but model.safetensors.index.json lists it" in refused(tmp_path)


# ---- weights


def rewrite(folder: Path, change: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def test_missing_weights(saved: Path, tmp_path: Path) -> None:
    copy(saved, "bert", tmp_path)
    bias = "encoder.layer.1.output.dense.bias"
    rewrite(tmp_path, lambda weights: [weights.pop(f"bert.{bias}"), weights.pop("bert.embeddings.LayerNorm.weight")])
    message = refused(tmp_path)
    assert (
        "do not fit its configuration file config.json: 2 missing, such as encoder.layer.1.output.dense.bias" in message
    )


def test_untied_model_without_an_output_matrix(saved: Path, tmp_path: Path) -> None:
    change(copy(saved, "gpt2", tmp_path), tie_word_embeddings=False)
    assert "1 missing, such as lm_head.weight" in refused(tmp_path)


def test_unused_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    copy(saved, "llama", tmp_path)
    rewrite(tmp_path, lambda weights: weights.update({"model.layers.7.mlp.up_proj.weight": torch.zeros(2)}))
    assert "1 not used, such as layers.7.mlp.up_proj.weight" in refused(tmp_path)


@pytest.mark.parametrize("shape", [(5, 12), (12,), ()])
def test_misshapen_weights_are_refused(saved: Path, tmp_path: Path, shape: tuple[int, ...]) -> None:
    copy(saved, "gpt2", tmp_path)
    rewrite(tmp_path, lambda weights: weights.update({"transformer.h.0.mlp.c_fc.weight": torch.zeros(shape)}))
    message = refused(tmp_path)
    assert f"1 of another shape, such as h.0.mlp.c_fc.weight of {list(shape)} instead of [48, 12]" in message


def test_other_number_of_layers_than_configured(saved: Path, tmp_path: Path) -> None:
    change(copy(saved, "marian", tmp_path), encoder_layers=1)
    assert "16 not used, such as encoder.layers.1.fc1.bias" in refused(tmp_path)
    change(tmp_path, encoder_layers=3)
    assert "16 missing, such as encoder.layers.2.self_attn.q_proj.weight" in refused(tmp_path)


def test_dimension_that_contradicts_the_weights_is_named(saved: Path, tmp_path: Path) -> None:
    change(copy(saved, "marian", tmp_path), d_model=18)
    assert "(config.json has d_model and decoder_ffn_dim 18, the weights have 12)" in refused(tmp_path)
    change(tmp_path, d_model=12, encoder_ffn_dim=20)
    message = refused(tmp_path)
    assert "6 of another shape, such as encoder.layers.0.fc1.weight of [10, 12] instead of [20, 12]" in message
    assert "(config.json has encoder_ffn_dim 20, the weights have 10)" in message


def test_duplicate_weight_is_refused(saved: Path, tmp_path: Path) -> None:
    copy(saved, "bert", tmp_path)
    name = "embeddings.word_embeddings.weight"
    rewrite(tmp_path, lambda weights: weights.update({name: weights[f"bert.{name}"].clone()}))
    assert f"has the weight {name} twice, stored as " in refused(tmp_path)


def test_integer_weights_are_refused(saved: Path, tmp_path: Path) -> None:
    copy(saved, "llama", tmp_path)
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(tmp_path, lambda weights: weights.update({name: weights[name].to(torch.int8)}))
    assert (
        f"the weight {name} of {tmp_path} has the data type int8, but only float32, float16, bfloat16, float64 are"
        in refused(tmp_path)
    )


def test_learned_positions_in_marian_are_refused(saved: Path, tmp_path: Path) -> None:
    copy(saved, "marian", tmp_path)
    name = "model.encoder.embed_positions.weight"
    rewrite(tmp_path, lambda weights: weights.update({name: torch.randn(11, 12)}))
    assert "position table encoder.embed_positions.weight is learned" in refused(tmp_path)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_other_floating_point_becomes_float32(tmp_path: Path, kind: torch.dtype) -> None:
    model = bert()
    for weight in model.parameters():  # numbers that all kinds can hold
        weight.data = weight.data.to(torch.bfloat16).half().float()
    model.to(kind).save_pretrained(tmp_path)
    close_encoder(model.float(), built(tmp_path)[1])


def test_tied_matrix_stored_twice_stays_tied(saved: Path, tmp_path: Path) -> None:
    copy(saved, "bart", tmp_path)
    twins = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
    rewrite(tmp_path, lambda weights: weights.update({name: weights["model.shared.weight"].clone() for name in twins}))
    spec: Any = read_checkpoint(tmp_path).spec
    assert spec.shared_embeddings
    assert spec.tied_embeddings
    rewrite(tmp_path, lambda weights: weights.update({twins[1]: weights[twins[1]] + 1}))
    spec = read_checkpoint(tmp_path).spec
    assert not spec.shared_embeddings
    assert spec.tied_embeddings
