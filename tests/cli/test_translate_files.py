"""Files of any size: written bit by bit, stopped or killed and gone on with, the same bytes in the end."""

from __future__ import annotations

import errno
import fcntl
import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dragoman import load
from dragoman.cli import main
from dragoman.cli.options import program_name
from dragoman.cli.translation_output import LineProgress
from dragoman.data import phrasebook
from dragoman.data.token_store import TokenStore
from dragoman.run import Run, Translation, file_translation
from dragoman.text.documents.document import DOCUMENT_FORMATS


class Answer(NamedTuple):
    code: int
    out: bytes
    err: str


Dragoman = Callable[..., Answer]


@pytest.fixture
def dragoman(monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]) -> Dragoman:
    """The command line, called in this process, with windows of four lines."""
    monkeypatch.setattr(file_translation, "window_size", lambda run: 4)

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfdbinary.readouterr()
        return Answer(int(ended.value.code or 0), out, err.decode())

    return call


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus") / "phrasebook"
    phrasebook.write(folder, pairs=300, valid=10, test=10)
    return folder


@pytest.fixture(scope="module")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three steps, whose translations have six tokens at most."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = [
        "system.settings.model_dim=16",
        "system.settings.layers=1",
        "training.batch_tokens=400",
        "text.vocab_size=400",
    ]
    settings += ["search.max_target_length=6", "search.beam_size=4"]
    options = [part for setting in settings for part in ("--set", setting)]
    files = ["--source", corpus / "train.en", "--target", corpus / "train.de"]
    with pytest.MonkeyPatch.context() as patch:
        arguments = ["train", folder, *files, "--system", "bahdanau", "--steps", 3, "--device", "cpu", *options]
        patch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fourteen lines: empty ones, one with a Windows end, the last without any."""
    path = tmp_path_factory.mktemp("text") / "text.en"
    lines = [pair.source for pair, _ in zip(phrasebook.sentences(3), range(12))]
    path.write_bytes("\n".join([lines[0] + "\r", "", *lines[1:6], "  ", *lines[6:]]).encode())
    return path


def stopping(windows: int, trouble: Callable[[], object]) -> Callable[..., Iterator[Translation]]:
    """A stream of translations with trouble before the window after some others."""
    stream, left = Run.translate_stream, windows

    def translate_stream(*arguments: Any, **options: Any) -> Iterator[Translation]:
        nonlocal left
        if not left:
            trouble()
        left -= 1
        return stream(*arguments, **options)

    return translate_stream


def interrupt() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not there where tests run in the background
    os.kill(os.getpid(), signal.SIGINT)


def sentence(answer: Answer) -> str:
    assert answer.code == 2, answer.err
    assert "Traceback" not in answer.err
    last = answer.err.strip().splitlines()[-1]
    assert last.startswith("dragoman: ")
    return last


FORMATS = [
    ["--beam-size", 1],
    ["--n-best", 3],
    ["--alignment"],
    ["--json-lines", "--n-best", 2, "--alignment"],
    ["--sample", "--seed", 5],
    ["--sample", "--n-best", 2, "--top-k", 20, "--json-lines"],
]


@pytest.mark.parametrize("options", FORMATS, ids=lambda options: " ".join(map(str, options)))
def test_an_interrupted_translation_is_resumed(
    options: list[object], dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole", tmp_path / "out"
    answer = dragoman("translate", run, text, "-o", whole, *options)
    assert answer.code == 0, answer.err
    assert answer.out == b""
    assert f"{whole}: 14 lines in 0:0" in answer.err
    for windows in range(4) if options is FORMATS[0] else (2,):
        with monkeypatch.context() as patch:
            patch.setattr(Run, "translate_stream", stopping(windows, interrupt))
            stopped = dragoman("translate", run, text, "--output", output, *options)
        assert stopped.code == 130
        assert not output.exists()
        if windows:
            assert f"{4 * windows} lines are translated and saved in {output}.part" in stopped.err
            assert f"continue with:  {program_name()} translate {run} {text} --output {output} " in stopped.err
            assert "--resume\n" in stopped.err
        else:
            assert list(tmp_path.iterdir()) == [whole]
        again = dragoman("translate", run, text, "--output", output, *options, "--resume")
        assert again.code == 0, again.err
        assert (f"resuming after {4 * windows} lines" in again.err) == bool(windows)
        assert output.read_bytes() == whole.read_bytes()
        assert again.err.splitlines()[-2] == answer.err.splitlines()[-2]  # how many reached the limit, of all
        output.unlink()
    assert list(tmp_path.iterdir()) == [whole]


def test_a_file_has_the_same_content_as_standard_output(
    dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_translation, "window_size", lambda run: 100)
    for number, options in enumerate(FORMATS):
        output = tmp_path / str(number)
        assert dragoman("translate", run, text, "-o", output, *options).code == 0
        assert dragoman("translate", run, text, *options).out == output.read_bytes()
    assert output.read_bytes().count(b"\n") == 14


def test_one_output_line_per_source(dragoman: Dragoman, run: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    assert dragoman("translate", run, text, "-o", output).code == 0
    lines = output.read_text().split("\n")
    assert [not line for line in lines] == [number in (1, 7, 14) for number in range(15)]
    output.unlink()
    assert dragoman("translate", run, text, "-o", output, "--n-best", 2).code == 0
    assert [len(group.split("\n")) for group in output.read_text().split("\n\n")[:-1]].count(2) == 12


def test_json_lines_equal_json(dragoman: Dragoman, run: Path, text: Path, tmp_path: Path) -> None:
    answer = dragoman("translate", run, text, "--json", "--beam-size", 2)
    printed = dragoman("translate", run, text, "--json-lines", "--beam-size", 2)
    assert [json.loads(line) for line in printed.out.splitlines()] == json.loads(answer.out)


def test_gzipped_and_piped_input(
    dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, plain = tmp_path / "text.gz", tmp_path / "plain"
    packed.write_bytes(gzip.compress(text.read_bytes(), mtime=0))
    assert dragoman("translate", run, text, "-o", plain, "--beam-size", 1).code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Run, "translate_stream", stopping(2, interrupt))
        assert dragoman("translate", run, packed, "-o", tmp_path / "a", "--beam-size", 1).code == 130
    answer = dragoman("translate", run, packed, "-o", tmp_path / "a", "--beam-size", 1, "--resume")
    assert "resuming after 8 lines" in answer.err
    assert (tmp_path / "a").read_bytes() == plain.read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.read_bytes())))
    answer = dragoman("translate", run, "-o", tmp_path / "b", "--beam-size", 1)
    assert "b: 14 lines in" in answer.err
    assert (tmp_path / "b").read_bytes() == plain.read_bytes()
    assert "--resume cannot continue a translation of standard input" in sentence(
        dragoman("translate", run, "-o", tmp_path / "c", "--resume")
    )


def test_existing_output_files(dragoman: Dragoman, run: Path, text: Path, tmp_path: Path) -> None:
    output, other = tmp_path / "out", tmp_path / "other"
    command = ("translate", run, text, "-o", output, "--beam-size", 1)
    assert dragoman(*command).code == 0
    translated = output.read_bytes()
    assert "out exists already: add --overwrite" in sentence(dragoman(*command))
    answer = dragoman(*command, "--resume")
    assert answer.code == 0
    assert answer.err == f"{output} is already complete\n"
    assert output.read_bytes() == translated
    other.write_text("Anna reads.\n")
    assert dragoman("translate", run, other, "-o", output, "--overwrite").code == 0
    assert output.read_bytes().count(b"\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_resuming_with_other_options_or_input_is_rejected(
    dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, other = tmp_path / "out", tmp_path / "other"
    other.write_bytes(text.read_bytes().replace(b"the", b"a"))
    with monkeypatch.context() as patch:
        patch.setattr(Run, "translate_stream", stopping(2, interrupt))
        assert dragoman("translate", run, text, "-o", output).code == 130
    dictionary = tmp_path / "dictionary"
    dictionary.write_text("cat\tKatze\n")
    for more, expected in [
        (["--beam-size", 3], "was started with search size = 4, but now search size is 3"),
        (["--sample"], "was started with search = 'Beam', but now search is 'Sample'"),
        (["--n-best", 2], "was started with search n_best = 1, but now search n_best is 2"),
        (["--alignment"], "was started with --alignment = False, but now --alignment is True"),
        (["--json-lines"], "was started with --json-lines = False"),
        (["--copy-unknown"], "was started with --copy-unknown = False"),
        (["--dictionary", dictionary], "was started with --dictionary = None"),
        (["--corpus-tag", "news"], "was started with --corpus-tag = None, but now --corpus-tag is 'news'"),
    ]:
        assert expected in sentence(dragoman("translate", run, text, "-o", output, "--resume", *more))
    said = sentence(dragoman("translate", run, other, "-o", output, "--resume"))
    assert "the first 8 lines of the input are not those that were translated" in said
    assert "resume it with --resume, or start again" in sentence(dragoman("translate", run, text, "-o", output))
    assert dragoman("translate", run, text, "-o", output, "--resume").code == 0


def test_resuming_with_other_weights_is_rejected(
    dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "translate_stream", stopping(2, interrupt))
        assert dragoman("translate", run, text, "-o", output).code == 130
    manifest = run / "checkpoints" / "best" / "checkpoint.json"
    content = manifest.read_bytes()
    try:
        manifest.write_bytes(content + b" ")
        assert "was started with model = '" in sentence(dragoman("translate", run, text, "-o", output, "--resume"))
    finally:
        manifest.write_bytes(content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "does not exist"),
        (b"fine\n" * 10 + b"bad \xff\n", "text, line 11 is not UTF-8"),
        (gzip.compress(b"fine\n" * 1000, mtime=0)[:-9], "text is not valid gzip data"),
    ],
)
def test_unreadable_input_is_reported_before_writing(
    content: bytes | None, expected: str, dragoman: Dragoman, run: Path, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "text").write_bytes(content)
    for more in ([], ["--resume"]):
        assert expected in sentence(dragoman("translate", run, tmp_path / "text", "-o", tmp_path / "out", *more))
    assert {path.name for path in tmp_path.iterdir()} <= {"text"}


def test_help_lists_the_formats_of_documents(dragoman: Dragoman) -> None:
    text = " ".join(dragoman("translate", "--help").out.decode().split())
    listed = re.search(r"a document, whose structure is kept: ([\w, ]+)\.", text)
    assert listed is not None
    assert listed[1].replace(" or ", ", ").split(", ") == [*DOCUMENT_FORMATS]


def test_documents_keep_their_structure(dragoman: Dragoman, run: Path, tmp_path: Path) -> None:
    page, output = tmp_path / "page.html", tmp_path / "seite.html"
    page.write_text('<html lang="en"><p>Anna <b>reads</b>.</p>\n<pre>Anna</pre>', encoding="utf-8")
    answer = dragoman("translate", run, page, "--output", output)
    assert (answer.code, answer.out) == (0, b"")
    assert "1 sentence in" in answer.err
    translated = output.read_text(encoding="utf-8")
    assert re.fullmatch(r'<html lang="de"><p>[^<>]*<b>[^<>]*</b>[^<>]*</p>\n<pre>Anna</pre>', translated)
    assert dragoman("translate", run, page).out == output.read_bytes()
    assert "exists already" in sentence(dragoman("translate", run, page, "--output", output))
    # the same from Python, and text by its lines
    loaded = load(run, device="cpu")
    assert loaded.translate_document(page.read_bytes(), page.name).decode() == translated
    lines = tmp_path / "text.txt"
    lines.write_bytes(b"Anna reads. Anna sleeps.\r\n\r\nAnna\r\n")
    found = dragoman("translate", run, lines, "--format", "txt").out
    first = [loaded.translate([text], alignment=False)[0].text for text in ("Anna reads.", "Anna sleeps.", "Anna")]
    assert found.decode() == "{} {}\r\n\r\n{}\r\n".format(*first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--alignment"], "--alignment only works for text that is translated line by line"),
        (["--n-best", 2, "--stream"], "a document is only written when it is translated completely"),
        (["--format", "docx"], "not a Word document"),
        (["--n-best", 2], "--n-best only works for text that is translated line by line"),
        (["--format", "text", "--preserve", "numbers"], "--preserve needs a document"),
    ],
)
def test_options_that_do_not_fit_to_documents(
    options: list[object], message: str, dragoman: Dragoman, run: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(b"<p>Anna reads.</p>")
    assert message in sentence(dragoman("translate", run, page, *options))


def test_an_empty_file_gives_an_empty_file(dragoman: Dragoman, run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"")
    assert dragoman("translate", run, tmp_path / "text").out == b""
    for more in ([], ["--overwrite"], ["--resume"]):
        assert dragoman("translate", run, tmp_path / "text", "-o", tmp_path / "out", *more).code == 0
        assert (tmp_path / "out").read_bytes() == b""
    assert {path.name for path in tmp_path.iterdir()} == {"text", "out"}


def test_contradictory_output_options(dragoman: Dragoman, run: Path, text: Path, tmp_path: Path) -> None:
    out, copy = tmp_path / "out", tmp_path / "copy"
    copy.write_text("Anna reads.\n")
    for arguments, expected in [
        ([text, "--resume"], "--resume needs an output file: name it with --output"),
        ([text, "--overwrite"], "--overwrite needs an output file: name it with --output"),
        ([text, "-o", out, "--json"], "cannot be used with --output: use --json-lines"),
        ([text, "--json", "--json-lines"], "use one of them"),
        ([tmp_path, "-o", out], "is a folder: name a file in it"),
        ([text, "-o", tmp_path], "is a folder: name a file in it"),
        ([text, "-o", tmp_path / "none" / "out"], "does not exist, create it first"),
        ([text, "-o", tmp_path / "out.gz"], "cannot be written compressed"),
        ([copy, "-o", copy, "--overwrite"], "is the input: choose another file"),
    ]:
        assert expected in sentence(dragoman("translate", run, *arguments))
    assert copy.read_text() == "Anna reads.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_full_disk(
    dragoman: Dragoman, run: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    command = ("translate", run, text, "--beam-size", 1, "-o")
    assert dragoman(*command, tmp_path / "whole").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Run, "translate_stream", stopping(2, lambda: patch.setattr(os, "fsync", full)))
        answer = dragoman(*command, tmp_path / "out")
    assert "out is full: free some space" in sentence(answer)
    assert "8 lines are translated and saved" in answer.err
    assert dragoman(*command, tmp_path / "out", "--resume").code == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_second_process_is_rejected(dragoman: Dragoman, run: Path, text: Path, tmp_path: Path) -> None:
    with (tmp_path / "out.part.journal").open("w") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        for more in ([], ["--resume"], ["--overwrite"]):
            said = sentence(dragoman("translate", run, text, "-o", tmp_path / "out", *more))
            assert "out is being written by another process: wait for it, or stop it" in said


def test_progress_without_a_terminal(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = LineProgress(10_000)
    with progress.bar:
        progress.update(1000)
        for done in (2000, 3000, 4000, 10_000):
            now += 20.0
            progress.update(done)
    assert capfd.readouterr().err.splitlines() == [
        "3,000 of 10,000 lines  50 lines/s  0:02:20 left",
        "10,000 of 10,000 lines  112 lines/s  0:00:00 left",
    ]
    assert progress.summary() == "10,000 lines, 9,000 of them now, in 0:01:20 (112 lines/s)"


KILLS = '''
import os, random, signal, sys
from pathlib import Path
from dragoman import load
from dragoman.cli import main
from dragoman.run import file_translation

def command(*more):
    pid = os.fork()
    if pid:
        return pid
    sys.argv = ["dragoman", "translate", run, text, "--device", "cpu", *more]
    main()

def killed_at(number, kind, *more):
    """The command, killed at its n-th window: before it is on the disk, or in the middle of its line in the journal."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    output_class, left = file_translation._PartialOutput, number
    add, record = output_class.append, output_class._append_to_journal

    def count(growing, written, place):
        nonlocal left
        left -= 1
        if not left and kind == "before":
            growing.file.write(written[: len(written) // 2])
            growing.file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        add(growing, written, place)

    def tear(growing, values):
        if not left and kind == "journal":
            growing.journal.write(b'{"lines": 1')
            growing.journal.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        record(growing, values)

    output_class.append, output_class._append_to_journal = count, tear
    sys.argv = ["dragoman", "translate", run, text, "--device", "cpu", *more]
    main()

run, text, folder, kills = *sys.argv[1:4], int(sys.argv[4])
file_translation.window_size = lambda run: 4
chance, out, whole = random.Random(kills), Path(folder, "out"), Path(folder, "whole")
assert os.waitpid(command("-o", str(whole)), 0)[1] == 0
growing = 0
for _ in range(kills):
    killed_at(chance.randint(1, 6), chance.choice(["before", "journal"]), "-o", str(out), "--resume")
    growing += Path(folder, "out.part").exists()
    if out.exists():
        assert out.read_bytes() == whole.read_bytes()
        out.unlink()
assert os.waitpid(command("-o", str(out), "--resume"), 0)[1] == 0
assert out.read_bytes() == whole.read_bytes()
assert sorted(os.listdir(folder)) == ["out", "whole"], os.listdir(folder)
print(growing)
'''


def killed(run: Path, corpus: Path, folder: Path, kills: int) -> int:
    """How many of the kills found a file growing; in processes of their own, forked from one that has loaded all."""
    text = corpus / "some.en"
    lines = (corpus / "train.en").read_text().splitlines(keepends=True)
    text.write_text("".join(lines[: 40 + 12 * min(kills, 8)]))  # ten windows and three per kill, which leaves some
    command = [sys.executable, "-c", KILLS, run, text, folder, str(kills)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout)


def test_a_killed_translation_is_resumed_with_the_same_bytes(run: Path, corpus: Path, tmp_path: Path) -> None:
    assert killed(run, corpus, tmp_path, 2) == 2


@pytest.mark.slow
def test_killed_many_times(run: Path, corpus: Path, tmp_path: Path) -> None:
    assert killed(run, corpus, tmp_path, 100) > 20


def test_many_files_are_translated_like_one(dragoman: Dragoman, run: Path, corpus: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    inputs.mkdir()
    text = (corpus / "test.en").read_bytes()
    (inputs / "a.txt").write_bytes(text)
    (inputs / "b.txt.gz").write_bytes(gzip.compress(text, mtime=0))
    (inputs / "c.jsonl").write_text("".join(f"{json.dumps({'text': line})}\n" for line in text.decode().splitlines()))
    alone = dragoman("translate", run, corpus / "test.en", "--device", "cpu").out
    options = ("--input", f"{inputs}/*", "--output", tmp_path / "out", "--device", "cpu")
    answer = dragoman("translate", run, *options)
    assert answer.code == 0
    assert "wrote 30 lines of 3 files" in answer.err
    assert (tmp_path / "out" / "a.txt").read_bytes() == (tmp_path / "out" / "b.txt").read_bytes() == alone
    records = [json.loads(line) for line in (tmp_path / "out" / "c.jsonl").read_text().splitlines()]
    assert [record["translation"] for record in records] == alone.decode().splitlines()
    assert "already holds a bulk job" in dragoman("translate", run, *options).err
    assert "wrote 30 lines of 3 files" in dragoman("translate", run, *options, "--resume").err
    assert "leave one of them out" in dragoman("translate", run, *options, "--alignment").err
    assert "--block-kib needs --input" in dragoman("translate", run, corpus / "test.en", "--block-kib", 3).err
    assert "must be local (processes of this machine), ray" in dragoman("translate", run, *options, "--on", "spark").err


def test_pairs_of_many_files_are_scored(dragoman: Dragoman, run: Path, corpus: Path, tmp_path: Path) -> None:
    pairs = list(zip(*((corpus / f"test.{side}").read_text().splitlines() for side in ("en", "de"))))
    (tmp_path / "a.txt").write_text("".join("\t".join(pair) + "\n" for pair in pairs) + "no target\n")
    records = [{"text": source, "reference": target} for source, target in pairs]
    (tmp_path / "b.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    files = ("--source", corpus / "test.en", "--target", corpus / "test.de", "--device", "cpu")
    alone = dragoman("score", run, *files).out.decode()
    outputs = ("--output", f"file://{tmp_path}/out", "--device", "cpu")
    answer = dragoman("score", run, "--input", tmp_path / "*.txt", "--input", tmp_path / "*.jsonl", *outputs)
    assert answer.code == 0, answer.err
    assert "1 lines failed" in answer.err
    assert (tmp_path / "out" / "a.txt").read_text() == f"{alone}\n"
    scores = [json.loads(line)["score"] for line in (tmp_path / "out" / "b.jsonl").read_text().splitlines()]
    assert [f"{score:.4f}" for score in scores] == alone.splitlines()


def test_back_translations_are_a_tagged_training_corpus(
    dragoman: Dragoman, run: Path, corpus: Path, tmp_path: Path
) -> None:
    """The translation of monolingual text is the source, the text itself the target of a corpus with a tag."""
    assert dragoman("translate", run, "--input", corpus / "train.en", "--output", tmp_path / "back").code == 0
    options = ("--steps", 1, "--device", "cpu", "--set", "system.settings.model_dim=16")
    real = ("--source", corpus / "train.de", "--target", corpus / "train.en")
    synthetic = ("--source", tmp_path / "back" / "train.en", "--target", corpus / "train.en")
    tags = ("--set", "data.corpus_tags=['', back]", "--system", "bahdanau")
    answer = dragoman("train", tmp_path / "reverse", *real, *synthetic, *tags, *options)
    assert answer.code == 0, answer.err
    stored = TokenStore(tmp_path / "reverse" / "data" / "train")
    assert [stored_corpus.tag for stored_corpus in stored.corpora] == ["", "back"]
    assert stored.corpora[1].pairs > 0
