"""Tokenizers of Hugging Face checkpoints, family by family.

A folder has `tokenizer.json`, which is complete, or the files of the family's original implementation. What those files
leave out (segmentation rules, ids of special tokens) is defined here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers

from dragoman.errors import UserError
from dragoman.text.byte_level import BYTE_LETTERS
from dragoman.text.hf_sentencepiece import (
    combine_sentencepiece,
    read_fairseq,
    read_llama,
    read_m2m100,
    read_marian,
    read_spiece,
)
from dragoman.text.hf_tokenizer_families import (
    BART_TYPES,
    BERT_TYPES,
    GPT_TYPES,
    PLAIN_TOKENS,
    QWEN_TYPES,
    UNK_BOS_EOS,
    known_family,
    tokenizer_family,
)
from dragoman.text.hf_tokenizer_files import (
    TARGET_TOKENIZER_FOLDER,
    OriginalFiles,
    TokenConfig,
    TokenizerFiles,
    is_token_id,
    parse_token,
)
from dragoman.text.imported_tokenizer import HIDDEN, ImportedTokenizer, RemappedTokenizer, load_library
from dragoman.text.sentencepiece_model import SentencePieceModel
from dragoman.text.tokenizer import Tokenizer

BYT5_SETTINGS = '{"tokenizer_class": "ByT5Tokenizer"}'  # by which transformers knows a tokenizer without files

TOKENIZER_SUFFIXES = (".model", ".spm", ".json")


class MissingTokenizerError(UserError):
    """A checkpoint folder has no tokenizer files."""


def tokenizers_from_folder(
    folder: str | Path, config: Mapping[str, Any] | None = None
) -> tuple[ImportedTokenizer, ImportedTokenizer]:
    """Read the source's and the target's tokenizer of a Hugging Face checkpoint; both may be the same object.

    Args:
        folder: the checkpoint folder; the first entry of `_READERS` whose files it has reads them
        config: the checkpoint's `config.json`; None: it is treated as empty

    Raises:
        MissingTokenizerError: the folder has no supported tokenizer files.
    """
    files = TokenizerFiles(Path(folder), config or {})
    if files.tokenizer_class.startswith("ByT5"):  # needs no files
        tokenizer = _utf8_bytes(files)
        tokenizer.original_files = OriginalFiles.read(files.folder, {"tokenizer_config.json": BYT5_SETTINGS})
        return tokenizer, tokenizer
    for file_names, read in _READERS.items():
        if all(map(files.has, file_names)):
            source, *others = read(files)  # one for source and target, or two
            source.original_files = OriginalFiles.read(files.folder)
            # an export whose source and target have different vocabularies
            if (files.folder / TARGET_TOKENIZER_FOLDER / "tokenizer.json").is_file():
                target, _ = tokenizers_from_folder(files.folder / TARGET_TOKENIZER_FOLDER, config)
                return source, target
            return source, others[0] if others else source
    expected = ", ".join(" with ".join(file_names) for file_names in _READERS)
    raise MissingTokenizerError(f"{folder} has no supported tokenizer files: add those of the model, one of {expected}")


def tokenizer_from_file(path: Path) -> Tokenizer:
    """Read a SentencePiece model, or a `tokenizer.json` of the `tokenizers` library or of Dragoman.

    Other files in its folder are ignored.
    """
    files = TokenizerFiles(path.parent, config={}, only=path.name)
    if path.suffix != ".json":  # of a SentencePiece model
        model = SentencePieceModel.read(path)
        return combine_sentencepiece(
            files, model, names=model.pieces, by_role=UNK_BOS_EOS, special=model.special_pieces
        )
    document = files.json(path.name)
    if isinstance(document.get("model"), dict) and "dragoman" in document["model"]:
        return Tokenizer.load(path)
    return _from_document(files, document, by_role={})  # the document itself names its special tokens


def with_own_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with Dragoman's special tokens; an imported one is wrapped, learned ones have them already."""
    return RemappedTokenizer(tokenizer) if isinstance(tokenizer, ImportedTokenizer) else tokenizer


