"""Translation of files: interrupted at any moment, it can be resumed, and the result is the same.

The output grows in `OUT.part`, one window of the input at a time. The first line of its journal `OUT.part.journal`
describes how the translations are made; then there is one line for every window that is safely on disk, with the number
of input lines and output bytes so far and a digest of the input. Resuming truncates the output after the last such
window, so that windows are always translated as a whole and in the same batches. At the end, `OUT.part` is renamed to
`OUT` and the journal is removed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from dragoman.checkpoint import MANIFEST_FILE
from dragoman.data.compression import without_compression_suffix
from dragoman.errors import UserError
from dragoman.run.results import Translation
from dragoman.run.run import Run
from dragoman.run.sources import Source
from dragoman.run.translator import SORT_WINDOW_TEXTS
from dragoman.run_files import MODEL_FILE
from dragoman.search import SearchConfig, search_to_dict
from dragoman.storage import flush_to_disk, lock_file, os_errors_as_user_errors

JOURNAL_VERSION = 3  # of the format of the journal

Translate = Callable[[list[Source], int], Iterable[Translation]]  # (sources, index of the first one)


@dataclass(frozen=True)
class FileProgress:
    """Progress of a file translation, over all processes that continued it."""

    lines: int = 0  # of the input
    bytes: int = 0  # of the output
    unfinished: int = 0  # translations that reached the length limit
    truncated_sources: int = 0  # sources longer than the maximum source length
    unproven: int = 0  # translations for which exact search gave up
    source_digest: str = ""  # of the input so far

    def after(self, translations: Sequence[Translation], num_bytes: int = 0, source_digest: str = "") -> FileProgress:
        """Return the progress after more translations were written, which have `num_bytes` in the output file.

        `source_digest` is a hash of all input lines up to there. Both keep their defaults where no file is written.
        """
        truncated_sources = sum(translation.truncated_source for translation in translations)
        return FileProgress(
            lines=self.lines + len(translations),
            bytes=self.bytes + num_bytes,
            unfinished=self.unfinished + sum(not translation.finished for translation in translations),
            truncated_sources=self.truncated_sources + truncated_sources,
            unproven=self.unproven + sum(translation.proven_optimal is False for translation in translations),
            source_digest=source_digest,
        )


def translation_fingerprint(run: Run, search: SearchConfig, options: Mapping[str, object]) -> dict[str, Any]:
    """Return everything that determines the translations: a digest of the model's files, the search, and `options`.

    The values are those of JSON, the keys are names for error messages. `options` has the further ones that the user
    has given, such as the corpus tag. An interrupted translation can only be resumed if all values are equal.
    """
    values = run_fingerprint(run) | _flatten("search", search_to_dict(search))
    values |= {f"the run's {name}": value for name, value in asdict(run.config.search).items()}
    return json.loads(json.dumps(values | dict(options), default=str))


def run_fingerprint(run: Run) -> dict[str, Any]:
    """Return what identifies a run: the name of its checkpoint, a digest of the model's files, and its language pair.

    The values are those of JSON, the keys are names for error messages.
    """
    folder, (checkpoint, *ensemble_members) = run.member_folders[0], run.checkpoint_folders
    files = [folder / MODEL_FILE, *sorted(folder.glob("tokenizer*.json"))]
    files.append(checkpoint / MANIFEST_FILE)  # holds digests of the weights
    files += [path for member in ensemble_members if (path := member / MANIFEST_FILE).exists()]
    digest = blake2b(digest_size=8)
    for path in files:
        digest.update(path.read_bytes())
    values: dict[str, Any] = {"checkpoint": run.checkpoint, "model": digest.hexdigest()}
    if run.languages:
        values |= dict(zip(("source language", "target language"), run.language_pair))
    return values


def _flatten(name: str, value: Any) -> dict[str, Any]:
    """Flatten a nested dictionary with the name `name`: keys are joined by spaces, except `kind`, which is left out.

    For example, `_flatten("search", {"kind": "Beam", "size": 5})` is `{"search": "Beam", "search size": 5}`.
    """
    if not isinstance(value, dict):
        return {name: value}
    flattened = (_flatten(name if key == "kind" else f"{name} {key}", child) for key, child in value.items())
    return {key: child for children in flattened for key, child in children.items()}


def window_size(run: Run) -> int:
    """Return how many lines of a file form a window, which is translated, and saved to disk, as a whole.

    Smaller on a slow CPU, because the work on one window is lost if the translation is interrupted.
    """
    return SORT_WINDOW_TEXTS if run.device.type == "cuda" else SORT_WINDOW_TEXTS // 4


def partial_paths(output: Path) -> tuple[Path, Path]:
    """Return the paths of the partial output OUT.part and of its journal OUT.part.journal, for the output OUT.

    They exist while a file is being translated; the journal records what is complete.
    """
    return output.with_name(f"{output.name}.part"), output.with_name(f"{output.name}.part.journal")


def is_complete(output: Path) -> bool:
    """Whether the output of a file translation exists and is not being replaced by another translation.

    While it is replaced, there is a partial output (OUT.part) or, before that, an empty journal (OUT.part.journal). A
    journal that is not empty may be left over from an interruption just after the output was completed.
    """
    part, journal = partial_paths(output)
    return output.is_file() and not part.exists() and (not journal.exists() or journal.stat().st_size > 0)


def check_output(output: Path, overwrite: bool) -> None:
    """Raise a UserError if an output file cannot be written, or exists and must not be replaced."""
    if not output.parent.is_dir():
        raise UserError(f"{output} cannot be written: the folder {output.parent} does not exist, create it first")
    if output.is_dir():
        raise UserError(f"the output {output} is a folder: name a file in it")
    if output.exists() and not output.is_file():
        raise UserError(f"the output {output} is a device, not a file: name a file")
    if without_compression_suffix(output.name) != output.name:
        raise UserError(
            f"the output {output} cannot be written compressed: name it without {output.suffix}, and compress it "
            "afterwards"
        )
    if output.exists() and not overwrite:
        raise UserError(f"{output} exists already: add --overwrite to replace it, or name another file")


def write_translations(
    output: Path,
    sources: Iterable[Source],
    translate: Translate,
    render: Callable[[Translation], str],
    fingerprint: Mapping[str, Any],
    *,
    window_lines: int = SORT_WINDOW_TEXTS,
    resume: bool = False,
    overwrite: bool = False,
) -> Generator[FileProgress]:
    """Translate input lines into a file; yield the progress before the first window, and after each window.

    A window is a number of consecutive input lines. After each one, a journal records what is safely on disk, so that
    an interrupted translation can be resumed. An output that may not be written, and a partial one that may neither be
    resumed nor replaced (or was made from another input), are UserErrors.

    Args:
        output: the file to write
        sources: the input lines
        translate: takes the sources of a window and the index of its first line, and returns the translations
        render: turns a translation into the text that is written
        fingerprint: everything that determines the translations; must be the same when a translation is resumed
        window_lines: number of lines in a window
        resume: continue a partial output, if there is one
        overwrite: replace an existing output, or a partial one that is not resumed
    """
    check_output(output, overwrite)
    with closing(_PartialOutput(output, fingerprint, resume=resume, overwrite=overwrite)) as partial:
        progress, remaining, digest = partial.progress, iter(sources), blake2b(digest_size=16)
        if progress.lines:
            for source in islice(remaining, progress.lines):
                digest.update(_source_bytes(source))
            if digest.hexdigest() != progress.source_digest:
                raise UserError(
                    f"the first {progress.lines:,} lines of the input are not those that were translated in "
                    f"{partial.part}: resume with the same input, or start again with --overwrite"
                )
        yield progress
        while window := list(islice(remaining, window_lines)):
            for source in window:
                digest.update(_source_bytes(source))
            translations = list(translate(window, progress.lines))
            content = "".join(map(render, translations)).encode()
            progress = progress.after(translations, len(content), digest.hexdigest())
            partial.append(content, progress)
            yield progress
        check_output(output, overwrite)  # it may have been created in the meantime
        partial.finish()


class _PartialOutput:
    """A partial output and its journal, locked against other processes."""

    def __init__(self, output: Path, fingerprint: Mapping[str, Any], resume: bool, overwrite: bool) -> None:
        """Open and lock the partial output and its journal, which records the windows of lines that are complete.

        Args:
            output: the file that the partial output becomes in the end
            fingerprint: everything that determines the translations; must be the same when resuming
            resume: keep what is complete, and remove an incomplete window at the end; otherwise start empty
            overwrite: a partial output that is not resumed is replaced; otherwise it is a UserError
        """
        self.output = output
        self.part, self.journal_path = partial_paths(output)
        with os_errors_as_user_errors(output), ExitStack() as opened:  # closes the files if anything fails
            self.journal = opened.enter_context(self.journal_path.open("a+b"))
            self._lock()
            if self._partial_bytes() and not resume and not overwrite:
                raise UserError(
                    f"{self.part} holds the first part of an interrupted translation: resume it with --resume, or "
                    "start again with --overwrite"
                )
            self.progress, journal_bytes = self._read_journal(fingerprint) if resume else (FileProgress(), 0)
            self.journal.truncate(journal_bytes)
            self.file = opened.enter_context(self.part.open("ab"))
            self.file.truncate(self.progress.bytes)
            if not journal_bytes:
                self._append_to_journal({"version": JOURNAL_VERSION, **fingerprint})
            opened.pop_all()  # leave them open

    def _lock(self) -> None:
        """Lock the open journal file; raise a UserError if another process writes the same output."""
        message = f"{self.output} is being written by another process: wait for it, or stop it"
        lock_file(self.journal, message)
        path = self.journal_path
        if not path.exists() or not os.path.samestat(os.fstat(self.journal.fileno()), path.stat()):
            raise UserError(message)  # the other process has finished and removed the journal since it was opened here

    def _partial_bytes(self) -> int:
        """Return the size of the partial output in bytes; 0 if it does not exist."""
        return self.part.stat().st_size if self.part.exists() else 0

    def _read_journal(self, fingerprint: Mapping[str, Any]) -> tuple[FileProgress, int]:
        """Return the progress up to the last window that is completely in the partial output.

        Returns also the size of the journal, in bytes, up to the line of this window. The first line of the journal has
        the fingerprint, everything that determines the translations; another one than `fingerprint` is a UserError.
        """
        output_bytes = self._partial_bytes()
        if not output_bytes:
            return FileProgress(), 0
        self.journal.seek(0)
        first_line = self.journal.readline()
        try:
            header = json.loads(first_line if first_line.endswith(b"\n") else b"")
            version = header.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise UserError(
                f"{self.journal_path}, which records the progress of an interrupted translation, is missing or "
                "damaged: start again with --overwrite"
            ) from None
        if version != JOURNAL_VERSION:
            raise UserError(
                f"{self.journal_path}, which records the progress of an interrupted translation, has format version "
                f"{version!r}, but this version of dragoman needs {JOURNAL_VERSION}: start again with --overwrite, or "
                "resume with the version that wrote it"
            )
        for name in {**header, **fingerprint}:
            if header.get(name) != fingerprint.get(name):
                raise UserError(
                    f"the partial output {self.part} was started with {name} = {header.get(name)!r}, but now {name} is "
                    f"{fingerprint.get(name)!r}: resume with the same value, or start again with --overwrite"
                )
        progress, journal_bytes = FileProgress(), len(first_line)
        for line in self.journal:
            try:
                recorded = FileProgress(**json.loads(line))
            except (ValueError, TypeError):  # an incomplete line, as after a kill
                break
            if recorded.bytes > output_bytes or line[-1:] != b"\n":  # a part of the window or of the line is missing
                break
            progress, journal_bytes = recorded, journal_bytes + len(line)
        return progress, journal_bytes

    def _append_to_journal(self, values: Mapping[str, Any]) -> None:
        """Append `values` as a line of JSON to the journal, and flush it to the operating system."""
        self.journal.write(json.dumps(values, ensure_ascii=False).encode() + b"\n")
        self.journal.flush()

    def append(self, content: bytes, progress: FileProgress) -> None:
        """Append the translations of a window (`content`) to the partial output, then `progress` to the journal."""
        with os_errors_as_user_errors(self.output):
            self.file.write(content)
            self.file.flush()
            os.fsync(self.file.fileno())  # the journal must not be ahead of the output
            self._append_to_journal(asdict(progress))
        self.progress = progress

    def finish(self) -> None:
        """Rename the complete partial output to the output file, and remove the journal."""
        with os_errors_as_user_errors(self.output):
            self.file.close()  # some systems cannot rename an open file
            self.part.replace(self.output)
            flush_to_disk(self.output.parent)  # the new name must be on disk before the journal is removed
            self.journal.close()
            self.journal_path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the partial output and the journal, which releases the lock; without complete windows, remove them."""
        with suppress(OSError):  # on a full disk, closing fails like the write before
            self.file.close()
        with suppress(OSError):
            if not self.progress.bytes:
                self.part.unlink(missing_ok=True)
                self.journal_path.unlink(missing_ok=True)
        with suppress(OSError):
            self.journal.close()


def _source_bytes(source: Source) -> bytes:
    """Return the bytes that represent a source in the digest of the input.

    They are its text (or the path of a file) and a newline, or the shape and the numbers of a feature array.
    """
    if isinstance(source, np.ndarray):
        return repr(source.shape).encode() + source.tobytes()
    return f"{source}\n".encode()
