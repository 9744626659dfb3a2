"""Export to CTranslate2: the same scores and beam outputs, refusals that name the obstacle, a program that works."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dragoman
from dragoman.config import Config
from dragoman.models import ModelSpec
from dragoman.parts.attention import CrossAttention, SelfAttention
from dragoman.parts.norm import RMSNorm
from dragoman.parts.positions import ALiBi, InterpolatedRotary, NoPosition, RelativeBias
from dragoman.parts.spec import replace_everywhere
from dragoman.run import Run
from dragoman.systems import SYSTEMS, VocabularySizes
from dragoman.text import Tokenizer, learn_tokenizer
from dragoman.text.language_codes import LanguageCodes

pytest.importorskip("ctranslate2")

LINES = ["the dog sleeps .", "größe – 5 €", "a cat sees an old house 🏠"] * 3
SMALL = {"model_dim": 16, "layers": 2, "heads": 4}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learn_tokenizer(LINES, "bpe", 300)


def untrained_run(
    tokenizer: Tokenizer,
    system: str,
    change: Callable[[Any], ModelSpec] = lambda spec: spec,
    text: dict[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """A run with random weights, large enough that its outputs differ from each other; `text` are settings of text."""
    known = SYSTEMS[system].settings()
    small = {name: value for name, value in SMALL.items() if name in known}
    vocabulary = VocabularySizes(tokenizer.vocab_size, tokenizer.vocab_size, joint=True)
    spec = change(SYSTEMS[system].spec(vocabulary, "tiny", **(small | settings)))
    torch.manual_seed(0)
    model = spec.build().eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(2.0)
    search = replace(Config().search, beam_size=3, length_penalty=0.6, max_target_length=20)
    config = replace(Config(), search=search, text=replace(Config().text, **(text or {})))
    return Run(Path("untrained"), config, model, tokenizer, tokenizer, spec.default_framing, "last")


def in_attention(**changes: Any) -> Callable[[Any], ModelSpec]:
    def change(spec: Any) -> ModelSpec:
        kinds = (SelfAttention, CrossAttention) if "kv_heads" in changes else (SelfAttention,)
        for kind in kinds:
            spec = replace_everywhere(spec, kind, **changes)
        return spec

    return change


def in_decoder(**changes: Any) -> Callable[[Any], ModelSpec]:
    return lambda spec: replace(spec, decoder=replace(spec.decoder, **changes))


#: system, settings or a change of its spec, and the class of CTranslate2
EXPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "post-norm, sinusoids": ("transformer", {}, "Translator"),
    "rotary, RMSNorm, gated": (
        "transformer",
        {"position_encoding": "rotary", "norm": "rms", "gated_ffn": True, "pre_norm": True, "tied_embeddings": False},
        "Translator",
    ),
    "T5": ("t5", {"sentinels": 3, "gated_ffn": True}, "Translator"),
    "BART": ("bart", {"decoder_layers": 1}, "Translator"),
    "Shaw": ("shaw", {"max_distance": 3}, "Translator"),
    "source and target in one sequence": ("transformer-d", {}, "Generator"),
    "PaLM": ("palm", {}, "Generator"),
    "LLaMA": ("llama", {"kv_heads": 2}, "Generator"),
    "BERT": ("bert", {}, "Encoder"),
}
MORE_EXPORTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "pre-norm": ("transformer", {"pre_norm": True}, "Translator"),
    "learned positions": ("transformer", {"position_encoding": "learned", "max_positions": 90}, "Translator"),
    "Shaw's keys alone": ("shaw", {"relative_values": False, "pre_norm": True}, "Translator"),
    "head_dim": ("transformer", {"head_dim": 6}, "Translator"),
    "grouped heads": ("transformer", {"change": in_attention(kv_heads=2)}, "Translator"),
    "one key head": ("transformer", {"change": in_attention(kv_heads=1)}, "Translator"),
    "mBART": ("bart", {"pre_norm": True}, "Translator"),
    "GPT-2": ("gpt", {}, "Generator"),
    "ALiBi": ("gpt", {"change": in_decoder(position=ALiBi(4))}, "Generator"),
    "relative biases": ("gpt", {"change": in_decoder(position=RelativeBias(4, bidirectional=False))}, "Generator"),
    "no positions": ("gpt", {"change": in_decoder(position=NoPosition())}, "Generator"),
    "interpolated positions": ("llama", {"change": in_attention(position=InterpolatedRotary(factor=4.0))}, "Generator"),
    "norms of queries and keys": ("llama", {"change": in_attention(qk_norm=RMSNorm(1e-5))}, "Generator"),
    "RoBERTa": ("roberta", {}, "Encoder"),
    "ELECTRA": ("electra", {"embedding_dim": None}, "Encoder"),
}


@pytest.mark.parametrize("name", [*EXPORTED, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE_EXPORTED)])
def test_scores_and_beam_outputs_are_equal(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    system, settings, kind = (EXPORTED | MORE_EXPORTED)[name]
    run = untrained_run(tokenizer, system, **settings)
    result = run.export(tmp_path / "out", "ctranslate2")
    assert result.model == f"CTranslate2 {kind}"
    assert result.check is not None
    assert result.check.max_relative_error < 1e-5
    assert result.check.equal_outputs in (None, result.check.sentences)


def test_models_whose_eos_is_forced_are_compared_without(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Imported Marian and BART models end with EOS at the length limit; random weights hardly ever end before."""
    run = untrained_run(tokenizer, "transformer")
    run.special_tokens = replace(run.special_tokens, force_eos_at_limit=True)
    result = run.export(tmp_path / "out", "ctranslate2")
    assert result.check is not None
    assert result.check.equal_outputs == result.check.sentences
    assert run.special_tokens.force_eos_at_limit


