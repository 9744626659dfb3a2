"""Warnings about translations, on constructed cases of every kind and on the references of a test set."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import dragoman
from dragoman.cli import main
from dragoman.data import TokenStore, phrasebook
from dragoman.data.lexical_coverage import LexicalCoverage
from dragoman.run import Run, Translation
from dragoman.run.translation_warnings import LanguageNames, TranslationChecker, checker_of

NAMES = LanguageNames("English", "German")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was hardly trained: what is usual is learned from its data."""
    place = tmp_path_factory.mktemp("warnings")
    phrasebook.write(place / "book", pairs=3000, valid=20, test=200)
    settings = ["system.settings.model_dim=16", "system.settings.layers=1", "search.max_target_length=12"]
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", place / "book" / "train.en", "--target", place / "book" / "train.de"]
    arguments = ["train", place / "run", *files, "--system", "bahdanau", "--steps", 2, "--device", "cpu", *options]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return place


@pytest.fixture(scope="module")
def run(place: Path) -> Run:
    return dragoman.load(place / "run", device="cpu")


@pytest.fixture(scope="module")
def checker(run: Run) -> TranslationChecker:
    return checker_of(run)


def kinds(checker: TranslationChecker, source: str, text: str, **fields: bool) -> dict[str, str]:
    translation = Translation(text, 0.0, text.split(), **fields)  # type: ignore[arg-type]
    return {warning.kind: warning.message for warning in checker.check(source, translation, NAMES)}


def test_references_are_hardly_ever_suspicious(checker: TranslationChecker, place: Path) -> None:
    sources, references = (
        (place / "book" / f"test.{side}").read_text(encoding="utf-8").splitlines() for side in ("en", "de")
    )
    warned = [kinds(checker, *pair) for pair in zip(sources, references)]
    assert sum(map(bool, warned)) <= 0.06 * len(sources), [found for found in warned if found]


@pytest.mark.parametrize(
    ("source", "text", "kind", "message"),
    [
        ("The old man reads the book.", "Der alte Mann liest.", "uncovered", "“book” may be missing"),
        ("The old man reads the book.", "Der alte Mann liest liest liest das Buch.", "repetition", "“liest” occurs 3"),
        ("The old man reads the book.", "Der alte Mann liest........", "repetition", "“.” occurs 8 times in a row"),
        ("I see the man.", "Ich sehe den Mann den Mann.", "repetition", "“den Mann” occurs 2 times in a row"),
        ("Der alte Mann liest heute das Buch.", "Der Mann liest.", "language", "looks like German, but this run"),
        ("Это совсем другой язык.", "Der Mann liest.", "language", "Only 0 % of the letter sequences"),
        ("The man has 1,250 books.", "Der Mann hat 125 Bücher.", "number", "“1,250” may be missing"),
        ("The man has 1,250 books.", "Der Mann hat Bücher.", "number", "“1,250” may be missing"),
        ("The man {name} sleeps.", "Der Mann schläft.", "placeholder", "“{name}” may be missing"),
        ("See https://a.de/x now.", "Siehe https://a.de/y jetzt.", "placeholder", "“https://a.de/x” may be missing"),
        ("The man sleeps.", " ", "empty", "is empty"),
        ("The Zxqwvjk sleeps.", "Der Mann schläft.", "unknown", "“Zxqwvjk” did not occur"),
    ],
)
def test_bad_translations(checker: TranslationChecker, source: str, text: str, kind: str, message: str) -> None:
    found = kinds(checker, source, text)
    assert message in found.get(kind, ""), found


def test_limits_and_low_probability(checker: TranslationChecker) -> None:
    assert "cut off" in kinds(checker, "The man sleeps.", "Der Mann schläft.", finished=False)["unfinished"]
    assert "too long" in kinds(checker, "The man sleeps.", "Der Mann schläft.", truncated_source=True)["truncated"]
    good = Translation("Der Mann schläft.", 0.0, ["a", "b", "c"])
    low = Translation("Der Mann schläft.", 4 * math.log(1e-6), ["a", "b", "c"])  # 1e-6 per token, EOS included
    found = [[warning.kind for warning in checker.check("The man sleeps.", one, NAMES)] for one in (good, low)]
    assert found == [[], ["probability"]]
    assert checker.check("3.14", Translation("3.14", 0.0, copied=True)) == []


def test_spans_point_to_the_words(checker: TranslationChecker) -> None:
    source, text = "The old man reads the book.", "Der alte Mann liest liest liest ein Bild."
    spans = {
        warning.kind: (
            [source[begin:end] for begin, end in warning.source_spans],
            [text[begin:end] for begin, end in warning.target_spans],
        )
        for warning in checker.check(source, Translation(text, 0.0, text.split()), NAMES)
    }
    assert spans == {"uncovered": (["book."], []), "repetition": ([], ["liest liest liest"])}


def test_usual_repetitions_are_accepted(checker: TranslationChecker) -> None:
    """In German a relative pronoun and an article may be the same word."""
    source, text = "The flower that the guests need is red.", "Die Blume, die die Gäste brauchen, ist rot."
    assert "repetition" not in kinds(checker, source, text)
    assert "repetition" not in kinds(checker, "The man is very very old.", "Der Mann ist sehr sehr alt.")


def test_coverage_is_the_largest_lexical_probability(run: Run, place: Path) -> None:
    store = TokenStore(place / "run" / "data" / "train")
    coverage = LexicalCoverage(store, (run.source_tokenizer.vocab_size, run.target_tokenizer.vocab_size))
    source, target = run.source_tokenizer.encode("the book"), run.target_tokenizer.encode("das Buch")
    each = [coverage.coverage(source, [token]) for token in target]
    assert coverage.coverage(source, target).tolist() == [max(column) for column in zip(*each)]
    assert coverage.coverage(source, []).tolist() == [0.0] * len(source)


def test_runs_without_data_are_checked_as_far_as_possible(run: Run, place: Path) -> None:
    bare = TranslationChecker(run)
    bare._store = lambda _: None  # type: ignore[method-assign]
    bare.__dict__["_detector"] = type(checker_of(run)._detector)()
    source = "The man has 1,250 books."
    assert set(kinds(bare, source, "liest liest liest")) == {"repetition", "number"}


def test_command_line_warnings(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = place / "text.en"
    file.write_text("The man sleeps.\nDer alte Mann liest heute das Buch.\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["dragoman", "translate", str(place / "run"), str(file), "--warnings"])
    with pytest.raises(SystemExit):
        main()
    output = capsys.readouterr()
    assert len(output.out.splitlines()) == 2
    assert "line 2: The text looks like" in output.err
