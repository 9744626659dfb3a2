"""Tokenizers: text to token ids and back, without loss.

A text is any string. It is not normalized, and tabs, newlines and repeated spaces are characters like others, so that
`decode(encode(text)) == text`. There are three exceptions: a lone surrogate, which UTF-8 cannot encode, becomes U+FFFD,
tokenizers of whole words or symbols give `<unk>` for unknown ones, and decomposed characters come back composed (NFC).
All other types encode unknown characters as bytes. Special tokens are never found in a text: a literal `</s>` is four
characters.

Text is first split into words (`split_words`), each with the space before it (marker `initial`: ▁house) or after it
(marker `final`: house▁); no token crosses a word boundary. So that the first word looks like the others, one space is
added before (or after) the text, and `decode` removes it. Tokens contain the space itself; ▁ is only how `tokens` shows
it, so a literal ▁ is safe. Byte-level BPE splits text as GPT-2 does (`byte_level`).
"""

from __future__ import annotations

import codecs
import json
import os
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, repeat, takewhile
from pathlib import Path
from types import MappingProxyType
from typing import Any

import tokenizers
from tokenizers import AddedToken, normalizers

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.text import tokenizer_learning
from dragoman.text.feature_symbols import FEATURE_SEPARATOR, UNKNOWN_FEATURE, FeatureSymbols, feature_token
from dragoman.text.missing_pieces import add_missing_pieces, add_special_token
from dragoman.text.special_tokens import BOS, CLS, EOS, MASK, PAD, SEP, SPECIAL_TOKENS, UNK
from dragoman.text.tokenizer_types import (
    TokenizerType,
    check_tokenizer_type,
    library_tokenizer,
    tokenizer_type,
)
from dragoman.text.word_splitting import word_at_characters

TOKENIZER_FORMAT_VERSION = 2
READABLE_VERSIONS = (1, 2)

IMPORTED_TYPE = "imported"  # of a checkpoint: see `ImportedTokenizer`
REMAPPED_TYPE = "remapped"  # imported, with Dragoman's special tokens: see `RemappedTokenizer`
# Encoded chunks are cached: at most MAX_CACHED_CHUNKS, and no long ones, which seldom occur again.
MAX_CACHED_CHUNKS, MAX_CACHED_CHARACTERS = 1 << 18, 32
UNKNOWN_WORD_STEM = "unkword"  # made-up words for the tokens of unknown words: unkword0, unkword1, …


