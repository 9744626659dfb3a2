"""From text files to batches: reading, preflight, token store, batching; torch is imported when a batch is made."""

from dragoman.data.batching import Batch, Batches, Framing, Position, sorted_batches
from dragoman.data.corpus import Corpus, Pair, read, read_monolingual
from dragoman.data.examples import Example, encode
from dragoman.data.holdout import HoldOut, hold_out
from dragoman.data.inspection import Inspector, Limits, inspect
from dragoman.data.prefetch import prefetch
from dragoman.data.preflight import Memory, Preflight
from dragoman.data.store import TokenStore, fingerprint, write_store

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "Example",
    "Framing",
    "HoldOut",
    "Inspector",
    "Limits",
    "Memory",
    "Pair",
    "Position",
    "Preflight",
    "TokenStore",
    "encode",
    "fingerprint",
    "hold_out",
    "inspect",
    "prefetch",
    "read",
    "read_monolingual",
    "sorted_batches",
    "write_store",
]
