"""The commands as a user calls them: results on standard output, remarks on standard error."""

from __future__ import annotations

import gzip
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dragoman as package
from dragoman.cli import main
from dragoman.data import phrasebook

Command = Callable[..., str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=300, valid=10, test=10)
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "training.batch_tokens=400",
        "text.vocab_size=400",
    ]
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    call("train", folder, *files, "--system", "bahdanau", "--steps", 4, "--device", "cpu", *options)
    return folder


def call(*arguments: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code


@pytest.fixture
def output(capfd: pytest.CaptureFixture[str]) -> Command:
    """What a command prints on standard output."""

    def run_and_read(*arguments: object) -> str:
        capfd.readouterr()
        call(*arguments)
        return capfd.readouterr().out

    return run_and_read


def test_training_writes_a_complete_run(run: Path) -> None:
    for name in ("config.yaml", "model.json", "tokenizer.json", "preflight.json", "metrics.jsonl", "report.html"):
        assert (run / name).is_file(), name
    assert (run / "checkpoints" / "best" / "model.safetensors").is_file()
    assert (run / "checkpoints" / "last").is_symlink()


def test_a_moved_run_works(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "moved", symlinks=True)
    shutil.rmtree(tmp_path / "moved" / "data")
    before = package.load(str(run)).translate(["Anna reads."])[0]
    assert package.load(str(tmp_path / "moved")).translate(["Anna reads."])[0] == before


def test_translation_keeps_order_and_agrees_with_the_python_interface(run: Path, corpus: Path, output: Command) -> None:
    lines = output("translate", run, corpus / "test.en", "--device", "cpu").splitlines()
    sources = (corpus / "test.en").read_text().splitlines()
    assert lines == [t.text for t in package.load(str(run), device="cpu").translate(sources)]


def test_standard_input_and_gzip_give_the_same(
    run: Path, corpus: Path, tmp_path: Path, output: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (corpus / "test.en").read_bytes()
    (tmp_path / "test.en.gz").write_bytes(gzip.compress(text))
    plain = output("translate", run, corpus / "test.en", "--beam-size", 1)
    assert output("translate", run, tmp_path / "test.en.gz", "--beam-size", 1) == plain
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    assert output("translate", run, "--beam-size", 1) == plain


def test_json_is_one_document(run: Path, corpus: Path, output: Command) -> None:
    document = json.loads(output("translate", run, corpus / "test.en", "--json", "--n-best", 2, "--alignment"))
    assert len(document) == 10
    assert document[0].keys() >= {"text", "score", "tokens", "alignment", "alternatives"}
    assert len(document[0]["alternatives"]) == 1
    assert document[0]["score"] <= 0


def test_n_best_lists_and_samples(run: Path, corpus: Path, output: Command) -> None:
    groups = output("translate", run, corpus / "test.en", "--n-best", 3, "--beam-size", 4).split("\n\n")
    assert len([group for group in groups if group.strip()]) == 10
    one = output("translate", run, corpus / "test.en", "--sample", "--seed", 1)
    assert one == output("translate", run, corpus / "test.en", "--sample", "--seed", 1)
    assert one != output("translate", run, corpus / "test.en", "--sample", "--seed", 2)


def test_sentences_of_a_line_are_split_and_lines_kept(run: Path, tmp_path: Path, output: Command) -> None:
    (tmp_path / "single").write_text("The dog sleeps.\nHe reads the book.\n")
    (tmp_path / "lines").write_text(" The dog sleeps.  He reads the book.\n\n12.\n\tHe reads the book.\n")
    first, second = output("translate", run, tmp_path / "single").splitlines()
    lines = output("translate", run, tmp_path / "lines", "--split-sentences").split("\n")
    assert lines == [f"{first} {second}", "", "12.", second, ""]


def test_a_run_records_how_text_is_normalised(run: Path) -> None:
    settings = package.load(run).config
    assert settings.text.normalize_whitespace is True
    assert settings.search.copy_untranslatable is True


def test_evaluation_prints_scores_with_signatures(run: Path, corpus: Path, output: Command) -> None:
    files = ["--source", corpus / "test.en", "--reference", corpus / "test.de"]
    text = output("evaluate", run, *files, "--alignments", corpus / "test.align", "--by-length")
    for name in ("BLEU", "chrF", "TER", "exact match", "perplexity", "AER"):
        assert name in text
    assert "nrefs:1|case:mixed" in text
    scores = json.loads(output("evaluate", run, *files, "--metrics", "bleu", "--json"))["scores"]
    assert [score["name"] for score in scores] == ["BLEU"]


def test_scores_are_those_of_the_translations(run: Path, corpus: Path, tmp_path: Path, output: Command) -> None:
    found = json.loads(output("translate", run, corpus / "test.en", "--json"))
    finished = [(n, t) for n, t in enumerate(found) if t["finished"]]
    sources = (corpus / "test.en").read_text().splitlines()
    (tmp_path / "s").write_text("".join(sources[n] + "\n" for n, _ in finished) or "a\n")
    (tmp_path / "t").write_text("".join(t["text"] + "\n" for _, t in finished) or "a\n")
    lines = output("score", run, "--source", tmp_path / "s", "--target", tmp_path / "t", "--token-scores").splitlines()
    for line, (_, translation) in zip(lines, finished):
        total, *tokens = line.split("\t")
        assert math.isclose(float(total), sum(float(t.rsplit(" ", 1)[1]) for t in tokens), abs_tol=1e-2)
        if len(tokens) == len(translation["tokens"]) + 1:  # the same pieces as the search wrote
            assert math.isclose(float(total), translation["score"], abs_tol=1e-2)


def test_systems_are_listed_described_and_compared(output: Command) -> None:
    listed = output("systems")
    assert "bahdanau" in listed
    assert "2017" in listed
    assert "Attention Is All You Need" in output("systems", "transformer", "--size", "tiny")
    assert "context.score" in output("systems", "luong", "--diff", "bahdanau", "--size", "tiny")
    assert output("systems", "cho", "--diff", "cho").strip() == "no difference"
    assert {row["system"] for row in json.loads(output("systems", "--json"))} >= {"cho", "luong", "sutskever"}


def test_show_describes_a_run_and_a_sentence(run: Path, tmp_path: Path, output: Command) -> None:
    assert "bahdanau" in output("show", run)
    picture = tmp_path / "look.svg"
    text = output("show", run, "The old man reads a book.", "--svg", picture)
    assert "man" in text
    assert picture.read_text().startswith("<svg")
    looked = json.loads(output("show", run, "The old man.", "--json"))
    for row in looked["cross"]:
        assert math.isclose(sum(row), 1.0, abs_tol=1e-4)


def test_the_phrasebook_is_written_with_alignments(tmp_path: Path) -> None:
    call("phrasebook", tmp_path / "pb", "--pairs", 400, "--seed", 3)
    lines = {end: (tmp_path / "pb" / f"train.{end}").read_text().splitlines() for end in ("en", "de", "align")}
    assert {len(found) for found in lines.values()} == {400}


def test_resuming_a_finished_run_with_more_steps(run: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(run, tmp_path / "more", symlinks=True)
    call("train", tmp_path / "more", "--resume", "--steps", 6)
    assert (tmp_path / "more" / "checkpoints" / "last").resolve().name == "000006"


def test_logits_do_not_depend_on_the_side_of_padding(run: Path) -> None:
    import torch

    loaded = package.load(str(run), device="cpu")
    source, target = torch.tensor([[9, 8, 7, 3], [9, 3, 0, 0]]), torch.tensor([[2, 11, 12], [2, 11, 0]])
    right = loaded.logits(source, target)
    left_source, left_target = torch.tensor([[9, 8, 7, 3], [0, 0, 9, 3]]), torch.tensor([[2, 11, 12], [0, 2, 11]])
    left = loaded.logits(left_source, left_target)
    torch.testing.assert_close(left[0], right[0])
    torch.testing.assert_close(left[1, 1:], right[1, :2])


@pytest.mark.parametrize(
    ("kind", "joint"), [("unigram", "true"), ("word", "false"), ("character", "true"), ("byte", "false")]
)
def test_every_kind_of_tokenizer_trains_and_translates(
    corpus: Path, tmp_path: Path, output: Command, kind: str, joint: str
) -> None:
    settings = {
        "text.tokenizer": kind,
        "text.shared_vocabulary": joint,
        "text.vocab_size": 500,
        "system.settings.model_dim": 8,
        "training.batch_tokens": 600,
        "data.max_length": 300,
        "training.validation_sentences": 2,
    }
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de", "--system", "cho", "--steps", 1]
    call("train", tmp_path / "run", *files, *options)
    (tmp_path / "text").write_text("Anna reads.\n")
    assert output("translate", tmp_path / "run", tmp_path / "text", "--beam-size", 1).count("\n") == 1


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_training_from_one_file_with_both_sides(corpus: Path, tmp_path: Path, form: str) -> None:
    sides = zip(*((corpus / f"train.{end}").read_text().splitlines() for end in ("en", "de")))
    lines = [f"{s}\t{t}" if form == "tsv" else json.dumps({"source": s, "target": t}) for s, t in sides]
    both = tmp_path / f"train.{form}.gz"
    both.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    options = [
        "--set",
        "system.settings.model_dim=8",
        "--set",
        "training.batch_tokens=400",
        "--set",
        "data.max_length=100",
    ]
    call("train", tmp_path / "run", "--source", both, "--system", "cho", "--steps", 1, *options)
    assert json.loads((tmp_path / "run" / "preflight.json").read_text())["pairs"] > 200


def test_a_long_source_is_truncated_with_a_warning(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("very " * 2000 + "\nAnna reads.\n")
    call("translate", run, tmp_path / "text", "--beam-size", 1)
    out, err = capfd.readouterr()
    assert len(out.splitlines()) == 2
    assert "sources truncated to search.max_source_length tokens: 1" in err
