"""Data formats: how a corpus is encoded as token ids: pairs, text, documents, tags, labels, dialogues, features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dragoman.data.corpus import Corpus, SentencePair
from dragoman.data.feature_files import read_feature_pairs
from dragoman.errors import UserError
from dragoman.text.framing import Framing
from dragoman.text.normalization import TextNormalizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from dragoman.text.tokenizer import Tokenizer

HOLDOUT_UNIT_LINES = 32  # of a document, which are held out together

# Flags of a row of monolingual text; they are stored.
FOLLOWS_PREVIOUS_ROW, STARTS_MID_LINE, ENDS_MID_LINE = 1, 2, 4


class EncodedPair(NamedTuple):
    """A pair and its token ids, without BOS and EOS."""

    pair: SentencePair
    source: list[int] | NDArray[Any]  # ids, or features S F
    target: list[int] | None  # None in monolingual data
    flags: int | None = None  # of a row of monolingual text


@dataclass(frozen=True)
class Encoding:
    """How pairs are encoded; `max_length` is the maximum number of tokens per side, without BOS and EOS."""

    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    max_length: int
    framing: Framing  # special tokens around source and target


class DataFormat:
    """Sentence pairs; the base class of the other formats."""

    name: ClassVar[str] = "pairs"
    item_name: ClassVar[str] = "pairs"  # for messages
    has_target: ClassVar[bool] = True
    is_dialogue: ClassVar[bool] = False
    target_is_labels: ClassVar[bool] = False  # the target has one label per word of the source, or one for all
    one_label_per_sequence: ClassVar[bool] = False  # one label for the whole source
    source_is_features: ClassVar[bool] = False  # feature vectors in place of source text
    max_chunk_pairs: ClassVar[int] = 10_000
    max_chunk_characters: ClassVar[int] = 2**22  # bounds chunks of long documents
    normalizer = TextNormalizer()

    @property
    def key(self) -> tuple[str, dict[str, Any]]:
        """Name and settings of the format: two formats with equal keys read the same pairs."""
        return self.name, vars(self)  # attributes of the object: the normalizer, if it was set

    @property
    def text_sides(self) -> tuple[bool, bool]:
        """Whether the source and the target are text, which cleaning examines; feature vectors and labels are not."""
        return not self.source_is_features, self.has_target and not self.target_is_labels

    @property
    def is_translation(self) -> bool:
        """Whether the source and the target are text in (usually) different languages."""
        return self.has_target and not self.target_is_labels and not self.source_is_features

    def with_normalizer(self, normalizer: TextNormalizer) -> DataFormat:
        """Return a copy that normalizes its text."""
        changed = copy(self)
        changed.normalizer = normalizer
        return changed

    def read(self, corpora: Iterable[Corpus]) -> Iterator[SentencePair]:
        """Read all corpora, with normalized text and without pairs that cleaning has removed."""
        pairs = chain.from_iterable(map(self._read_kept, corpora))
        return map(self._normalize, pairs) if self.normalizer.is_active else pairs

    def _read_kept(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the pairs of a corpus that cleaning has not removed."""
        pairs = self._read(corpus)
        return pairs if corpus.kept is None else corpus.kept.select(pairs)

    def source_texts(self, pair: SentencePair) -> list[str]:
        """Return the texts of a source, which are tokenized one by one: a single one, except in dialogues."""
        return [pair.source]

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize the source and the target of pairs; features of a source such as V;PST go before its tokens."""
        sources = encoding.source_tokenizer.encode_batch([pair.source for pair in pairs])
        targets = encoding.target_tokenizer.encode_batch([pair.target or "" for pair in pairs])
        if features := encoding.source_tokenizer.features:  # empty if sources have none
            sources = [[*features.encode(pair.feature_symbols), *ids] for pair, ids in zip(pairs, sources)]
        return list(map(EncodedPair, pairs, sources, targets))

    def chunks(self, pairs: Iterable[SentencePair]) -> Iterator[list[SentencePair]]:
        """Split a stream of pairs into chunks of at most `max_chunk_pairs` pairs.

        A chunk also ends with the pair that brings it to `max_chunk_characters`, so that memory is bounded.
        """
        chunk: list[SentencePair] = []
        characters = 0
        for pair in pairs:
            chunk.append(pair)
            characters += len(pair.source) + len(pair.target or "")
            if len(chunk) == self.max_chunk_pairs or characters >= self.max_chunk_characters:
                yield chunk
                chunk, characters = [], 0
        if chunk:
            yield chunk

    def _read(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the pairs of a corpus as they are in its files."""
        return corpus.read_pairs()

    def _normalize(self, pair: SentencePair) -> SentencePair:
        """Return the pair with normalized source and target."""
        target = None if pair.target is None else self.normalizer(pair.target)
        return pair._replace(source=self.normalizer(pair.source), target=target)