class Tokenizer:
    """Splits text into tokens and numbers them.

    `learn_tokenizer` learns one, `Tokenizer.load` reads one from a file.

    Examples:
        >>> tokenizer = learn_tokenizer(["the old house", "the older house"], "bpe", 280)
        >>> tokenizer.decode(tokenizer.encode("the house"))
        'the house'

    Attributes:
        kind: one of `TOKENIZER_TYPES`, or `label`, `imported`, `remapped`
        marker: `initial` or `final`, the side of a word that has its space
        type: how it splits and joins text; imported tokenizers have none
        is_library_tokenizer: whether the `tokenizers` library reads its file and gives the same ids, except for unknown
            words
        has_merges: whether it is BPE (`bpe` or `byte-bpe`) that was learned here
        has_marked_words: whether words have the space next to them; otherwise a space is a token of its own
        has_unknown_words: whether words that are not in the vocabulary become UNK
        has_limited_vocabulary: whether a large text has more tokens than the vocabulary; otherwise, as for characters,
            all that occur are learned
        spells: whether tokens are single characters, or letters and marks
        decomposes: whether tokens are letters and marks of decomposed characters (Unicode NFD)
        pad, unk, bos, eos: ids of special tokens
        mask, sep, cls: ids of special tokens; None if an imported tokenizer does not have them
        special_token_ids: ids of an imported tokenizer's special tokens by name
        tags: ids of the tokens that name the corpus of a source (`data.corpus_tags`)
        features: feature symbols that go before a source (`data.features_column`)
        unknown_word_tokens: ids of the tokens among which a hash distributes unknown words; if empty, all are `unk`
    """

    pad, unk, bos, eos = PAD, UNK, BOS, EOS
    mask: int | None = MASK
    sep: int | None = SEP
    cls: int | None = CLS
    special_token_ids: Mapping[str, int] = MappingProxyType({})
    tags: Mapping[str, int] = MappingProxyType({})
    features = FeatureSymbols()
    unknown_word_tokens: Sequence[int] = ()
    type: TokenizerType
    is_library_tokenizer = True
    has_merges = False
    has_marked_words = True
    has_unknown_words = False
    has_limited_vocabulary = True
    spells = False
    decomposes = False

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        kind: str,
        marker: str,
        tags: Sequence[str] = (),
        features: Sequence[str] = (),
        feature_separator: str = FEATURE_SEPARATOR,
    ) -> None:
        """Wrap a tokenizer of the `tokenizers` library, whose vocabulary has all tokens.

        `kind` is its type, such as "bpe", `marker` the side of a word that has its space ("initial" or "final"). `tags`
        and `features` are the names of corpus tags and feature symbols in the vocabulary; `feature_separator` stands
        between the features of a source.
        """
        self.kind, self.marker, self._library = kind, marker, library
        library.encode_special_tokens = True  # in the library's terms: do not look for special tokens in a text
        self.type = tokenizer_type(kind)
        self.has_merges, self.has_marked_words = self.type.has_merges, self.type.has_marked_words
        self.has_unknown_words, self.has_limited_vocabulary = (
            self.type.has_unknown_words,
            self.type.has_limited_vocabulary,
        )
        self.spells, self.decomposes = self.type.spells, self.type.decomposes
        ids = library.get_vocab()
        tokens = sorted(ids, key=ids.__getitem__)
        self._tokens = list(map(self.type.readable, tokens))  # as readable text, by id
        self._bytes = list(map(self.type.token_bytes, tokens))  # what each token adds to a decoded text, by id
        self.tags = {name: ids[tag_token(name)] for name in tags}
        if features:
            names = (*features, UNKNOWN_FEATURE)
            self.features = FeatureSymbols({name: ids[feature_token(name)] for name in names}, feature_separator)
        # <unk:0>, <unk:1>, … as far as the vocabulary has them
        unknown_tokens = takewhile(ids.__contains__, map(unknown_word_token, range(len(ids))))
        self.unknown_word_tokens = [ids[token] for token in unknown_tokens]
        added = library.get_added_tokens_decoder()  # by id: tags, features, and codes of languages
        special_ids = [token_id for token_id, token in added.items() if token.special]
        # Special tokens and unknown words are shown as they are, and add nothing to a text.
        for token_id in (*map(ids.get, SPECIAL_TOKENS), *special_ids, *self.unknown_word_tokens):
            if token_id is not None:
                self._tokens[token_id], self._bytes[token_id] = tokens[token_id], b""
        for byte, token in enumerate(self.type.byte_tokens):
            self._bytes[ids[token]] = bytes([byte])
        # Unknown words add <unk> or a made-up word, with the space of the word.
        made_up_words = [f"{UNKNOWN_WORD_STEM}{number}" for number in range(len(self.unknown_word_tokens))]
        for token_id, word in zip(self.unknown_ids, ["<unk>", *made_up_words], strict=True):
            self._bytes[token_id] = (f" {word}" if marker == "initial" else f"{word} ").encode()
        # Token ids of each encoded chunk of text; an empty chunk is its space, which is one token in every type.
        self._cache = {"": [token.id for token in library.model.tokenize(self.type.space)]}

    def with_tags(self, names: Sequence[str]) -> Tokenizer:
        """Return this tokenizer with a token for each corpus tag in `names`; new tokens have the last ids.

        Present tags and features stay. A name with characters that tags may not have is a UserError.
        """
        check_tags(names)
        library = self._library_with(map(tag_token, names))
        tags, features = list(dict.fromkeys([*self.tags, *names])), self.features  # each tag once
        return Tokenizer(
            library, self.kind, self.marker, tags=tags, features=features.names, feature_separator=features.separator
        )

    def with_unknown_words(self, number: int) -> Tokenizer:
        """Return this tokenizer with this number of tokens for unknown words, which have the last ids.

        A hash of the word selects its token. So an unknown word has the same token in source and target, and different
        ones mostly have different tokens, which a model can copy. Decoded they are made-up words with the same hash.
        Corpus tags and features are lost: they are added later.
        """
        library = self._library_with(map(unknown_word_token, range(number)))
        return Tokenizer(library, self.kind, self.marker)

    @property
    def unknown_ids(self) -> Sequence[int]:
        """Ids of all tokens that stand for unknown words: UNK, and those that a hash selects."""
        return (self.unk, *self.unknown_word_tokens)

    def with_features(self, names: Sequence[str], separator: str) -> Tokenizer:
        """Return this tokenizer with a symbol for each feature in `names`, and one for all unknown features.

        New symbols have the last ids; present tags and features stay. `separator` stands between the features of a
        source, in place of the present one.
        """
        names = list(dict.fromkeys([*self.features.names, *names]))  # each feature once
        library = self._library_with(map(feature_token, (*names, UNKNOWN_FEATURE)))
        return Tokenizer(
            library, self.kind, self.marker, tags=list(self.tags), features=names, feature_separator=separator
        )

    def with_missing_pieces(
        self, texts: Iterable[str], limit: int, first_id: int | None = None
    ) -> tuple[Tokenizer, dict[int, str]]:
        """Return this tokenizer with at most `limit` new pieces (subwords), and the new pieces by their ids.

        They contain characters of the `texts` that have no token so far: these characters, then longer pieces, the most
        frequent first. Text without such characters is segmented as before. Their ids begin with `first_id`, by default
        (None) after all others. If there are none, this tokenizer itself is returned.
        """
        library, new_pieces = add_missing_pieces(self._library, texts, limit, first_id=first_id or self.vocab_size)
        pieces = new_pieces.tokens
        features = self.features
        extended = Tokenizer(
            library,  # the tokenizer of the `tokenizers` library that this one wraps, extended
            self.kind,
            self.marker,  # the side of a word that has its space: "initial" or "final"
            tags=list(self.tags),
            features=features.names,
            feature_separator=features.separator,
        )
        return extended if pieces else self, pieces

    def can_assign_ids_from(self, first_id: int) -> bool:
        """Whether new tokens can have the ids from `first_id` on: only if it is the next free id; ids have no gaps."""
        return first_id == self.vocab_size

    def piece_ids(self, piece: str) -> list[int]:
        """Return the ids of the tokens into which a part of a word (`piece`) is split, without adding a space to it.

        The model of the wrapped library tokenizer splits it, without normalization.
        """
        return [token.id for token in self._library.model.tokenize(piece)]

    def with_language_code(self, language: str, token_id: int) -> Tokenizer:
        """Return this tokenizer with a special token, such as <2kin_Latn>, for a language; its id is `token_id`.

        No text is tokenized into it. `language` is a code such as kin_Latn.
        """
        library = add_special_token(self._library, f"<2{language}>", token_id)
        features = self.features
        return Tokenizer(
            library,
            self.kind,
            self.marker,
            tags=list(self.tags),
            features=features.names,
            feature_separator=features.separator,
        )

    def _library_with(self, tokens: Iterable[str]) -> tokenizers.Tokenizer:
        """Return a copy of the wrapped library tokenizer (`_library`) with special tokens, which no text becomes."""
        library = tokenizers.Tokenizer.from_str(self._library.to_str())
        library.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens])
        return library

    @property
    def source_prefix_ids(self) -> list[int]:
        """Ids of all tokens that may be prepended to a source: corpus tags and feature symbols, the unknown one too."""
        return [*self.tags.values(), *self.features.ids.values()]

    def __reduce__(self) -> tuple[Callable[[str], Tokenizer], tuple[str]]:
        """Pickle the tokenizer as JSON: return the function that reads it, and its arguments (Python's protocol)."""
        return Tokenizer.from_json, (self.to_json(),)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, special tokens and bytes included."""
        return len(self._tokens)

    def __repr__(self) -> str:
        """Show the class, the type, the vocabulary size and the marker (the side of a word with its space)."""
        return f"{type(self).__name__}(kind={self.kind!r}, vocab_size={self.vocab_size}, marker={self.marker!r})"

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without BOS and EOS."""
        return self.encode_batch([text])[0]

    def encode_within_text(self, phrase: str) -> list[int]:
        """Return the token ids of a phrase inside a text, where a space precedes it.

        `encode` suffices here, as it adds a space to every text; subclasses that may add none override this method.
        """
        return self.encode(phrase)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode many texts at once.

        No token crosses the space before a word, so the text between two such spaces (a chunk) is encoded once and
        cached: short chunks only, and the cache is emptied when it is full. On ordinary text that is far faster than
        the library, which encodes new chunks on all cores. An empty text has no tokens.
        """
        cache = self._cache  # chunk → token ids; the empty chunk is a space
        chunks_of_texts = [self.type.split_chunks(text) if text else [] for text in texts]
        # a dictionary drops repetitions and keeps the order
        new = self._encode_chunks({chunk: None for chunks in chunks_of_texts for chunk in chunks if chunk not in cache})
        # without marked words, a space is a token of its own: drop the one that was added before the first chunk
        skip = 0 if self.has_marked_words else 1
        ids = [
            list(chain.from_iterable([new[chunk] if chunk in new else cache[chunk] for chunk in chunks]))[skip:]
            for chunks in chunks_of_texts
        ]
        cache.update((chunk, chunk_ids) for chunk, chunk_ids in new.items() if len(chunk) <= MAX_CACHED_CHARACTERS)
        if len(cache) > MAX_CACHED_CHUNKS:
            self._cache = {"": cache[""]}  # a new object, because other threads may be reading the old one
        return ids

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """Encode a text with MASK in place of every `gap`: a control character, part of no word, for what is masked.

        The text is encoded with its gaps, and then the tokens of a gap, with or without a space, are replaced. So the
        mask includes the gap's space, like the first token of a word. A tokenizer without byte tokens encodes the texts
        between the gaps separately.
        """
        if not self.type.byte_tokens:  # whole words or symbols only: the gap would be an unknown word
            return self._encode_joined([words.strip(" ") for words in text.split(gap)], separators=repeat(MASK))
        with_space = self.encode(gap)  # ids of the gap and its space, which comes first if `marker` is "initial"
        # the gap without its space; of one token only, which includes the space, it is that token
        alone = with_space[1:] if self.marker == "initial" and len(with_space) > 1 else with_space[:1]
        ids, masked, position = self.encode(text), [], 0
        while position < len(ids):
            # the ids of a gap that are found at this position
            found = (gap_ids for gap_ids in (with_space, alone) if ids[position : position + len(gap_ids)] == gap_ids)
            gap_ids = next(found, None)
            masked.append(MASK if gap_ids else ids[position])
            position += len(gap_ids) if gap_ids else 1
        return masked

    def encode_with_sentinels(self, text: str, gap: str, sentinels: Sequence[int]) -> list[int]:
        """Encode a text with the next of the `sentinels` (ids) in place of every `gap`, as in T5's span corruption.

        A gap is a control character that stands for a removed span. More gaps than sentinels are a UserError.
        """
        if (num_gaps := text.count(gap)) > len(sentinels):
            raise UserError(
                f"a text has {num_gaps:,} gaps, but the model can fill at most {len(sentinels):,} gaps of one text: "
                "split the text (a gap is written as <mask>)"
            )
        return self._replace_gaps(text, gap, sentinels)

    def _replace_gaps(self, text: str, gap: str, sentinels: Sequence[int]) -> list[int]:
        """Encode a text with the next of the `sentinels` (ids), at least as many as gaps, in place of every `gap`."""
        remaining = iter(sentinels)
        return [next(remaining) if token_id == self.mask else token_id for token_id in self.encode_masked(text, gap)]

    def _encode_joined(self, texts: Sequence[str], separators: Iterable[int]) -> list[int]:
        """Return the token ids of one or several texts, with the next of the `separators` (ids) between each two."""
        first, *others = self.encode_batch(texts)
        return [*first, *chain.from_iterable([separator, *ids] for separator, ids in zip(separators, others))]

    def _encode_chunks(self, chunks: Iterable[str]) -> dict[str, list[int]]:
        """Encode chunks (texts between two spaces), each with the space before or after it.

        If words are marked with their space (`has_marked_words`: ▁house), the wrapped library tokenizer (`_library`)
        adds the space to a text; tokenizers of characters and bytes, whose space is a token, get it here. With
        `unknown_word_tokens`, unknown words get one of these by a hash instead of UNK.

        Returns:
            The token ids of each chunk.
        """
        space = "" if self.has_marked_words else " "
        texts = {chunk: space + _replace_surrogates(chunk) for chunk in chunks}
        encodings = self._library.encode_batch_fast(list(texts.values()), add_special_tokens=False)
        if not self.unknown_word_tokens:
            return {chunk: encoding.ids for chunk, encoding in zip(texts, encodings)}
        return {chunk: self._hash_unknown_words(chunk, encoding.ids) for chunk, encoding in zip(texts, encodings)}

    def _hash_unknown_words(self, chunk: str, ids: list[int]) -> list[int]:
        """Return the ids of a chunk (the text between two spaces) with `unknown_word_tokens` in place of UNK.

        A hash of an unknown word selects its token.
        """
        if self.unk not in ids:
            return ids
        tokens, text = self.unknown_word_tokens, _replace_surrogates(chunk)
        marked = f" {text}" if self.marker == "initial" else f"{text} "  # with the space before or after the words
        words = (word.strip(" ") for word, _ in self.type.pre_tokenizer(self.marker).pre_tokenize_str(marked))
        hashed_ids = (tokens[_word_hash(word) % len(tokens)] for word in words)  # a word has one id: zip is strict
        return [hashed if token_id == self.unk else token_id for token_id, hashed in zip(ids, hashed_ids, strict=True)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, without special tokens: the inverse of `encode`.

        Invalid UTF-8, which a model may generate from byte tokens, becomes U+FFFD; UNK becomes `<unk>`. Letters and
        marks (`decomposes`) are composed to characters (NFC).
        """
        text = b"".join([self._bytes[token_id] for token_id in ids]).decode(errors="replace")
        if not self.has_marked_words:  # `encode` has added no space
            return normalizers.NFC().normalize_str(text) if self.decomposes else text
        return text.removeprefix(" ") if self.marker == "initial" else text.removesuffix(" ")  # the added space

    def decode_certain(self, ids: Iterable[int]) -> str:
        """Return the beginning of the decoded text that is certain: no further tokens can change it.

        An incomplete character at the end (U+FFFD) is left out. If tokens are letters and combining marks
        (`decomposes`), the last letter and its marks are left out too, as the next token may be composed with them.
        """
        text = self.decode(ids).rstrip("\ufffd")
        if not self.decomposes:
            return text
        # indices of the characters that are no combining marks, and to which the marks after them belong
        bases = (index for index, character in enumerate(text) if not unicodedata.combining(character))
        return text[: max(bases, default=0)]

    def vocabulary(self) -> list[str]:
        """Return the token of each id as the `tokenizers` library writes it: byte-level BPE writes bytes as letters."""
        ids = self._library.get_vocab()
        return sorted(ids, key=ids.__getitem__)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return readable tokens, with ▁ for a space."""
        return [self._tokens[token_id].replace(" ", "▁") for token_id in ids]

    def tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of readable tokens such as ▁house, as the method `tokens` gives them; KeyError for others."""
        return [self._ids[token] for token in tokens]

    @cached_property
    def _ids(self) -> dict[str, int]:
        """The id of each token in readable form, such as ▁house; of equal forms, the last one counts."""
        return {token: token_id for token_id, token in enumerate(self.tokens(range(self.vocab_size)))}

    def as_tokenized(self, text: str) -> str:
        """Return a text in the Unicode form of the tokens: decomposed (NFD) if `decomposes` is set, else unchanged."""
        return normalizers.NFD().normalize_str(text) if self.decomposes else text

    def surface_forms(self) -> list[bytes]:
        """Return the UTF-8 bytes that each token (by id) adds to a text: none for special tokens.

        Those of byte tokens may be a part of a character.
        """
        return list(self._bytes)

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return for each token the index of its word in `alignment_words(decode(ids))`.

        A token belongs to the word of its first character that is not a space. Special tokens and white space get −1.
        The bytes of the tokens are decoded one after the other, to find the position of each token in the text.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = ""
        positions: list[int | None] = []  # of the first character of each token in the text; None: it has no text
        for token in [self._bytes[token_id] for token_id in ids]:
            if token and token[0] & 0xC0 != 0x80:  # a character begins, so an incomplete one before it stays incomplete
                text += decoder.decode(b"", final=True)
            # The decoder adds a character when its bytes are complete, so that they all have the same position.
            begins_with_space = len(token) > 1 and token.startswith(b" ")  # the word begins one character later
            positions.append(len(text) + begins_with_space if token else None)
            text += decoder.decode(token)
        text += decoder.decode(b"", final=True)
        words = _words_of_decomposed(text) if self.decomposes else word_at_characters(text)
        return [-1 if position is None else words[position] for position in positions]

    def to_json(self) -> str:
        """Return the tokenizer as a JSON document, which the `tokenizers` library can read as well."""
        document = json.loads(self._library.to_str())
        # The library refuses an unknown field at the top level and ignores it inside the model.
        fields = {"version": TOKENIZER_FORMAT_VERSION, "kind": self.kind, "marker": self.marker}
        document["model"]["dragoman"] = fields | self._source_prefix_fields()
        return json.dumps(document, ensure_ascii=False)

    def _source_prefix_fields(self) -> dict[str, Any]:
        """Return for `to_json` the names of corpus tags and features, whose tokens may precede a source."""
        fields: dict[str, Any] = {"tags": list(self.tags)} if self.tags else {}
        if self.features:
            fields |= {"features": self.features.names, "feature_separator": self.features.separator}
        return fields

    @classmethod
    def from_json(cls, text: str, origin: str = "the tokenizer") -> Tokenizer:
        """Read the JSON document that `to_json` wrote, of this class or a subclass; a UserError if it is damaged.

        `origin` names the document in error messages.
        """
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UserError(
                f"{origin} is damaged, it is not JSON ({error}): use another copy of the tokenizer file"
            ) from None
        try:
            fields = document["model"].pop("dragoman")  # what `to_json` adds to the library's document
            version, marker = fields["version"], str(fields["marker"])
            stored_kind = str(fields["kind"])
            kind = legacy.RENAMED["tokenizer_types"].get(stored_kind, stored_kind)  # older versions had other names
            tags, features, separator = read_source_prefix_fields(fields)
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f"{origin} was not written by dragoman, because its 'model' has no field 'dragoman': use the "
                "tokenizer.json of a run"
            ) from None
        if version not in READABLE_VERSIONS:
            raise UserError(
                f"{origin} has format version {version}, but this version of dragoman reads up to "
                f"{TOKENIZER_FORMAT_VERSION}: update dragoman"
            )
        if kind in (IMPORTED_TYPE, REMAPPED_TYPE):
            from dragoman.text.imported_tokenizer import ImportedTokenizer, RemappedTokenizer  # they import this module

            imported = ImportedTokenizer if kind == IMPORTED_TYPE else RemappedTokenizer
            return imported.from_document(document, fields, origin)
        check_tokenizer_type(kind, marker)
        try:
            library = tokenizers.Tokenizer.from_str(json.dumps(document))
        except Exception as error:  # the library raises nothing more precise
            raise UserError(f"{origin} is damaged ({error}): use another copy of the tokenizer file") from None
        byte_tokens = tokenizer_type(kind).byte_tokens
        first_tokens = SPECIAL_TOKENS + byte_tokens
        if any(library.id_to_token(token_id) != token for token_id, token in enumerate(first_tokens)):
            raise UserError(
                f"{origin} is damaged: its vocabulary does not begin with the special tokens"
                f"{' and bytes' if byte_tokens else ''}; use another copy of the tokenizer file"
            )
        if library.id_to_token(library.get_vocab_size() - 1) is None:
            raise UserError(
                f"{origin} is damaged: its token ids are not consecutive; use another copy of the tokenizer file"
            )
        expected = [*map(tag_token, tags), *map(feature_token, (*features, UNKNOWN_FEATURE) if features else ())]
        if any(library.token_to_id(token) is None for token in expected):
            raise UserError(
                f"{origin} is damaged: a corpus tag or a source feature that it lists has no token; use another copy "
                "of the tokenizer file"
            )
        return cls(library, kind, marker, tags, features, separator)

    def save(self, path: str | Path) -> None:
        """Write the tokenizer to a file as JSON."""
        Path(path).write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer that `save` wrote; a UserError if the file is missing or damaged."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"the tokenizer {path} cannot be read ({error.strerror}): check its path and permissions"
            ) from None
        except UnicodeDecodeError:
            raise UserError(
                f"the tokenizer {path} is damaged, because it is not UTF-8: use another copy of the tokenizer file"
            ) from None
        return cls.from_json(text, str(path))


