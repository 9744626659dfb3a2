"""Settings of the service: limits, batching and API keys. The defaults are safe for a public machine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields
from pathlib import Path

from dragoman.errors import UserError


@dataclass(frozen=True)
class ServiceLimits:
    """Limits on the cost of a request and on the number of requests."""

    max_characters: int = 10_000  # of all texts of a request
    max_texts: int = 100  # per request
    max_body_bytes: int = 1_000_000
    receive_timeout: float = 10.0  # seconds for the headers to arrive, and again for the body
    timeout: float = 60.0  # seconds for the answer
    max_queue: int = 256  # requests waiting for a run
    requests_per_minute: int = 600  # per client; 0: unlimited
    max_alternatives: int = 10
    max_hypotheses: int = 64  # per sentence (beam size or number of samples)
    max_streams: int = 8  # concurrent streamed translations
    max_inspections: int = 16  # inspections waiting or running
    max_inspected_tokens: int = 128  # of an inspected source or translation
    max_attention_weights: int = 2_000_000  # of an inspected sentence
    max_connections: int = 1000

    def __post_init__(self) -> None:
        """Raise a UserError unless all limits are positive; two of them may be 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("requests_per_minute", "max_alternatives"):
                if value < 0:
                    raise UserError(f"the limit '{field.name}' of the service must be at least 0, but is {value}")
            elif not value > 0:
                raise UserError(f"the limit '{field.name}' of the service must be above 0, but is {value}")


@dataclass(frozen=True)
class BatchingSettings:
    """A batch is translated when it has `max_tokens` source tokens, or its first request waited `delay_seconds`."""

    max_tokens: int | None = None  # None: derived from the run's search.batch_tokens
    delay_seconds: float = 0.005

    def __post_init__(self) -> None:
        """Raise a UserError if a setting is out of range."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"--max-batch-tokens must be at least 1, but is {self.max_tokens}")
        if not 0 <= self.delay_seconds <= 10:
            raise UserError(f"--batch-delay-ms must be from 0 to 10,000, but is {1000 * self.delay_seconds:g}")


class ApiKeys:
    """The accepted API keys; without keys, all requests are accepted."""

    def __init__(self, keys: list[str] | None = None) -> None:
        """Accept these keys, of which only hashes are kept; None: accept all requests."""
        self._digests = None if keys is None else {self._digest(key) for key in keys}

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line; empty lines and lines that begin with # are ignored."""
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(
                f"the file of API keys {path} cannot be read: {reason}; give a file with one key per line"
            ) from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise UserError(
                f"the file of API keys {path} is empty, so all requests would be rejected: write one key per line"
            )
        return cls(keys)

    @property
    def required(self) -> bool:
        """Whether requests need a key."""
        return self._digests is not None

    def accepts(self, key: str | None) -> bool:
        """Whether a request with this key (None: without a key) is accepted."""
        return self._digests is None or (key is not None and self._digest(key) in self._digests)

    @staticmethod
    def _digest(key: str) -> bytes:
        """Hash a key, so that the time of a comparison does not reveal how much of it is correct."""
        return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
