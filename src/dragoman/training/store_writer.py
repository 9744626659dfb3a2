"""Tokenizing corpora into the token stores of a run."""

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
    corpus_passes,
    draws_per_corpus,
    write_shards,
)
from dragoman.data.corpus_passes import Log
from dragoman.data.token_store import EncodedColumns
from dragoman.processes import OrderedMap
from dragoman.text import Tokenizer
from dragoman.training import resolve
from dragoman.training.language_pairs import CorpusLanguages


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
        languages: CorpusLanguages,
        parallel: OrderedMap,
        log: Log,
    ) -> None:
        """Prepare to write the token stores (tokenized text on disk) of training and validation into `folder`.

        Args:
            config: settings of the data, such as the largest length.
            data_format: how pairs are read from the files.
            tokenizers: of source and target.
            languages: source and target language of each corpus, and the special tokens around their text.
            parallel: maps chunks of text, with several processes or machines.
            log: prints a line for the user.
        """
        self.folder, self.config, self.data_format, self.parallel, self.log = folder, config, data_format, parallel, log
        self.held_out: list[tuple[int, EncodedColumns]] = []  # validation pairs, each chunk with its corpus number
        self.names: list[str] = []  # of the corpora
        self.languages, framing = languages, languages.framing.for_default_languages()
        self.encoding = Encoding(*tokenizers, max_length=config.max_length, framing=framing)
        self.inspection = CorpusInspection(purpose="validate on")  # of the validation pairs; `purpose` is for messages

    def write_train(
        self,
        train: list[Corpus],
        split: HoldoutSplit | None,
        total: int,
        valid: list[Corpus],
        test: list[Corpus],
    ) -> tuple[TokenStore, CorpusInspection]:
        """Write the tokenized training text, and return it with the statistics of its pairs for the preflight report.

        Args:
            train: training corpora with `total` pairs.
            split: pairs to hold out, which are kept in memory for the validation store; None with validation files.
            valid, test: validation and test corpora, whose pairs are counted if they also occur in training.
        """
        self.names = [corpus.name for corpus in train]
        compared = {} if split else {"valid": self.data_format.read(valid)}  # to find overlaps with training
        if test:
            compared["test"] = self.data_format.read(test)
        self.folder.mkdir(exist_ok=True)
        inspection = CorpusInspection(compared, folder=self.folder)
        draws = partial(  # how many pairs of each corpus are drawn in an epoch
            draws_per_corpus, weights=self.config.sampling_weights, temperature=self.config.sampling_temperature
        )
        progress = corpus_passes.ProgressLogger("written", self.log, total)

        def columns_of_corpora() -> Iterator[tuple[int, EncodedColumns]]:
            """Yield the index of a corpus and a chunk of its tokenized pairs; held-out pairs are kept in memory."""
            pairs_read = 0
            for chunk in self._encode(train, split, self.config.corpus_tags, self.parallel):
                pairs_read += chunk.pairs
                progress(pairs_read)
                inspection.add(chunk.train.counts)
                if chunk.train.columns is not None:
                    yield chunk.corpus, chunk.train.columns
                self._hold_out(chunk.corpus, chunk.held_out)
            inspection.require_pairs()  # raises a UserError if all pairs were dropped

        tags, languages = self.config.corpus_tags, self.languages.train
        store = write_shards(
            self.folder / "train", columns_of_corpora(), self.names, tags=tags, languages=languages, draws=draws
        )
        return store, inspection

    def write_valid(self, valid: list[Corpus]) -> TokenStore:
        """Write and return the tokenized validation text: the corpora `valid`, or if there are none, held-out pairs."""
        tags, languages = self.config.corpus_tags, self.languages.train  # of held-out pairs: those of their corpora
        if valid:
            languages = self.languages.valid
            tags, self.names = resolve.validation_tags(self.config), [corpus.name for corpus in valid]
            for chunk in self._encode(valid, split=None, tags=tags, parallel=map):  # `map`: in this process
                self._hold_out(chunk.corpus, chunk.train)
        self.inspection.require_pairs()  # raises a UserError if all pairs were dropped
        counts = self.inspection.counts
        if counts.dropped:
            dropped = f"{counts.pairs_read - counts.pairs:,} of {counts.pairs_read:,} validation pairs"
            self.log(f"  dropped {dropped}: {', '.join(counts.dropped)}")
        return write_shards(self.folder / "valid", self.held_out, self.names, tags=tags, languages=languages)

    def _encode(
        self, corpora: list[Corpus], split: HoldoutSplit | None, tags: Sequence[str], parallel: OrderedMap
    ) -> Iterator[corpus_passes.EncodedChunk]:
        """Tokenize corpora, and yield chunks with training and held-out pairs.

        Args:
            corpora: the corpora to read.
            split: decides which pairs are held out for validation; None: no pair.
            tags: one tag per corpus, a symbol before its sources; empty for none.
            parallel: maps chunks of text, with several processes or machines.
        """
        tag_ids = [(self.encoding.source_tokenizer.tags[tag],) if tag else () for tag in tags]
        encode = corpus_passes.ChunkEncoder(self.data_format, self.encoding, split, tag_ids)
        return parallel(encode, corpus_passes.read_chunks(self.data_format, corpora))

    def _hold_out(self, corpus: int, inspected: corpus_passes.InspectedColumns) -> None:
        """Count the validation pairs of a chunk (`inspected`) of corpus number `corpus`, and keep them in memory.

        `inspected.columns` are the tokenized pairs, None if all of them were dropped, for example as too long.
        """
        self.inspection.add(inspected.counts)
        if inspected.columns is not None:
            self.held_out.append((corpus, inspected.columns))
