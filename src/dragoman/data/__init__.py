"""From text files to batches: reading, preflight, token store, batching; torch is imported when a batch is made."""

from dragoman.data.batch import IGNORE_INDEX, Batch, BatchRow, RowBuilder, SubwordSamplers
from dragoman.data.batching import Batches, DataPosition, batch_by_length
from dragoman.data.corpus import Corpus, SentencePair, detect_data_format, read_pairs
from dragoman.data.data_formats import DATA_FORMATS, DataFormat
from dragoman.data.epoch_order import EpochOrder, draws_per_corpus
from dragoman.data.examples import EncodedPair, encode_pairs
from dragoman.data.feature_files import FeatureFile
from dragoman.data.holdout import HoldoutSplit, choose_holdout
from dragoman.data.inspection import PairInspector, PairLimits, inspect_pairs
from dragoman.data.prefetch import prefetch
from dragoman.data.preflight import MemoryEstimate, Preflight
from dragoman.data.shard_writer import write_shards, write_store
from dragoman.data.token_store import TokenStore, fingerprint

__all__ = [
    "DATA_FORMATS",
    "IGNORE_INDEX",
    "Batch",
    "BatchRow",
    "Batches",
    "Corpus",
    "DataFormat",
    "DataPosition",
    "EncodedPair",
    "EpochOrder",
    "FeatureFile",
    "HoldoutSplit",
    "MemoryEstimate",
    "PairInspector",
    "PairLimits",
    "Preflight",
    "RowBuilder",
    "SentencePair",
    "SubwordSamplers",
    "TokenStore",
    "batch_by_length",
    "choose_holdout",
    "detect_data_format",
    "draws_per_corpus",
    "encode_pairs",
    "fingerprint",
    "inspect_pairs",
    "prefetch",
    "read_pairs",
    "write_shards",
    "write_store",
]
