"""The files of a recipe's corpus: found in a folder, generated, or downloaded and checked."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dragoman.data.generated_tasks import write_generated
from dragoman.data.task_recipes import CorpusFile, Split, TaskRecipe
from dragoman.data.text_files import open_decompressed
from dragoman.errors import UserError
from dragoman.storage import write_file

ALLOWED_SCHEMES = {"https"}
MAX_DOWNLOAD_BYTES = 2**28  # of one file, before and after decompression
DOWNLOAD_TIMEOUT_SECONDS = 60.0
CHUNK_BYTES = 2**20

Log = Callable[[str], None]


def prepare_splits(recipe: TaskRecipe, variant: str, folder: Path, log: Log) -> dict[str, tuple[Path, Path | None]]:
    """Return the source and target file of every split, after generating or downloading those that are missing.

    Args:
        recipe: names the files of each split, and where they come from.
        variant: form of the corpus, such as a language; it completes the names of files; "": there is only one form.
        folder: folder of the corpus, or a folder of several corpora that contains it.
        log: receives messages about generation, downloads, and files that differ from the published ones.

    A file that is missing and has no address, or a failed download, is a UserError.
    """
    splits = {name: recipe.split(name, variant) for name in recipe.splits}
    names = list(dict.fromkeys(name for split in splits.values() for name in (split.source, split.target) if name))
    if not any(find_file(folder, name) for name in names) and folder.is_dir() and any(folder.iterdir()):
        folder = folder / (recipe.folder or recipe.name)  # the folder holds other corpora
    missing = [name for name in names if find_file(folder, name) is None]
    if missing and recipe.generator and not folder.exists():
        log(f"generating the corpus of the task recipe {recipe.name} in {folder}")
        write_generated(recipe.generator, folder, recipe.generator_settings)
        missing = []
    addresses = {name: file_address(recipe, name) for name in missing}
    if unavailable := [name for name, address in addresses.items() if not address]:
        advice = f" {recipe.obtain}" if recipe.obtain else ""
        raise UserError(
            f"the folder {folder} lacks the files {', '.join(unavailable)} (plain or .gz) of the corpus of the "
            f"task recipe {recipe.name}: name the folder that has them with --data FOLDER.{advice}"
        )
    for name in names:
        checksum = recipe.files.get(name, CorpusFile()).sha256
        if name in addresses:
            log(f"downloading {addresses[name]}")
            download(addresses[name], folder / name, checksum, CONVERSIONS[recipe.conversion])
        elif checksum and content_checksum(_existing(folder, name)) != checksum:
            log(f"note: {_existing(folder, name)} differs from the published file, so figures are not comparable")

    def paths(split: Split) -> tuple[Path, Path | None]:
        """Return the existing source and target file of a split; None if both are in one file."""
        return _existing(folder, split.source), _existing(folder, split.target) if split.target else None

    return {name: paths(split) for name, split in splits.items()}


def find_file(folder: Path, name: str) -> Path | None:
    """Return the file of this name in a folder, plain or with .gz; None if there is none."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _existing(folder: Path, name: str) -> Path:
    """Return the path of a file, plain or .gz, that must be in the folder; a UserError if it is not."""
    path = find_file(folder, name)
    if path is None:
        raise UserError(
            f"the folder {folder} lacks the file {name} of the corpus: remove the folder, so that the corpus is "
            "written again, or name another folder with --data"
        )
    return path


def file_address(recipe: TaskRecipe, name: str) -> str:
    """Return the URL of a file: its own, or that of the recipe with {file} replaced; "" if neither is known."""
    return recipe.files.get(name, CorpusFile()).url or recipe.url.replace("{file}", name)


