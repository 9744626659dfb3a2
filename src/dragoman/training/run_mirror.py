"""A copy of a run folder in a storage that fsspec supports, which every checkpoint updates, and machines fetch.

The storage has `objects/DIGEST`, one file for each content, and `manifest.json` with the names, sizes and digests of
the files of the run. The manifest is written last, and replaced in one step: it always names a whole run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dragoman import checkpoint
from dragoman.bulk.file_storage import StorageFolder, open_binary
from dragoman.errors import UserError
from dragoman.run_files import CHECKPOINT_DIR, MODEL_FILE, check_new_folder, is_run_folder
from dragoman.storage import (
    blocking_lock,
    os_errors_as_user_errors,
    remove_folder,
    replace_symlink,
    resolve_link,
    write_file,
)

MANIFEST_NAME, MANIFEST_VERSION, OBJECT_FOLDER = "manifest.json", 1, "objects"
CACHE_FILE, LOCK_FILE = ".mirror.json", ".mirror.lock"  # in the run folder: digests of its files
LINKS = ("best", "last")  # in the folder of checkpoints
#: files that training never changes: if they differ, the copy is one of another run
CONSTANT_FILES = (MODEL_FILE, "preflight.json", "data/train/store.json")
TRANSFERS = 8  # at a time
TRANSFER_CHUNK_BYTES = 1 << 20


class StoredFile(NamedTuple):
    """Size and SHA-256 of a file."""

    size: int
    digest: str


class Manifest(NamedTuple):
    """The files of a run by their names in its folder, and the names that the links `best` and `last` point to."""

    files: dict[str, StoredFile]
    links: dict[str, str]

    @property
    def step(self) -> int:
        """Step of the last checkpoint; -1 without one."""
        return int(self.links.get("last", -1))


class RunMirror:
    """The copy of a run folder at a path or URL, such as s3://bucket/runs/en-de.

    One process of a training calls `synchronize` and `publish`; all others then call `fetch`.
    """

    def __init__(self, folder: Path, location: str) -> None:
        """Use the copy at the path or URL `location` of the run folder `folder`; neither need exist."""
        self.folder, self.storage = folder, StorageFolder(location)
        self.location = location
        self.published: Manifest | None = None  # by this process

    def check_free(self) -> None:
        """Raise a UserError if the storage holds a run already."""
        if self.manifest() is not None:
            raise UserError(
                f"the mirror (copy of the run folder) at {self.location} already holds a run: continue it with "
                "--resume, or choose another --mirror"
            )

    def manifest(self) -> Manifest | None:
        """Return the manifest of the copy; None if there is none.

        A damaged one, or one of another format version, is a UserError.
        """
        with self._storage_errors():
            if not self.storage.exists(MANIFEST_NAME):
                return None
            content = self.storage.read(MANIFEST_NAME)
        try:
            document = json.loads(content)
            if document["version"] == MANIFEST_VERSION:
                files = {name: StoredFile(*values) for name, values in document["files"].items()}
                return Manifest(files, dict(document["links"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{self.storage.path(MANIFEST_NAME)}, the list of the files of the mirror (copy of the run folder), "
                "is damaged: choose another --mirror"
            ) from None
        raise UserError(
            f"the mirror (copy of the run folder) at {self.location} has format version {document['version']!r}, but "
            f"only version {MANIFEST_VERSION} is supported: update dragoman"
        )

    def synchronize(self) -> None:
        """Publish the run if there is no copy or its last checkpoint is later; otherwise fetch the copy.

        A UserError is raised if neither the folder nor the copy holds a run.
        """
        remote = self.manifest()
        if remote is None and not is_run_folder(self.folder):
            raise UserError(
                f"neither {self.folder} nor its mirror (copy of the run folder) {self.location} holds a run: train a "
                "new one without --resume"
            )
        if remote is None or self._local_step() > remote.step:
            self.publish()
        else:
            self.fetch()

    def publish(self) -> None:
        """Copy all files of the run folder that have changed, then the manifest; remove what it no longer needs.

        Each content is stored once, in a file named by its digest. Nothing is copied if nothing has changed; a copy of
        another run is a UserError.
        """
        old = self.published or self.manifest()
        new = self._local_manifest()
        if old is not None:
            self._check_same_run(new, old)
        if old == new:
            return
        with self._storage_errors():
            self.storage.create(OBJECT_FOLDER)
            old_digests = {file.digest for file in old.files.values()} if old else set()
            # the first call also looks for objects that an interrupted process has copied, but not named in a manifest
            uploaded = set() if self.published else set(self.storage.names(OBJECT_FOLDER))
            present = old_digests | uploaded
            missing = {file.digest: name for name, file in new.files.items() if file.digest not in present}
            _in_parallel(self._upload, missing.items())
            document = {"version": MANIFEST_VERSION, "files": new.files, "links": new.links}
            self.storage.write(MANIFEST_NAME, json.dumps(document, indent=1).encode())
            self.published = new
            for digest in old_digests - {file.digest for file in new.files.values()}:
                self.storage.remove(f"{OBJECT_FOLDER}/{digest}")

    def fetch(self) -> None:
        """Make the run folder equal to the copy; files that are equal already are not copied again.

        A missing folder is created; one that exists, but holds no run or another one, is a UserError. Several processes
        of a machine may call it at the same time.
        """
        if not (is_run_folder(self.folder) or (self.folder / LOCK_FILE).exists()):  # an interrupted fetch has the lock
            check_new_folder(self.folder)
        with os_errors_as_user_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with blocking_lock(self.folder / LOCK_FILE):
            manifest = self.manifest()
            if manifest is None:
                raise UserError(
                    f"the mirror (copy of the run folder) at {self.location} holds no run: check the address of "
                    "--mirror"
                )
            local = self._local_manifest()
            if is_run_folder(self.folder):
                self._check_same_run(local, manifest)
            missing = [name for name, file in manifest.files.items() if local.files.get(name) != file]
            # the manifests of checkpoints and the model file come last: their presence says that the rest is complete
            completing = [name for name in missing if Path(name).name in (checkpoint.MANIFEST_FILE, MODEL_FILE)]
            # Of files with equal content only one is copied in parallel, and the others after it: the file system of
            # fsspec in memory has one position for all readers of a file.
            distinct = {manifest.files[name].digest: name for name in missing if name not in completing}
            others = [name for name in missing if name not in {*completing, *distinct.values()}]
            with self._storage_errors():
                _in_parallel(self._download, [(name, manifest.files[name]) for name in distinct.values()])
                for name in others + sorted(completing):  # checkpoints/…/checkpoint.json, then model.json
                    self._download((name, manifest.files[name]))
            for link, name in manifest.links.items():
                replace_symlink(self.folder / CHECKPOINT_DIR / link, name)
            # remove checkpoints that the copy does not have; `kept` are names such as 002000
            kept = {Path(name).parts[1] for name in manifest.files if name.startswith(f"{CHECKPOINT_DIR}/")}
            for path in (self.folder / CHECKPOINT_DIR).glob("[!.]*"):
                if path.is_dir() and path.name not in {*kept, *LINKS}:
                    remove_folder(path)
            self._local_manifest()  # stores the digests of the new files for the next call

    def _local_step(self) -> int:
        """Return the step of the last checkpoint in the run folder; -1 without one."""
        last = resolve_link(self.folder / CHECKPOINT_DIR / "last").resolve()
        return int(last.name) if checkpoint.is_complete(last) and last.name.isdecimal() else -1

    def _check_same_run(self, local: Manifest, remote: Manifest) -> None:
        """Raise a UserError if the copy (`remote`) is one of another run: files differ that training never changes."""
        if any(local.files.get(name) != remote.files.get(name) for name in CONSTANT_FILES):
            raise UserError(
                f"the mirror (copy of the run folder) at {self.location} holds another run than {self.folder}: choose "
                "another --mirror"
            )

    def _local_manifest(self) -> Manifest:
        """Return the manifest of the run folder, with the digest of every file.

        The file `.mirror.json` keeps digests for the next call, in which those of files are computed anew whose size or
        time of modification has changed.
        """
        try:
            cached = json.loads((self.folder / CACHE_FILE).read_bytes())
        except (OSError, ValueError):
            cached = {}
        checkpoints = self.folder / CHECKPOINT_DIR
        links = {name: resolve_link(checkpoints / name).resolve().name for name in LINKS if _exists(checkpoints / name)}
        entries: dict[str, list[Any]] = {}  # file name → [size, time of modification, digest]
        with os_errors_as_user_errors(self.folder):
            for name, path in _files(self.folder):
                status = path.stat()
                stamp = [status.st_size, status.st_mtime_ns]
                entry = cached.get(name, [])
                entries[name] = entry if entry[:2] == stamp else [*stamp, _digest(path)]
        if entries != cached and entries:
            write_file(self.folder / CACHE_FILE, json.dumps(entries))
        return Manifest({name: StoredFile(size, digest) for name, (size, _, digest) in entries.items()}, links)

    def _upload(self, item: tuple[str, str]) -> None:
        """Copy a file of the run folder, given by its digest and name, to the storage."""
        digest, name = item
        with (self.folder / name).open("rb") as source, self.storage.writing(f"{OBJECT_FOLDER}/{digest}") as target:
            shutil.copyfileobj(source, target, TRANSFER_CHUNK_BYTES)

    def _download(self, item: tuple[str, StoredFile]) -> None:
        """Copy a file of the storage into the run folder, where it appears when it is complete and has its digest."""
        name, stored = item
        path = self.folder / name
        partial = path.with_name(f".{path.name}.partial")
        with os_errors_as_user_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (
                open_binary(self.storage.path(f"{OBJECT_FOLDER}/{stored.digest}")) as source,
                os_errors_as_user_errors(path),
                partial.open("wb") as target,
            ):
                shutil.copyfileobj(source, target, TRANSFER_CHUNK_BYTES)
                target.flush()
                os.fsync(target.fileno())
            if _digest(partial) != stored.digest:
                raise UserError(
                    f"the file {name} in the mirror (copy of the run folder) at {self.location} is damaged: resume "
                    "training from another copy of the run folder, and choose another --mirror"
                )
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)

    @contextmanager
    def _storage_errors(self) -> Iterator[None]:
        """Turn OSErrors of the storage that holds the copy, such as S3, into a UserError that names its address."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"the copy of the run at {self.location} cannot be accessed: {error.strerror or error}; check the "
                "address, your permissions and the free space"
            ) from None


def _exists(path: Path) -> bool:
    """Whether a link, such as checkpoints/last, points to something that exists."""
    return resolve_link(path).exists()


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the names and paths of all files of a run folder but hidden ones and the links `best` and `last`."""
    for parent, folders, names in os.walk(folder, followlinks=True):
        is_checkpoints = Path(parent) == folder / CHECKPOINT_DIR
        folders[:] = sorted(name for name in folders if name[0] != "." and not (is_checkpoints and name in LINKS))
        for name in sorted(names):
            if name[0] != "." and not (is_checkpoints and name in LINKS):
                path = Path(parent) / name
                yield path.relative_to(folder).as_posix(), path


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_parallel(function: Callable[[Any], None], items: Iterable[Any]) -> None:
    """Call a function for all items, several at a time; the first error is raised."""
    with ThreadPoolExecutor(TRANSFERS) as pool:
        for _ in pool.map(function, items):
            pass
