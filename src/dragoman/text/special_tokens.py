"""The special symbols, whose ids are the same in every tokenizer that is learned here."""

from __future__ import annotations

PAD, UNK, BOS, EOS, MASK, SEP, CLS = range(7)
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>", "<mask>", "<sep>", "<cls>")

# What a character that is not in the vocabulary is written with: one piece for each of its bytes in UTF-8.
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
