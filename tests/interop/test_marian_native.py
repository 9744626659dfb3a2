"""Checkpoints in Marian's own format give what transformers computes with the same weights, and say what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from huggingface_pairs import liven
from huggingface_tiny import change, marian, transformers
from torch import Tensor, nn

import dragoman
from dragoman.errors import UserError
from dragoman.interop.huggingface import import_checkpoint
from dragoman.interop.marian import read_marian_checkpoint
from dragoman.parts.mixer import SequenceLayout
from dragoman.search import LengthLimit

sentencepiece = pytest.importorskip("sentencepiece")

DIM, FFN, TOKENS = 12, 18, 30
TEXT = [
    "the small dog sees the big house",
    "a big cat sleeps in the small garden",
    "the garden of the house is small",
    "dogs and cats see each other",
]
#: as `special:model.yml` has them
OPTIONS: dict[str, Any] = {
    "type": "transformer",
    "dim-vocabs": [TOKENS, TOKENS],
    "dim-emb": DIM,
    "enc-depth": 2,
    "dec-depth": 1,
    "transformer-heads": 3,
    "transformer-dim-ffn": FFN,
    "transformer-ffn-depth": 2,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-tied-layers": [],
    "transformer-no-projection": False,
    "transformer-train-position-embeddings": False,
    "tied-embeddings": False,
    "tied-embeddings-src": False,
    "tied-embeddings-all": True,
    "input-types": [],
    "right-left": False,
    "lemma-dim-emb": 0,
    "version": "v1.9.0",
}
DECODER = {"relative-paths": True, "models": ["model.npz"], "beam-size": 3, "normalize": 1, "word-penalty": 0}


def sinusoids(length: int) -> Tensor:
    """Marian's formula: frequencies from 1 to 1/10000, sines before cosines."""
    half = DIM // 2
    angles = np.arange(length)[:, None] * np.exp(-np.arange(half) * np.log(10000) / (half - 1))
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)], axis=1)).float()


def their_model(share: bool = True, tie: bool = True) -> Any:
    """A model of transformers that computes what Marian does: the row of the first token is zero, as is its bias."""
    torch.manual_seed(9)
    model = marian(
        vocab_size=TOKENS + 1,
        decoder_vocab_size=TOKENS + 1,
        share_encoder_decoder_embeddings=share,
        tie_word_embeddings=tie,
        pad_token_id=TOKENS,
        decoder_start_token_id=TOKENS,
        scale_embedding=True,
        activation_function="swish",
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=FFN,
        decoder_ffn_dim=FFN,
        max_position_embeddings=40,
    )
    liven(model, 0)
    base = model.model
    with torch.no_grad():
        for side in (base.encoder, base.decoder):
            side.embed_positions.weight.copy_(sinusoids(40))
            side.embed_tokens.weight[-1] = 0
        model.lm_head.weight[-1] = 0
        model.final_logits_bias[0, -1] = 0
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 1e-6
    return model


