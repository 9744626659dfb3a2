"""Pieces for text that a tokenizer cannot represent: missing characters, and frequent subwords that contain them.

Every new piece contains a character that had no token before, so that text without these characters is segmented as
before, and all tokens keep their ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers

from dragoman.text.bpe_merges import iterate_merges

MIN_PIECE_COUNT = 3  # occurrences in the text of a new piece


def add_missing_pieces(
    library: tokenizers.Tokenizer, texts: Iterable[str], limit: int, first_id: int
) -> tuple[tokenizers.Tokenizer, NewTokens]:
    """Return a tokenizer of the `tokenizers` library with up to `limit` new pieces (subwords), and these.

    The pieces represent what the tokenizer `library` cannot represent in `texts`; their ids begin with `first_id`. A
    BPE model gets characters and merges, a model of whole words (WordLevel) whole words. For other models, and if the
    texts can be represented, nothing is added.
    """
    document: dict[str, Any] = json.loads(library.to_str())
    model = document["model"]
    learn = {"BPE": _learn_bpe_pieces, "WordLevel": _learn_words}.get(model["type"])
    if learn is None:
        return library, NewTokens({})
    pieces, merges = learn(library, model, _count_words(library, texts), limit)
    if not pieces:
        return library, NewTokens({})
    new_tokens = NewTokens({first_id + number: piece for number, piece in enumerate(pieces)}, merges)
    return new_tokens.add_to(document) or library, new_tokens


def add_special_token(library: tokenizers.Tokenizer, token: str, token_id: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of the `tokenizers` library with a special token `token`, which has the id `token_id`.

    If the vocabulary is a list, as that of a unigram model, ids have no gaps: unless `token_id` is the next free id,
    the tokenizer is returned unchanged.
    """
    return NewTokens({token_id: token}, is_special=True).add_to(json.loads(library.to_str())) or library


@dataclass(frozen=True)
class NewTokens:
    """Tokens that extend the vocabulary of a tokenizer.

    Attributes:
        tokens: by their ids.
        merges: of BPE, which make them.
        is_special: whether no text is tokenized into them.
    """

    tokens: dict[int, str]
    merges: Sequence[tuple[str, str]] = ()
    is_special: bool = False

    def special_entries(self) -> dict[int, dict[str, Any]]:
        """Return by id how the JSON files of tokenizers describe the tokens as special tokens."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        return {token_id: {"content": token, **flags} for token_id, token in self.tokens.items()}

    def add_to(self, document: dict[str, Any]) -> tokenizers.Tokenizer | None:
        """Add the tokens to the JSON of a tokenizer of the `tokenizers` library, and return that tokenizer.

        Tokens that were added before become part of the vocabulary of the model, because the library would otherwise
        give them other ids. A vocabulary that is a list, as that of a unigram model, has no gaps: None is returned if
        the new tokens would not get their ids.
        """
        model = document["model"]
        document["added_tokens"] = list(document.get("added_tokens") or ())
        if isinstance(model["vocab"], dict):
            model["vocab"] |= {token["content"]: token["id"] for token in document["added_tokens"]}
            model["vocab"] |= {token: token_id for token_id, token in self.tokens.items()}
        if self.merges:  # older files have the merges as texts
            as_text = bool(model["merges"]) and isinstance(model["merges"][0], str)
            model["merges"] += [" ".join(pair) if as_text else list(pair) for pair in self.merges]
        if self.is_special:
            document["added_tokens"] += [
                {"id": token_id, **entry} for token_id, entry in self.special_entries().items()
            ]
        extended = tokenizers.Tokenizer.from_str(json.dumps(document))
        has_all = all(extended.token_to_id(token) == token_id for token_id, token in self.tokens.items())
        return extended if has_all else None


def _count_words(library: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts as a tokenizer (`library`) splits them, with its marks of spaces, as in ▁house."""
    counts: Counter[str] = Counter()
    for text in texts:
        normalized = library.normalizer.normalize_str(text) if library.normalizer else text
        words = library.pre_tokenizer.pre_tokenize_str(normalized) if library.pre_tokenizer else [(normalized, None)]
        counts.update(word for word, _ in words)
    return counts


def _learn_bpe_pieces(
    library: tokenizers.Tokenizer, model: Mapping[str, Any], words: Counter[str], limit: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `limit` new pieces of BPE, and merges that make them.

    The pieces are characters without a token, the most frequent first, and then, as far as `limit` allows, pairs of
    symbols that contain such a character, in the order in which BPE merges them. Each occurs at least MIN_PIECE_COUNT
    times. `words` have their counts; `library` is a tokenizer of the `tokenizers` library, `model` the JSON of its
    model. A model that marks pieces by a prefix or suffix gets none.
    """
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):  # pieces would need them, too
        return [], []
    characters: Counter[str] = Counter()
    for word, count in words.items():
        for character in set(word):
            if character not in model["vocab"]:
                characters[character] += count
    new_characters = [character for character, count in characters.most_common(limit) if count >= MIN_PIECE_COUNT]
    missing = frozenset(new_characters)
    fragments: Counter[tuple[str, ...]] = Counter()
    for word, count in words.items():
        if missing.intersection(word):
            for fragment in _fragments(library, word, missing):
                fragments[fragment] += count
    pieces, merges = dict.fromkeys(new_characters), []  # a dictionary, because two merges can make the same piece
    for merge in iterate_merges(fragments) if fragments else ():
        if merge.frequency < MIN_PIECE_COUNT or len(pieces) >= limit:
            break
        merges.append(merge.pair)
        pieces["".join(merge.pair)] = None
    return list(pieces), merges


def _fragments(library: tokenizers.Tokenizer, word: str, missing: frozenset[str]) -> Iterable[tuple[str, ...]]:
    """Yield the parts of a word in which symbols may be merged, as tuples of symbols.

    The symbols are the `missing` characters and, between these, the tokens of `library` (a tokenizer). Of two neighbors
    in a part, at least one is missing, so that merges of known tokens alone are not learned.
    """
    symbols: list[str] = []
    known = ""  # characters since the last missing one
    for character in word:
        if character in missing:
            symbols += [*_tokens(library, known), character]
            known = ""
        else:
            known += character
    symbols += _tokens(library, known)
    fragment: list[str] = []
    for symbol in symbols:
        if fragment and not {fragment[-1], symbol} & missing:
            yield tuple(fragment)
            fragment = []
        fragment.append(symbol)
    yield tuple(fragment)


def _tokens(library: tokenizers.Tokenizer, text: str) -> list[str]:
    """Return the tokens into which the model of a tokenizer splits a part of a word, without normalization."""
    return [token.value for token in library.model.tokenize(text)] if text else []


def _learn_words(
    library: tokenizers.Tokenizer, model: Mapping[str, Any], words: Counter[str], limit: int
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return at most `limit` frequent words that are not in the vocabulary of the `model`, and no merges.

    They occur at least MIN_PIECE_COUNT times, the most frequent first. `words` have their counts, `model` is the JSON
    of the model. The `library` (a tokenizer), which learners of other models need, is not used.
    """
    unknown = ((word, count) for word, count in words.most_common() if word not in model["vocab"])
    return [word for word, count in unknown if count >= MIN_PIECE_COUNT][:limit], []
