"""Files on the local disk, or in any storage that fsspec supports, such as s3://bucket/folder."""

from __future__ import annotations

import errno
import glob
import io
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any, BinaryIO, cast

from dragoman.data.compression import decompressed
from dragoman.data.text_files import open_file
from dragoman.errors import UserError
from dragoman.storage import os_errors_as_user_errors


def is_url(location: str) -> bool:
    """Whether a location has a scheme, such as s3:// or simplecache::s3://, so that it is read through fsspec."""
    return re.match(r"([a-z0-9]+::)*[a-z][a-z0-9+.-]*://", location) is not None


def _file_system_and_path(location: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it."""
    try:
        from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise UserError(
            f"{location} is a remote address, which needs the package fsspec: install it with pip install "
            "'dragoman[cluster]'"
        ) from None
    try:
        file_system, path = url_to_fs(location)
    except (ImportError, ValueError) as error:
        raise UserError(
            f"fsspec cannot open the address {location} ({error}): install the package for such storage (s3fs for "
            "s3://, gcsfs for gs://, adlfs for abfs://) on all machines, or give a local path"
        ) from None
    return file_system, path


def find_files(patterns: list[str]) -> list[str]:
    """Return the paths or URLs of the files that patterns with * and ** match, each once.

    They are in the order of the patterns, and sorted within each. A pattern that matches no file is a UserError.
    """
    files: dict[str, None] = {}  # an ordered set
    for pattern in patterns:
        if is_url(pattern):
            matches = _find_urls(pattern)
        else:
            matches = [name for name in glob.glob(pattern, recursive=True) if Path(name).is_file()]  # noqa: PTH207
        if not matches:
            raise UserError(f"no file matches {pattern}: check the path and the pattern")
        files |= dict.fromkeys(sorted(matches))
    return list(files)


def _find_urls(pattern: str) -> list[str]:
    """Return the URLs of the files that a URL with * and ** matches; none if there is no such file."""
    file_system, path = _file_system_and_path(pattern)
    file_system.invalidate_cache()  # of listings: another machine may have written files since
    try:
        entries = file_system.glob(path, detail=True) if glob.has_magic(path) else {path: file_system.info(path)}
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(
            f"the files {pattern} cannot be listed: {error.strerror or error}; check the address and your permissions"
        ) from None
    chain = "".join(pattern.rpartition("::")[:2])  # file systems in front of the last one: "simplecache::"
    return [chain + file_system.unstrip_protocol(name) for name, entry in entries.items() if entry["type"] == "file"]


def file_size(location: str) -> int:
    """Return the size in bytes of a file at a path or URL, as it is stored."""
    if not is_url(location):
        return Path(location).stat().st_size
    file_system, path = _file_system_and_path(location)
    return int(file_system.size(path))


@contextmanager
def open_binary(location: str) -> Iterator[io.BufferedReader]:
    """Open a file at a path or URL for reading, without decompressing it."""
    if not is_url(location):
        with open_file(Path(location)) as file:
            yield file
        return
    file_system, path = _file_system_and_path(location)
    try:
        with file_system.open(path, "rb") as file:
            yield io.BufferedReader(cast(io.RawIOBase, file))
    except OSError as error:
        raise UserError(
            f"{location} cannot be read: {error.strerror or error}; check the address and your permissions"
        ) from None
    except ValueError as error:  # fsspec's error for an HTTP server that sends whole files only
        if "range requests" not in str(error):
            raise
        raise UserError(
            f"the server of {location} cannot send a part of a file (it supports no range requests): download the file "
            "first"
        ) from None


@contextmanager
def open_stream(location: str) -> Iterator[BinaryIO]:
    """Open a file at a path or URL for reading; it is decompressed if its first bytes say that it is compressed."""
    with open_binary(location) as file, decompressed(file, Path(location)) as stream:
        yield stream


def is_compressed(location: str) -> bool:
    """Whether a file is compressed, by its first bytes: then it can only be read from its beginning."""
    with open_binary(location) as file, decompressed(file, Path(location)) as stream:
        return stream is not file


class StorageFolder:
    """A folder that several machines write, in files that appear as a whole or not at all."""

    def __init__(self, location: str) -> None:
        """Use the folder at a path or URL; it need not exist. Names of its files are relative to it."""
        self.location = location.rstrip("/") or "/"
        self.is_remote = is_url(location)

    def path(self, name: str) -> str:
        """Return the path or URL of a file in the folder."""
        return f"{self.location}/{name}"

    def create(self, name: str = "") -> None:
        """Create the folder, or the folder `name` in it; one that exists stays as it is."""
        if self.is_remote:
            file_system, path = _file_system_and_path(self.path(name))
            file_system.makedirs(path, exist_ok=True)
            return
        with os_errors_as_user_errors(Path(self.location)):
            Path(self.path(name)).mkdir(parents=True, exist_ok=True)

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names of the files and folders in this folder, or in its subfolder `folder`.

        The list is empty if the folder does not exist.
        """
        if self.is_remote:
            file_system, path = _file_system_and_path(self.path(folder))
            file_system.invalidate_cache()
            if not file_system.exists(path):
                return []
            return sorted(name.rpartition("/")[2] for name in file_system.ls(path, detail=False))
        local = Path(self.path(folder))
        return sorted(path.name for path in local.iterdir()) if local.is_dir() else []

    def exists(self, name: str) -> bool:
        """Whether this folder has a file or folder `name`."""
        if self.is_remote:
            file_system, path = _file_system_and_path(self.path(name))
            return bool(file_system.exists(path))
        return Path(self.path(name)).exists()

    def read(self, name: str) -> bytes:
        """Return the content of a file in the folder."""
        with open_binary(self.path(name)) as file:
            return file.read()

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file of the folder; it appears as a whole or not at all."""
        with self.writing(name) as file:
            file.write(content)

    @contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        """Open a file of the folder for writing; it appears when the `with` block ends, but not if that raises."""
        suffix = f".{token_hex(8)}.partial"  # random: several machines may write the same file
        if self.is_remote:
            file_system, path = _file_system_and_path(self.path(name))
            try:
                with file_system.open(path + suffix, "wb") as file:
                    yield file
                file_system.mv(path + suffix, path)
            except OSError as error:
                advice = "free some space" if error.errno == errno.ENOSPC else "check the address and your permissions"
                reason = f"{error.strerror or error}; {advice}"
                raise UserError(f"{self.path(name)} cannot be written: {reason}") from None
            finally:
                if file_system.exists(path + suffix):
                    file_system.rm(path + suffix)
            return
        final = Path(self.path(name))
        local = final.with_name(f".{final.name}{suffix}")
        with os_errors_as_user_errors(final):
            try:
                with local.open("wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                local.replace(final)
            finally:
                local.unlink(missing_ok=True)

    def read_files(self, names: Iterable[str]) -> Iterator[BinaryIO]:
        """Yield files of the folder, open for reading, one after the other; each is closed before the next."""
        for name in names:
            with open_binary(self.path(name)) as file:
                yield file

    def remove(self, name: str) -> None:
        """Remove a file of this folder, or a subfolder with its files, if it exists."""
        if self.is_remote:
            file_system, path = _file_system_and_path(self.path(name))
            if file_system.exists(path):
                file_system.rm(path, recursive=True)
            return
        local = Path(self.path(name))
        if local.is_dir():
            for child in local.iterdir():
                child.unlink(missing_ok=True)
            local.rmdir()
        else:
            local.unlink(missing_ok=True)
