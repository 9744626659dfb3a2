"""The vocabularies of a Marian model as tokenizers: SentencePiece models, or lists of tokens in YAML, JSON or text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from dragoman.errors import UserError
from dragoman.interop.marian.marian_options import read_yaml
from dragoman.text.hf_sentencepiece import combine_sentencepiece, stripping_decoder
from dragoman.text.hf_tokenizer_families import PLAIN_TOKENS
from dragoman.text.hf_tokenizer_files import TokenizerFiles, is_token_id
from dragoman.text.imported_tokenizer import ImportedTokenizer
from dragoman.text.sentencepiece_model import SentencePieceModel

MARIAN_EOS, MARIAN_UNK, ADDED_PAD = "</s>", "<unk>", "<pad>"


def read_vocabulary(path: Path) -> dict[str, int]:
    """Return the id of every token of a vocabulary file of Marian: .spm, YAML, JSON, or text with a token per line.

    A file that lacks EOS or the unknown token, or in which two tokens have one id, is a UserError.
    """
    if path.suffix == ".spm":
        ids = {piece: index for index, piece in enumerate(SentencePieceModel.read(path).pieces)}
    elif path.suffix in (".yml", ".yaml", ".json"):  # YAML includes JSON
        numbers = read_yaml(path)  # all values are strings, ids as well
        if not all(isinstance(value, str) and value.isdecimal() for value in numbers.values()):
            raise UserError(f"{path} is damaged: expected an id (a number) for every token; get the file again")
        ids = {token: int(value) for token, value in numbers.items()}
    else:
        files = TokenizerFiles(path.parent, config={})  # its method `text` checks size and encoding
        lines = files.text(path.name).removesuffix("\n").split("\n")
        ids = {token: index for index, token in enumerate(lines)}
    for token in (MARIAN_EOS, MARIAN_UNK):
        if token not in ids:
            raise UserError(
                f"the vocabulary {path} has no token {token}, which every vocabulary of Marian has: name another file"
            )
    if len({*ids.values()}) < len(ids) or not all(map(is_token_id, ids.values())):
        raise UserError(f"{path} is damaged: every token must have an id of its own; get the file again")
    return ids


def marian_tokenizer(path: Path, ids: Mapping[str, int], bos: int, sentencepiece: Path | None) -> ImportedTokenizer:
    """Return the tokenizer of one language.

    Args:
        path: the vocabulary file.
        ids: its tokens with their ids.
        bos: id of the token that the decoder starts with, which is also padding; it follows the ids of the vocabulary.
        sentencepiece: file of the SentencePiece model that segments the text, which may be the vocabulary itself.
            Without one, tokens are separated by spaces.
    """
    names = {token_id: token for token, token_id in ids.items()} | {bos: ADDED_PAD}
    # a code such as >>deu<< at the beginning of a source names the target language
    codes = {token: token_id for token, token_id in ids.items() if token.startswith(">>") and token.endswith("<<")}
    files = TokenizerFiles(path.parent, {"decoder_start_token_id": bos}, only=path.name)
    if sentencepiece is not None:
        model = SentencePieceModel.read(sentencepiece)
        special = model.special_pieces if sentencepiece == path else ()  # those of another file may have no ids
        return combine_sentencepiece(
            files,
            model,
            names,
            by_role=PLAIN_TOKENS,  # texts of the tokens for padding, unknown words and EOS
            special=special,
            decoder=stripping_decoder(),
            language_codes=codes,
        )
    token_ids = {token: token_id for token_id, token in names.items()}  # with the added padding token
    word_tokenizer = tokenizers.Tokenizer(models.WordLevel(token_ids, unk_token=MARIAN_UNK))
    word_tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special_tokens = {token_ids[token.content]: token for token in PLAIN_TOKENS.values()}
    role_ids = files.role_ids(PLAIN_TOKENS, token_ids)  # role of a token, such as "pad" → id
    return ImportedTokenizer(word_tokenizer, names, special_tokens, role_ids, language_codes=codes)
