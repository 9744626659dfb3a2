"""Files that are whole or not there: written under a temporary name, flushed to the disk, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.errors import UserError


@contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """What the disk refuses, said in a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk of {path} is full: free some space there, or choose another folder") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"{path} may not be written: choose a folder with write permission") from None
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from None


def write_file(path: Path, content: str | bytes) -> None:
    """Replace a file in one move: a reader sees the old one or the new one."""
    partial = path.with_name(f".{path.name}.partial")
    with plain_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder that appears under its name only when the block has ended well."""
    partial = path.with_name(f".{path.name}.partial")
    with plain_errors(path):
        try:
            shutil.rmtree(partial, ignore_errors=True)  # what a killed process has left
            partial.mkdir(parents=True)
            yield partial
            for file in partial.rglob("*"):
                sync(file)
            sync(partial)
            partial.rename(path)
            sync(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Remove a folder, if it is there, so that it is never seen half removed."""
    partial = path.with_name(f".{path.name}.partial")
    with plain_errors(path):
        shutil.rmtree(partial, ignore_errors=True)
        if path.exists():
            path.rename(partial)
            shutil.rmtree(partial, ignore_errors=True)


def point(link: Path, name: str) -> None:
    """Make `link` a symbolic link to its neighbour `name`, in one move."""
    partial = link.with_name(f".{link.name}.partial")
    with plain_errors(link):
        partial.unlink(missing_ok=True)
        partial.symlink_to(name)
        partial.replace(link)
        sync(link.parent)


def sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    with suppress(OSError):  # some file systems cannot
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