def native_weights(model: Any, share: bool, tie: bool) -> dict[str, np.ndarray[Any, Any]]:
    """Marian's names and layouts of the same weights: matrices transposed, vectors with one row."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def linear(name: str, suffix: str, layer: nn.Linear) -> None:
        arrays[f"{name}_W{suffix}"] = layer.weight.detach().T.contiguous().numpy()
        arrays[f"{name}_b{suffix}"] = layer.bias.detach()[None].numpy()

    def norm(name: str, layer: nn.LayerNorm) -> None:
        arrays[f"{name}_ln_scale"], arrays[f"{name}_ln_bias"] = (
            weight.detach()[None].numpy() for weight in (layer.weight, layer.bias)
        )

    for side in ("encoder", "decoder"):
        for number, layer in enumerate(getattr(model.model, side).layers, 1):
            attentions = {"self": (layer.self_attn, layer.self_attn_layer_norm)}
            if side == "decoder":
                attentions["context"] = (layer.encoder_attn, layer.encoder_attn_layer_norm)
            for kind, (attention, layer_norm) in attentions.items():
                name = f"{side}_l{number}_{kind}"
                for letter in "qkv":
                    linear(name, letter, getattr(attention, f"{letter}_proj"))
                linear(name, "o", attention.out_proj)
                norm(f"{name}_Wo", layer_norm)
            linear(f"{side}_l{number}_ffn", "1", layer.fc1)
            linear(f"{side}_l{number}_ffn", "2", layer.fc2)
            norm(f"{side}_l{number}_ffn_ffn", layer.final_layer_norm)
    tables = {
        side: getattr(model.model, side).embed_tokens.weight.detach()[:-1].numpy() for side in ("encoder", "decoder")
    }
    arrays |= {"Wemb": tables["encoder"]} if share else {f"{side}_Wemb": table for side, table in tables.items()}
    if not tie:
        arrays["decoder_ff_logit_out_Wt"] = model.lm_head.weight.detach()[:-1].numpy()
    arrays["decoder_ff_logit_out_b"] = model.final_logits_bias[:, :-1].numpy()
    return arrays


def save(folder: Path, arrays: dict[str, Any], **options: Any) -> None:
    text = yaml.safe_dump(OPTIONS | options).encode() + b"\0"
    np.savez(folder / "model.npz", **arrays, **{"special:model.yml": np.frombuffer(text, np.int8)})


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model, and its pieces in Marian's order: </s>, <unk>, then the others and a language."""
    folder = tmp_path_factory.mktemp("vocabulary")
    (folder / "text").write_text("\n".join(TEXT * 5))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "spm"), vocab_size=TOKENS - 1, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))
    pieces = [processor.IdToPiece(index) for index in range(3, processor.GetPieceSize())]
    tokens = ["</s>", "<unk>", *pieces, ">>deu<<", "no"][:TOKENS]
    quoted = [json.dumps(token) if token.startswith(("<", ">")) else token for token in tokens]  # "no" is not
    lines = [f"{token}: {index}" for index, token in enumerate(quoted)]
    (folder / "opus.vocab.yml").write_text("\n".join(lines), encoding="utf-8")
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)} | {"<pad>": TOKENS}))
    return folder


def native_folder(folder: Path, vocabulary: Path, arrays: dict[str, Any], **options: Any) -> Path:
    """A folder as OPUS-MT publishes it."""
    folder.mkdir()
    save(folder, arrays, **options)
    decoder = DECODER | {"vocabs": ["/data/train/opus.vocab.yml"] * 2}
    (folder / "decoder.yml").write_text(yaml.safe_dump(decoder))
    (folder / "opus.vocab.yml").write_bytes((vocabulary / "opus.vocab.yml").read_bytes())
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes((vocabulary / "spm.model").read_bytes())
    (folder / "preprocess.sh").write_text("exit 1\n")
    (folder / "README.md").write_text("* source language(s): eng\n")
    return folder


@pytest.mark.parametrize(("share", "tie"), [(True, True), (False, True), (False, False)])
def test_native_checkpoint_computes_what_transformers_does(
    tmp_path: Path, vocabulary: Path, share: bool, tie: bool
) -> None:
    model = their_model(share, tie)
    tied = {"tied-embeddings-all": share and tie, "tied-embeddings": tie}
    folder = native_folder(tmp_path / "opus", vocabulary, native_weights(model, share, tie), **tied)
    import_checkpoint(folder, tmp_path / "run", lambda message: None)
    run = dragoman.load(tmp_path / "run", device="cpu")
    source, target = torch.tensor([[5, 6, 7, 0], [9, 0, TOKENS, TOKENS]]), torch.tensor([[TOKENS, 7, 4]] * 2)
    mask = (source != TOKENS).long()
    expected = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(run.logits(source, target), expected.detach(), atol=1e-5, rtol=1e-5)

    assert (run.config.search.beam_size, run.config.search.max_target_length) == (3, 511)


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_native_checkpoint_translates_as_transformers_does(tmp_path: Path, vocabulary: Path) -> None:
    model = their_model(share=False, tie=False)  # a tied random model repeats itself
    arrays = native_weights(model, share=False, tie=False)
    run = dragoman.load(
        native_folder(tmp_path / "opus", vocabulary, arrays, **{"tied-embeddings-all": False}), device="cpu"
    )
    spm = str(tmp_path / "opus" / "source.spm")
    theirs = transformers.MarianTokenizer(spm, spm, str(vocabulary / "vocab.json"))
    texts = [*TEXT, ">>deu<< the cat", "xyz no"]
    rows = theirs(texts, padding=True, return_tensors="pt")
    expected = [row[: int(mask.sum())].tolist() for row, mask in zip(rows.input_ids, rows.attention_mask)]
    assert [[*run.source_tokenizer.encode(text), *run.framing.source_suffix] for text in texts] == expected
    beam = replace(run.beam_config(3), length_limit=LengthLimit(0, 13, 13))
    found = run.translate(texts, search=beam)
    banned = [[TOKENS], [1]]  # Marian writes no unknown tokens
    made = model.generate(**rows, num_beams=3, max_new_tokens=13, bad_words_ids=banned, forced_eos_token_id=0)
    written = theirs.batch_decode(made, skip_special_tokens=True)
    assert [one.text for one in found] == written
    assert len(set(written)) > 2
    assert run.with_languages(target="deu").translate(["the cat"], search=beam)[0].text == found[4].text


