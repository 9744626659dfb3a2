"""Multilingual checkpoints: language codes around texts as transformers puts them, and the same translations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_pairs import liven
from huggingface_tiny import change, m2m100, mbart, transformers
from typer.testing import CliRunner

import dragoman
from dragoman import cli
from dragoman.errors import UserError
from dragoman.interop.huggingface import import_checkpoint
from dragoman.lens.word_attention import END_LABEL, word_attention
from dragoman.run.file_translation import translation_fingerprint

CODES = ["eng_Latn", "fra_Latn", "kin_Latn", "zho_Hans", "zho_Hant"]
LETTERS = ["<s>", "<pad>", "</s>", "<unk>", "▁", *"abcdefghijklmnop"]
TEXTS = ["abc de", "f", "kin_Latn ab", "a  b", "ponm lkj ih gf e"]
SIZES = {"d_model": 24, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "tie_word_embeddings": False}


def nllb(folder: Path, legacy: bool = False) -> tuple[Any, Any]:
    """A tiny model with the tokenizer of NLLB, and that tokenizer."""
    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    tokenizer = transformers.NllbTokenizer(
        vocab=vocabulary, merges=[], extra_special_tokens=CODES, legacy_behaviour=legacy
    )
    torch.manual_seed(7)
    model = m2m100(vocab_size=len(tokenizer) + 3, decoder_layers=2, **SIZES)
    liven(model, 2)
    special = [[number] for number in tokenizer.all_special_ids if number != 2]
    for name, value in {"max_length": 12, "num_beams": 3, "bad_words_ids": special}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    change(folder, "tokenizer_config.json", src_lang=None)  # as published
    return model, tokenizer


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, dragoman.Run]:
    folder = tmp_path_factory.mktemp("nllb")
    model, tokenizer = nllb(folder / "theirs")
    import_checkpoint(folder / "theirs", folder / "run", lambda text: None)
    return model, tokenizer, dragoman.load(folder / "run", device="cpu")


def generated(model: Any, tokenizer: Any, texts: list[str], source: str, target: str, **settings: Any) -> list[str]:
    """What they write, code by code."""
    tokenizer.src_lang = source
    rows = tokenizer(texts, padding=True, return_tensors="pt", split_special_tokens=True)
    forced = tokenizer.convert_tokens_to_ids(target)
    return tokenizer.batch_decode(model.generate(**rows, forced_bos_token_id=forced, **settings), True)


def test_translations_between_languages_equal_those_of_transformers(opened: tuple[Any, Any, dragoman.Run]) -> None:
    model, tokenizer, run = opened
    assert run.languages == CODES
    seen = set()
    for source, target in (("eng_Latn", "kin_Latn"), ("fra_Latn", "eng_Latn"), ("eng_Latn", "fra_Latn")):
        languages = {"source_language": source, "target_language": target}
        greedy = generated(model, tokenizer, TEXTS, source, target, num_beams=1)
        assert [one.text for one in run.translate(TEXTS, beam_size=1, **languages)] == greedy
        beam = generated(model, tokenizer, TEXTS, source, target)
        assert [one.text for one in run.translate(TEXTS, **languages)] == beam
        chosen = run.with_languages(source, target)
        parts = list(chosen.stream(TEXTS[0]))
        assert parts[-1].translation is not None
        assert parts[-1].translation.text == beam[0]
        seen.add(tuple(beam))
    assert len(seen) == 3  # the languages matter


def test_scores_and_inspections_begin_with_the_code(opened: tuple[Any, Any, dragoman.Run]) -> None:
    model, tokenizer, run = opened
    tokenizer.src_lang = "fra_Latn"
    source = tokenizer("abc de", return_tensors="pt").input_ids
    kin, letters = tokenizer.convert_tokens_to_ids("kin_Latn"), tokenizer("ef", add_special_tokens=False).input_ids
    target = torch.tensor([[2, kin, *letters, 2]])
    log_p = model(input_ids=source, decoder_input_ids=target[:, :-1]).logits[0].log_softmax(-1)
    expected = log_p.gather(1, target[0, 1:, None])[1:].sum().item()  # the code itself is certain
    (scored,) = run.score(["abc de"], ["ef"], source_language="French", target_language="rw")
    assert scored.tokens[0] == "kin_Latn"
    assert scored.token_scores[0] == 0.0
    assert scored.score == pytest.approx(expected, abs=1e-5)
    chosen = run.with_languages("fr", "kin_Latn")
    inspection = chosen.lens("abc de", "ef")
    assert inspection.score == pytest.approx(expected, abs=1e-5)
    assert inspection.source is not None
    assert inspection.source.tokens[0] == "fra_Latn"
    assert chosen.attention("abc de", "ef").target[0] == "kin_Latn"
    (translation,) = chosen.translate(["abc de"], token_scores=True)
    again = chosen.score(["abc de"], [translation.text])[0]
    assert translation.finished is False or again.score == pytest.approx(translation.score, abs=1e-4)


def test_attention_of_words_is_that_of_their_tokens(opened: tuple[Any, Any, dragoman.Run]) -> None:
    """The language codes belong to no word: the attention to them is in the last column, their own in no row."""
    model, tokenizer, run = opened
    tokenizer.src_lang = "fra_Latn"
    source = tokenizer("abc de", return_tensors="pt").input_ids
    labels = ["kin_Latn", *tokenizer.tokenize("ef gh")]  # the token that is predicted from each row of the attention
    target = torch.tensor([[2, *tokenizer.convert_tokens_to_ids(labels)]])
    model.set_attn_implementation("eager")
    output = model(input_ids=source, decoder_input_ids=target, output_attentions=True)
    weights = torch.stack(output.cross_attentions).detach().mean((0, 2))[0]  # T S, mean over layers and heads
    rows = [[labels.index(letter) for letter in word] for word in ("ef", "gh")]
    read = tokenizer.convert_ids_to_tokens(source[0])
    columns = [[read.index(letter) for letter in word] for word in ("abc", "de")]
    expected = torch.tensor([[weights[row][:, column].sum(1).mean() for column in columns] for row in rows])
    found = word_attention(run.with_languages("fr", "kin_Latn"), "abc de", "ef gh")
    assert (found.source, found.target) == (["abc", "de", END_LABEL], ["ef", "gh"])
    assert found.cross is not None
    torch.testing.assert_close(found.cross[:, :2], expected, atol=1e-5, rtol=1e-4)
    assert found.cross.sum(1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_a_missing_or_unknown_language_is_an_error(opened: tuple[Any, Any, dragoman.Run]) -> None:
    run = opened[2]
    with pytest.raises(UserError, match=r"give the source \(--from\) and target \(--to\) language, such as eng_Latn"):
        run.translate(["a"])
    with pytest.raises(UserError, match="ambiguous: use one of zho_Hans"):
        run.translate(["a"], source_language="en", target_language="zh")
    with pytest.raises(UserError, match="give the source"):
        run.lens("a b")
    search = run.default_search
    fingerprints = [translation_fingerprint(run.with_languages("en", to), search, {}) for to in ("fr", "rw")]
    assert fingerprints[0] != fingerprints[1]  # an interrupted file is not resumed in another language
    run.check_same_vocabulary(run.with_languages("en", "fr"), "")  # whatever the languages


@pytest.mark.parametrize("legacy", [False, True])
def test_codes_stand_where_the_tokenizer_puts_them(legacy: bool, tmp_path: Path) -> None:
    _, tokenizer = nllb(tmp_path, legacy)
    change(tmp_path, "tokenizer_config.json", src_lang="eng_Latn", tgt_lang="kin_Latn", legacy_behaviour=legacy)
    run = dragoman.load(tmp_path, device="cpu")
    assert run.language_pair == ("eng_Latn", "kin_Latn")
    tokenizer.src_lang = "eng_Latn"
    assert run.encode_sources(["abc de"]) == [tokenizer("abc de").input_ids]
    assert run.framing.target_prefix == (2, tokenizer.convert_tokens_to_ids("kin_Latn"))


@pytest.mark.parametrize("name", ["MBartTokenizer", "MBart50Tokenizer"])
def test_codes_of_mbart(name: str, tmp_path: Path) -> None:
    """mBART-25: x EOS code, and the decoder begins with the code; mBART-50: code x EOS, and a forced code."""
    codes = ["en_XX", "ro_RO", "fr_XX"]
    pieces = [(piece, -float(n)) for n, piece in enumerate([*LETTERS, *codes, "<mask>"])]
    tokenizer = getattr(transformers, name)(vocab=pieces)
    torch.manual_seed(5)
    model = mbart(vocab_size=len(tokenizer), max_position_embeddings=40, decoder_layers=2, **SIZES)
    liven(model, 2)
    special = [number for number in tokenizer.all_special_ids if number != 2]
    model.generation_config.bad_words_ids = [[number] for number in special]
    model.generation_config.max_length = 12
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    run = dragoman.load(tmp_path, device="cpu")
    assert {*codes} <= {*run.languages}
    for source, target in (("en_XX", "ro_RO"), ("ro_RO", "fr_XX")):
        chosen, code = run.with_languages(source, target), tokenizer.convert_tokens_to_ids(target)
        tokenizer.src_lang = source
        rows = tokenizer(TEXTS[:2], padding=True, return_tensors="pt", return_token_type_ids=False)
        lengths = rows.attention_mask.sum(1).tolist()
        ours = chosen.encode_sources(TEXTS[:2])
        assert ours == [ids[:length] for ids, length in zip(rows.input_ids.tolist(), lengths)]
        start = {"decoder_start_token_id": 2, "forced_bos_token_id": code}
        if name == "MBartTokenizer":
            start = {"decoder_start_token_id": code, "forced_bos_token_id": None}
        for beams in (1, 3):
            written = tokenizer.batch_decode(model.generate(**rows, num_beams=beams, **start), True)
            assert [one.text for one in chosen.translate(TEXTS[:2], beam_size=beams)] == written


def test_commands_take_languages(opened: tuple[Any, Any, dragoman.Run], tmp_path: Path) -> None:
    run, runner = opened[2], CliRunner()
    (tmp_path / "in.txt").write_text("abc de\n", encoding="utf-8")

    def call(*arguments: str) -> Any:
        return runner.invoke(cli.app, list(map(str, arguments)))

    translated = call("translate", run.folder, tmp_path / "in.txt", "--from", "en", "--to", "kin_Latn")
    expected = run.translate(["abc de"], source_language="eng_Latn", target_language="kin_Latn")[0].text
    assert translated.stdout == f"{expected}\n"
    shown = call("show", "run", str(run.folder), "abc de", "--from", "en", "--to", "rw", "--json")
    assert json.loads(shown.stdout)["target_tokens"][0] == "kin_Latn"
    listed = json.loads(call("show", "languages", str(run.folder), "--json").stdout)
    assert listed["languages"]["kin_Latn"] == "Kinyarwanda"
    assert call("show", "languages", str(run.folder)).stdout.splitlines()[0] == "eng_Latn  English"
    described = json.loads(call("show", "run", str(run.folder), "--json").stdout)
    assert described["languages"] == CODES


def test_an_added_language_is_exported_with_its_tokens(tmp_path: Path) -> None:
    nllb(tmp_path / "theirs")
    words = [letters[n : n + 3] for letters in ("abcdefgh", "hgfedcba") for n in range(6)]
    sources = [" ".join(words[(n * step) % 12] for step in (1, 5, 7)) for n in range(60)]
    greek = {ord("a") + n: ord("α") + n for n in range(8)}
    (tmp_path / "source").write_text("\n".join(sources), encoding="utf-8")
    (tmp_path / "target").write_text("\n".join(text.translate(greek) for text in sources), encoding="utf-8")
    settings = {"text.add_language": "ell_Grek", "text.similar_language": "fra_Latn", "training.steps": 5}
    settings |= {"training.start_from": str(tmp_path / "theirs"), "training.device": "cpu"}
    settings |= {"data.source_language": "eng_Latn", "data.target_language": "ell_Grek"}
    files = {"source": tmp_path / "source", "target": tmp_path / "target"}
    run = dragoman.train(tmp_path / "run", **files, settings=settings, callback=lambda event: None)
    result = run.export(tmp_path / "out", to="huggingface")
    assert result.check is not None
    assert result.check.passed
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out")
    code = run.model_framing.languages.ids["ell_Grek"]
    assert tokenizer.convert_tokens_to_ids("ell_Grek") == code
    assert tokenizer("ell_Grek αβγ δ", add_special_tokens=False).input_ids[0] == code
    pieces = tokenizer("αβγ δ", add_special_tokens=False).input_ids
    assert pieces == run.target_tokenizer.encode("αβγ δ")
    assert tokenizer.unk_token_id not in pieces
    texts, search = ["abc de", "fgh"], dragoman.Beam(size=2, length_limit=dragoman.LengthLimit(max=8))
    options = {"num_beams": 2, "max_new_tokens": 8, "bad_words_ids": [[code]]}
    theirs = generated(model, tokenizer, texts, "eng_Latn", "ell_Grek", **options)
    ours = run.with_languages("eng_Latn", "ell_Grek").translate(texts, search=search, alignment=False)
    assert [translation.text for translation in ours] == theirs