def learn_tokenizer(
    texts: Iterable[str],
    kind: str = "bpe",
    size: int = 8000,
    marker: str = "initial",
    min_count: int = 1,
    coverage: float = 0.9995,
    compression_ratio: float | None = None,
    log: Callable[[str], None] = lambda message: None,
) -> Tokenizer:
    """Learn a tokenizer from texts.

    Args:
        texts: the texts to learn from, such as training sentences
        kind: `bpe`, `byte-bpe`, `unigram`, `word`, `symbol` (whatever stands between spaces), `character`, `decomposed`
            (letters and marks of characters: Hangul as jamo) or `byte`; `label` for tags separated by spaces
        size: maximum vocabulary size, including the 7 special tokens and (except for `word`) the 256 bytes; a small
            text may give fewer tokens, and `byte` always has 263
        marker: which side of a word has its space: `initial` (▁house) or `final` (house▁, also written house</w>);
            `byte-bpe` has only `initial`
        min_count: minimum count of a word (`word`) or a merged pair (`bpe` and `byte-bpe`, at least 2)
        coverage: share of the text's characters that are in the vocabulary, above 0 and at most 1; rarer characters
            are encoded as bytes
        compression_ratio: `bpe` and `byte-bpe` stop at this many characters or bytes of the text per token; None: they
            stop only at `size` or `min_count`
        log: gets a message on why BPE stopped, if there is a compression ratio
    """
    check_tokenizer_type(kind, marker)
    if not 0 < coverage <= 1:
        raise UserError(
            f"the argument coverage of learn_tokenizer, the share of the text's characters that get a token, must be "
            f"above 0 and at most 1, but is {coverage}: change it"
        )
    words = {} if kind == "byte" else _count_words(texts, kind, marker)
    if not words and kind != "byte":
        raise UserError(f"there is no text to learn a tokenizer of type {kind!r} from: check the training files")
    limits = tokenizer_learning.VocabularyLimits(
        size, min_count=min_count, coverage=coverage, compression_ratio=compression_ratio, log=log
    )
    model = tokenizer_type(kind).learn(words, limits)
    return Tokenizer(library_tokenizer(model, kind, marker), kind, marker)


