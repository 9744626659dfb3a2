"""Hugging Face's `generate`, and the checkpoint that all systems read."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel

from peers.searching import Asked, Translate

END, UNKNOWN = 0, 1  # PAD, with which a target starts, is the last of the vocabulary, as in all Marian checkpoints


def write(folder: Path, vocabulary: int, width: int, inner: int, heads: int, layers: int) -> None:
    """A Marian model with random weights, large enough for it to have opinions."""
    torch.manual_seed(1)
    pad = vocabulary - 1
    config = MarianConfig(
        vocab_size=vocabulary,
        d_model=width,
        encoder_layers=layers,
        decoder_layers=layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        init_std=width**-0.5,
        pad_token_id=pad,
        decoder_start_token_id=pad,
        bos_token_id=None,
        eos_token_id=END,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config).eval()
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder)


def translator(asked: Asked, precision: str) -> Translate:
    torch.set_num_threads(asked.threads)
    dtype = torch.bfloat16 if asked.gpu else getattr(torch, precision)
    model = MarianMTModel.from_pretrained(asked.folder, dtype=dtype).to(asked.device).eval()
    pad = model.config.pad_token_id

    @torch.inference_mode()
    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        rows = [torch.tensor(source) for source in sources]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(asked.device)
        length = {"min_new_tokens": asked.tokens, "max_new_tokens": asked.tokens}
        found = model.generate(padded, attention_mask=padded != pad, num_beams=beam, do_sample=False, **length)
        return found[:, 1:].tolist()

    return translate


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(int(size) for size in sys.argv[2:]))