def content_checksum(path: Path) -> str:
    """Return the SHA-256 of the contents of a plain or gzipped file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with open_decompressed(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def download(url: str, path: Path, checksum: str, convert: Callable[[bytes], bytes]) -> None:
    """Download a file, check it, and write its decompressed and converted contents to `path` in one step.

    Unless the SHA-256 of these contents is `checksum`, there is a UserError and nothing is written, so that a file
    under its final name is always complete. An empty checksum accepts any contents.
    """
    content = convert(_decompress(_fetch(url), url))
    if checksum and (actual := hashlib.sha256(content).hexdigest()) != checksum:
        raise UserError(
            f"{url} is not the published file: its SHA-256 is {actual}, expected {checksum}; try again, or get the "
            "file in another way and name its folder with --data"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, content)


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects only to allowed schemes."""

    def redirect_request(self, req: Any, fp: Any, code: Any, msg: Any, headers: Any, newurl: str) -> Any:
        """Return the request for the new address; raise a UserError if its scheme is not allowed."""
        _check_scheme(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_scheme(url: str) -> None:
    """Raise a UserError for an address that is not https."""
    if urlsplit(url).scheme not in ALLOWED_SCHEMES:
        raise UserError(
            f"{url} is not downloaded, because only https is allowed: download the file yourself and name its "
            "folder with --data"
        )


def _fetch(url: str) -> bytes:
    """Return the content at a URL, at most MAX_DOWNLOAD_BYTES; raise a UserError for every failure."""
    _check_scheme(url)
    opener = urllib.request.build_opener(_CheckedRedirects)
    try:
        with opener.open(url, timeout=DOWNLOAD_TIMEOUT_SECONDS) as response:
            content: bytes = response.read(MAX_DOWNLOAD_BYTES + 1)
            expected = response.headers.get("Content-Length")
    except (OSError, urllib.error.URLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url} cannot be downloaded ({reason}): check the network, or name a folder that has the file with --data"
        ) from None
    if len(content) > MAX_DOWNLOAD_BYTES:
        raise UserError(
            f"the file {url} is larger than {MAX_DOWNLOAD_BYTES // 2**20} MiB, the limit for a download: get it "
            "in another way and name its folder with --data"
        )
    if expected is not None and len(content) != int(expected):
        raise UserError(f"the download of {url} ended after {len(content):,} of {int(expected):,} bytes: try again")
    return content


def _decompress(content: bytes, url: str) -> bytes:
    """Return the contents of gzipped data, at most MAX_DOWNLOAD_BYTES; other data is returned as it is."""
    if content[:2] != b"\x1f\x8b":  # the first bytes of gzip
        return content
    decompressor = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    try:
        text = decompressor.decompress(content, MAX_DOWNLOAD_BYTES)
    except zlib.error as error:
        raise UserError(f"the download of {url} is not valid gzip data ({error}): try again") from None
    if not decompressor.eof:
        raise UserError(
            f"{url} is incomplete, or larger than {MAX_DOWNLOAD_BYTES // 2**20} MiB when decompressed: get the file in "
            "another way and name its folder with --data"
        )
    return text


# ---- conversions of downloaded files to the formats that training reads


def commands_to_columns(content: bytes) -> bytes:
    """Convert lines of SCAN, "IN: jump twice OUT: I_JUMP I_JUMP", to tab-separated columns."""
    return re.sub(rb"(?m)^IN: (.*) OUT: (.*?) *$", rb"\1\t\2", content)


def words_and_tags(content: bytes) -> bytes:
    """Convert CoNLL-U to a line per sentence: words, tab, universal part-of-speech tags.

    Comments, multiword tokens (1-2) and empty nodes (1.1) are left out; a space within a word is removed.
    """

    def lines() -> Iterator[str]:
        """Yield the lines of the sentences, which are separated by empty lines."""
        for block in re.split(r"\n{2,}", content.decode().strip()):
            words, tags = [], []
            for line in block.splitlines():
                number, *columns = line.split("\t")
                if number.isdecimal():
                    word, _, tag, *_ = columns  # word, lemma, universal tag, and further columns
                    words.append(word.replace(" ", ""))
                    tags.append(tag)
            yield f"{' '.join(words)}\t{' '.join(tags)}\n"

    return "".join(lines()).encode()


CONVERSIONS: Mapping[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "scan": commands_to_columns,
    "conllu": words_and_tags,
}
