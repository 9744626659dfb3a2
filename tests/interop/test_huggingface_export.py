"""Export to transformers: the same weights as were imported, the same logits, tokens and beam outputs elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_tiny import (
    bart,
    bert,
    distilbert,
    electra,
    gpt2,
    llama,
    m2m100,
    marian,
    mbart,
    mistral,
    pegasus,
    qwen2,
    roberta,
    roformer,
    t5,
    umt5,
    xlm_roberta,
)
from safetensors.torch import load_file
from test_language_codes_import import nllb

import dragoman
from dragoman import config
from dragoman.interop.export_check import ExportSamples
from dragoman.interop.exporting import ExportOptions, export_run
from dragoman.interop.huggingface import import_checkpoint, load_checkpoint, read_checkpoint
from dragoman.interop.huggingface.equivalent_models import canonical
from dragoman.interop.huggingface.hf_export import HuggingFaceExporter
from dragoman.run import Run
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import learn_tokenizer

POSITIONS = {"max_position_embeddings": 40}
FAMILIES: dict[str, Callable[[], Any]] = {
    "marian": marian,
    "marian-separate": lambda: marian(share_encoder_decoder_embeddings=False, decoder_vocab_size=31),
    "marian-untied": lambda: marian(tie_word_embeddings=False, scale_embedding=True),
    "bart": lambda: bart(**POSITIONS),
    "bart-untied": lambda: bart(tie_word_embeddings=False, **POSITIONS),
    "mbart": lambda: mbart(**POSITIONS),
    "pegasus": lambda: pegasus(**POSITIONS),
    "m2m100": lambda: m2m100(**POSITIONS),
    "t5": t5,
    "t5-gated": lambda: t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "umt5": umt5,
    "gpt2": lambda: gpt2(n_positions=40),
    "gpt2-untied": lambda: gpt2(n_positions=40, tie_word_embeddings=False),
    "llama": llama,
    "llama-rope": lambda: llama(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 500.0}),
    "mistral": lambda: mistral(sliding_window=3),
    "qwen2": lambda: qwen2(use_sliding_window=True, sliding_window=3, max_window_layers=1),
    "bert": lambda: bert("ForPreTraining"),
    "bert-untied": lambda: bert(tie_word_embeddings=False),
    "bert-tagger": lambda: bert("ForTokenClassification", num_labels=3),
    "bert-classifier": lambda: bert("ForSequenceClassification", num_labels=3),
    "roberta-classifier": lambda: roberta("ForSequenceClassification", num_labels=3),
    "roberta": roberta,
    "xlm-roberta": xlm_roberta,
    "distilbert": distilbert,
    "electra": electra,
    "electra-generator": lambda: electra("ForMaskedLM"),
    "roformer": lambda: roformer(embedding_size=8),
    "roformer-values": lambda: roformer(rotary_value=True),
}
#: weights that are not used, or that our models compute: their values may differ
NOT_USED = ("embed_positions.weight", "position_embeddings.weight", "shared.weight", "cls.predictions.bias")


def written(run: Run, folder: Path, dtype: str = "float32") -> HuggingFaceExporter:
    exporter = HuggingFaceExporter(ExportOptions(dtype))
    folder.mkdir()
    exporter.write(run, folder)
    return exporter


def round_trip(model: Any, folder: Path) -> tuple[Run, HuggingFaceExporter]:
    model.save_pretrained(folder / "theirs")
    run = load_checkpoint(folder / "theirs", device="cpu")
    return run, written(run, folder / "ours")


@pytest.mark.parametrize("name", FAMILIES)
def test_what_was_imported_is_exported_with_the_same_weights(tmp_path: Path, name: str) -> None:
    round_trip(FAMILIES[name](), tmp_path)
    theirs, ours = (load_file(tmp_path / side / "model.safetensors") for side in ("theirs", "ours"))
    for weight in theirs.keys() | ours.keys():
        if not weight.endswith(NOT_USED):
            torch.testing.assert_close(ours[weight], theirs[weight], rtol=0, atol=0)
    again, before = read_checkpoint(tmp_path / "ours"), read_checkpoint(tmp_path / "theirs")
    assert again.architecture == before.architecture
    assert canonical(again.spec) == canonical(before.spec)
    assert again.framing == before.framing
    for parameter in before.weights:
        torch.testing.assert_close(again.weights[parameter], before.weights[parameter], rtol=0, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_transformers_computes_the_same_with_an_export(tmp_path: Path, name: str) -> None:
    run, exporter = round_trip(FAMILIES[name](), tmp_path)
    bos, eos = run.framing.bos, run.framing.eos
    sources: list[list[int]] = [[], []] if run.model.is_decoder_only else [[5, 6, 7, 8, eos], [9, 10, 11]]
    targets: list[list[int]] = [[bos, 5, 6], [bos, 8, 9, 12]] if run.model.can_generate else [[], []]
    check = exporter.verify(run, tmp_path / "ours", ExportSamples((), sources, targets))
    assert check.max_relative_error < 1e-5
    assert check.equal_outputs in (None, 2)


# ---- systems of ours

LINES = ["the dog sleeps .", "größe – 5 €", "a cat sees an old house 🏠"] * 3


def untrained(
    kind: str, system: str, text: dict[str, Any] | None = None, separate: bool = False, **settings: Any
) -> Run:
    """A run of a system with random weights and a tokenizer of some kind; `separate`: one for each side."""
    source = learn_tokenizer(LINES, kind, 300)
    target = learn_tokenizer([*LINES, "abc def"], "bpe", 310) if separate else source
    vocabulary = VocabularySizes(source.vocab_size, target.vocab_size, joint=not separate)
    sizes = {"model_dim": 16, "layers": 2, "heads": 2}
    sizes = {name: value for name, value in sizes.items() if name in SYSTEMS[system].settings()}
    model = SYSTEMS[system].spec(vocabulary, "tiny", **(sizes | settings)).build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
    search = {"max_target_length": 12, "beam_size": 3, "length_penalty": 0.6}
    values = {"text": text or {}, "system": {"name": system}, "search": search}
    framing = model.spec.default_framing
    return Run(Path("untrained"), config.from_dict(values, "the test"), model, source, target, framing, "last")


SYSTEM_CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("MarianMTModel", {"kind": "bpe"}),
    "transformer-separate": ("MarianMTModel", {"kind": "word", "separate": True}),
    "transformer-pre-norm": ("PegasusForConditionalGeneration", {"kind": "byte-bpe", "pre_norm": True}),
    "transformer-untied": ("MarianMTModel", {"kind": "unigram", "tied_embeddings": False}),
    "transformer-unshared": ("MarianMTModel", {"kind": "byte", "shared_embeddings": False}),
    "bart": ("BartForConditionalGeneration", {"kind": "unigram"}),
    "bart-pre-norm": ("MBartForConditionalGeneration", {"kind": "symbol", "pre_norm": True}),
    "t5": ("T5ForConditionalGeneration", {"kind": "character"}),
    "t5-gated": ("T5ForConditionalGeneration", {"kind": "byte", "gated_ffn": True, "tied_embeddings": False}),
    "gpt": ("GPT2LMHeadModel", {"kind": "decomposed"}),
    "llama": ("LlamaForCausalLM", {"kind": "bpe"}),
    "bert": ("BertForPreTraining", {"kind": "bpe"}),
    "roberta": ("RobertaForMaskedLM", {"kind": "byte-bpe"}),
    "electra": ("ElectraForPreTraining", {"kind": "bpe", "generator_divisor": 2}),
}


@pytest.mark.parametrize(
    "name", [name if name == "transformer" else pytest.param(name, marks=pytest.mark.slow) for name in SYSTEM_CASES]
)
def test_systems_are_exported_and_verified(tmp_path: Path, name: str) -> None:
    expected, settings = SYSTEM_CASES[name]
    run = untrained(system=name.partition("-")[0], **settings)
    result = export_run(run, tmp_path / "out", "huggingface")
    assert result.model == expected
    assert result.check is not None
    assert result.check.max_relative_error < 1e-5
    assert result.check.equal_outputs in (None, result.check.sentences)
    again = dragoman.load(tmp_path / "out", device="cpu")
    assert again.encode_sources(["a dog – 🏠"]) == run.encode_sources(["a dog – 🏠"])
    if run.model.can_generate and not run.model.is_decoder_only:
        assert again.framing == run.framing
        tokens = run.target_tokenizer.encode("a dog sleeps")
        assert again.target_tokenizer.decode(tokens) == run.target_tokenizer.decode(tokens)


@pytest.mark.slow
def test_normalization_is_part_of_the_exported_tokenizer(tmp_path: Path) -> None:
    text = {"lowercase": True, "unicode_normalization": "NFKC", "normalize_whitespace": True}
    export_run(untrained("bpe", "transformer", text), tmp_path / "out", "huggingface")


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rounded_weights(tmp_path: Path, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    result = export_run(untrained("bpe", "transformer"), tmp_path / "out", "huggingface", ExportOptions(name))
    assert result.check is not None
    assert result.check.max_relative_error < 1e-5
    assert {weight.dtype for weight in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}


def test_generation_settings(tmp_path: Path) -> None:
    written(untrained("bpe", "transformer"), tmp_path / "out")
    settings = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    expected = {"num_beams": 3, "length_penalty": 0.6, "early_stopping": "never", "max_new_tokens": 12}
    assert settings.items() >= (expected | {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}).items()


def test_model_card(tmp_path: Path) -> None:
    exporter = HuggingFaceExporter(ExportOptions(license="cc-by-4.0"))
    exporter.write(untrained("bpe", "transformer"), tmp_path)
    card = (tmp_path / "README.md").read_text()
    metadata = yaml.safe_load(card.split("---")[1])
    assert metadata["license"] == "cc-by-4.0"
    assert metadata["pipeline_tag"] == "translation"
    assert "| class | `MarianMTModel` |" in card
    assert "beam_size: 3" in card


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transformer-separate", "gpt", "bert"])
def test_the_program_of_the_model_card_works(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(untrained(system=name.partition("-")[0], **SYSTEM_CASES[name][1]), tmp_path / "out")
    monkeypatch.chdir(tmp_path / "out")
    (program,) = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(), re.DOTALL)
    exec(program, {})  # the code that we have just written
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("system", "settings", "message"),
    [
        (
            "transformer",
            {"norm": "rms", "position_encoding": "rotary", "pre_norm": True},
            r"no class .* has position Rotary .*, norm RMSNorm \(instead of LayerNorm\) .*nearest one is Pegasus.*"
            r"with --recipe plain \(as PegasusForConditionalGeneration\) or --recipe textbook \(as MarianMTModel\)",
        ),
        (
            "transformer",
            {"pre_norm": True, "separate": True},
            r"separate source and target vocabularies .*with --recipe textbook \(as MarianMTModel\)$",
        ),
        ("bahdanau", {}, r"no class for a model of kind EncoderDecoder.*Systems that can be exported: transformer, t5"),
    ],
    ids=["modern", "separate", "recurrent"],
)
def test_obstacles_are_named_with_what_can_be_exported(
    tmp_path: Path, system: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(dragoman.UserError, match=message):
        export_run(untrained("bpe", system, **settings), tmp_path / "out", "huggingface")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("lora", [0, 2])
def test_fine_tuning_between_import_and_export_changes_nothing_but_the_weights(tmp_path: Path, lora: int) -> None:
    nllb(tmp_path / "theirs")
    import_checkpoint(tmp_path / "theirs", tmp_path / "imported", lambda text: None)
    for side in ("eng", "kin"):
        (tmp_path / f"train.{side}").write_text("abc de\nf gh\nponm lkj\nab c\n" * 10)
    run = dragoman.train(
        tmp_path / "tuned",
        source=tmp_path / "train.eng",
        target=tmp_path / "train.kin",
        settings={
            "training.start_from": str(tmp_path / "imported"),
            "data.source_language": "eng_Latn",
            "data.target_language": "kin_Latn",
            "training.steps": 2,
            "training.device": "cpu",
            "training.validation_sentences": 2,
            **({"lora.rank": lora} if lora else {}),
        },
        callback=lambda event: None,
    )
    result = run.export(tmp_path / "exported", "huggingface")
    assert result.model == "M2M100ForConditionalGeneration"
    assert result.check is not None
    assert result.check.equal_outputs == result.check.sentences
    before, after = (read_checkpoint(tmp_path / folder) for folder in ("theirs", "exported"))
    assert canonical(after.spec) == canonical(before.spec)
    assert any(not torch.equal(after.weights[name], before.weights[name]) for name in before.weights)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "exported" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes()
    again = dragoman.load(tmp_path / "exported", device="cpu").with_languages("eng_Latn", "kin_Latn")
    assert again.framing == run.with_languages("eng_Latn", "kin_Latn").framing
    search = dragoman.Beam(3, length_limit=dragoman.LengthLimit(0, 8, 8))
    (ours,), (theirs,) = (one.translate(["abc de"], search=search) for one in (run, again))
    assert ours.text == theirs.text