def _count_words(texts: Iterable[str], kind: str, marker: str) -> Counter[str]:
    """Count words, each with the space before or after it (`marker`), in the order of their first occurrence.

    `kind` is the type of the tokenizer, such as "bpe", which decides what a word is.
    """
    chunks: Counter[str] = Counter()
    for text in texts:
        if text:
            chunks.update(tokenizer_type(kind).split_chunks(text))
    splitter, decomposes = tokenizer_type(kind).pre_tokenizer(marker), tokenizer_type(kind).decomposes
    words: Counter[str] = Counter()
    # Each distinct chunk between two spaces is split once, which is several times faster.
    for chunk, count in chunks.items():
        text = _replace_surrogates(chunk)
        text = normalizers.NFD().normalize_str(text) if decomposes else text
        for word, _ in splitter.pre_tokenize_str(f" {text}" if marker == "initial" else f"{text} "):
            words[word] += count
    return words


def read_source_prefix_fields(fields: Mapping[str, Any]) -> tuple[list[str], list[str], str]:
    """Read the names of the tokens before a source: corpus tags, features, and what separates features in a text.

    `fields` is the field `dragoman` of a tokenizer file, which `Tokenizer.to_json` wrote.
    """
    tags, features = ([str(name) for name in fields.get(key, ())] for key in ("tags", "features"))
    return tags, features, str(fields.get("feature_separator", FEATURE_SEPARATOR))


