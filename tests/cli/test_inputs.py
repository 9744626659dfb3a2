"""One reader for every command: the same test set as text, TSV or JSON lines gives the same result."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from calling import Answer, Dragoman

from dragoman.cli import inputs
from dragoman.cli.inputs import Input, PairFormat, read_pairs, read_texts
from dragoman.errors import UserError

PAIRS = [("The dog sleeps.", "Der Hund schläft."), ("Anna reads.", "Anna liest."), ("", "nichts")]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "a.en").write_text("".join(f"{s}\n" for s, _ in PAIRS), encoding="utf-8")
    (tmp_path / "a.de").write_text("".join(f"{t}\n" for _, t in PAIRS), encoding="utf-8")
    (tmp_path / "a.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in PAIRS), encoding="utf-8")
    (tmp_path / "turned.tsv").write_text("".join(f"x\t{t}\t{s}\n" for s, t in PAIRS), encoding="utf-8")
    records = "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in PAIRS)
    (tmp_path / "a.jsonl").write_text(records, encoding="utf-8")
    (tmp_path / "named.jsonl").write_text(records.replace("source", "en").replace("target", "de"), encoding="utf-8")
    for name in ("a.tsv", "a.jsonl", "a.en"):
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress((tmp_path / name).read_bytes()))
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target", "columns"),
    [
        ("a.en", "a.de", PairFormat()),
        ("a.en.gz", "a.de", PairFormat()),
        ("a.tsv", None, PairFormat()),
        ("a.tsv.gz", None, PairFormat()),
        ("turned.tsv", None, PairFormat(source_column="2", target_column="1")),
        ("a.jsonl", None, PairFormat()),
        ("a.jsonl.gz", None, PairFormat()),
        ("named.jsonl", None, PairFormat(source_column="en", target_column="de")),
    ],
)
def test_every_format_gives_the_same_pairs(files: Path, source: str, target: str | None, columns: PairFormat) -> None:
    sources, targets = read_pairs(files / source, target and files / target, columns)
    assert list(zip(sources, targets)) == PAIRS
    assert list(Input(files / source, columns).sources()) == [s for s, _ in PAIRS]


@pytest.mark.parametrize(("name", "columns"), [("a.en", PairFormat()), ("a.tsv", PairFormat("tsv"))])
def test_standard_input_has_the_same_formats(
    files: Path, name: str, columns: PairFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((files / name).read_bytes())))
    assert list(Input(None, columns).sources()) == [s for s, _ in PAIRS]


def test_a_format_that_cannot_be_streamed_is_refused() -> None:
    with pytest.raises(UserError, match="parquet cannot be read from standard input: name a file"):
        Input(None, PairFormat("parquet")).check()


def test_the_target_of_a_dialogue_is_its_last_reply(tmp_path: Path) -> None:
    dialogues = [["Hello.", "Hi.", "Who?", "Me."], ["Hello.", "Hi.", "Bye."], ["Hello."]]
    path = tmp_path / "d.jsonl"
    path.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in dialogues[:2]))
    assert read_pairs(path, None, PairFormat()) == (["Hello.\tHi.\tWho?", "Hello."], ["Me.", "Hi."])
    path.write_text(json.dumps({"turns": dialogues[2]}) + "\n")
    assert list(Input(path).sources()) == ["Hello."]


@pytest.mark.parametrize(
    ("source", "target", "columns", "message"),
    [
        ("a.en", None, PairFormat(), "only source texts, without translations: name their file with --reference"),
        ("a.tsv", "a.de", PairFormat(), "a.tsv is read as tsv, a format that contains source and target"),
        ("a.en", "a.jsonl", PairFormat(), "a.jsonl has the suffix of a format that contains source and target"),
        ("a.tsv", None, PairFormat(source_column="0", target_column="7"), "line 1: expected columns 0 and 7"),
        ("named.jsonl", None, PairFormat("", "en"), "name their key with --target-column"),
        ("a.en", "a.de", PairFormat("xml"), "unknown corpus format 'xml'"),
    ],
)
def test_unreadable_input_is_reported(
    files: Path, source: str, target: str | None, columns: PairFormat, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        read_pairs(files / source, target and files / target, columns, "--reference")


@pytest.mark.parametrize("name", ["a.xlsx", "a.xml", "a.zip", "a.arrow"])
def test_a_file_of_another_kind_is_rejected_by_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a,b\n")
    with pytest.raises(UserError, match="which is not supported"):
        Input(tmp_path / name).check()
    assert list(Input(tmp_path / name, PairFormat("text")).sources()) == ["a,b"]


def test_texts_are_read_from_tsv_only_with_format_text(files: Path) -> None:
    with pytest.raises(UserError, match=r"a\.tsv is a tsv file"):
        read_texts(files / "a.tsv")
    assert len(read_texts(files / "a.tsv", "text")) == 3


def test_typed_lines_are_processed_one_by_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    typed = iter(["one", KeyboardInterrupt(), "bad", "cancelled", "two", EOFError()])

    def type_line(prompt: str) -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("builtins.input", type_line)
    monkeypatch.setattr(sys, "stdin", Terminal())
    seen = []

    def answer(sources: list[str], first: int) -> None:
        seen.append((*sources, first))
        if sources == ["bad"]:
            raise UserError("cannot be answered")
        if sources == ["cancelled"]:
            raise KeyboardInterrupt

    assert Input(None).interactive
    Input(None).process(answer)
    assert seen == [("one", 0), ("bad", 1), ("cancelled", 2), ("two", 3)]
    assert "dragoman: cannot be answered" in capfd.readouterr().err


def hypotheses(files: Path, *lines: str) -> Path:
    path = files / f"hypothesis-{len(list(files.glob('hypothesis*')))}"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def scores(answer: Answer) -> dict[str, float]:
    assert answer.code == 0, answer.err
    return {score["name"]: score["value"] for score in json.loads(answer.out)["scores"]}


def test_hypotheses_of_other_systems_are_scored_like_sacrebleu(dragoman: Dragoman, files: Path) -> None:
    from sacrebleu import BLEU, CHRF, TER

    texts = ["Der Hund schläft heute.", "Anna liest.", "nichts"]
    others = ["Der Hund schläft heute.", "Anna liest ein Buch.", "gar nichts"]
    first, second = files / "a.de", hypotheses(files, *others)
    found = scores(
        dragoman(
            "evaluate", "--hypothesis", hypotheses(files, *texts), "--reference", first, "--reference", second, "--json"
        )
    )
    streams = [[t for _, t in PAIRS], others]
    for name, metric in (("BLEU", BLEU()), ("chrF", CHRF()), ("TER", TER())):
        assert found[name] == pytest.approx(metric.corpus_score(texts, streams).score)
    assert found["exact match"] == 100.0  # each equals one of its references
    only = scores(dragoman("evaluate", "--hypothesis", hypotheses(files, *texts), "--reference", first, "--json"))
    assert only["BLEU"] == pytest.approx(BLEU().corpus_score(texts, streams[:1]).score)
    assert only["exact match"] == pytest.approx(200 / 3)


@pytest.mark.parametrize("name", ["a.tsv", "a.jsonl.gz"])
def test_references_in_tsv_and_json_lines_give_the_same_scores_as_text(
    dragoman: Dragoman, files: Path, name: str
) -> None:
    texts = hypotheses(files, "Der Hund schläft heute.", "Anna liest.", "alles")
    plain = ["--source", files / "a.en", "--reference", files / "a.de"]
    expected = dragoman("evaluate", "--hypothesis", texts, *plain, "--by-length", "--json")
    assert dragoman("evaluate", "--hypothesis", texts, "--source", files / name, "--by-length", "--json") == expected
    assert scores(expected)["exact match"] == pytest.approx(100 / 3)


def test_equal_sources_share_their_references(dragoman: Dragoman, tmp_path: Path) -> None:
    """Two pronunciations of tomato: each answer equals one of them, cat has one wrong phoneme of three."""
    pairs = [("tomato", "T AH M EY T OW"), ("cat", "K AE T"), ("tomato", "T AH M AA T OW")]
    test = tmp_path / "test.tsv"
    test.write_text("".join(f"{word}\t{phonemes}\n" for word, phonemes in pairs), encoding="utf-8")
    answers = hypotheses(tmp_path, "T AH M AA T OW", "K AH T", "T AH M AA T OW")
    options = ["evaluate", "--hypothesis", answers, "--source", test, "--json"]
    alone = scores(dragoman(*options))
    assert alone == pytest.approx(
        {"exact match": 100 / 3, "item error rate": 200 / 3, "phoneme error rate": 100 * 2 / 15}
    )
    together = scores(dragoman(*options, "--group-by-source"))
    assert together == pytest.approx({"exact match": 50, "item error rate": 50, "phoneme error rate": 100 * 1 / 9})
    refused = dragoman("evaluate", "--hypothesis", answers, "--reference", answers, "--group-by-source")
    assert (refused.code, "name the source texts with --source" in refused.err) == (2, True)


def test_two_systems_are_compared_by_a_paired_bootstrap(dragoman: Dragoman, files: Path) -> None:
    bad, good = hypotheses(files, "Hund.", "Buch.", "x"), hypotheses(files, *(t for _, t in PAIRS))
    answer = dragoman("evaluate", "--hypothesis", bad, "--hypothesis", good, "--reference", files / "a.de", "--json")
    document = json.loads(answer.out)
    assert [system["hypothesis"] for system in document["systems"]] == [str(bad), str(good)]
    (rows,) = document["comparisons"].values()
    assert [row["metric"] for row in rows] == ["bleu", "chrf", "ter", "exact-match"]
    assert rows[1]["system"] == pytest.approx(100.0)
    text = dragoman("evaluate", "--hypothesis", bad, "--hypothesis", good, "--reference", files / "a.de").out
    assert "paired bootstrap" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "but got neither"),
        (["--hypothesis", "a.de"], "no test set is given"),
        (["--hypothesis", "a.de", "--source", "a.en"], "--hypothesis needs reference translations"),
        (["--hypothesis", "short", "--reference", "a.de"], "a.de has 3 lines but short has 1"),
        (["--hypothesis", "a.de", "--reference", "a.de", "--reference", "short"], "a.de has 3 lines but short has 1"),
        (
            ["--hypothesis", "a.de", "--reference", "a.de", "--beam-size", "3"],
            "--beam-size applies to the translations of a run",
        ),
        (
            ["--hypothesis", "a.de", "--reference", "a.de", "--metrics", "perplexity"],
            "perplexity needs a model",
        ),
        (["--hypothesis", "a.de", "--reference", "a.de", "--by-length"], "name the source texts with --source"),
        (["--hypothesis", "a.tsv", "--reference", "a.de"], "a.tsv is a tsv file"),
        (["--hypothesis", "nowhere", "--reference", "a.de"], "nowhere does not exist"),
    ],
)
def test_impossible_evaluations_are_reported(
    dragoman: Dragoman, files: Path, arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    (files / "short").write_text("Der Hund schläft.\n", encoding="utf-8")
    answer = dragoman("evaluate", *arguments)
    assert answer.code == 2
    assert message in answer.err
    assert len(answer.err.strip().splitlines()) == 1


def test_a_terminal_gets_a_prompt_on_standard_error(tmp_path: Path) -> None:
    """The reader as a process at a terminal: lines are answered as they come, Ctrl-C drops one, Ctrl-D ends."""
    pty = pytest.importorskip("pty")
    import os
    import subprocess

    code = (
        "from dragoman.cli.inputs import Input\n"
        "Input(None).process(lambda lines, first: print(f'{first}: {lines[0].upper()}', flush=True))\n"
        "print('ended', flush=True)"
    )
    ours, theirs = pty.openpty()
    out = (tmp_path / "out").open("wb")
    environment = os.environ | {"PYTHONPATH": str(Path(inputs.__file__).parents[2]), "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=out, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    shown = b""

    def until(text: bytes, times: int = 1) -> None:
        nonlocal shown
        while shown.count(text) < times:
            shown += os.read(ours, 1000)

    until(b"> ")
    os.write(ours, b"hallo\n")
    until(b"> ", 2)
    assert (tmp_path / "out").read_bytes() == b"0: HALLO\n"
    os.write(ours, b"welt\n")
    until(b"> ", 3)
    assert (tmp_path / "out").read_bytes() == b"0: HALLO\n1: WELT\n"
    os.write(ours, b"\x04")
    assert process.wait(timeout=60) == 0
    os.close(ours)
    out.close()
    assert (tmp_path / "out").read_bytes() == b"0: HALLO\n1: WELT\nended\n"
