"""The token stores of a run: what it is trained on, and what it is validated on."""

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
    """Writes the two token stores of a run, and looks at everything that goes into them.

    Memory holds a few chunks of text a worker, the distributions of lengths, the hashes of the validation and test
    pairs, what is held out, and 32 MiB of hashes of what was written: nothing that grows with the training corpora.
    """

    def __init__(
        self,
        folder: Path,
        config: DataConfig,
        reading: DataFormat,
        tokenizers: tuple[Tokenizer, Tokenizer],
        framing: Framing,
        workers: int,
        say: Log,
    ) -> None:
        self.folder, self.config, self.reading, self.workers, self.say = folder, config, reading, workers, say
        self.held: list[tuple[int, EncodedColumns]] = []
        self.names: list[str] = []
        self.encoding = Encoding(*tokenizers, config.max_length, framing)
        self.watch = CorpusInspection(purpose="validate on")

    def write_train(
        self, train: list[Corpus], split: HoldoutSplit | None, total: int, valid: list[Corpus]
    ) -> tuple[TokenStore, CorpusInspection]:
        """The store to train on; what is held out of it is kept for the other. `total` pairs are to be read."""
        self.names = [corpus.name for corpus in train]
        others = {} if split else {"valid": self.reading.read(valid)}
        if self.config.test_source:
            tests = make_corpora(self.config, self.config.test_source, self.config.test_target)
            others["test"] = self.reading.read(tests)
        self.folder.mkdir(exist_ok=True)
        inspector = CorpusInspection(others, folder=self.folder)
        draws = partial(
            draws_per_corpus, weights=self.config.sampling_weights, temperature=self.config.sampling_temperature
        )
        tell, read = ProgressLogger("written", self.say, total), 0

        def parts() -> Iterator[tuple[int, EncodedColumns]]:
            nonlocal read
            for encoded in self._encoded(train, split, self.config.corpus_tags, self.workers):
                read += encoded.pairs
                tell(read)
                for seen, columns in encoded.train:
                    inspector.add(seen)
                    if columns is not None:
                        yield encoded.corpus, columns
                self._hold(encoded.corpus, encoded.held_out)
            inspector.require_pairs()

        return write_shards(self.folder / "train", parts(), self.names, self.config.corpus_tags, draws), inspector

    def write_valid(self, valid: list[Corpus]) -> TokenStore:
        """The store to validate on: from files of its own, or what was held out."""
        tags = self.config.corpus_tags
        if valid:
            tags, self.names = validation_tags(self.config), [corpus.name for corpus in valid]
            for encoded in self._encoded(valid, None, tags, 1):
                self._hold(encoded.corpus, encoded.train)
        self.watch.require_pairs()
        seen = self.watch.counts
        if seen.dropped:
            lost = f"{seen.read - seen.pairs:,} of {seen.read:,} validation pairs"
            self.say(f"  {lost} are dropped: {', '.join(seen.dropped)}")
        return write_shards(self.folder / "valid", self.held, self.names, tags)

    def _encoded(
        self, corpora: list[Corpus], split: HoldoutSplit | None, tags: Sequence[str], workers: int
    ) -> Iterator[EncodedChunk]:
        symbols = [(self.encoding.source_tokenizer.tags[tag],) if tag else () for tag in tags]
        encode = ChunkEncoder(self.reading, self.encoding, split, symbols)
        return parallel_map(encode, read_chunks(self.reading, corpora), workers)

    def _hold(self, corpus: int, parts: list[InspectedColumns]) -> None:
        for seen, columns in parts:
            self.watch.add(seen)
            if columns is not None:
                self.held.append((corpus, columns))