def open_tokenizers(path: Path) -> tuple[Tokenizer, Tokenizer]:
    """Open the source's and the target's tokenizer for training.

    Args:
        path: a SentencePiece model (`.model`, `.spm`), a `tokenizer.json`, or a Hugging Face folder; a UserError if it
            is none of these

    Both have Dragoman's special tokens; they are the same object unless a folder has two tokenizers.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: name a run, a SentencePiece .model or a Hugging Face tokenizer.json")
    if path.is_dir():
        source, target = tokenizers_from_folder(path)
        own_source = with_own_special_tokens(source)
        return own_source, own_source if target is source else with_own_special_tokens(target)
    if path.suffix not in TOKENIZER_SUFFIXES:
        raise UserError(
            f"{path} does not have the suffix of a tokenizer file: expected a SentencePiece .model or .spm, or a "
            "tokenizer.json"
        )
    tokenizer = with_own_special_tokens(tokenizer_from_file(path))
    return tokenizer, tokenizer


# ---- tokenizer.json


def _tokenizer_json(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the tokenizer of any family, in a list, from tokenizer.json: a complete file of the `tokenizers` library."""
    family, document = tokenizer_family(files), files.json("tokenizer.json")
    by_role = files.tokens_by_role(family.tokens)  # special tokens by role, such as "pad"
    # Tokens that decoded text leaves out may not be declared as special in the file, such as <|0.00|> of Whisper:
    # `hidden_tokens` is a pattern of them.
    if family.hidden_tokens:
        for token in document.get("added_tokens") or ():
            if re.fullmatch(family.hidden_tokens, str(token.get("content"))):
                token["special"] = True
    return [_from_document(files, document, by_role)]


def _from_document(
    files: TokenizerFiles, document: dict[str, Any], by_role: Mapping[str, TokenConfig]
) -> ImportedTokenizer:
    """Build a tokenizer from the JSON (`document`) of a tokenizer of the `tokenizers` library, which is changed.

    The result does not truncate, pad or add special tokens. Special tokens are those of `by_role` (by a role such as
    "pad" or "eos"), of the configuration files (`files`), and those that the document itself declares. They get names
    that no text contains, so that no text is tokenized into one.
    """
    origin = f"the tokenizer of {files.folder}"
    document |= dict.fromkeys(("truncation", "padding", "post_processor"))
    try:
        vocabulary, added = document["model"]["vocab"], document.get("added_tokens") or []
        if isinstance(vocabulary, list):  # of unigram: tokens with their scores, in the order of their ids
            vocabulary = {token_and_score[0]: token_id for token_id, token_and_score in enumerate(vocabulary)}
        ids = {**vocabulary}  # of the model's own tokens, without added ones
        all_ids = ids | {token["content"]: token["id"] for token in added}
        if not all(isinstance(name, str) and is_token_id(token_id) for name, token_id in all_ids.items()):
            raise ValueError("a token has no name or no number as its id")
        # special tokens by their text
        special = {token.content: token for token in (*by_role.values(), *files.additional_tokens())}
        for token in added:
            token["special"] = bool(token["special"]) or token["content"] in special
        special |= {token["content"]: parsed for token in added if token["special"] and (parsed := parse_token(token))}
        # BPE produces only tokens that its merges make, so that its special tokens need not be renamed.
        is_bpe = "merges" in document["model"]
        _hide_special_tokens(document, {} if is_bpe else {name: ids[name] for name in special if name in ids})
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f"{origin} is damaged ({error}): download its files again") from None
    library = load_library(document, origin)
    if any(library.token_to_id(token["content"]) != token["id"] for token in document["added_tokens"]):
        raise UserError(f"{origin} is damaged: the ids of its added tokens are not consecutive; download it again")
    names = {token_id: name for name, token_id in all_ids.items()}
    special_tokens = {all_ids[name]: token for name, token in special.items() if name in all_ids}
    return ImportedTokenizer(library, names, special_tokens, files.role_ids(by_role, all_ids))


def _hide_special_tokens(document: dict[str, Any], tokens: Mapping[str, int]) -> None:
    """Rename special tokens to HIDDEN (a character that no text contains) and their id.

    Models would find their own names in a text. `tokens` has the ids of the special tokens. `document` is the JSON of a
    tokenizer of the `tokenizers` library, which is changed in place.
    """
    model = document["model"]
    for name, token_id in tokens.items():
        if isinstance(model["vocab"], list):  # of tokens with their scores
            model["vocab"][token_id] = [f"{HIDDEN}{token_id}", 0.0]
        else:
            model["vocab"][f"{HIDDEN}{token_id}"] = model["vocab"].pop(name)
    if model.get("unk_token") in tokens:
        model["unk_token"] = f"{HIDDEN}{tokens[model['unk_token']]}"
    document["added_tokens"] = [token for token in document.get("added_tokens") or [] if token["content"] not in tokens]


# ---- WordPiece and byte-level BPE


