"""Writing the token stores of a run: training and validation data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from dragoman.config import DataConfig
from dragoman.data import (
    Corpus,
    CorpusInspection,
    DataFormat,
    Encoding,
    HoldoutSplit,
    TokenStore,
    draws_per_corpus,
    write_shards,
)
from dragoman.data.corpus_passes import ChunkEncoder, EncodedChunk, InspectedColumns, Log, ProgressLogger, read_chunks
from dragoman.data.shard_writer import EncodedColumns
from dragoman.processes import parallel_map
from dragoman.text import Framing, Tokenizer
from dragoman.training.resolve import make_corpora, validation_tags


class StoreWriter:
    """Writes the token stores of a run, and inspects all pairs for the preflight report.

    Memory holds a few chunks of text per worker, length distributions, hashes of the validation and test pairs, the
    held-out pairs, and 32 MiB of hashes of written pairs: nothing that grows with the training corpora.
    """

    def __init__(
        self,
        folder: Path,
        config: DataConfig,
        data_format: DataFormat,
        tokenizers: tuple[Tokenizer, Tokenizer],
        framing: Framing,
        workers: int,
        log: Log,
    ) -> None:
        self.folder, self.config, self.data_format, self.workers, self.log = folder, config, data_format, workers, log
        self.held_out: list[tuple[int, EncodedColumns]] = []
        self.names: list[str] = []
        self.encoding = Encoding(*tokenizers, config.max_length, framing)
        self.inspection = CorpusInspection(purpose="validate on")

    def write_train(
        self, train: list[Corpus], split: HoldoutSplit | None, total: int, valid: list[Corpus]
    ) -> tuple[TokenStore, CorpusInspection]:
        """Write the training store from `total` pairs; held-out pairs are kept for the validation store."""
        self.names = [corpus.name for corpus in train]
        others = {} if split else {"valid": self.data_format.read(valid)}
        if self.config.test_source:
            tests = make_corpora(self.config, self.config.test_source, self.config.test_target)
            others["test"] = self.data_format.read(tests)
        self.folder.mkdir(exist_ok=True)
        inspection = CorpusInspection(others, folder=self.folder)
        draws = partial(
            draws_per_corpus, weights=self.config.sampling_weights, temperature=self.config.sampling_temperature
        )
        progress = ProgressLogger("written", self.log, total)

        def columns_of_corpora() -> Iterator[tuple[int, EncodedColumns]]:
            read = 0
            for chunk in self._encode(train, split, self.config.corpus_tags, self.workers):
                read += chunk.pairs
                progress(read)
                inspection.add(chunk.train.counts)
                if chunk.train.columns is not None:
                    yield chunk.corpus, chunk.train.columns
                self._hold_out(chunk.corpus, chunk.held_out)
            inspection.require_pairs()

        tags = self.config.corpus_tags
        return write_shards(self.folder / "train", columns_of_corpora(), self.names, tags, draws), inspection

    def write_valid(self, valid: list[Corpus]) -> TokenStore:
        """Write the validation store from the validation files, or from the held-out pairs."""
        tags = self.config.corpus_tags
        if valid:
            tags, self.names = validation_tags(self.config), [corpus.name for corpus in valid]
            for chunk in self._encode(valid, None, tags, 1):
                self._hold_out(chunk.corpus, chunk.train)
        self.inspection.require_pairs()
        counts = self.inspection.counts
        if counts.dropped:
            dropped = f"{counts.pairs_read - counts.pairs:,} of {counts.pairs_read:,} validation pairs"
            self.log(f"  dropped {dropped}: {', '.join(counts.dropped)}")
        return write_shards(self.folder / "valid", self.held_out, self.names, tags)

    def _encode(
        self, corpora: list[Corpus], split: HoldoutSplit | None, tags: Sequence[str], workers: int
    ) -> Iterator[EncodedChunk]:
        tag_ids = [(self.encoding.source_tokenizer.tags[tag],) if tag else () for tag in tags]
        encode = ChunkEncoder(self.data_format, self.encoding, split, tag_ids)
        return parallel_map(encode, read_chunks(self.data_format, corpora), workers)

    def _hold_out(self, corpus: int, inspected: InspectedColumns) -> None:
        self.inspection.add(inspected.counts)
        if inspected.columns is not None:
            self.held_out.append((corpus, inspected.columns))
