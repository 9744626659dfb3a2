"""`dragoman show …` and `dragoman diagnose` as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from dragoman.cli import main
from dragoman.data import TokenStore, phrasebook

SENTENCE = "The old man reads the book."
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=200, valid=10, test=10)
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "system.settings.heads=2",
        "text.vocab_size=400",
    ]
    settings += [
        "training.batch_tokens=400",
        "search.beam_size=2",
        "search.max_target_length=30",
    ]  # it will not know how to end
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    assert not call(
        "train",
        folder,
        *files,
        "--system",
        "transformer",
        "--steps",
        4,
        "--keep-history",
        3,
        "--device",
        "cpu",
        *options,
    )
    return folder


def call(*arguments: object) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.fixture
def dragoman(capfd: pytest.CaptureFixture[str]) -> Command:
    """The exit status, and what was said on standard output and error."""

    def run_and_read(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        code = call(*arguments)
        return code, *capfd.readouterr()

    return run_and_read


@pytest.mark.parametrize("what", ["attention", "alternatives", "layers", "beam"])
def test_a_sentence_is_shown_as_text_json_and_figure(what: str, run: Path, tmp_path: Path, dragoman: Command) -> None:
    code, text, _ = dragoman("show", what, run, SENTENCE)
    assert code == 0
    assert text.strip()
    picture = tmp_path / f"{what}.svg"
    code, text, said = dragoman("show", what, run, SENTENCE, "--json", "--svg", picture)
    assert code == 0
    assert json.loads(text)["source"]["text"] == SENTENCE
    assert picture.read_text().startswith("<svg")
    assert f"wrote {picture}" in said


def test_a_png_is_written(run: Path, tmp_path: Path, dragoman: Command) -> None:
    pytest.importorskip("resvg_py")
    picture = tmp_path / "head.png"
    options = ["--kind", "cross", "--layer", 1, "--head", 2, "--png", picture, "--dark"]
    assert dragoman("show", "attention", run, SENTENCE, *options)[0] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_show_all_prints_one_json_document(run: Path, dragoman: Command) -> None:
    code, text, _ = dragoman("show", "all", run, SENTENCE, "--target", "Der alte Mann liest das Buch.")
    assert code == 0
    document = json.loads(text)
    assert document["target"]["words"] == ["Der", "alte", "Mann", "liest", "das", "Buch."]
    assert document["beam"] is None


def test_positions_and_gradients_need_no_sentence(run: Path, tmp_path: Path, dragoman: Command) -> None:
    assert json.loads(dragoman("show", "positions", run, "--json", "--num-positions", 8)[1])
    assert dragoman("show", "positions", run, "--svg", tmp_path / "places.svg")[0] == 0
    assert (tmp_path / "places.svg").exists()
    code, text, _ = dragoman(
        "show", "gradients", run, SENTENCE, "--target", "Der Mann.", "--compare-with", run, "--json"
    )
    assert code == 0
    assert len(json.loads(text)) == 2


def test_a_run_is_described_in_words(run: Path, dragoman: Command) -> None:
    rows = {line[:18].strip(): line[18:] for line in dragoman("show", run)[1].splitlines()}
    described = json.loads(dragoman("show", run, "--json")[1])
    record = described["last validation"]
    assert rows["last validation"].startswith(f"step 4  loss {record['loss']:.3f}  perplexity ")
    assert "{" not in "".join(rows.values())
    steps = sorted(int(path.name) for path in (run / "checkpoints" / "history").iterdir())
    assert described["history"] == steps
    assert rows["history"] == f"steps {', '.join(map(str, steps))}, see 'show history'"


def test_all_validation_sentences_are_announced_if_all_are_decoded(run: Path) -> None:
    """Twenty of the 200 pairs are held out, and at least 50 would be decoded."""
    held_out = len(TokenStore(run / "data" / "valid"))
    assert yaml.safe_load((run / "config.yaml").read_text())["training"]["validation_sentences"] == held_out


def test_mistakes_are_reported_in_one_sentence(run: Path, tmp_path: Path, dragoman: Command) -> None:
    mistakes = {
        "choose one of encoder 1, decoder 1, cross 1": ["show", "attention", run, SENTENCE, "--layer", 5],
        "the source sentence is empty": ["show", "beam", run, " "],
        "leave --beam-size out": ["show", "layers", run, SENTENCE, "--target", "Der Mann.", "--beam-size", 3],
        "is not a run folder": ["show", "attention", tmp_path, SENTENCE],
        "unknown command of show 'attenton': did you mean 'attention'?": ["show", "attenton", run, "--json"],
        "does not exist": ["show", tmp_path / "none"],
        "is not a run folder: name the folder that 'dragoman train' creates": ["watch", tmp_path.parent],
        "name its source file with --source": ["diagnose", run, "--target", run / "config.yaml"],
    }
    for answer, arguments in mistakes.items():
        code, text, said = dragoman(*arguments)
        assert (code, text) == (2, "")
        assert answer in said
        assert "Traceback" not in said


def test_a_run_is_diagnosed(run: Path, corpus: Path, tmp_path: Path, dragoman: Command) -> None:
    files = ["--source", corpus / "test.en", "--target", corpus / "test.de", "--alignments", corpus / "test.align"]
    code, text, _ = dragoman("diagnose", run, *files, "--max-sentences", 5, "--json", "--html", tmp_path / "page.html")
    assert code == 0
    document = json.loads(text)
    assert document["sentences"] == 5
    assert [one["name"] for one in document["findings"]][-1] == "alignment"
    assert "<h1>" in (tmp_path / "page.html").read_text()
    code, text, _ = dragoman("diagnose", run, "--max-sentences", 3)
    assert code == 0
    assert "Gender where the source has none" in text
