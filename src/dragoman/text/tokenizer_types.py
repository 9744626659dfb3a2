"""The types of tokenizers: how each learns its vocabulary, splits text into words and joins tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import UserError, unknown_name
from dragoman.text import byte_level, tokenizer_learning
from dragoman.text.special_tokens import BYTE_TOKENS, SPECIAL_TOKENS
from dragoman.text.word_splitting import whitespace_spans, word_spans

LABEL_TYPE = "label"  # of the tags of a tagger or classifier: whatever stands between spaces is one token

_LETTER = r"\p{L}\p{M}\p{N}_"
WORD_MARKERS = {
    "initial": rf" ?[{_LETTER}]+| ?[^\s{_LETTER}]|\s",
    "final": rf"[{_LETTER}]+ ?|[^\s{_LETTER}] ?|\s",
}

SYMBOL_MARKERS = {"initial": r" ?\S+|\s", "final": r"\S+ ?|\s"}


def _split_at_spaces(text: str) -> list[str]:
    """Split a text at all spaces."""
    return text.split(" ")


def _marked_symbols(marker: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that splits a text at spaces only; each symbol has the space before or after it.

    `marker` says which: "initial" or "final".
    """
    return pre_tokenizers.Split(Regex(SYMBOL_MARKERS[marker]), behavior="isolated")


def _marked_words(marker: str) -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that splits a text into words and punctuation; each has the space before or after it.

    `marker` says which: "initial" or "final".
    """
    return pre_tokenizers.Split(Regex(WORD_MARKERS[marker]), behavior="isolated")


@dataclass(frozen=True)
class TokenizerType:
    """A type of tokenizer: how its vocabulary is learned, and how text is split and joined."""

    #: from words with their counts and limits of the vocabulary to a model of the `tokenizers` library
    learn: Callable[[Mapping[str, int], tokenizer_learning.VocabularyLimits], models.Model]
    #: the tokens of the 256 bytes, which follow the special tokens; empty for word-level types
    byte_tokens: tuple[str, ...] = BYTE_TOKENS
    #: whether words have the space before or after them; otherwise a space is a token of its own
    has_marked_words: bool = True
    has_merges: bool = False  # whether it is a kind of BPE
    has_unknown_words: bool = False  # whether words outside the vocabulary cannot be spelled by other tokens
    #: whether a large text has more tokens than are useful; otherwise all are learned
    has_limited_vocabulary: bool = True
    spells: bool = False  # whether tokens are characters, or letters and marks
    #: whether characters are split into letters and marks (Unicode NFD), which `decode` composes (NFC)
    decomposes: bool = False
    tokens_show_boundaries: bool = True  # whether a token shows by itself if it begins or ends a word
    markers: tuple[str, ...] = tuple(WORD_MARKERS)  # the sides of a word that may have its space
    pre_tokenizer: Callable[[str], pre_tokenizers.PreTokenizer] = _marked_words  # splits a text into words, by marker
    word_spans: Callable[[str], list[tuple[int, int]]] = word_spans  # where each word begins and ends in a text
    #: splits a text at spaces into chunks that can be segmented one by one, since no token crosses them
    split_chunks: Callable[[str], list[str]] = _split_at_spaces
    token_bytes: Callable[[str], bytes] = str.encode  # the bytes of a token
    readable: Callable[[str], str] = str  # a token as text
    #: joins tokens of bytes to text, for other programs that read the file
    byte_decoder: Callable[[], decoders.Decoder] = decoders.ByteFallback
    space: str = " "  # a space as the model reads it


TOKENIZER_TYPES = {
    "bpe": TokenizerType(tokenizer_learning.learn_bpe, has_merges=True),
    "byte-bpe": TokenizerType(
        tokenizer_learning.learn_byte_bpe,
        byte_tokens=byte_level.BYTE_LETTERS,
        has_merges=True,
        tokens_show_boundaries=False,
        markers=("initial",),
        pre_tokenizer=lambda marker: byte_level.byte_level_words(),
        split_chunks=byte_level.split_before_words,
        token_bytes=byte_level.bytes_of_letters,
        readable=byte_level.readable_bytes,
        byte_decoder=decoders.ByteLevel,
        space=byte_level.BYTE_LETTERS[ord(" ")],
    ),
    "unigram": TokenizerType(tokenizer_learning.learn_unigram),
    "word": TokenizerType(tokenizer_learning.learn_word_level, byte_tokens=(), has_unknown_words=True),
    "symbol": TokenizerType(
        tokenizer_learning.learn_word_level,
        byte_tokens=(),
        has_unknown_words=True,
        has_limited_vocabulary=False,
        pre_tokenizer=_marked_symbols,
        word_spans=whitespace_spans,
    ),
    "character": TokenizerType(
        tokenizer_learning.learn_characters, has_marked_words=False, has_limited_vocabulary=False, spells=True
    ),
    "decomposed": TokenizerType(
        tokenizer_learning.learn_characters,
        has_marked_words=False,
        has_limited_vocabulary=False,
        spells=True,
        decomposes=True,
    ),
    "byte": TokenizerType(tokenizer_learning.learn_bytes, has_marked_words=False, has_limited_vocabulary=False),
}


def tokenizer_type(kind: str) -> TokenizerType:
    """Return the type of a tokenizer by its name, such as "bpe"; a KeyError for an unknown one.

    "label" (LABEL_TYPE, of the tags that a tagger or classifier predicts) splits text at spaces, as "symbol" does.
    """
    return TOKENIZER_TYPES["symbol" if kind == LABEL_TYPE else kind]


def check_tokenizer_type(kind: str, marker: str) -> None:
    """Raise a UserError for an unknown type of tokenizer, an unknown space marker, or one that the type does not have.

    `kind` is a name such as "bpe", or "label" (LABEL_TYPE), which users cannot choose. `marker` is the side of a word
    that has its space: "initial" or "final".
    """
    if kind not in TOKENIZER_TYPES and kind != LABEL_TYPE:
        raise unknown_name("type of tokenizer", kind, TOKENIZER_TYPES)
    if marker not in WORD_MARKERS:
        raise unknown_name("space marker", marker, WORD_MARKERS)
    if marker not in tokenizer_type(kind).markers:
        raise UserError(
            f"a tokenizer of type {kind!r} can mark spaces only at the beginning of a token (before a word), but "
            f"text.space_marker is {marker!r}: set text.space_marker=initial, or choose another text.tokenizer"
        )


def library_tokenizer(model: models.Model, kind: str, marker: str) -> tokenizers.Tokenizer:
    """Build a tokenizer of the `tokenizers` library that splits text into words and applies the model to each.

    `kind` is a type such as "bpe", `marker` the side of a word that has its space, "initial" or "final". On this side,
    a space is added to the text, so that all words have one; decoding removes it. Tokenizers of characters or bytes
    (without marked words) add none.
    """
    library, tokenizer = tokenizers.Tokenizer(model), tokenizer_type(kind)
    if not tokenizer.has_marked_words:
        # Split into characters: whole lines would only fill the library's cache.
        library.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        library.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
        if tokenizer.decomposes:
            library.normalizer = normalizers.NFD()
    else:
        initial = marker == "initial"
        library.normalizer = normalizers.Prepend(" ") if initial else normalizers.Replace(Regex(r"\z"), " ")
        library.pre_tokenizer = tokenizer.pre_tokenizer(marker)
        strip = decoders.Replace(Regex(r"\A " if initial else r" \z"), "")
        library.decoder = decoders.Sequence([tokenizer.byte_decoder(), decoders.Fuse(), strip])
    library.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    return library
