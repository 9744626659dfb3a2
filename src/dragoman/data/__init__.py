"""From text files to batches: reading, preflight, token store, batching; torch is imported when a batch is made."""

from dragoman.data.batch import NOTHING, Batch, Row, Rows, Segments
from dragoman.data.batching import Batches, Position, sorted_batches
from dragoman.data.corpus import Corpus, Pair, kind_of, read
from dragoman.data.examples import Example, encode
from dragoman.data.holdout import HoldOut, hold_out
from dragoman.data.inspection import Inspector, Limits, inspect
from dragoman.data.order import Order, draws_of
from dragoman.data.prefetch import prefetch
from dragoman.data.preflight import Memory, Preflight
from dragoman.data.reading import READINGS, Reading
from dragoman.data.shards import write_shards, write_store
from dragoman.data.signals import Signals
from dragoman.data.store import TokenStore, fingerprint

__all__ = [
    "NOTHING",
    "READINGS",
    "Batch",
    "Batches",
    "Corpus",
    "Example",
    "HoldOut",
    "Inspector",
    "Limits",
    "Memory",
    "Order",
    "Pair",
    "Position",
    "Preflight",
    "Reading",
    "Row",
    "Rows",
    "Segments",
    "Signals",
    "TokenStore",
    "draws_of",
    "encode",
    "fingerprint",
    "hold_out",
    "inspect",
    "kind_of",
    "prefetch",
    "read",
    "sorted_batches",
    "write_shards",
    "write_store",
]
