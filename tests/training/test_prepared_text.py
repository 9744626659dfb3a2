"""The text that a run learns from: normalized or cleaned by settings as by hand before."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest_training import small_config

from dragoman.config import Config, replace_settings
from dragoman.data import TokenStore
from dragoman.run import read_tokenizers
from dragoman.training.prepare import PreparedRun, prepare_run
from dragoman.training.validation_corpora import decode_references


def prepared(folder: Path, config: Config, **files: Path) -> tuple[PreparedRun, dict[str, bytes]]:
    """A run prepared on other files, and the contents of its token stores and tokenizers."""
    settings = {f"data.{name}": [str(path)] for name, path in files.items()}
    run = prepare_run(folder, replace_settings(config, settings), lambda text: None)
    paths = [*folder.glob("tokenizer*.json"), *(folder / "data").rglob("*.tokens"), *(folder / "data").rglob("*.ends")]
    return run, {str(path.relative_to(folder)): path.read_bytes() for path in paths}


@pytest.fixture
def config(corpus: Path) -> Config:
    settings = {"data.valid_source": [], "data.valid_target": []}  # pairs are held out
    return replace_settings(small_config(corpus, steps=1), settings)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_a_lower_cased_corpus_is_that_of_lower_cased_files(corpus: Path, config: Config, tmp_path: Path) -> None:
    files = {}
    for side, language in (("source", "en"), ("target", "de")):
        lines = (corpus / f"train.{language}").read_text(encoding="utf-8").lower().splitlines()
        files[side] = write(tmp_path / f"lower.{language}", lines)
    _, expected = prepared(tmp_path / "by_hand", config, **files)
    _, found = prepared(tmp_path / "by_setting", replace_settings(config, {"text.lowercase": True}))
    assert len(expected) > 4
    assert found == expected


def test_a_cleaned_corpus_is_that_of_files_cleaned_by_hand(corpus: Path, config: Config, tmp_path: Path) -> None:
    """Bad pairs between good ones leave no trace in vocabulary, validation split and token stores."""
    good = [(corpus / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")]
    pairs = list(dict.fromkeys(zip(*good)))
    bad = [("Собака спит.", "Der Hund schläft."), ("x", "x"), pairs[0], ("", "leer"), ("short", "sehr lang " * 40)]
    dirty = [pair for n, pair in enumerate(pairs) for pair in (pair, *bad[n // 50 : n // 50 + (n % 50 == 49)])]
    files = [
        {side: write(tmp_path / f"{name}.{side}", list(lines)) for side, lines in zip(("source", "target"), zip(*rows))}
        for name, rows in (("clean", pairs), ("dirty", dirty))
    ]
    assert len(dirty) == len(pairs) + 5
    _, expected = prepared(tmp_path / "by_hand", config, **files[0])
    run, found = prepared(tmp_path / "by_setting", replace_settings(config, {"cleaning.enabled": True}), **files[1])
    assert found == expected
    report = run.preflight.cleaning
    assert report is not None
    assert (report.pairs_read, report.pairs) == (len(dirty), len(pairs))
    assert {reason: removed.pairs for reason, removed in report.removed.items()} == {
        "source and target equal": 1,
        "source empty": 1,
        f"lengths differ more than 4-fold from {report.usual[0].split()[1]} to 1": 1,
        "source not in Latin script": 1,
        "duplicate of an earlier pair": 1,
    }
    assert run.preflight.to_dict()["cleaning"]["removed"]["source empty"]["examples"][0]["target"] == "leer"
    assert "Cleaning kept" in run.preflight.lines()[0]


def test_some_empty_targets_and_mixed_scripts_are_reported(config: Config, tmp_path: Path) -> None:
    cyrillic, latin = "это предложение", "Satz Nummer"  # 14 and 10 letters
    targets = [f"{cyrillic if n % 3 else latin} {n}" for n in range(39)] + [""]
    files = {"source": write(tmp_path / "a.en", [f"number {n}" for n in range(40)])}
    run, _ = prepared(tmp_path / "run", config, **files, target=write(tmp_path / "a.ru", targets))
    assert {reason: pairs.pairs for reason, pairs in run.preflight.dropped.items()} == {"target empty": 1}
    cyrillic_share = 26 * 14 / (26 * 14 + 13 * 10)
    shares = f"{100 * cyrillic_share:.0f} % Cyrillic, {100 - 100 * cyrillic_share:.0f} % Latin of the letters"
    assert any(f"the target mixes scripts ({shares})" in warning for warning in run.preflight.warnings)


def test_control_characters_are_reported_and_not_printed(config: Config, tmp_path: Path) -> None:
    files = {"source": write(tmp_path / "a.en", [f"number {n}\x1b[31m" for n in range(40)])}
    run, _ = prepared(
        tmp_path / "run", config, **files, target=write(tmp_path / "a.de", [f"Zahl {n}" for n in range(40)])
    )
    assert any("the source has 40 control characters" in warning for warning in run.preflight.warnings)
    assert not any("\x1b" in line for line in run.preflight.lines())


def test_references_with_unknown_words_are_not_matched_by_the_unknown_token(
    corpus: Path, config: Config, tmp_path: Path
) -> None:
    """A model that writes `<unk>` for a word outside its vocabulary did not translate it."""
    sentence = (corpus / "train.de").read_text(encoding="utf-8").splitlines()[0]
    valid = {
        "valid_source": write(tmp_path / "valid.en", ["The dog sleeps.", "The dog sleeps."]),
        "valid_target": write(tmp_path / "valid.de", [sentence, f"Nachtwandler {sentence}"]),
    }
    settings = {"text.tokenizer": "word", "text.bpe_dropout": None, "text.vocab_size": 2000}
    prepared(tmp_path / "run", replace_settings(config, settings), **valid)
    (_, tokenizer), store = read_tokenizers(tmp_path / "run"), TokenStore(tmp_path / "run" / "data" / "valid")
    assert tokenizer.decode(store.target(1).tolist()) == f"<unk> {sentence}"
    assert decode_references(store, tokenizer, [0, 1]) == [sentence, f"⁇ {sentence}"]
