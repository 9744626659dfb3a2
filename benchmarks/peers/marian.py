"""Hugging Face's Marian in a plain training loop."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from transformers import MarianConfig, MarianMTModel

from peers.protocol import BOS, CLIP, EOS, LABEL_SMOOTHING, PAD, RATE, PaddedBatch, Precision, Sizes, Step


def trainer(sizes: Sizes, device: str, precision: Precision) -> Step:
    return _trainer(sizes, device, precision, compiled=False)


def compiled_trainer(sizes: Sizes, device: str, precision: Precision) -> Step:
    return _trainer(sizes, device, precision, compiled=True)


def _trainer(sizes: Sizes, device: str, precision: Precision, compiled: bool) -> Step:
    config = MarianConfig(
        vocab_size=sizes.vocabulary,
        d_model=sizes.width,
        encoder_layers=sizes.layers,
        decoder_layers=sizes.layers,
        encoder_attention_heads=sizes.heads,
        decoder_attention_heads=sizes.heads,
        encoder_ffn_dim=sizes.inner,
        decoder_ffn_dim=sizes.inner,
        dropout=sizes.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        max_position_embeddings=512,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        use_cache=False,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )
    model = MarianMTModel(config).to(device).train()
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.Adam(parameters, RATE, betas=(0.9, 0.98), fused=True)
    forward = torch.compile(model, dynamic=True) if compiled else model

    def step(batch: PaddedBatch) -> None:
        batch = batch.to(device)
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            mask = batch.source != PAD
            logits = forward(input_ids=batch.source, attention_mask=mask, decoder_input_ids=batch.target[:, :-1]).logits
            labels = batch.target[:, 1:].flatten()
            smoothing = {"ignore_index": PAD, "label_smoothing": LABEL_SMOOTHING}
            loss = F.cross_entropy(logits.flatten(0, 1), labels, **smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
