"""Settings of the service: limits and batching. The defaults are safe for a public machine."""

from __future__ import annotations

from dataclasses import dataclass, fields

from dragoman.errors import UserError


@dataclass(frozen=True)
class ServiceLimits:
    """Limits on the cost of a request and on the number of requests."""

    max_characters: int = 10_000  # of all texts of a request
    max_texts: int = 100  # per request
    max_body_bytes: int = 1_000_000
    max_file_bytes: int = 10_000_000  # of an uploaded document
    max_file_characters: int = 100_000  # of the text in a document
    file_timeout: float = 600.0  # seconds to translate a document
    max_stored_bytes: int = 100_000_000  # of all translated documents that wait to be downloaded
    receive_timeout: float = 10.0  # seconds for the headers to arrive, and again for the body
    timeout: float = 60.0  # seconds for the answer
    max_queue: int = 256  # requests waiting for a run
    requests_per_minute: int = 600  # per client; 0: unlimited
    clients_per_address: int = 16  # whose limits all clients of an address or API key have together
    max_pending_cost: int = 250_000  # of the waiting requests of a client: source tokens × (1 + hypotheses)
    max_alternatives: int = 10
    max_hypotheses: int = 64  # per sentence (beam size or number of samples)
    max_streams: int = 256  # concurrent streamed translations
    max_client_streams: int = 8  # of a client
    stream_wait: float = 2.0  # seconds that a request waits for a stream to end before it is rejected
    max_inspections: int = 256  # inspections waiting
    max_inspected_tokens: int = 128  # of an inspected source or translation
    max_attention_weights: int = 2_000_000  # of an inspected sentence
    max_connections: int = 1000

    def __post_init__(self) -> None:
        """Raise a UserError unless all limits are positive; the rate of requests and the alternatives may be 0."""
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("requests_per_minute", "max_alternatives"):
                if value < 0:
                    raise UserError(
                        f"the limit '{field.name}' of the service must be 0 or more, but is {value}: raise it"
                    )
            elif not value > 0:
                raise UserError(f"the limit '{field.name}' of the service must be above 0, but is {value}: raise it")


@dataclass(frozen=True)
class BatchingSettings:
    """A batch is translated when it has `max_tokens` source tokens, or its first request waited `delay_seconds`."""

    max_tokens: int | None = None  # None: derived from the run's search.batch_tokens
    delay_seconds: float = 0.005

    def __post_init__(self) -> None:
        """Raise a UserError unless `max_tokens` is at least 1 or None, and `delay_seconds` from 0 to 10."""
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UserError(
                "the maximum number of source tokens of a batch (--max-batch-tokens) must be at least 1, but is "
                f"{self.max_tokens}: raise it"
            )
        if not 0 <= self.delay_seconds <= 10:
            raise UserError(
                "the time that a request waits for others to form a batch (--batch-delay-ms) must be from 0 to 10 "
                f"seconds, but is {self.delay_seconds:g} seconds: change it"
            )