def check_tags(names: Sequence[str]) -> None:
    """Raise a UserError if one of the `names` of corpus tags is empty or has a character that is not allowed."""
    if invalid_tags := [name for name in names if not re.fullmatch(r"[\w.+-]+", name)]:
        raise UserError(
            "a corpus tag (an entry of data.corpus_tags, a token before the sources of a corpus) may contain "
            f"only letters, digits, '_', '.', '+' and '-', but one is {invalid_tags[0]!r}: rename it"
        )


def tag_token(tag: str) -> str:
    """Return the token of a corpus tag, such as <tag:backtranslated>.

    No text is tokenized into it: words are split between brackets and letters, and a symbol that is written like this
    includes the space beside it.
    """
    return f"<tag:{tag}>"


def _word_hash(word: str) -> int:
    """Return the hash of a word, the same in every process.

    That of a made-up word such as unkword7, as which token 7 of the unknown words is decoded, is its number: encoding
    it gives the same token again.
    """
    made_up = re.fullmatch(rf"{UNKNOWN_WORD_STEM}(\d+)", word)
    return int(made_up[1]) if made_up else zlib.crc32(word.encode())


def unknown_word_token(number: int) -> str:
    """Return one of the tokens among which a hash distributes unknown words: that with this number.

    No text is tokenized into it: words are split between brackets and letters, and a symbol that is written like this
    includes the space beside it.
    """
    return f"<unk:{number}>"


