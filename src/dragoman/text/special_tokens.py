"""The special tokens; their ids are the same in every tokenizer that Dragoman learns."""

from __future__ import annotations

PAD, UNK, BOS, EOS, MASK, SEP, CLS = range(7)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>", "<cls>")

#: byte fallback: a character that is not in the vocabulary is encoded as the bytes of its UTF-8 form, a token each
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
