"""README and docs: their commands run, the files and settings that they name exist, and their links lead somewhere.

A command is executed with small files and budgets: the workspace below has the files that the pages name, and `MORE`
adds options. A block of commands that cannot be run has a comment before it that says why:
`<!-- not executed: REASON -->`.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import shlex
import shutil
import sys
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import numpy as np
import pytest
import typer

import dragoman
from dragoman import config
from dragoman.cli import app
from dragoman.config import settings_of
from dragoman.data.generated_media import MEDIA_TASKS, write_media

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"(?:<!-- not executed: (?P<reason>[^>]+) -->\n)?```bash\n(?P<commands>.*?)```", re.DOTALL)

#: options added to commands, to keep them short: a few steps of a very small model, little text
MORE = {
    "train": [
        *("--steps", "2", "--quiet", "--device", "cpu", "--set", "training.validation_sentences=2"),
        *("--set", "search.max_target_length=8", "--set", "data.num_workers=1"),
    ],
    "phrasebook": ["--pairs", "300", "--quiet"],
    "recipe": [
        *("--steps", "2", "--device", "cpu", "--set", "system.settings.model_dim=16"),
        *("--set", "training.validation_sentences=2", "--set", "search.max_target_length=8"),
    ],
}


def commands(page: Path) -> Iterator[str]:
    """The command lines of a page that are to be executed, continuation lines joined and comments removed."""
    for block in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if block["reason"]:
            continue
        for line in block["commands"].replace("\\\n", " ").splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip()


def test_every_block_of_commands_is_executed_or_says_why_not() -> None:
    """Only `dragoman`, `make` and commands that feed `dragoman` stand in executed blocks."""
    wrong = []
    for page in PAGES:
        for line in commands(page):
            words = shlex.split(line, comments=True)
            if words[0] not in ("dragoman", "make") and "dragoman" not in words:
                wrong.append(f"{page.name}: {line}")
    assert not wrong, "\n".join(wrong)


# ---- the page of the lectures

LECTURES = ROOT / "docs" / "lectures.md"


def lecture_rows() -> list[tuple[str, str, str]]:
    """Section, command and test of each row of the tables of the page."""
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \|$", LECTURES.read_text(encoding="utf-8"), re.MULTILINE)
    return [(section, command.replace("\\|", "|"), test) for section, command, test in rows]


def test_every_section_of_the_lectures_has_a_command_that_exists() -> None:
    """All rows are complete; the commands exist and have the options that they are given."""
    lines = [line for line in LECTURES.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    headings = [line for line in lines if line == "| section | command | test |"]
    assert len(lines) - len(headings) == len(lecture_rows())
    for _, line, _ in lecture_rows():
        words = shlex.split(line)
        arguments, command = words[words.index("dragoman") + 1 :], typer.main.get_command(app)
        context = command.make_context("dragoman", list(arguments))
        while hasattr(command, "resolve_command"):
            name, subcommand, arguments = command.resolve_command(context, arguments)
            assert subcommand is not None, line
            command, context = subcommand, subcommand.make_context(name, list(arguments), parent=context)


@pytest.mark.slow
def test_commands_of_the_lectures_run(workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(workspace, folder, symlinks=True)
    for line in [*commands(LECTURES), *dict.fromkeys(command for _, command, _ in lecture_rows())]:
        execute(line, folder)


def test_files_and_settings_exist() -> None:
    """Paths in backquotes exist in the repository, and dotted settings in the configuration."""
    sections = {name: set(settings_of(cls)) for name, cls in config.SECTIONS.items()}
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for path in re.findall(r"`((?:src|tests|benchmarks|tools|docs)/[\w./-]+\.\w+)`", text):
            if not (ROOT / path).exists():
                wrong.append(f"{page.name}: {path}")
        for section, name in re.findall(r"\b(data|text|training|search)\.([a-z_]+)\b(?![/(])", text):
            if name not in sections[section] and name not in ("md", "json", "py"):
                wrong.append(f"{page.name}: {section}.{name}")
    assert not wrong, "\n".join(wrong)


def test_links_lead_to_files() -> None:
    wrong = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                wrong.append(f"{page.name}: {target}")
    assert not wrong, "\n".join(wrong)


# ---- execution


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name, and two small runs."""
    folder = tmp_path_factory.mktemp("workspace")
    execute("dragoman phrasebook pb", folder)
    for language in ("en", "de"):
        text = (folder / "pb" / f"train.{language}").read_text(encoding="utf-8")
        for name, count in (("train", 40), ("valid", 4), ("test", 4), ("news", 4)):
            short = "".join(text.splitlines(keepends=True)[:count])
            (folder / f"{name}.{language}").write_text(short, encoding="utf-8")
            (folder / "pb" / f"{name}.{language}").write_text(short, encoding="utf-8")
        (folder / f"web.{language}.gz").write_bytes(gzip.compress(short.encode()))
    alignments = folder / "pb" / "train.align"
    short = "".join(alignments.read_text(encoding="utf-8").splitlines(keepends=True)[:4])
    (folder / "pb" / "test.align").write_text(short, encoding="utf-8")
    pairs = zip(*((folder / f"train.{language}").read_text(encoding="utf-8").splitlines() for language in ("en", "de")))
    rows = "".join(f'"{source}","{target}"\n' for source, target in pairs)
    (folder / "pairs.csv").write_text(f"en,de\n{rows}", encoding="utf-8")
    unit = '<tu><tuv xml:lang="en"><seg>A dog.</seg></tuv><tuv xml:lang="de"><seg>Ein Hund.</seg></tuv></tu>'
    (folder / "memory.tmx").write_text(f"<tmx><body>{unit}</body></tmx>", encoding="utf-8")
    tagged = (f"The dog number{n} sleeps .\tDET NOUN ADJ VERB PUNCT\n" for n in range(40))
    (folder / "tags.tsv").write_text("".join(tagged), encoding="utf-8")
    turns = (f'{{"turns": ["Hello {n}.", "Good day {n}."]}}\n' for n in range(40))
    (folder / "dialogues.jsonl").write_text("".join(turns), encoding="utf-8")
    lengths = np.full(40, 12)
    np.savez(folder / "frames.npz", values=np.random.default_rng(0).random((480, 80), np.float32), lengths=lengths)
    write_images_and_recordings(folder)
    execute("dragoman train runs/en-de --source train.en --target train.de", folder)
    shutil.copytree(folder / "runs" / "en-de", folder / "runs" / "second", symlinks=True)
    return folder


