"""File translations that are killed at any byte and resumed give the same file."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dragoman.errors import UserError
from dragoman.run import Source, Translation
from dragoman.run.file_translation import FileProgress, check_output, is_complete, partial_paths, write_translations

LINES = ["one", "", "zwei, mit ä", "three\u2028still three", " ", "six", "7", "eight and a half", "nine", "ten"]
MADE = {"checkpoint": "000500", "search size": 5}
SIZE = 3


def translate(sources: list[Source], first: int) -> Iterator[Translation]:
    """Says what stands where, and is not finished at every second line."""
    for number, source in enumerate(sources, first):
        yield Translation(
            f"{number} {str(source).upper()}", 0.0, finished=number % 2 == 0, truncated_source=number == 4
        )


def render(translation: Translation) -> str:
    return f"{translation.text}\n\n"


EXPECTED = "".join(f"{number} {line.upper()}\n\n" for number, line in enumerate(LINES)).encode()


def places(output: Path, lines: Iterable[Source] = LINES, made: dict[str, Any] = MADE, **options: Any) -> Any:
    return write_translations(output, lines, translate, render, made, window_lines=SIZE, **options)


def stop_after(output: Path, windows: int, **options: Any) -> FileProgress:
    """What is there after some windows."""
    begun = places(output, **options)
    found = [next(begun) for _ in range(windows + 1)]
    begun.close()
    return found[-1]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def names(output: Path) -> list[str]:
    return sorted(path.name for path in output.parent.iterdir())


def test_an_uninterrupted_translation_is_written_completely(output: Path) -> None:
    found = list(places(output))
    assert [place.lines for place in found] == [0, 3, 6, 9, 10]
    assert output.read_bytes() == EXPECTED
    assert found[-1].bytes == len(EXPECTED)
    assert (found[-1].unfinished, found[-1].truncated_sources) == (5, 1)
    assert names(output) == ["out"]


def test_resuming_after_a_kill_at_any_byte_of_the_output(output: Path) -> None:
    stop_after(output, 4)
    part, journal = partial_paths(output)
    written, said = part.read_bytes(), journal.read_bytes()
    assert written == EXPECTED
    for size in range(len(written) + 1):
        part.write_bytes(written[:size])
        journal.write_bytes(said)
        last = list(places(output, resume=True))[-1]
        assert output.read_bytes() == EXPECTED
        assert (last.unfinished, last.truncated_sources) == (5, 1)
        assert names(output) == ["out"]
        output.unlink()


def test_resuming_after_a_kill_at_any_byte_of_the_journal(output: Path) -> None:
    stop_after(output, 4)
    part, journal = partial_paths(output)
    written, said = part.read_bytes(), journal.read_bytes()
    for size in range(said.index(b"\n") + 1, len(said) + 1):
        part.write_bytes(written + b"torn")
        journal.write_bytes(said[:size])
        list(places(output, resume=True))
        assert output.read_bytes() == EXPECTED
        output.unlink()


def test_resuming_after_a_kill_in_the_journal_header(output: Path) -> None:
    stop_after(output, 4)
    part, journal = partial_paths(output)
    said = journal.read_bytes()
    for size in range(said.index(b"\n") + 1):
        part.write_bytes(b"")
        journal.write_bytes(said[:size])
        list(places(output, resume=True))
        assert output.read_bytes() == EXPECTED
        output.unlink()


def test_resuming_after_many_kills(output: Path) -> None:
    chance = random.Random(0)
    part, journal = partial_paths(output)
    for _ in range(50):
        while not output.exists() and chance.random() < 0.8:
            begun = places(output, resume=True)
            for _ in range(chance.randrange(1, 4)):
                next(begun, None)
            begun.close()
            for path in (part, journal):
                if path.exists() and chance.random() < 0.3:
                    least = 0 if path is part else path.read_bytes().index(b"\n") + 1
                    os.truncate(path, chance.randint(least, path.stat().st_size))
        if not output.exists():
            list(places(output, resume=True))
        assert output.read_bytes() == EXPECTED
        output.unlink()


def test_resuming_after_a_kill_between_rename_and_cleanup(output: Path) -> None:
    stop_after(output, 4)
    part, _ = partial_paths(output)
    part.rename(output)
    assert is_complete(output)


def test_resuming_passes_the_index_of_the_first_line(output: Path) -> None:
    stop_after(output, 2)
    found = places(output, resume=True)
    assert next(found).lines == 6
    list(found)
    assert output.read_bytes() == EXPECTED


def test_resuming_without_a_partial_output_starts_one(output: Path) -> None:
    list(places(output, resume=True))
    assert output.read_bytes() == EXPECTED


def test_empty_partial_files_are_removed(output: Path) -> None:
    stop_after(output, 0)
    assert names(output) == []


def test_resuming_with_another_input_is_refused(output: Path) -> None:
    stop_after(output, 2)
    for other in (["ONE", *LINES[1:]], LINES[:4], [*LINES[:5], "", *LINES[5:]]):
        with pytest.raises(UserError, match="first 6 lines of the input are not those"):
            list(places(output, other, resume=True))
    with pytest.raises(UserError, match="first 6 lines of the input are not those"):
        list(places(output, [np.zeros((2, 3))] * 10, resume=True))
    list(places(output, resume=True))
    assert output.read_bytes() == EXPECTED


def test_lines_after_the_partial_output_may_change(output: Path) -> None:
    stop_after(output, 2)
    list(places(output, [*LINES[:6], "seven"], resume=True))
    assert output.read_bytes().decode().split("\n\n")[5:] == ["5 SIX", "6 SEVEN", ""]


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (MADE | {"search size": 4}, "was started with search size = 5, but now search size is 4"),
        (MADE | {"checkpoint": "000600"}, "was started with checkpoint = '000500', but now checkpoint is '000600'"),
        (MADE | {"tag": "news"}, "was started with tag = None, but now tag is 'news'"),
        ({"search size": 5}, "was started with checkpoint = '000500', but now checkpoint is None"),
    ],
)
def test_resuming_with_other_settings_is_refused(made: dict[str, Any], expected: str, output: Path) -> None:
    stop_after(output, 2)
    with pytest.raises(UserError, match=expected):
        list(places(output, made=made, resume=True))
    list(places(output, resume=True))
    assert output.read_bytes() == EXPECTED


def test_a_partial_output_is_replaced_only_with_overwrite(output: Path) -> None:
    stop_after(output, 2)
    with pytest.raises(UserError, match="resume it with --resume, or start again with --overwrite"):
        list(places(output))
    list(places(output, LINES[3:], made={}, overwrite=True))
    assert output.read_bytes().startswith(b"0 THREE")
    assert names(output) == ["out"]


def test_a_missing_damaged_or_newer_journal_is_refused(output: Path) -> None:
    stop_after(output, 2)
    part, journal = partial_paths(output)
    for content in (b"", b"{}\n", b"[1]\n", b"1\n", b"\xff\n"):
        journal.write_bytes(content)
        with pytest.raises(UserError, match="missing or damaged: start again with --overwrite"):
            list(places(output, resume=True))
    journal.write_bytes(b'{"version": 9}\n')
    with pytest.raises(UserError, match="format version 9, but this version of dragoman needs 3"):
        list(places(output, resume=True))
    assert part.read_bytes() == EXPECTED[: part.stat().st_size]


def test_an_existing_output_is_replaced_only_with_overwrite_and_at_the_end(output: Path) -> None:
    output.write_text("old")
    with pytest.raises(UserError, match="exists already: add --overwrite"):
        list(places(output))
    stop_after(output, 2, overwrite=True)
    assert output.read_text() == "old"
    assert not is_complete(output)
    with pytest.raises(UserError, match="exists already: add --overwrite"):
        list(places(output, resume=True))
    found = list(places(output, resume=True, overwrite=True))
    assert found[0].lines == 6
    assert output.read_bytes() == EXPECTED


def test_an_output_created_in_the_meantime_is_not_replaced(output: Path) -> None:
    begun = places(output)
    next(begun)
    output.write_text("mine")
    with pytest.raises(UserError, match="exists already"):
        list(begun)
    assert output.read_text() == "mine"
    output.unlink()
    assert next(places(output, resume=True)).lines == len(LINES)


def test_a_second_process_is_refused(output: Path) -> None:
    begun = places(output)
    next(begun)
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match="is being written by another process"):
            list(places(output, **options))
    list(begun)
    assert output.read_bytes() == EXPECTED


@pytest.mark.parametrize("at", [1, 2, 4])
@pytest.mark.parametrize(("code", "expected"), [(errno.ENOSPC, "is full: free some space"), (errno.EIO, "cannot be")])
def test_a_full_disk_is_reported_and_the_translation_can_be_resumed(
    at: int, code: int, expected: str, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def refuse(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(UserError, match=expected):
            list(places(output))
    assert not output.exists()
    found = list(places(output, resume=True))
    assert found[0].lines == SIZE * (at - 1)
    assert output.read_bytes() == EXPECTED


def test_a_file_size_limit_is_reported_and_the_translation_can_be_resumed(output: Path) -> None:
    """The system itself refuses in the middle of a window, which is then written in part."""
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    long = [f"{number} " + 500 * "long " for number in range(40)]
    list(places(output, long))
    expected = output.read_bytes()
    output.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(expected) // 2 + 7, hard))
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\)"):
            list(places(output, long))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert partial_paths(output)[0].stat().st_size == len(expected) // 2 + 7
    assert next(places(output, long, resume=True)).lines == 18
    list(places(output, long, resume=True))
    assert output.read_bytes() == expected


def test_an_error_in_the_input_keeps_the_partial_output(output: Path) -> None:
    def broken() -> Iterator[str]:
        yield from LINES[:7]
        raise UserError("line 8 is not UTF-8")

    with pytest.raises(UserError, match="line 8"):
        list(places(output, broken()))
    found = list(places(output, resume=True))
    assert found[0].lines == 6
    assert output.read_bytes() == EXPECTED


def test_impossible_output_paths_are_refused(tmp_path: Path) -> None:
    for output, expected in [
        (tmp_path / "none" / "out", "does not exist, create it first"),
        (tmp_path, "is a folder: name a file in it"),
        (Path("/dev/null"), "is a device, not a file: name a file"),
        (tmp_path / "out.gz", "cannot be written compressed"),
    ]:
        with pytest.raises(UserError, match=expected):
            check_output(output, overwrite=True)
    assert list(tmp_path.iterdir()) == []
