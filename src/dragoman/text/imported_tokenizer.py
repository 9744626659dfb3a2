"""Tokenizers of imported checkpoints, with their own ids or, to train new models, after Dragoman's special tokens."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import repeat
from os.path import commonprefix
from typing import Any

import tokenizers

from dragoman import legacy
from dragoman.errors import UserError
from dragoman.text.byte_level import bytes_of_letters
from dragoman.text.feature_symbols import FEATURE_SEPARATOR, UNKNOWN_FEATURE, FeatureSymbols, feature_token
from dragoman.text.hf_tokenizer_files import OriginalFiles, TokenConfig
from dragoman.text.missing_pieces import NewTokens, add_missing_pieces
from dragoman.text.sentencepiece_model import SentencePieceModel, SentencePieceSegmenter, model_from_version_1
from dragoman.text.special_tokens import BYTE_TOKENS, MASK, SPECIAL_TOKENS, UNK
from dragoman.text.tokenizer import (
    IMPORTED_TYPE,
    REMAPPED_TYPE,
    TOKENIZER_FORMAT_VERSION,
    Tokenizer,
    check_tags,
    read_source_prefix_fields,
    tag_token,
)
from dragoman.text.word_splitting import word_at_characters

MISSING_TOKEN_ID = -1  # id of a special token that the tokenizer does not have
ID_OFFSET = len(SPECIAL_TOKENS)  # of the ids of a remapped tokenizer
#: prefix of names that replace special tokens in a vocabulary, so that no text is segmented into them; Unicode
#: guarantees that this code point is never a character
HIDDEN = "\uffff"
WINDOW_TOKENS = 16  # tokens that are decoded together to find where a token begins in the text


class ImportedTokenizer(Tokenizer):
    """Segments and numbers text as the library does that a checkpoint comes from; see `tokenizers_from_folder`.

    `encode` adds no special tokens. `decode` leaves special tokens out, the unknown one included.

    Args:
        library: segments text, unless there is a `segmenter`; joins tokens
        names: token (its text) of each id
        special_tokens: special token of each id that has one
        role_ids: ids of the special tokens `pad`, `unk`, `bos`, `eos`, `cls`, `sep`, `mask` and `decoder_start`, as far
            as the tokenizer has them
        segmenter: segments text with a SentencePiece model
        language_codes: ids of codes such as `>>deu<<`, which are recognized at the beginning of any text (Marian)

    Attributes:
        special_token_ids: ids of all special tokens by name
        language_codes: see above
        all_special_ids: the ids of `special_token_ids`
        original_files: the tokenizer files of the checkpoint, with the tokens that were added to it, for exports
    """

    original_files = OriginalFiles()

    is_library_tokenizer = False

    def __init__(
        self,
        library: tokenizers.Tokenizer,
        names: dict[int, str],
        special_tokens: Mapping[int, TokenConfig],
        role_ids: Mapping[str, int],
        segmenter: SentencePieceSegmenter | None = None,
        language_codes: Mapping[str, int] | None = None,
    ) -> None:
        """Determine the ids of PAD, BOS, EOS … from the roles of special tokens, such as "pad" and "decoder_start".

        `names` has the token of each id, `special_tokens` the special ones among them, `role_ids` the id of each role.
        A `segmenter` segments text in place of the `library`. `language_codes` are recognized at the start of a text.
        A tokenizer without a role uses another one: its EOS as PAD, for example.
        """
        self.kind, self.marker = IMPORTED_TYPE, "initial"
        self._library, self._names, self._special_tokens = library, names, special_tokens
        self._segmenter, self.language_codes = segmenter, language_codes or {}
        library.encode_special_tokens = True  # in the library's terms: do not look for special tokens in a text
        self.role_ids = role_ids
        # the first role that the tokenizer has; MISSING_TOKEN_ID (−1) if it has none of them
        self.pad, self.unk = self._first_id("pad", "eos"), self._first_id("unk")
        self.bos, self.eos = self._first_id("decoder_start", "bos", "cls", "eos"), self._first_id("eos", "sep")
        self.mask, self.sep, self.cls = (self.role_ids.get(role) for role in ("mask", "sep", "cls"))
        self.special_token_ids = {token.content: token_id for token_id, token in special_tokens.items()}
        self.all_special_ids = frozenset(self.special_token_ids.values())
        # longest first: an alternation in a regular expression takes the first alternative that matches
        longest_first = sorted(special_tokens.values(), key=lambda token: -len(token.content))
        self._special_pattern = re.compile(f"({'|'.join(map(_pattern, longest_first))})")
        self._decoder = self._library.decoder
        self._is_byte_level = self._join(["Ġa"]) == " a"  # as GPT-2, whose tokens write bytes as letters: Ġ is a space

    def _first_id(self, *roles: str) -> int:
        """Return the id of the first of the `roles` (such as "pad") that has a token; MISSING_TOKEN_ID if none has."""
        return next((self.role_ids[role] for role in roles if role in self.role_ids), MISSING_TOKEN_ID)

    @property
    def vocab_size(self) -> int:
        """The highest id plus one; some lower ids may have no token."""
        return max(self._names) + 1

    def encode(self, text: str, parse_special: bool = False) -> list[int]:
        """Return the token ids of a text; with `parse_special`, names of special tokens in it become their ids.

        Otherwise they are text like any other.
        """
        if not parse_special or not self.special_token_ids:
            return self.encode_batch([text])[0]
        texts_and_names, ids = self._special_pattern.split(text), self.special_token_ids  # text, name, text, …
        texts, names = texts_and_names[::2], texts_and_names[1::2]
        # some special tokens include the white space beside them, which the pattern finds with their names
        special = [ids.get(name, ids.get(name.strip(), MISSING_TOKEN_ID)) for name in names]
        return self._encode_joined(texts, separators=special)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts without special tokens; a language code at the beginning of a text becomes its token.

        A SentencePiece model (`_segmenter`) segments them, or without one the wrapped library tokenizer (`_library`).
        """
        split_texts = [self._split_language_code(_replace_unencodable(text)) for text in texts]
        texts_without_code = [rest for _, rest in split_texts]
        if self._segmenter:
            rows = self._segmenter.encode_batch(texts_without_code)
        else:
            encodings = self._library.encode_batch_fast(texts_without_code, add_special_tokens=False)
            rows = [encoding.ids for encoding in encodings]
        return [[*code_ids, *ids] for (code_ids, _), ids in zip(split_texts, rows)]

    def encode_within_text(self, phrase: str) -> list[int]:
        """Return the token ids of a phrase inside a text: after a space, which not all tokenizers add to a text."""
        return _encode_after_space(self, phrase)

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """Encode a text with the mask token in place of every `gap` (a character that stands for what is masked).

        White space beside a gap is dropped if the mask token includes it. Without a mask token, a UserError is raised.
        """
        if self.mask is None:
            raise UserError("this tokenizer has no mask token: use a model that was trained to fill masks")
        mask = self._special_tokens.get(self.mask, TokenConfig(""))
        gap_pattern = _pattern(replace(mask, content=gap))  # the gap takes as much white space as the mask token
        texts = re.split(gap_pattern, text)
        return self._encode_joined(texts, separators=repeat(self.mask))

    def _replace_gaps(self, text: str, gap: str, sentinels: Sequence[int]) -> list[int]:
        """Encode a text with the next of the `sentinels` (ids), at least as many as gaps, in place of every `gap`.

        Their names are put into the text, because a sentinel may include the white space beside it.
        """
        if not all(sentinel in self._names for sentinel in sentinels):  # ids that a model has added to the vocabulary
            return super()._replace_gaps(text, gap, sentinels)
        first, *others = text.split(gap)
        named = (self._names[sentinel] + following for sentinel, following in zip(sentinels, others))
        return self.encode(first + "".join(named), parse_special=True)

    def _split_language_code(self, text: str) -> tuple[list[int], str]:
        """Return the id of a code such as >>deu<< at the beginning of a text (none: no ids), and the rest of the text.

        The code tells Marian the target language.
        """
        if self.language_codes and text.startswith(">>"):
            code, ending, rest = text.partition("<<")
            if (token_id := self.language_codes.get(code + ending)) is not None:
                return [token_id], rest
        return [], text

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids; special tokens and ids that the vocabulary does not have are left out."""
        return self._join(list(filter(None, map(self._text_token, ids))))

    def _text_token(self, token_id: int) -> str:
        """Return the token of an id; "" for special tokens and ids that the vocabulary does not have."""
        return "" if token_id in self.all_special_ids else self._names.get(token_id, "")

    def _join(self, tokens: list[str]) -> str:
        """Join tokens to a text as the wrapped library tokenizer does: by its decoder, else with spaces."""
        return self._decoder.decode(tokens) if self._decoder else " ".join(tokens)

    def vocabulary(self) -> list[str]:
        """Return the token of each id as the checkpoint names it; <ID> for an id without one."""
        return [self._names.get(token_id, f"<{token_id}>") for token_id in range(self.vocab_size)]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the names of tokens in readable form; <ID> for an id without one."""
        return [self._readable(self._names.get(token_id, f"<{token_id}>")) for token_id in ids]

    def _readable(self, token: str) -> str:
        """Return a token in readable form: GPT-2's letters for bytes become text, with ▁ for a space.

        Special tokens, tokens of other tokenizers, and bytes that are no whole characters are returned unchanged.
        """
        if not self._is_byte_level or token in self.special_token_ids or "\ufffd" in (text := self._join([token])):
            return token
        return text.replace(" ", "▁")

    def surface_forms(self) -> list[bytes]:
        """Return the text of every token of the vocabulary in UTF-8; b"" for special tokens and ids without a token.

        A tokenizer whose decoder joins tokens by other rules than those supported here is a UserError.
        """
        tokens = list(map(self._text_token, range(self.vocab_size)))
        if self._is_byte_level:
            return list(map(bytes_of_letters, tokens))
        if self._decoder is None:  # tokens are joined with spaces
            return [f" {token}".encode() if token else b"" for token in tokens]
        steps = _decoder_types(json.loads(self._library.to_str())["decoder"])
        if unsupported := steps - {"Sequence", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"}:
            raise UserError(
                f"this tokenizer joins its tokens by the rules {', '.join(sorted(unsupported))}, with which a single "
                "token has no text of its own: leave out forbidden phrases and other options that need the text of "
                "tokens"
            )
        byte_values = {token: bytes([byte]) for byte, token in enumerate(BYTE_TOKENS) if "ByteFallback" in steps}
        return [byte_values.get(token, token.replace("▁", " ").encode()) for token in tokens]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the number of the word that each token belongs to, −1 for special tokens and white space.

        To find where each token ends, it is joined to text with the tokens before it (`window`). Where this text stops
        to agree with the whole text (`end`), the token ends and the next one begins. Of several tokens that make one
        character together, each belongs to the word of that character.
        """
        ids = list(ids)
        text = self.decode(ids)
        word_at = [*word_at_characters(text), -1]  # of each character, and of the end of the text
        words = []  # index of the word of each token
        position = 0  # in the text, at which the next token begins
        window: list[str] = []  # the last tokens: decoding all tokens again for each one would take quadratic time
        start = 0  # position in the text at which the window begins
        for token_id in ids:
            if not (token := self._text_token(token_id)):  # a special token
                words.append(-1)
                continue
            window.append(token)
            joined, alone = self._join(window), self._join(window[-1:])  # alone: the token by itself
            agreement = commonprefix([joined, text[start : start + len(joined)]])  # noqa: RUF071 (of characters)
            end = max(position, start + len(agreement))
            # white space at the beginning of the token; the word is that of the character after it
            spaces = end - position - len(text[position:end].lstrip())
            words.append(word_at[position + spaces] if alone.strip() else -1)
            position = end
            # The window is cut before a token that is joined in the same way without the tokens before it.
            is_independent = alone.strip() and "\ufffd" not in alone and joined.endswith(alone)
            if len(window) > WINDOW_TOKENS and is_independent and text[start:end] == joined:
                window, start = window[-1:], end - len(alone)
        return words

    def with_missing_pieces(
        self, texts: Iterable[str], limit: int, first_id: int | None = None
    ) -> tuple[ImportedTokenizer, dict[int, str]]:
        """Return this tokenizer with at most `limit` new pieces (subwords), and the new pieces by their ids.

        They represent what the tokenizer cannot represent in the `texts`: characters, then longer pieces, the most
        frequent first. Their ids begin with `first_id`, by default (None) after all others. A SentencePiece model
        (`_segmenter`) cannot be extended: this tokenizer and no pieces are returned, as if all texts could be
        represented.
        """
        if self._segmenter is not None:
            return self, {}
        library, pieces = add_missing_pieces(self._library, texts, limit, first_id=first_id or self.vocab_size)
        if not pieces.tokens:
            return self, {}
        names, codes = self._names | pieces.tokens, self.language_codes
        tokenizer = ImportedTokenizer(
            library,
            names,  # the token of each id
            special_tokens=self._special_tokens,
            role_ids=self.role_ids,
            segmenter=None,
            language_codes=codes,
        )
        tokenizer.original_files = self.original_files.with_tokens(pieces)
        return tokenizer, pieces.tokens

    def can_assign_ids_from(self, first_id: int) -> bool:
        """Whether new tokens can have the ids from `first_id` on: any ids after the present ones, also with a gap."""
        return first_id >= self.vocab_size

    def with_language_code(self, language: str, token_id: int) -> ImportedTokenizer:
        """Return this tokenizer with a special token for a `language` (a code such as kin_Latn), with id `token_id`.

        The token is the code itself. No text is tokenized into it: the tokenizer that segments text stays the same.
        """
        names, special = self._names | {token_id: language}, {**self._special_tokens, token_id: TokenConfig(language)}
        tokenizer = ImportedTokenizer(
            self._library,
            names,
            special_tokens=special,
            role_ids=self.role_ids,
            segmenter=self._segmenter,
            language_codes=self.language_codes,
        )
        tokenizer.original_files = self.original_files.with_tokens(NewTokens({token_id: language}, is_special=True))
        return tokenizer

    def to_json(self) -> str:
        """Return one JSON document: that of the `tokenizers` library, with a field `dragoman` for all other data."""
        document = json.loads(self._library.to_str())
        document["model"]["dragoman"] = {
            "version": TOKENIZER_FORMAT_VERSION,
            "kind": self.kind,
            "marker": self.marker,
            # only those that the library does not have under this id
            "names": {
                token_id: name for token_id, name in self._names.items() if self._library.id_to_token(token_id) != name
            },
            "special_tokens": [{"id": token_id, **asdict(token)} for token_id, token in self._special_tokens.items()],
            "role_ids": self.role_ids,
            "language_codes": self.language_codes,
            "sentencepiece": self._segmenter.to_dict() if self._segmenter else None,
        }
        if self.original_files.encoded:
            document["model"]["dragoman"]["original_files"] = self.original_files.encoded
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], fields: Mapping[str, Any], origin: str) -> ImportedTokenizer:
        """Read a document of `to_json`; `fields` is its field `dragoman`, `origin` names it in error messages.

        Format version 1 has the field `cutter`, the contents of a SentencePiece model, in place of the model itself. A
        damaged document is a UserError.
        """
        library = load_library(document, origin)
        try:
            fields = legacy.translate_tokenizer(fields)  # renames fields of version 1
            old_segmenter = fields.get("cutter")
            # pieces that the model of version 1 has, but not the vocabulary, have ids from `size` on
            num_ids = old_segmenter["size"] if old_segmenter else math.inf
            # special tokens are hidden under other names in the library; theirs are in the field `names`
            names = {
                token_id: name
                for name, token_id in library.get_vocab().items()
                if not name.startswith(HIDDEN) and token_id < num_ids
            }
            names |= {int(token_id): str(name) for token_id, name in fields["names"].items()}
            if not names:
                raise ValueError("it has no tokens")
            special_tokens = {
                int(token["id"]): TokenConfig(
                    str(token["content"]), lstrip=bool(token["lstrip"]), rstrip=bool(token["rstrip"])
                )
                for token in fields["special_tokens"]
            }
            role_ids = {str(role): int(token_id) for role, token_id in fields["role_ids"].items()}
            codes = {str(code): int(token_id) for code, token_id in fields["language_codes"].items()}
            model, unk = None, 0
            if old_segmenter:
                model, unk = model_from_version_1(document["model"], old_segmenter, origin), old_segmenter["unknown"]
            elif stored := fields["sentencepiece"]:
                model, unk = SentencePieceModel(base64.b64decode(stored["model"]), origin), stored["unk"]
            special = [token.content for token in special_tokens.values()]
            segmenter = SentencePieceSegmenter.without_special(model, names, special, int(unk)) if model else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{origin} is damaged ({error!r}): use another copy of the tokenizer file") from None
        tokenizer = cls(library, names, special_tokens, role_ids=role_ids, segmenter=segmenter, language_codes=codes)
        tokenizer.original_files = OriginalFiles(fields.get("original_files") or {})
        return tokenizer


class RemappedTokenizer(Tokenizer):
    """An imported tokenizer whose ids are shifted, so that PAD, BOS, EOS, MASK … have Dragoman's ids.

    An imported tokenizer may lack some of these tokens, or use one for two purposes; a remapped one can train every
    system and objective. The imported special tokens keep an id, but no text contains them.
    """

    is_library_tokenizer = False

    def __init__(
        self,
        inner: ImportedTokenizer,
        tags: Sequence[str] = (),
        features: Sequence[str] = (),
        feature_separator: str = FEATURE_SEPARATOR,
        first_prefix_id: int | None = None,
    ) -> None:
        """Wrap an imported tokenizer, whose ids are shifted by ID_OFFSET to make room for Dragoman's special tokens.

        The ids of corpus tags and features begin with `first_prefix_id`, by default (None) after all others: `tags` and
        `features` are their names. The imported tokenizer has no tokens with their ids; pieces and language codes that
        are added to it later follow. `feature_separator` stands between the features of a source.
        """
        self.kind, self.marker, self.inner = REMAPPED_TYPE, inner.marker, inner
        self.first_prefix_id = first_prefix_id or ID_OFFSET + inner.vocab_size
        self.tags = {name: token_id for token_id, name in enumerate(tags, self.first_prefix_id)}
        if features:
            first_id = self.first_prefix_id + len(tags)
            ids = {name: token_id for token_id, name in enumerate((*features, UNKNOWN_FEATURE), first_id)}
            self.features = FeatureSymbols(ids, feature_separator)
        self._own_tokens = dict(enumerate(SPECIAL_TOKENS))  # id → token that is not of the imported tokenizer
        self._own_tokens |= {token_id: tag_token(name) for name, token_id in self.tags.items()}
        self._own_tokens |= {token_id: feature_token(name) for name, token_id in self.features.ids.items()}

    @property
    def vocab_size(self) -> int:
        """Return the highest id plus one, of special tokens, the imported tokenizer, corpus tags and features."""
        return max(ID_OFFSET + self.inner.vocab_size, self.first_prefix_id + len(self.source_prefix_ids))

    def with_tags(self, names: Sequence[str]) -> RemappedTokenizer:
        """Return the tokenizer with further corpus tags (`names`), whose ids precede those of the feature symbols.

        Tags and features are numbered anew after all ids of the imported tokenizer (`inner`).
        """
        check_tags(names)
        tags, features = list(dict.fromkeys([*self.tags, *names])), self.features  # each tag once
        return RemappedTokenizer(self.inner, tags, features=features.names, feature_separator=features.separator)

    def with_features(self, names: Sequence[str], separator: str) -> RemappedTokenizer:
        """Return the tokenizer with further feature symbols (`names`) at the end of its vocabulary.

        Tags and features are numbered anew after all ids of the imported tokenizer (`inner`). `separator` stands
        between the features of a source.
        """
        names = list(dict.fromkeys([*self.features.names, *names]))  # each feature once
        return RemappedTokenizer(self.inner, tags=list(self.tags), features=names, feature_separator=separator)

    def with_missing_pieces(
        self, texts: Iterable[str], limit: int, first_id: int | None = None
    ) -> tuple[Tokenizer, dict[int, str]]:
        """Return this tokenizer with at most `limit` new pieces (subwords), and the new pieces by their ids.

        They represent what the imported tokenizer cannot represent in the `texts`. Their ids begin with `first_id`, by
        default (None) after all others: they are those of the imported tokenizer, shifted by ID_OFFSET.
        """
        first_inner_id = (first_id or self.vocab_size) - ID_OFFSET  # as the imported tokenizer counts
        inner, pieces = self.inner.with_missing_pieces(texts, limit, first_inner_id)
        return self._with_inner(inner), {token_id + ID_OFFSET: piece for token_id, piece in pieces.items()}

    def can_assign_ids_from(self, first_id: int) -> bool:
        """Whether new tokens can have the ids from `first_id` on: any ids after the present ones, also with a gap."""
        return first_id >= self.vocab_size

    def piece_ids(self, piece: str) -> list[int]:
        """Return the ids of the tokens into which a part of a word (`piece`) is split, without adding a space to it."""
        return self._own_ids(self.inner.piece_ids(piece))

    def with_language_code(self, language: str, token_id: int) -> Tokenizer:
        """Return this tokenizer with a special token, such as <2kin_Latn>, for a language; its id is `token_id`.

        The imported tokenizer gets the token, with an id that is smaller by ID_OFFSET.
        """
        return self._with_inner(self.inner.with_language_code(f"<2{language}>", token_id - ID_OFFSET))

    def _with_inner(self, inner: ImportedTokenizer) -> RemappedTokenizer:
        """Return this tokenizer with an extended imported tokenizer (`inner`); all other ids stay the same."""
        features = self.features
        return RemappedTokenizer(
            inner,
            tags=list(self.tags),
            features=features.names,
            feature_separator=features.separator,
            first_prefix_id=self.first_prefix_id,  # of tags and features
        )

    def _own_ids(self, inner_ids: Iterable[int]) -> list[int]:
        """Return ids of the imported tokenizer, shifted by ID_OFFSET; its id of unknown tokens becomes UNK."""
        unk = self.inner.unk
        return [UNK if token_id == unk else token_id + ID_OFFSET for token_id in inner_ids]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts; the ids of the imported tokenizer (`inner`) are shifted by the number of special tokens.

        Its id of unknown tokens becomes UNK.
        """
        return [self._own_ids(row) for row in self.inner.encode_batch(texts)]

    def encode_within_text(self, phrase: str) -> list[int]:
        """Return the token ids of a phrase inside a text: after a space, which not all tokenizers add to a text."""
        return _encode_after_space(self, phrase)

    def encode_masked(self, text: str, gap: str) -> list[int]:
        """Tokenize a text with every `gap` (a character that stands for what is masked) replaced by the mask token."""
        return self._encode_joined(text.split(gap), repeat(MASK))

    def _inner_id(self, token_id: int) -> int:
        """Return the id of a token in the imported tokenizer, whose ids are shifted by ID_OFFSET here.

        It is MISSING_TOKEN_ID for tokens that are added here: special tokens, which come first, tags and features.
        """
        return MISSING_TOKEN_ID if token_id in self._own_tokens else token_id - ID_OFFSET

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, without special tokens and without a space that encoding added."""
        text = self.inner.decode(map(self._inner_id, ids))  # leaves MISSING_TOKEN_ID out
        return text.removeprefix(" ") if self._keeps_prefix_space else text

    @cached_property
    def _keeps_prefix_space(self) -> bool:
        """Whether the imported tokenizer adds a space before each text and does not remove it in decoding."""
        return self.inner.decode(self.inner.encode("a")) == " a"

    def vocabulary(self) -> list[str]:
        """Return all tokens by id: Dragoman's special tokens, the imported tokens, corpus tags and features."""
        imported = dict(enumerate(self.inner.vocabulary(), ID_OFFSET))
        return [self._own_tokens.get(token_id) or imported[token_id] for token_id in range(self.vocab_size)]

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the names of tokens in readable form."""
        return [self._own_tokens.get(token_id) or self.inner.tokens([self._inner_id(token_id)])[0] for token_id in ids]

    def surface_forms(self) -> list[bytes]:
        """Return the text of every token of the vocabulary in UTF-8; b"" for special tokens, tags and features.

        `inner` is the imported tokenizer, whose ids are shifted by ID_OFFSET.
        """
        imported = dict(enumerate(self.inner.surface_forms(), ID_OFFSET))
        return [imported.get(token_id, b"") for token_id in range(self.vocab_size)]

    def word_ids(self, ids: Iterable[int]) -> list[int]:
        """Return the number of the word that each token belongs to, −1 for special tokens."""
        return self.inner.word_ids(map(self._inner_id, ids))

    def to_json(self) -> str:
        """Return the JSON document of the imported tokenizer, marked as remapped, with corpus tags and features."""
        document = json.loads(self.inner.to_json())
        fields = {"kind": REMAPPED_TYPE, "tags": list(self.tags), "first_prefix_id": self.first_prefix_id}
        document["model"]["dragoman"] |= fields | self._source_prefix_fields()
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], fields: Mapping[str, Any], origin: str) -> RemappedTokenizer:
        """Read a document of `to_json`; `fields` is its field `dragoman`, `origin` names it in error messages."""
        inner = ImportedTokenizer.from_document(document, {**fields, "kind": IMPORTED_TYPE}, origin)
        tags, features, separator = read_source_prefix_fields(fields)
        return cls(inner, tags, features, separator, first_prefix_id=fields.get("first_prefix_id"))


def load_library(document: Mapping[str, Any], origin: str) -> tokenizers.Tokenizer:
    """Build a tokenizer of the `tokenizers` library from its JSON `document`; `origin` names it in error messages."""
    try:
        _check_charsmap(document.get("normalizer"))
        return tokenizers.Tokenizer.from_str(json.dumps(document))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises nothing more precise, and its panics are not Exceptions
        raise UserError(
            f"{origin} is damaged ({' '.join(str(error).split())}): use another copy of the tokenizer file"
        ) from None


def _check_charsmap(normalizer: object) -> None:
    """Raise a ValueError if a `normalizer` (JSON) has a table of character rules that states a wrong length.

    The `tokenizers` library would print a stack trace. The first four bytes of a table are the length of its first
    part. A normalizer may contain others.
    """
    if isinstance(normalizer, dict):
        if encoded := normalizer.get("precompiled_charsmap"):
            table = base64.b64decode(encoded)
            if not 4 <= int.from_bytes(table[:4], "little") <= len(table) - 4:
                raise ValueError("its table of character rules has a wrong length")
        for step in normalizer.get("normalizers") or ():
            _check_charsmap(step)


def _encode_after_space(tokenizer: Tokenizer, phrase: str) -> list[int]:
    """Encode a phrase with a space before it, unless the tokenizer adds one itself or the space changes the text."""
    ids = tokenizer.encode(phrase)
    if tokenizer.tokens(ids[:1])[0].startswith("▁"):  # the space that the tokenizer adds
        return ids
    with_space = tokenizer.encode(f" {phrase}")
    return with_space if tokenizer.decode(with_space).strip() == phrase else ids


def _decoder_types(decoder: Mapping[str, Any]) -> set[str]:
    """Return the types of a decoder of the `tokenizers` library (its JSON) and of its inner steps, such as "Strip"."""
    return {str(decoder["type"])}.union(*map(_decoder_types, decoder.get("decoders", ())))


def _pattern(token: TokenConfig) -> str:
    """Return a regular expression that finds a special token, with the white space that it includes on either side."""
    return (r"\s*" * token.lstrip) + re.escape(token.content) + (r"\s*" * token.rstrip)


def _replace_unencodable(text: str) -> str:
    """Replace by U+FFFD lone surrogates, which UTF-8 cannot encode, and U+FFFF, the prefix of hidden special tokens."""
    return re.sub(f"[\ud800-\udfff{HIDDEN}]", "\ufffd", text)
