"""Hugging Face's `generate`, and the checkpoint that all systems read."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import MarianConfig, MarianMTModel

from peers.searching import Translate, WorkerSettings

EOS, UNK = 0, 1  # PAD, the first decoder input, is the last token of the vocabulary, as in all Marian checkpoints


def write(folder: Path, vocabulary: int, width: int, inner: int, heads: int, layers: int) -> None:
    """Write a Marian model with random weights that are large enough for distinct probabilities."""
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
        eos_token_id=EOS,
        forced_eos_token_id=None,
    )
    model = MarianMTModel(config).eval()
    model.generation_config.bad_words_ids = [[pad]]
    model.save_pretrained(folder)


def translator(settings: WorkerSettings, precision: str) -> Translate:
    torch.set_num_threads(settings.threads)
    dtype = torch.bfloat16 if settings.gpu else getattr(torch, precision)
    model = MarianMTModel.from_pretrained(settings.folder, dtype=dtype).to(settings.device).eval()
    pad = model.config.pad_token_id

    @torch.inference_mode()
    def translate(sources: list[list[int]], beam: int) -> list[list[int]]:
        rows = [torch.tensor(source) for source in sources]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad).to(settings.device)
        length = {"min_new_tokens": settings.tokens, "max_new_tokens": settings.tokens}
        output = model.generate(padded, attention_mask=padded != pad, num_beams=beam, do_sample=False, **length)
        return output[:, 1:].tolist()

    return translate


if __name__ == "__main__":
    write(Path(sys.argv[1]), *(int(size) for size in sys.argv[2:]))