# ---- variants


def test_pre_norm_other_norms_and_no_biases(tmp_path: Path, vocabulary: Path) -> None:
    """Norms before the layers are stored as `_pre`, and there may be norms after the embeddings and at the top."""
    arrays = native_weights(their_model(), True, True)
    for name in list(arrays):
        if "_ln_" in name:
            arrays[f"{name}_pre"] = arrays.pop(name)
        elif name.rpartition("_")[2] in ("bq", "bk", "bv", "bo", "b1", "b2"):
            del arrays[name]
    for side in ("encoder", "decoder"):
        for name in (f"{side}_emb_ln_%s_pre", f"{side}_top_ln_%s"):
            arrays |= {name % "scale": np.full((1, DIM), 2, np.float32), name % "bias": np.ones((1, DIM), np.float32)}
    options = {"preprocess": "n", "postprocess": "da", "postprocess-top": "n", "postprocess-emb": "nd", "no-bias": True}
    options |= {"ffn-activation": "relu"}
    folder = native_folder(
        tmp_path / "opus", vocabulary, arrays, **{f"transformer-{name}": value for name, value in options.items()}
    )
    run = dragoman.load(folder, device="cpu")
    weights = dict(run.model.named_parameters())
    assert not any(name.endswith(("project.bias", "widen.bias")) for name in weights)
    source = torch.tensor([[5, 6, 0]])

    # the encoder by hand, from Marian's arrays
    def norm(x: Tensor, name: str, ending: str) -> Tensor:
        scale, bias = (torch.from_numpy(arrays[f"{name}_ln_{kind}{ending}"][0]) for kind in ("scale", "bias"))
        return nn.functional.layer_norm(x, (DIM,), scale, bias, 1e-6)

    def matrix(name: str) -> Tensor:
        return torch.from_numpy(arrays[name])

    x = matrix("Wemb")[source[0]] * DIM**0.5 + sinusoids(3)
    x = norm(x, "encoder_emb", "_pre")
    for layer in ("encoder_l1", "encoder_l2"):
        y = norm(x, f"{layer}_self_Wo", "_pre")
        q, k, v = ((y @ matrix(f"{layer}_self_W{kind}")).view(3, 3, 4).transpose(0, 1) for kind in "qkv")
        heads = torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v  # heads of width 4
        x = x + heads.transpose(0, 1).reshape(3, DIM) @ matrix(f"{layer}_self_Wo")
        x = x + torch.relu(norm(x, f"{layer}_ffn_ffn", "_pre") @ matrix(f"{layer}_ffn_W1")) @ matrix(f"{layer}_ffn_W2")
    x = norm(x, "encoder_top", "")
    model: Any = run.model
    memory = model.encode(source, SequenceLayout.padded(3, torch.tensor([3])))
    torch.testing.assert_close(memory.states[0].detach(), x, atol=1e-5, rtol=1e-5)


