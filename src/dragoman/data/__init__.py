"""From text files to batches: corpora, preflight, token store, batches. Torch is imported when a batch is built."""

from dragoman.data.batch import IGNORE_INDEX, Batch, BatchRow, RowBuilder, SubwordSamplers
from dragoman.data.batching import Batches, DataPosition, RowFormat, batch_by_length, longer_side
from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.corpus_passes import HoldoutSplit
from dragoman.data.data_formats import DATA_FORMATS, DataFormat, EncodedPair, Encoding, detect_data_format
from dragoman.data.epoch_order import EpochOrder, draws_per_corpus
from dragoman.data.feature_files import FeatureFile, feature_dim
from dragoman.data.inspection import CorpusInspection
from dragoman.data.prefetch import prefetch
from dragoman.data.preflight import MemoryEstimate, Preflight
from dragoman.data.token_store import TokenStore, write_shards, write_store

__all__ = [
    "DATA_FORMATS",
    "IGNORE_INDEX",
    "Batch",
    "BatchRow",
    "Batches",
    "Corpus",
    "CorpusInspection",
    "DataFormat",
    "DataPosition",
    "EncodedPair",
    "Encoding",
    "EpochOrder",
    "FeatureFile",
    "HoldoutSplit",
    "MemoryEstimate",
    "Preflight",
    "RowBuilder",
    "RowFormat",
    "SentencePair",
    "SubwordSamplers",
    "TokenStore",
    "batch_by_length",
    "detect_data_format",
    "draws_per_corpus",
    "feature_dim",
    "longer_side",
    "prefetch",
    "write_shards",
    "write_store",
]