def _word_piece(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read BERT's WordPiece tokenizer, in a list: it serves source and target.

    Text is split at white space and punctuation, then each word from its beginning into the longest pieces.
    """
    # family: the special tokens of BERT, ELECTRA …; settings: tokenizer_config.json
    family, settings = known_family(files, "vocab.txt", BERT_TYPES), files.settings
    by_role = files.tokens_by_role(family.tokens)  # special tokens by role, such as "pad"
    lines = files.text("vocab.txt").removesuffix("\n").split("\n")
    vocabulary = {line.rstrip(): token_id for token_id, line in enumerate(lines)}
    unk = by_role["unk"].content if "unk" in by_role else ""
    if unk not in vocabulary:
        raise UserError(
            f"{files.folder / 'vocab.txt'} is damaged: it has no token {unk!r} for unknown words; download it again"
        )
    library = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
    chinese, lowercase = (settings.get(key) is not False for key in ("tokenize_chinese_chars", "do_lower_case"))
    # None: the normalizer strips accents if it lower-cases
    strip_accents = None if (strip := settings.get("strip_accents")) is None else bool(strip)
    library.normalizer = normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=chinese, strip_accents=strip_accents, lowercase=lowercase
    )
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece(prefix="##")
    return _from_library(files, library, by_role)


def _byte_level(files: TokenizerFiles) -> list[ImportedTokenizer]:
    """Read the byte-level BPE of GPT-2, RoBERTa, BART or Qwen2, in a list: it serves source and target.

    It writes bytes as letters (Radford et al. 2019).
    """
    types = (*GPT_TYPES, *BART_TYPES, *QWEN_TYPES)
    family = known_family(files, "vocab.json with merges.txt", types)
    by_role = files.tokens_by_role(family.tokens)  # special tokens by role, such as "pad"
    lines = [line for line in files.text("merges.txt").split("\n") if line and not line.startswith("#version")]
    merges = [(left, right) for left, _, right in (line.partition(" ") for line in lines)]
    vocabulary = files.vocabulary("vocab.json")
    try:
        model = models.BPE(vocabulary, merges, continuing_subword_prefix="", end_of_word_suffix="")
    except Exception as error:  # the library raises nothing more precise
        raise UserError(
            f"{files.folder / 'merges.txt'} does not fit vocab.json ({error}): download both from one checkpoint"
        ) from None
    library = tokenizers.Tokenizer(model)
    add_prefix_space = files.settings.get("add_prefix_space") is True  # whether a space is added before each text
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    if family.is_nfc:  # Qwen2 reads text in Unicode's normal form C
        library.normalizer = normalizers.NFC()
    if family.split_pattern:  # and splits it into words by other rules than GPT-2
        library.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(family.split_pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=False),
            ]
        )
    library.decoder = decoders.ByteLevel()
    return _from_library(files, library, by_role)


def _utf8_bytes(files: TokenizerFiles) -> ImportedTokenizer:
    """Return the tokenizer of ByT5 (Xue et al. 2022, §3.1): special tokens, the bytes of UTF-8, and sentinels."""
    by_role = files.tokens_by_role(PLAIN_TOKENS)
    # the first three ids, before the bytes
    first = [by_role[role].content if role in by_role else f"<{role}>" for role in ("pad", "eos", "unk")]
    listed_sentinels = [token.content for token in files.additional_tokens() if "extra_id" in token.content]
    count = files.settings.get("extra_ids", 125)  # of sentinels, if the files do not list them
    sentinels = list(dict.fromkeys(listed_sentinels)) or [f"<extra_id_{number}>" for number in range(int(count))]
    vocabulary = {name: index for index, name in enumerate((*first, *BYTE_LETTERS))}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    added = {token_id: token.content for token_id, token in files.added_tokens().items()}
    names = dict(enumerate([*vocabulary, *sentinels])) | added
    ids = {name: token_id for token_id, name in names.items()}
    special = {ids[name]: TokenConfig(name) for name in (*first, *sentinels)}
    return ImportedTokenizer(library, names, special, files.role_ids(by_role, ids))


def _from_library(
    files: TokenizerFiles, library: tokenizers.Tokenizer, by_role: Mapping[str, TokenConfig]
) -> list[ImportedTokenizer]:
    """Convert a tokenizer of the `tokenizers` library, with the tokens that the files of a checkpoint add to it.

    `by_role` has the special tokens with a role, such as "pad" or "eos". The result is a list of one tokenizer, which
    serves source and target.
    """
    document = json.loads(library.to_str())
    document["added_tokens"] = [
        # asdict: content, lstrip, rstrip and special
        asdict(token) | {"id": token_id, "single_word": False, "normalized": False}
        for token_id, token in sorted(files.added_tokens().items())
    ]
    return [_from_document(files, document, by_role)]


_READERS: dict[tuple[str, ...], Callable[[TokenizerFiles], list[ImportedTokenizer]]] = {
    ("tokenizer.json",): _tokenizer_json,
    ("source.spm", "target.spm", "vocab.json"): read_marian,
    ("spiece.model",): read_spiece,
    ("sentencepiece.bpe.model", "vocab.json"): read_m2m100,
    ("sentencepiece.bpe.model",): read_fairseq,
    ("tokenizer.model",): read_llama,
    ("vocab.json", "merges.txt"): _byte_level,
    ("vocab.txt",): _word_piece,
}