def test_vocabularies_of_words(tmp_path: Path, vocabulary: Path) -> None:
    """Without a SentencePiece model, the texts are already tokenized; a vocabulary may be a list of tokens."""
    folder = native_folder(tmp_path / "words", vocabulary, native_weights(their_model(), True, True))
    for name in ("source.spm", "target.spm", "opus.vocab.yml", "decoder.yml"):
        (folder / name).unlink()
    (folder / "vocab.txt").write_text(
        "\n".join(["</s>", "<unk>", *(f"w{number}" for number in range(2, TOKENS))]) + "\n"
    )
    messages: list[str] = []
    import_checkpoint(folder / "model.npz", tmp_path / "run", messages.append)
    run = dragoman.load(tmp_path / "run", device="cpu")
    assert run.source_tokenizer.encode("w7 w9 other") == [7, 9, 1]
    assert any("texts must be tokenized as in the training" in message for message in messages)
    assert run.config.search.beam_size == 12


def test_a_sentencepiece_model_as_vocabulary(tmp_path: Path, vocabulary: Path) -> None:
    arrays = native_weights(their_model(), True, True)
    arrays |= {"Wemb": arrays["Wemb"][:-1], "decoder_ff_logit_out_b": arrays["decoder_ff_logit_out_b"][:, :-1]}
    folder = native_folder(tmp_path / "spm", vocabulary, arrays, **{"dim-vocabs": [TOKENS - 1, TOKENS - 1]})
    (folder / "decoder.yml").write_text(yaml.safe_dump(DECODER | {"vocabs": ["source.spm", "source.spm"]}))
    run = dragoman.load(folder, device="cpu")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary / "spm.model"))
    assert run.source_tokenizer.encode(TEXT[0]) == processor.Encode(TEXT[0])
    assert run.framing.eos == processor.eos_id()
    assert run.target_tokenizer.decode(processor.Encode(TEXT[1])) == TEXT[1]


# ---- what is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"type": "s2s"}, "has the option type s2s, which is not supported: only transformer"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg rnn, which is not supported"),
        ({"transformer-decoder-autoreg": "average-attention"}, "average-attention, which is not supported"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers ['1', '1'], which is not supported"),
        ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings true"),
        ({"transformer-attention-mask": "alibi"}, "transformer-attention-mask alibi, which is not supported"),
        ({"transformer-new-option": 3}, "transformer-new-option 3, which is not supported: it is unknown"),
        ({"transformer-postprocess": "dhn"}, "the operation 'h' is not"),
        ({"transformer-preprocess": "n"}, "have one norm: before it, or after the addition"),
        ({"transformer-ffn-activation": "tanh"}, "use one of swish, relu, gelu"),
        ({"lemma-dim-emb": 5}, "lemma-dim-emb 5, which is not supported"),
        ({"transformer-heads": "many"}, "the option transformer-heads must be a whole number above 0, but is 'many'"),
        ({"dim-vocabs": [TOKENS, TOKENS, TOKENS]}, "dim-vocabs must be two numbers"),
        ({"enc-depth": 3}, "16 missing, such as encoder_l3_self_Wq"),
        ({"enc-depth": 1}, "16 not used, such as encoder_l2_"),
        ({"transformer-dim-ffn": 20}, "(special:model.yml has transformer-dim-ffn 20, the weights have 18)"),
        ({"dim-vocabs": [20, 20]}, "has 30 tokens, but the model has only 20 embeddings: get vocabulary and weights"),
    ],
)
def test_unsupported_options_are_named(
    tmp_path: Path, vocabulary: Path, arrays: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    folder = native_folder(tmp_path / "opus", vocabulary, arrays, **options)
    with pytest.raises(UserError) as error:
        dragoman.load(folder, device="cpu")
    assert message in str(error.value)


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    return native_weights(their_model(), True, True)


def truncate(folder: Path) -> None:
    path = folder / "model.npz"
    path.write_bytes(path.read_bytes()[:-100])


def compress(folder: Path) -> None:
    np.savez_compressed(folder / "model.npz", a=np.zeros(3))


def store_objects(folder: Path) -> None:
    np.savez(folder / "model.npz", a=np.array([{}], dtype=object))


def store_no_options(folder: Path) -> None:
    np.savez(folder / "model.npz", a=np.zeros(3, np.float32))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, "is no archive of NumPy arrays, or is damaged, get it again"),
    "compressed": (compress, "has compressed arrays, which are not supported: write it again with numpy.savez"),
    "objects": (store_objects, "the array a in .* has the data type object: write it again as float32"),
    "no options": (store_no_options, "has no entry special:model.yml, and there is no model.npz.yml next to it"),
    "no model": (lambda folder: (folder / "model.npz").rename(folder / "other.npz"), "names the model model.npz, but"),
    "no vocabulary": (lambda folder: (folder / "opus.vocab.yml").unlink(), "names the vocabulary .* has no file opus"),
    "no YAML": (lambda folder: (folder / "decoder.yml").write_text("a: ["), "decoder.yml is damaged, it is not YAML"),
    "no ids": (lambda folder: (folder / "opus.vocab.yml").write_text("a: b"), "expected an id .a number. for every"),
    "no unknown token": (lambda folder: (folder / "opus.vocab.yml").write_text("</s>: 0"), "has no token <unk>"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_folders(tmp_path: Path, vocabulary: Path, arrays: dict[str, Any], damage: str) -> None:
    folder = native_folder(tmp_path / "opus", vocabulary, arrays)
    change, message = DAMAGES[damage]
    change(folder)
    with pytest.raises(UserError, match=message):
        import_checkpoint(folder, tmp_path / "run", lambda text: None)
    assert not (tmp_path / "run").exists()


def test_a_model_that_does_not_exist(tmp_path: Path, vocabulary: Path, arrays: dict[str, Any]) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"empty has no model of Marian \(\*\.npz\)"):
        read_marian_checkpoint(tmp_path / "empty")
    folder = native_folder(tmp_path / "opus", vocabulary, arrays)
    with pytest.raises(UserError, match=r"other\.npz is no archive of NumPy arrays"):
        read_marian_checkpoint(folder / "other.npz")