def write_images_and_recordings(folder: Path) -> None:
    """The corpora of three recipes, and lists and a folder of the same files."""
    (folder / "data").mkdir()
    for task in MEDIA_TASKS:
        write_media(folder / "data" / task, task, train=40, valid=4, test=4)
    captions = (folder / "data" / "captions" / "train.tsv").read_text(encoding="utf-8").splitlines()
    for number, name in enumerate(("images.txt", "captions.txt")):
        columns = (line.split("\t")[number] for line in captions)
        lines = (f"{'' if number else 'data/captions/'}{column}\n" for column in columns)
        (folder / name).write_text("".join(lines), encoding="utf-8")
    recordings = (folder / "data" / "spoken-digits" / "train.tsv").read_text(encoding="utf-8")
    (folder / "wavs.tsv").write_text(re.sub("^", "data/spoken-digits/", recordings.rstrip("\n"), flags=re.M) + "\n")
    for name in ("circle", "square"):
        shutil.copytree(folder / "data" / "image-classes" / "train", folder / "photos" / name)


def shorten(path: Path, count: int) -> None:
    """Keep only the first lines of a file."""
    path.write_text("".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[:count]), encoding="utf-8")


def execute(line: str, folder: Path) -> str:
    """Run one command line of a page in `folder`, in this process, and return what it prints.

    Supported: one `dragoman` command, fed by `echo` through a pipe or by `< FILE`, its output redirected by `> FILE`.
    """
    words = shlex.split(line, comments=True)
    text = ""
    if "|" in words:
        feeding, words = words[: words.index("|")], words[words.index("|") + 1 :]
        assert feeding[0] == "echo", line
        text = " ".join(feeding[1:]) + "\n"
    target = None
    if ">" in words:
        target = folder / words[words.index(">") + 1]
        words = words[: words.index(">")]
    if "<" in words:
        text = (folder / words[words.index("<") + 1]).read_text(encoding="utf-8")
        words = words[: words.index("<")]
    assert words[0] == "dragoman", line
    arguments = words[1:] + ([] if "--resume" in words else MORE.get(words[1], []))
    if words[1] == "train" and "--resume" not in words and "--start-from" not in words:
        arguments += ["--set", "system.settings.model_dim=16"]
    if "--resume" in words and "--steps" in words:
        arguments[arguments.index("--steps") + 1] = "4"
    if words[1] == "phrasebook" or (words[1] == "train" and "--resume" not in words):
        shutil.rmtree(folder / words[2], ignore_errors=True)  # made before, for other pages
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))
        app(arguments, standalone_mode=False)
    if words[1] == "phrasebook":
        for path in [*(folder / words[2]).glob("valid.*"), *(folder / words[2]).glob("test.*")]:
            shorten(path, 4)
    if target is not None:
        target.write_text(printed.getvalue(), encoding="utf-8")
    return printed.getvalue()


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))], ids=lambda page: page.name)
def test_commands_run(page: Path, workspace: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    shutil.copytree(workspace, folder, symlinks=True)
    for line in commands(page):
        if not line.startswith("make "):
            execute(line, folder)


#: parts of the notebook's code, and what is executed instead
SHORTER = {
    "pairs=20_000": "pairs=300, valid=4, test=4",
    "steps = 800": "steps = 3",
    '"training.steps": steps': '"training.steps": steps, "training.validation_sentences": 2, '
    '"search.max_target_length": 8',
}


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All cells, in order and in one namespace, with less data and fewer steps."""
    cells = json.loads((ROOT / "docs" / "notebooks" / "first_steps.ipynb").read_text(encoding="utf-8"))["cells"]
    monkeypatch.chdir(tmp_path)
    notebook = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, "notebook", notebook)
    for cell in cells:
        if cell["cell_type"] == "code":
            code = "".join(cell["source"])
            for full, short in SHORTER.items():
                code = code.replace(full, short)
            exec(compile(code, "first_steps.ipynb", "exec"), vars(notebook))
    assert "SquaredReLU" in capsys.readouterr().out
    assert "Cross-attention" in notebook.inspection._repr_svg_()


def test_progress_in_a_notebook() -> None:
    progress = dragoman.NotebookProgress()
    progress(dragoman.StepEvent(10, 0, 5.2, 1e-3, 1000.0, 0.25))
    progress(dragoman.ValidationEvent(10, 4.5, 90.0, {"bleu": 12.0}))
    page = progress.html()
    assert 'value="0.250"' in page
    assert "step 10, validation loss 4.500, bleu 12.00" in page
    assert page.count("<polyline") == 2
