"""CTranslate2 over the checkpoint, converted by its own converter."""

from __future__ import annotations

from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from peers.searching import Asked, Translate


class Words:
    """A tokenizer that has a vocabulary, which is all that the converter wants: every id is the word for itself."""

    eos_token, unk_token = "0", "1"

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return {str(n): n for n in range(self.vocabulary - 1)} | {"<pad>": self.vocabulary - 1}


class Converter(TransformersConverter):
    def load_tokenizer(self, tokenizer_class: Any, folder: str, **settings: Any) -> Words:
        import transformers

        return Words(transformers.AutoConfig.from_pretrained(folder).vocab_size)


def translator(asked: Asked, precision: str) -> Translate:
    converted = asked.folder / f"ctranslate2-{asked.system}"
    Converter(str(asked.folder)).convert(str(converted), force=True)
    kind = {"float32": "float16", "int8": "int8_float16"}[precision] if asked.gpu else precision
    model = ctranslate2.Translator(
        str(converted), device=asked.device, compute_type=kind, inter_threads=1, intra_threads=asked.threads
    )

    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        length = {"min_decoding_length": asked.tokens, "max_decoding_length": asked.tokens}
        words = [[str(token) for token in source] for source in sources]
        found = model.translate_batch(words, beam_size=beam, **length)
        return [[int(token) for token in one.hypotheses[0]] for one in found]

    return translate
