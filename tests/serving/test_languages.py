"""The languages of runs and of texts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from dragoman.config import DataConfig
from dragoman.errors import UserError
from dragoman.run.language_detection import LanguageDetector, trigrams
from dragoman.run.language_pair import LanguagePair, infer_language_pair, parse_run_argument
from dragoman.text import Framing


def run(folder: str, source: tuple[str, ...] = (), target: tuple[str, ...] = (), **languages: str) -> SimpleNamespace:
    data = DataConfig(source=source, target=target, **languages)  # type: ignore[arg-type]
    return SimpleNamespace(folder=Path(folder), config=SimpleNamespace(data=data), model_framing=Framing())


@pytest.mark.parametrize(
    ("one", "pair"),
    [
        (run("my", ("a/train.en", "b/more.en.gz"), ("a/train.de", "b/more.de.gz")), ("en", "de")),
        (run("runs/en-de", ("train.tsv",)), ("en", "de")),
        (run("my", ("memory.tmx",), source_language="fr", target_language="it"), ("fr", "it")),
        (run("opus-mt-fr-en", (), ()), ("fr", "en")),
        (run("transformer_cs_uk.big"), ("cs", "uk")),
    ],
)
def test_language_pair_is_inferred_from_files_and_folder(one: SimpleNamespace, pair: tuple[str, str]) -> None:
    assert infer_language_pair(one) == pair  # type: ignore[arg-type]


def test_unknown_languages_must_be_given() -> None:
    with pytest.raises(UserError, match="=en-de"):
        infer_language_pair(run("runs/my", ("train.src",), ("train.tgt",)))  # type: ignore[arg-type]
    assert parse_run_argument("runs/my=en-de") == (Path("runs/my"), LanguagePair("en", "de"))
    assert parse_run_argument("runs/my=zh-Hans_EN") == (Path("runs/my"), LanguagePair("zh-hans", "en"))
    assert parse_run_argument("runs/my") == (Path("runs/my"), None)


def test_folder_names_may_contain_equals_signs(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    assert parse_run_argument(str(tmp_path / "a=b")) == (tmp_path / "a=b", None)
    assert parse_run_argument(f"{tmp_path / 'a=b'}=en-de") == (tmp_path / "a=b", LanguagePair("en", "de"))


def test_trigrams_of_padded_words() -> None:
    assert trigrams("Ab, c1!") == [" ab", "ab ", " c "]


def test_detection_confidence() -> None:
    detector = LanguageDetector()
    detector.learn("xx", ["aa"])
    detector.learn("yy", ["bb"])
    # " aa" and "aa " of xx, " bb" and "bb " of yy: each is (1 + 0.1) / (2 + 0.5) in its own, 0.1 / 2.5 in the other
    assert detector("aa") == [("xx", pytest.approx(100 * 11**2 / (11**2 + 1), abs=0.1)), ("yy", 0.0)]
    assert detector("12") == []
    assert [confidence for _, confidence in detector("cc")] == [0.0, 0.0]
    assert LanguageDetector()("aa") == []