#: system, settings, and what the error says
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "recurrence": ("bahdanau", {}, "does not support the part Recurrent: export it with --to onnx, or train a Trans"),
    "convolution": ("convs2s", {}, "the part ScaledResidual"),
    "experts": ("moe", {}, "the part MixtureOfExperts"),
    "hard attention": ("hard-monotonic", {}, "hard attention"),
    "query norms": ("transformer", {"query_key_norm": True}, "queries in cross-attention.*query_key_norm=false"),
    "batch norm": ("transformer", {"norm": "batch"}, "batch normalization.*set norm to layer or rms"),
    "ALiBi encoder": ("transformer", {"position_encoding": "alibi"}, "ALiBi positions in an encoder.*position_encod"),
    "concatenated positions": ("transformer", {"position_dim": 4}, "Concatenated"),
    "copying": ("transformer", {"copying": True}, "copies from the source: train with system.settings.copying=false"),
    "wide values": ("transformer", {"value_dim": 7}, "leave out value_dim"),
    "projections": ("transformer", {"self_attention_projections": False}, "set self_attention_projections to true"),
    "windows": ("gpt3", {}, "the attention mask Window"),
    "masks": ("unilm-masked", {}, "mask by mask"),
    "sound": ("speech", {"feature_dim": 5}, "images or sound"),
    "epsilons": ("llama", {"change": in_attention(qk_norm=RMSNorm(1e-3))}, r"different ε \(1e-05, 0.001\)"),
    "rotary values": ("llama", {"change": in_attention(rotary_values=True)}, "rotary positions in values"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ctranslate2_cannot_compute_is_refused_by_name(tokenizer: Tokenizer, tmp_path: Path, name: str) -> None:
    system, settings, message = REFUSED[name]
    run = untrained_run(tokenizer, system, **settings)
    with pytest.raises(dragoman.UserError, match=message):
        run.export(tmp_path / "out", "ctranslate2")
    assert not list(tmp_path.iterdir())


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("dragoman.interop.ctranslate2.ctranslate2_exporter.is_installed", lambda package: False)
    with pytest.raises(dragoman.UserError, match=r"needs the package ctranslate2: .* 'dragoman\[ctranslate2\]'"):
        dragoman.export(tmp_path / "run", tmp_path / "out", "ctranslate2")


def readme_program(folder: Path) -> dict[str, Any]:
    """Execute the program of the README, and return what it defines."""
    (program,) = re.findall("```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "readme", "__file__": str(folder / "readme.py")}
    exec(program, names)
    return names


def test_the_program_of_the_readme_translates(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = {"unicode_normalization": "NFC", "lowercase": True, "normalize_whitespace": True}
    run = untrained_run(tokenizer, "transformer", text=text)
    run.export(tmp_path / "out", "ctranslate2")
    texts = ["The dog\tsleeps.", "gro\u0308ße – 5 </s>", "A"]
    expected = [translation.text for translation in run.translate(texts)]
    program = readme_program(tmp_path / "out")
    assert [tokenizer.decode(program["encode"](text)) for text in texts] == ["the dog sleeps.", "größe – 5 </s>", "a"]
    assert program["translate"](texts) == expected
    settings = json.loads((tmp_path / "out" / "dragoman.json").read_text(encoding="utf-8"))
    assert settings["options"]["beam_size"] == 3
    assert settings["source_suffix"] == [run.framing.eos]


def test_the_program_of_a_multilingual_model_chooses_languages(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "transformer")
    codes = LanguageCodes({"eng": 20, "deu": 21, "kin": 22}, source="eng", target="deu")
    framing = replace(run.framing, languages=codes, suppressed=(*run.framing.suppressed, 20, 21, 22))
    run = Run(run.folder, run.config, run.model, tokenizer, tokenizer, framing, "last")
    run.export(tmp_path / "out", "ctranslate2")
    program, texts = readme_program(tmp_path / "out"), ["the dog sleeps", "a cat"]
    decode = program["target_tokenizer"].decode

    def expected(run: Run) -> list[str]:
        return [decode(tokenizer.tokens_to_ids(translation.tokens)) for translation in run.translate(texts)]

    assert program["translate"](texts) == expected(run)
    program["set_languages"]("deu", "kin")
    assert program["encode"]("a cat")[0] == 21
    assert program["translate"](texts) == expected(run.with_languages("deu", "kin"))


def test_the_program_of_a_language_model_generates(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "gpt")
    run.export(tmp_path / "out", "ctranslate2")
    program = readme_program(tmp_path / "out")
    program["settings"]["options"] |= {"sampling_topk": 1}  # greedy
    greedy = dragoman.Beam(1, length_limit=dragoman.LengthLimit(ratio=0, offset=50, max=50))
    tokens = run.generate(["the dog"], greedy)[0].tokens
    ids = tokenizer.tokens_to_ids(tokens)[len(tokenizer.encode("the dog")) :]
    assert program["generate"](["the dog"]) == [program["target_tokenizer"].decode(ids)]


def test_the_program_of_a_classifier_computes_its_output_layer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "bert", lambda spec: spec.with_labels(5, of_sequence=True))
    run.export(tmp_path / "out", "ctranslate2")
    program = readme_program(tmp_path / "out")
    expected = run.model(*run.pad_batch(run.encode_sources(["the dog"])))[0].detach()
    torch.testing.assert_close(torch.tensor(program["logits"]("the dog")), expected, rtol=1e-4, atol=1e-4)
    assert program["labels"]("the dog") == [str(int(expected[0].argmax()))]


def test_int8_is_compared_with_our_weights_which_stay_as_they_are(tokenizer: Tokenizer, tmp_path: Path) -> None:
    run = untrained_run(tokenizer, "gpt")
    before = [weight.clone() for weight in run.model.parameters()]
    result = run.export(tmp_path / "out", "ctranslate2", dtype="int8")
    assert all(map(torch.equal, before, run.model.parameters()))
    assert result.check is not None
    assert 1e-5 < result.check.max_relative_error < 0.3 == result.check.tolerance
    float32 = run.export(tmp_path / "float32", "ctranslate2")
    sizes = [(path.folder / "model.bin").stat().st_size for path in (result, float32)]
    assert sizes[0] < 0.8 * sizes[1]  # the table of positions stays in float32