def _words_of_decomposed(text: str) -> list[int]:
    """Return for each character of a decomposed text the index of its word in the composed text; −1 for white space.

    `decode` returns the composed text.
    """
    composed = unicodedata.normalize("NFC", text)
    words = word_at_characters(composed)
    decomposed_characters = (unicodedata.normalize("NFD", character) for character in composed)
    expanded = [word for word, letters in zip(words, decomposed_characters) for _ in letters]
    return [*expanded, *[-1] * (len(text) - len(expanded))]  # fewer if bytes spell a composed character


def _replace_surrogates(text: str) -> str:
    """Replace unpaired surrogates, which cannot be encoded in UTF-8, by U+FFFD."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def _disable_threads_in_forks() -> None:
    """Let forked processes use no threads of the `tokenizers` library, which otherwise prints a warning.

    Threads do not survive a fork.
    """
    variable, is_set_here = "TOKENIZERS_PARALLELISM", False

    def before() -> None:
        """Switch the threads of the tokenizers library off before a fork, unless the user has set the variable."""
        nonlocal is_set_here
        if variable not in os.environ:
            os.environ[variable], is_set_here = "false", True

    def after_in_parent() -> None:
        """Remove the variable in the parent process, if it was set for the fork."""
        nonlocal is_set_here
        if is_set_here:
            os.environ.pop(variable, None)
            is_set_here = False

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=after_in_parent)


_disable_threads_in_forks()
