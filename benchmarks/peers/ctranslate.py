"""CTranslate2 over the checkpoint, converted by its own converter."""

from __future__ import annotations

from typing import Any

import ctranslate2
from ctranslate2.converters import TransformersConverter

from peers.searching import Translate, WorkerSettings


class NumberTokenizer:
    """A tokenizer with the only method that the converter calls; every token is its id as text."""

    eos_token, unk_token = "0", "1"

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary

    def get_vocab(self) -> dict[str, int]:
        return {str(n): n for n in range(self.vocabulary - 1)} | {"<pad>": self.vocabulary - 1}


class Converter(TransformersConverter):
    def load_tokenizer(self, tokenizer_class: Any, folder: str, **options: Any) -> NumberTokenizer:
        import transformers

        return NumberTokenizer(transformers.AutoConfig.from_pretrained(folder).vocab_size)


def translator(settings: WorkerSettings, precision: str) -> Translate:
    converted = settings.folder / f"ctranslate2-{settings.system}"
    Converter(str(settings.folder)).convert(str(converted), force=True)
    kind = {"float32": "float16", "int8": "int8_float16"}[precision] if settings.gpu else precision
    model = ctranslate2.Translator(
        str(converted), device=settings.device, compute_type=kind, inter_threads=1, intra_threads=settings.threads
    )

    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        length = {"min_decoding_length": settings.tokens, "max_decoding_length": settings.tokens}
        tokens_of_sources = [[str(token) for token in source] for source in sources]
        results = model.translate_batch(tokens_of_sources, beam_size=beam, **length)
        return [[int(token) for token in result.hypotheses[0]] for result in results]

    return translate
