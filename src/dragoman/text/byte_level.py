"""Byte-level BPE as in GPT-2 (Radford et al. 2019, §2.2): merges of bytes, which are written as visible letters.

All 256 bytes are in the vocabulary, so that no text has unknown tokens. Text is split into words of one class first:
letters, digits, other characters, or white space, each with the space before it. English endings such as 's and 'll are
words of their own. No token crosses a word boundary.
"""

from __future__ import annotations

import re

from tokenizers import pre_tokenizers

_VISIBLE = {*range(33, 127), *range(161, 173), *range(174, 256)}
_HIDDEN = [byte for byte in range(256) if byte not in _VISIBLE]
#: GPT-2's letter for each byte: its own character if that is visible, else a character from 256 on; a space is Ġ
BYTE_LETTERS = tuple(chr(byte if byte in _VISIBLE else 256 + _HIDDEN.index(byte)) for byte in range(256))
_BYTE_OF_LETTER = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}

# A space before white space belongs to the run of white space, so text can be cut only at other spaces.
_SPACE_BEFORE_WORD = re.compile(r" (?=\S)")


def byte_level_words() -> pre_tokenizers.PreTokenizer:
    """Return the pre-tokenizer that splits a text into GPT-2's words, each byte written as one of `BYTE_LETTERS`."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def split_before_words(text: str) -> list[str]:
    """Split a text at the space right before each word: no token crosses it, so parts can be tokenized one by one.

    Examples:
        >>> split_before_words("a house,  old")
        ['a', 'house, ', 'old']
    """
    return _SPACE_BEFORE_WORD.split(text)


def bytes_of_letters(token: str) -> bytes:
    """Return the bytes that the letters of a token stand for; a token with other characters is encoded in UTF-8.

    Examples:
        >>> bytes_of_letters("ĠÃ©").decode()
        ' é'
    """
    has_byte_letters_only = _BYTE_OF_LETTER.keys() >= {*token}
    return bytes(_BYTE_OF_LETTER[letter] for letter in token) if has_byte_letters_only else token.encode()


def readable_bytes(token: str) -> str:
    """Return the text of a token that is written in GPT-2's letters.

    If its bytes are not UTF-8 on their own, each of them is written as, for example, <0xC3>.

    Examples:
        >>> readable_bytes("ĠÃ©"), readable_bytes("Ã")
        (' é', '<0xC3>')
    """
    content = bytes_of_letters(token)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in content)