# ---- the layout of transformers

#: fields of config.json as in the published OPUS-MT checkpoints that do not follow from the model
PUBLISHED = {
    "_num_labels": 3,
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "extra_pos_embeddings": TOKENS + 1,
    "force_bos_token_to_be_generated": False,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "normalize_before": False,
    "normalize_embedding": False,
    "num_hidden_layers": 2,
    "static_position_embeddings": True,
    "transformers_version": "4.22.0.dev0",
    "bad_words_ids": [[TOKENS]],
    "num_beams": 6,
    "max_length": 20,
    "forced_eos_token_id": 0,
}


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_a_published_folder_of_transformers_translates_as_it_does(tmp_path: Path, vocabulary: Path) -> None:
    torch.manual_seed(9)
    model = marian(
        vocab_size=TOKENS + 1,
        pad_token_id=TOKENS,
        decoder_start_token_id=TOKENS,
        tie_word_embeddings=False,
        scale_embedding=True,
        max_position_embeddings=40,
    )
    liven(model, 0)
    model.save_pretrained(tmp_path / "opus")
    (tmp_path / "opus" / "generation_config.json").unlink()  # older checkpoints have these settings in config.json
    change(tmp_path / "opus", **PUBLISHED)
    (tmp_path / "opus" / "vocab.json").write_bytes((vocabulary / "vocab.json").read_bytes())
    for side in ("source", "target"):
        (tmp_path / "opus" / f"{side}.spm").write_bytes((vocabulary / "spm.model").read_bytes())
    (tmp_path / "opus" / "tokenizer_config.json").write_text('{"source_lang": "eng", "target_lang": "deu"}')
    import_checkpoint(tmp_path / "opus", tmp_path / "run", lambda message: None)
    run = dragoman.load(tmp_path / "run", device="cpu")
    theirs = transformers.MarianTokenizer.from_pretrained(tmp_path / "opus")
    texts = [*TEXT, ">>deu<< the cat", "xyz no"]
    made = model.generate(
        **theirs(texts, padding=True, return_tensors="pt"),
        num_beams=6,
        max_new_tokens=19,
        bad_words_ids=[[TOKENS]],
        forced_eos_token_id=0,
    )
    written = theirs.batch_decode(made, skip_special_tokens=True)
    found = run.translate(texts)
    assert [one.text for one in found] == written
    assert len(set(written)) > 2
    assert run.with_languages(target="German").translate(["the cat"])[0].text == found[4].text
