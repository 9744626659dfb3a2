"""Translated documents that wait to be downloaded, in memory."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field

EXPIRY_SECONDS = 30 * 60  # for which a translated document can be downloaded
MAX_NAME_CHARACTERS, MAX_SUFFIX_CHARACTERS = 100, 10  # of a file name before its last dot, and after it


@dataclass(frozen=True)
class StoredDocument:
    """A translated document, the name to save it under, and when it expires."""

    name: str
    media_type: str
    content: bytes
    expires: float = field(default_factory=lambda: time.monotonic() + EXPIRY_SECONDS)


class DocumentStore:
    """Documents by names that cannot be guessed; the oldest are dropped if there are too many bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Keep documents of at most `max_bytes` in total."""
        self.max_bytes = max_bytes
        self._documents: OrderedDict[str, StoredDocument] = OrderedDict()  # oldest first
        self._lock = threading.Lock()

    def add(self, document: StoredDocument) -> str:
        """Store a document, and return the name under which it can be downloaded: random, so that nobody guesses it."""
        key = f"{secrets.token_urlsafe(24)}.{document.name}"
        with self._lock:
            self._drop_expired()
            self._documents[key] = document
            # the new document is kept in any case
            while len(self._documents) > 1 and self._stored_bytes() > self.max_bytes:
                self._documents.popitem(last=False)
        return key

    def get(self, key: str) -> StoredDocument | None:
        """Return the document that `add` has stored under the name `key`; None if there is none (any more)."""
        with self._lock:
            self._drop_expired()
            return self._documents.get(key)

    def _stored_bytes(self) -> int:
        """Return the total size of the stored documents."""
        return sum(len(document.content) for document in self._documents.values())

    def _drop_expired(self) -> None:
        """Remove expired documents, which are at the front because the oldest come first."""
        now = time.monotonic()
        while self._documents and next(iter(self._documents.values())).expires < now:
            self._documents.popitem(last=False)


def safe_file_name(name: str) -> str:
    """Return the name of an uploaded file without folders, special characters and excessive length."""
    base = re.split(r"[/\\]", name)[-1]
    stem, dot, suffix = re.sub(r"[^\w.-]+", "_", base).rpartition(".")
    return f"{stem.strip('._')[:MAX_NAME_CHARACTERS] or 'document'}{dot}{suffix[:MAX_SUFFIX_CHARACTERS]}"
