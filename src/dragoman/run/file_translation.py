"""Translations written to a file: killed at any moment they are gone on with, and the file is the same in the end.

What is written grows in `OUT.part`, a window of the input at a time. Its journal `OUT.part.journal` holds in its first
line what the translations are made with, and then a line for every window that is safe on the disk: how many lines of
the input and bytes of the output there are by then, and a digest of what was read. Going on, whatever lies behind the
last such place is cut off, so that a window is always translated whole and in the same batches. When all is written,
`OUT.part` becomes `OUT` and the journal is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

from dragoman.checkpoint import MANIFEST_FILE
from dragoman.errors import UserError
from dragoman.run.results import Translation
from dragoman.run.run import Run
from dragoman.run.run_folder import CHECKPOINT_DIR, MODEL_FILE
from dragoman.run.sources import Source
from dragoman.run.translator import WINDOW_LINES
from dragoman.search import SearchConfig, search_to_dict
from dragoman.storage import flush_to_disk, lock_file, os_errors_as_user_errors

JOURNAL_VERSION = 2

Translate = Callable[[list[Source], int], Iterable[Translation]]  # some sources, and the number of the first of them


@dataclass(frozen=True)
class FileProgress:
    """How far a translation has come, over all the times that it was gone on with."""

    lines: int = 0  # of the input
    bytes: int = 0  # of the output
    unfinished: int = 0  # translations that reached the length limit
    truncated_sources: int = 0  # sources that were longer than the run reads
    unproven: int = 0  # translations that exact search gave up on
    source_digest: str = ""  # digest of the sources


def translation_fingerprint(run: Run, settings: SearchConfig, options: Mapping[str, object]) -> dict[str, Any]:
    """What decides how translations read, in plain values: weights, search, and the options of the output."""
    files = [run.folder / MODEL_FILE, *sorted(run.folder.glob("tokenizer*.json"))]
    digest = blake2b(digest_size=8)
    for path in [
        *files,
        run.folder / CHECKPOINT_DIR / run.checkpoint / MANIFEST_FILE,
    ]:  # which holds the weights' own digests
        digest.update(path.read_bytes())
    values: dict[str, Any] = {"checkpoint": run.checkpoint, "model": digest.hexdigest()}
    values |= _flat("search", search_to_dict(settings))
    values |= {f"the run's {name}": value for name, value in asdict(run.config.search).items()}
    return json.loads(json.dumps(values | dict(options), default=str))


def _flat(name: str, value: Any) -> dict[str, Any]:
    """A description as single values, each named by where it stands; a kind by the place of what it is the kind of."""
    if not isinstance(value, dict):
        return {name: value}
    parts = (_flat(name if key == "kind" else f"{name} {key}", part) for key, part in value.items())
    return {place: part for some in parts for place, part in some.items()}


def window_size(run: Run) -> int:
    """Lines that are translated together: fewer where that takes long, since a kill loses no more than a window."""
    return WINDOW_LINES if run.device.type == "cuda" else WINDOW_LINES // 4


def partial_paths(output: Path) -> tuple[Path, Path]:
    """Where an output grows, and its journal."""
    return output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.part.journal")


def is_complete(output: Path) -> bool:
    """Whether an output is there and none grows; a journal alone is what a kill after the last move left behind."""
    part, journal = partial_paths(output)
    return output.is_file() and not part.exists() and (not journal.exists() or journal.stat().st_size > 0)


def check_output(output: Path, overwrite: bool) -> None:
    """Refuse a name under which nothing can or may be written."""
    if not output.parent.is_dir():
        raise UserError(f"{output} cannot be written: there is no folder {output.parent}, make it first")
    if output.exists() and not output.is_file():
        raise UserError(f"{output} is {'a folder: name a file in it' if output.is_dir() else 'no file: name one'}")
    if output.suffix == ".gz":
        raise UserError(f"{output} would not be gzipped: name the output without .gz, and compress it afterwards")
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists already: add --overwrite to replace it, or name another file")


def write_translations(
    output: Path,
    sources: Iterable[Source],
    translate: Translate,
    render: Callable[[Translation], str],
    fingerprint: Mapping[str, Any],
    *,
    window_lines: int = WINDOW_LINES,
    resume: bool = False,
    overwrite: bool = False,
) -> Generator[FileProgress]:
    """Write what `render` makes of every translation, `size` sources at a time, and say after each how far it has come.

    The first place is that from which it goes on. `made` is what must be the same then.
    """
    check_output(output, overwrite)
    with closing(_Growing(output, fingerprint, resume, overwrite)) as growing:
        place, rest, digest = growing.place, iter(sources), blake2b(digest_size=16)
        if place.lines:
            for source in islice(rest, place.lines):
                digest.update(_bytes(source))
            if digest.hexdigest() != place.source_digest:
                raise UserError(
                    f"the first {place.lines:,} lines of the input are not those that were translated in "
                    f"{growing.part}: go on with the same input, or begin anew with --overwrite"
                )
        yield place
        while window := list(islice(rest, window_lines)):
            for source in window:
                digest.update(_bytes(source))
            found = list(translate(window, place.lines))
            written = "".join(map(render, found)).encode()
            place = FileProgress(
                place.lines + len(window),
                place.bytes + len(written),
                place.unfinished + sum(not one.finished for one in found),
                place.truncated_sources + sum(not one.whole for one in found),
                place.unproven + sum(one.proven_optimal is False for one in found),
                digest.hexdigest(),
            )
            growing.add(written, place)
            yield place
        check_output(output, overwrite)  # something else may have made it meanwhile
        growing.finish()


class _Growing:
    """The part of an output that is there, and its journal, held against other processes."""

    def __init__(self, output: Path, made: Mapping[str, Any], go_on: bool, overwrite: bool) -> None:
        self.output = output
        self.part, self.journal = partial_paths(output)
        with os_errors_as_user_errors(output), ExitStack() as opened:
            self.log = opened.enter_context(self.journal.open("a+b"))
            self._hold()
            if self._size() and not go_on and not overwrite:
                raise UserError(
                    f"{self.part} was begun and not ended: go on with --continue, or begin anew with --overwrite"
                )
            self.place, end = self._last_place(made) if go_on else (FileProgress(), 0)
            self.log.truncate(end)
            self.file = opened.enter_context(self.part.open("ab"))
            self.file.truncate(self.place.bytes)
            if not end:
                self._record({"version": JOURNAL_VERSION, **made})
            opened.pop_all()

    def _hold(self) -> None:
        busy = f"{self.output} is being written by another process: wait for it, or stop it"
        lock_file(self.log, busy)
        if not self.journal.exists() or not os.path.samestat(os.fstat(self.log.fileno()), self.journal.stat()):
            raise UserError(busy)  # it has ended and removed the journal since we opened it

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _last_place(self, made: Mapping[str, Any]) -> tuple[FileProgress, int]:
        """The last place up to which all is there, and where in the journal that is said; 0 where nothing is said."""
        size = self._size()
        if not size:
            return FileProgress(), 0
        self.log.seek(0)
        first = self.log.readline()
        try:
            begun = json.loads(first if first.endswith(b"\n") else b"")
            old, new = begun.pop("version"), JOURNAL_VERSION
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UserError(f"{self.journal} is lost or damaged: begin anew with --overwrite") from None
        if old != new:
            raise UserError(f"{self.journal} has format {old!r}, but only {new} is known here: update dragoman")
        for name in {**begun, **made}:
            if begun.get(name) != made.get(name):
                raise UserError(
                    f"{self.part} was begun with {name} {begun.get(name)!r}, but now it is {made.get(name)!r}: "
                    "go on with the same, or begin anew with --overwrite"
                )
        place, end = FileProgress(), len(first)
        for line in self.log:
            try:
                found = FileProgress(**json.loads(line))
            except (ValueError, TypeError):  # cut short by a kill
                break
            if found.bytes > size or line[-1:] != b"\n":
                break
            place, end = found, end + len(line)
        return place, end

    def _record(self, values: Mapping[str, Any]) -> None:
        self.log.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")
        self.log.flush()

    def add(self, written: bytes, place: FileProgress) -> None:
        with os_errors_as_user_errors(self.output):
            self.file.write(written)
            self.file.flush()
            os.fsync(self.file.fileno())  # before the journal says that it is there
            self._record(asdict(place))
        self.place = place

    def finish(self) -> None:
        with os_errors_as_user_errors(self.output):
            self.file.close()  # a file that is open cannot be renamed everywhere
            self.part.replace(self.output)
            flush_to_disk(self.output.parent)
            self.log.close()
            self.journal.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of it; what holds nothing is removed, while nobody else can hold it."""
        with suppress(OSError):  # what a full disk refused is refused again
            self.file.close()
        with suppress(OSError):
            if not self.place.bytes:
                self.part.unlink(missing_ok=True)
                self.journal.unlink(missing_ok=True)
        with suppress(OSError):
            self.log.close()


def _bytes(source: Source) -> bytes:
    """What stands for a source in the digest of the input."""
    return f"{source}\n".encode() if isinstance(source, str) else repr(source.shape).encode() + source.tobytes()