class MonolingualFormat(DataFormat):
    """Lines of text without targets; empty lines are skipped, long lines become several rows."""

    name, item_name, has_target = "text", "lines", False

    def _read(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the lines of a corpus that are not blank, as sources without targets."""
        return (pair for pair in corpus.read_sources() if pair.source.strip())

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize lines; one with more tokens than `encoding.max_length` becomes several elements (rows)."""
        sources = encoding.source_tokenizer.encode_batch([pair.source for pair in pairs])
        return [row for pair, ids in zip(pairs, sources) for row in _split_line(pair, ids, encoding)]


class DocumentFormat(MonolingualFormat):
    """Text with document boundaries: empty lines and ends of files (Devlin et al. 2019).

    A long document is divided into units, which are held out as a whole, so that neighboring lines stay together.
    """

    name = "documents"

    def _read(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the lines of documents, which blank lines separate.

        Up to HOLDOUT_UNIT_LINES lines of a document are a unit, named by its first line: it is validation data as a
        whole, or not at all. The first line of a unit does not follow the line before it.
        """
        unit, lines = "", 0  # first line of the present unit, and number of its lines so far
        for pair in corpus.read_sources():
            if not pair.source.strip():
                lines = 0
                continue
            if lines % HOLDOUT_UNIT_LINES == 0:
                unit, lines = pair.source, 0
            yield pair._replace(follows_previous=lines > 0, holdout_unit=unit)
            lines += 1

    def _read_kept(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield the lines that cleaning has kept; the first one after a removed line begins a new document."""
        if corpus.kept is None:
            yield from self._read(corpus)
            return
        follows_removed = False
        for pair, is_kept in zip(self._read(corpus), corpus.kept.flags()):
            if is_kept:
                yield pair._replace(follows_previous=False) if follows_removed else pair
            follows_removed = not is_kept


class TaggingFormat(DataFormat):
    """Words and tags, separated by spaces, one tag per word; the label of a word is at its first token."""

    name, item_name, target_is_labels = "tags", "sentences", True

    def _normalize(self, pair: SentencePair) -> SentencePair:
        """Normalize the letters of the words, but not their number, as each has a tag; tags stay as they are."""
        return pair._replace(source=self.normalizer.normalize_words(pair.source))

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize the words of the sources, and label the first token of every word with its tag, others with `pad`.

        Another number of tags than of words is a UserError.
        """
        sentences = [pair.source.split() for pair in pairs]
        tags = encoding.target_tokenizer.encode_batch([" ".join((pair.target or "").split()) for pair in pairs])
        for pair, words, word_tags in zip(pairs, sentences, tags):
            if len(words) != len(word_tags):
                raise UserError(
                    f"{pair.corpus}, line {pair.line:,} has {len(words)} words but {len(word_tags)} tags: expected one "
                    "tag per word, separated by spaces"
                )
        encoded = encode_text_lists(sentences, encoding.source_tokenizer)
        return [
            EncodedPair(pair, *align_tags(words, word_tags, pad=encoding.framing.pad))  # source ids, labels
            for pair, words, word_tags in zip(pairs, encoded, tags)
        ]


class LabeledTextFormat(DataFormat):
    """Texts, and one label for each of them."""

    name, item_name, target_is_labels, one_label_per_sequence = "labels", "texts", True, True

    def _normalize(self, pair: SentencePair) -> SentencePair:
        """Normalize the text; the label stays as it is."""
        return pair._replace(source=self.normalizer(pair.source))

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize texts, of which long ones are truncated to `max_length` tokens, and look up their labels.

        A label that is not a single token of the target tokenizer is a UserError.
        """
        labels = encoding.target_tokenizer.encode_batch([(pair.target or "").strip() for pair in pairs])
        for pair, ids in zip(pairs, labels):
            if len(ids) != 1:
                raise UserError(
                    f"{pair.corpus}, line {pair.line:,} has the label {pair.target!r}: expected one label without "
                    "spaces as the target of each text, such as positive or very_negative"
                )
        sources = encoding.source_tokenizer.encode_batch([pair.source for pair in pairs])
        return [
            EncodedPair(pair, source=ids[: encoding.max_length], target=label)
            for pair, ids, label in zip(pairs, sources, labels)
        ]


class DialogueFormat(DataFormat):
    """Dialogues as one sequence each, with labels for the replies: BOS u₁ SEP r₁ EOS u₂ SEP r₂ EOS …"""

    name, item_name, has_target, is_dialogue = "turns", "dialogues", False, True

    def _read(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield dialogues, each as a source of turns separated by tabs."""
        return corpus.read_dialogues()

    def _normalize(self, pair: SentencePair) -> SentencePair:
        """Normalize every turn."""
        return pair._replace(source="\t".join(map(self.normalizer, pair.source.split("\t"))))

    def source_texts(self, pair: SentencePair) -> list[str]:
        """Return the turns of a dialogue."""
        return pair.source.split("\t")

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize the turns of every dialogue, and join them to the source: a turn of the user, BOS, a reply, EOS, ….

        The target is a label for each token of the source: the next token where that belongs to a reply (every second
        turn) or is its EOS, otherwise PAD.
        """
        dialogues = encode_text_lists([self.source_texts(pair) for pair in pairs], encoding.source_tokenizer)
        return [
            EncodedPair(pair, *encode_dialogue(turns, framing=encoding.framing))  # source ids, labels
            for pair, turns in zip(pairs, dialogues)
        ]


class FeatureFormat(DataFormat):
    """Feature vectors in place of source text, and target text."""

    name, item_name, source_is_features = "features", "examples", True
    max_chunk_pairs = 100  # features take more memory than text

    def _read(self, corpus: Corpus) -> Iterator[SentencePair]:
        """Yield arrays of feature vectors, or image and sound files in place of them, with their lines of text."""
        return read_feature_pairs(corpus)

    def _normalize(self, pair: SentencePair) -> SentencePair:
        """Normalize the target; the source consists of feature vectors."""
        return pair._replace(target=self.normalizer(pair.target or ""))

    def encode(self, pairs: list[SentencePair], encoding: Encoding) -> list[EncodedPair]:
        """Tokenize the targets; the sources are S vectors of F numbers, or files from which they are computed here."""
        targets = encoding.target_tokenizer.encode_batch([pair.target or "" for pair in pairs])
        return [EncodedPair(pair, np.asarray(pair.features), ids) for pair, ids in zip(pairs, targets)]


_FORMATS = (
    *(DataFormat, MonolingualFormat, DocumentFormat, TaggingFormat, LabeledTextFormat, DialogueFormat),
    FeatureFormat,
)
DATA_FORMATS: dict[str, DataFormat] = {data_format.name: data_format() for data_format in _FORMATS}


def detect_data_format(corpus: Corpus) -> DataFormat:
    """Detect the format of a corpus from its files and its first line: pairs, text, turns or features.

    "text" is monolingual, "turns" are dialogues, and "features" are vectors in place of source text. Tags, labels and
    documents look like pairs and text.
    """
    return DATA_FORMATS["features" if corpus.has_features else corpus.file_format.data_format(corpus)]


def has_references(corpus: Corpus) -> bool:
    """Whether a corpus has targets, or replies of dialogues, with which the output of a model can be compared."""
    data_format = detect_data_format(corpus)
    if data_format.source_is_features:
        return corpus.has_target_text
    return data_format.has_target or data_format.is_dialogue


def encode_text_lists(text_lists: list[list[str]], tokenizer: Tokenizer) -> list[list[list[int]]]:
    """Return the token ids of each text, such as a word of a sentence or a turn of a dialogue, in each list of texts.

    The texts of a list are tokenized separately.
    """
    encoded = iter(tokenizer.encode_batch([text for texts in text_lists for text in texts]))
    return [[next(encoded) for _ in texts] for texts in text_lists]


def align_tags(words: list[list[int]], tags: list[int], pad: int) -> tuple[list[int], list[int]]:
    """Return the token ids of a sentence and their labels: the tag at the first token of each word, `pad` elsewhere.

    `words` has the token ids of each word, `tags` the id of its tag.
    """
    ids = [token for word in words for token in word]
    labels = [tag if index == 0 else pad for word, tag in zip(words, tags) for index in range(len(word))]
    return ids, labels


def encode_dialogue(turns: list[list[int]], framing: Framing) -> tuple[list[int], list[int]]:
    """Return the token ids of a dialogue and their labels: the next id where it is part of a reply, `pad` elsewhere.

    `turns` has the ids of each turn, alternately of the user and the assistant, `framing` the special tokens. BOS
    follows the turns of the user; EOS follows the replies (the turns of the assistant), of which it is a part.
    """
    ids, in_reply = [*framing.source_prefix], [False] * len(framing.source_prefix)
    for number, turn in enumerate(turns):
        is_reply = number % 2 == 1  # the user begins
        ids += [*turn, framing.eos if is_reply else framing.bos]  # BOS tells the model to begin its reply
        in_reply += [is_reply] * (len(turn) + 1)
    return ids[:-1], [token if reply else framing.pad for token, reply in zip(ids[1:], in_reply[1:])]


def _split_line(pair: SentencePair, ids: list[int], encoding: Encoding) -> Iterator[EncodedPair]:
    """Split the token ids of a line into rows of at most `max_length`, with flags that say where a line was split.

    A row also has a flag if it follows the row before it in the same document.
    """
    max_length = encoding.max_length
    follows = FOLLOWS_PREVIOUS_ROW if pair.follows_previous else 0  # flag of the first row
    if len(ids) <= max_length:
        yield EncodedPair(pair, source=ids, target=None, flags=follows)
        return
    for start in range(0, len(ids), max_length):
        row = ids[start : start + max_length]
        flags = FOLLOWS_PREVIOUS_ROW | STARTS_MID_LINE if start else follows
        flags |= ENDS_MID_LINE if start + max_length < len(ids) else 0
        text = encoding.source_tokenizer.decode(row)  # the part of the line that the row contains
        yield EncodedPair(pair._replace(source=text), source=row, target=None, flags=flags)
