"""Atomic writes: files and folders are written under a temporary name, flushed to disk, then renamed."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dragoman.errors import UserError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

WINDOWS_LOCK_POSITION = 2**30  # of the locked byte: behind the content, which others may then read and truncate
MAX_LINK_BYTES, MAX_LINK_DEPTH = 500, 8  # of a link that is a text file; links that are followed one after the other
LOCK_INTERVAL_SECONDS = 0.1  # between two attempts to lock a file


@contextmanager
def os_errors_as_user_errors(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a UserError that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"the disk of {path} is full: free some space, or choose another folder") from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise UserError(f"you have no permission to write {path}: choose another folder") from None
        raise UserError(
            f"{path} cannot be written ({error.strerror or error}): check the disk, or choose another folder"
        ) from None


def as_os_error(error: Exception) -> OSError:
    """Return the OSError in place of which a library has raised an error of its own, as safetensors does."""
    is_full = "No space left" in str(error) or "os error 28" in str(error)
    return OSError(errno.ENOSPC if is_full else errno.EIO, str(error))


def write_file(path: Path, content: str | bytes) -> None:
    """Write or replace a file atomically; of several processes that write it at the same time, the last one counts."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with os_errors_as_user_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, flush: bool = True) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` if the block succeeds, and removed if it raises.

    `flush` waits until every file is on disk, which takes long for thousands of files that can be made again.
    """
    partial = path.with_name(f".{path.name}.partial")
    with os_errors_as_user_errors(path):
        try:
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
            partial.mkdir(parents=True)
            yield partial
            if flush:
                for file in partial.rglob("*"):
                    flush_to_disk(file)
            flush_to_disk(partial)
            partial.rename(path)
            flush_to_disk(path.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def exclusive_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `path` if the block succeeds, and removed if it raises.

    Several processes may try to create the folder at the same time: one of them can, the others get a UserError, as
    they do if it exists. The lock is a file beside the folder, which is removed at the end; that of a killed process
    holds nobody up.
    """
    lock_path = path.with_name(f".{path.name}.lock")
    message = f"{path} is being written by another process: wait for it, or choose another name"
    with os_errors_as_user_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_path.open("w")
    with lock:
        lock_file(lock, message)
        if not lock_path.exists() or not os.path.samestat(os.fstat(lock.fileno()), lock_path.stat()):
            # the process that held the lock has removed this file meanwhile; another one may have locked a new file
            raise UserError(message)
        try:
            if path.exists():
                raise UserError(f"{path} already exists: choose another name, or remove it")
            with atomic_folder(path) as partial:
                yield partial
        finally:
            with suppress(OSError):  # an open file cannot be removed on Windows
                lock_path.unlink()


def remove_folder(path: Path) -> None:
    """Remove a folder if it exists; it is renamed first, so that nobody finds it half removed."""
    removed = path.with_name(f".{path.name}.removed")
    with os_errors_as_user_errors(path):
        shutil.rmtree(removed, ignore_errors=True)  # left by a killed process
        if path.exists():
            path.rename(removed)
            shutil.rmtree(removed, ignore_errors=True)


def remove_partial_files(folder: Path) -> None:
    """Remove temporary files and folders that a killed process has left in a folder."""
    with os_errors_as_user_errors(folder):
        for path in [*folder.glob(".*.partial"), *folder.glob(".*.removed")]:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def replace_symlink(link: Path, name: str) -> None:
    """Point the link `link` to `name` in the same folder, atomically.

    It is a symbolic link, or a text file with the name where the system allows no symbolic links (Windows, some network
    and FAT file systems). `resolve_link` follows both.
    """
    partial = link.with_name(f".{link.name}.partial")
    if link.is_dir() and not link.is_symlink():  # the run was copied with its links resolved
        remove_folder(link)
    with os_errors_as_user_errors(link):
        partial.unlink(missing_ok=True)
        try:
            partial.symlink_to(name)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):  # a text file would fail, too
                raise
            partial.write_text(f"{name}\n", encoding="utf-8")
        partial.replace(link)
        flush_to_disk(link.parent)


def resolve_link(path: Path) -> Path:
    """Follow a link that is a text file with the name of its target, written where there are no symbolic links.

    Any other path is returned as it is.
    """
    for _ in range(MAX_LINK_DEPTH):  # a link may lead to a link; the limit ends a circle
        if not path.is_file() or path.stat().st_size > MAX_LINK_BYTES:  # a longer file holds more than a name
            break
        target = Path(path.read_text(encoding="utf-8", errors="replace").strip())
        if target.is_absolute() or ".." in target.parts:  # a link names something in its own folder
            break
        path = path.parent / target
    return path


def mirror(source: Path, target: Path) -> None:
    """Make `target` a symbolic link to a file or folder.

    Where there are no symbolic links, it becomes a hard link to a file, or a folder of hard links, or else a copy.
    """
    try:
        target.symlink_to(source.resolve())
    except OSError:
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link_or_copy)
        else:
            link_or_copy(source, target)


def link_or_copy(source: str | Path, target: str | Path) -> None:
    """Make `target` a hard link to a file, or a copy where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def exclusive_run_lock(folder: Path) -> Iterator[None]:
    """Lock a run folder, which training writes, while the block runs.

    A UserError says that another process trains the run, and so holds the lock.
    """
    with os_errors_as_user_errors(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        lock_file(lock, f"{folder} is being trained by another process: wait for it, or stop it")
        yield


@contextmanager
def blocking_lock(path: Path) -> Iterator[None]:
    """Hold a lock on a file, which is created if it does not exist, after waiting for other processes to release it."""
    with path.open("w") as file:
        while True:
            try:
                _try_lock(file.fileno())
                break
            except (BlockingIOError, PermissionError):
                time.sleep(LOCK_INTERVAL_SECONDS)
        yield


def lock_file(file: IO[Any], message: str) -> None:
    """Lock an open file until it is closed; raise a UserError with `message` if another process holds the lock."""
    try:
        _try_lock(file.fileno())
    except (BlockingIOError, PermissionError):
        raise UserError(message) from None


if sys.platform == "win32":

    def _try_lock(descriptor: int) -> None:
        """Lock an open file; raise a PermissionError if another process holds the lock."""
        position = os.lseek(descriptor, 0, os.SEEK_CUR)
        try:
            os.lseek(descriptor, WINDOWS_LOCK_POSITION, os.SEEK_SET)  # far behind the content of the file
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # one byte, without waiting
        finally:
            os.lseek(descriptor, position, os.SEEK_SET)

else:

    def _try_lock(descriptor: int) -> None:
        """Lock an open file; raise a BlockingIOError if another process holds the lock."""
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def flush_to_disk(path: Path) -> None:
    """Flush a file or folder to disk (fsync); nothing happens where folders cannot be opened (Windows)."""
    try:
        descriptor = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    except PermissionError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # these say that the file system has no fsync
            raise
    finally:
        os.close(descriptor)
