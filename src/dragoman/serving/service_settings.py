"""What a service allows, with defaults that are safe for a machine that others can reach."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from dragoman.errors import UserError


@dataclass(frozen=True)
class ServiceLimits:
    """What one request may cost, and how many are accepted."""

    max_characters: int = 10_000  # of all texts of a request together
    max_texts: int = 100  # of a request
    max_body_bytes: int = 1_000_000  # bytes
    receive_timeout: float = 10.0  # seconds until the headers have come, and then the body
    timeout: float = 60.0  # until it is answered
    max_queue: int = 256  # requests that wait for a run
    requests_per_minute: int = 600  # requests a minute of one client; 0: any number
    max_alternatives: int = 10
    max_hypotheses: int = 64  # hypotheses of a sentence that are looked at together
    max_streams: int = 8  # translations that are sent word by word at a time
    max_inspections: int = 16  # requests that wait to look into a sentence or a run
    max_inspected_tokens: int = 128  # of a source that is looked into
    max_attention_weights: int = 2_000_000  # of all attention that is shown of a sentence
    max_connections: int = 1000

    def __post_init__(self) -> None:
        for name, least in (("requests_per_minute", 0), ("max_alternatives", 0)):
            if getattr(self, name) < least:
                raise UserError(f"the limit '{name}' must be at least {least}, but is {getattr(self, name)}")
        above = [
            "max_characters",
            "max_texts",
            "max_body_bytes",
            "receive_timeout",
            "timeout",
            "max_queue",
            "max_hypotheses",
            "max_streams",
            "max_connections",
        ]
        for name in (*above, "max_inspections", "max_inspected_tokens", "max_attention_weights"):
            if not getattr(self, name) > 0:
                raise UserError(f"the limit '{name}' must be above 0, but is {getattr(self, name)}")


@dataclass(frozen=True)
class BatchingSettings:
    """How requests are gathered: until they have so many source tokens, or the first has waited so long."""

    max_tokens: int | None = None  # what the run's search.batch_tokens allow, if not given
    delay_seconds: float = 0.005  # seconds

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(f"a batch needs room for at least 1 token, but has {self.max_tokens}")
        if not 0 <= self.delay_seconds <= 10:
            raise UserError(f"requests may wait for others between 0 and 10 seconds, not {self.delay_seconds}")


class ApiKeys:
    """The keys that clients must give one of; none are asked for where there are none."""

    def __init__(self, keys: list[str] | None = None) -> None:
        self._digests = None if keys is None else {self._digest(key) for key in keys}

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """From a file of one key a line; empty lines and lines that begin with # are none."""
        try:
            lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UserError(f"{path} cannot be read: {reason}; give a file with one key a line") from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise UserError(f"{path} holds no key, so that nobody could be answered: write one a line")
        return cls(keys)

    @property
    def required(self) -> bool:
        return self._digests is not None

    def accepts(self, key: str | None) -> bool:
        return self._digests is None or (key is not None and self._digest(key) in self._digests)

    @staticmethod
    def _digest(key: str) -> bytes:
        """Comparing digests takes the same time for a key that is nearly right."""
        return hashlib.sha256(key.encode(errors="surrogatepass")).digest()
