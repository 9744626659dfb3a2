"""Pieces for text that a tokenizer cannot represent: missing characters, and frequent subwords that contain them.

Every new piece contains a character that had no token before, so that text without these characters is segmented as
before, and all tokens keep their ids.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import tokenizers

from dragoman.text.bpe_merges import iterate_merges

MIN_PIECE_COUNT = 3  # occurrences in the text of a new piece


def add_missing_pieces(
    library: tokenizers.Tokenizer, texts: Iterable[str], limit: int, first_id: int
) -> tuple[tokenizers.Tokenizer, dict[int, str]]:
    """Return a tokenizer of the `tokenizers` library with up to `limit` new pieces (subwords), and these by their ids.

    The pieces represent what the tokenizer `library` cannot represent in `texts`; their ids begin with `first_id`. A
    BPE model gets characters and merges, a model of whole words (WordLevel) whole words. For other models, and if the
    texts can be represented, nothing is added.
    """
    document = _document(library)
    model = document["model"]
    learn = {"BPE": _learn_bpe_pieces, "WordLevel": _learn_words}.get(model["type"])
    if learn is None:
        return library, {}
    pieces, merges = learn(library, model, _count_words(library, texts), limit)
    if not pieces:
        return library, {}
    ids = {first_id + number: piece for number, piece in enumerate(pieces)}
    model["vocab"] |= {piece: index for index, piece in ids.items()}
    if merges:
        model["merges"] += [list(pair) for pair in merges]
    return tokenizers.Tokenizer.from_str(json.dumps(document)), ids


def add_special_token(library: tokenizers.Tokenizer, token: str, token_id: int) -> tokenizers.Tokenizer:
    """Return a tokenizer of the `tokenizers` library with a special token `token`, which has the id `token_id`.

    If the vocabulary is a list, as that of a unigram model, ids have no gaps: unless `token_id` is the next free id,
    the tokenizer is returned unchanged.
    """
    document = _document(library)
    if isinstance(document["model"]["vocab"], dict):
        document["model"]["vocab"][token] = token_id
    elif token_id != library.get_vocab_size():
        return library
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    document["added_tokens"].append({"id": token_id, "content": token, **flags, "special": True})
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _document(library: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return the JSON of a tokenizer of the `tokenizers` library, with added tokens in the vocabulary of the model.

    The library would otherwise give them other ids when the vocabulary grows. A vocabulary that is a list (unigram)
    stays as it is.
    """
    document: dict[str, Any] = json.loads(library.to_str())
    vocabulary = document["model"].get("vocab")
    if isinstance(vocabulary, dict):
        vocabulary |= {token["content"]: token["id"] for token in document["added_tokens"]}
    return document


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
