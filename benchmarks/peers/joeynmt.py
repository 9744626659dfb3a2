"""JoeyNMT's model, loss, batch and optimizer, as its own trainer uses them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from peers.missing import placeholder_modules
from peers.protocol import BOS, CLIP, EOS, LABEL_SMOOTHING, PAD, RATE, PaddedBatch, Precision, Sizes, Step

# plots, logs and tokenizers, which its modules import at the top
PLOTS = ("matplotlib", "matplotlib.pyplot", "matplotlib.backends", "matplotlib.backends.backend_pdf")
with placeholder_modules(
    "importlib_metadata",
    *PLOTS,
    "matplotlib.figure",
    "seaborn",
    "packaging",
    "torch.utils.tensorboard",
    "sentencepiece",
    "subword_nmt",
):
    from joeynmt.batch import Batch
    from joeynmt.builders import build_gradient_clipper, build_optimizer
    from joeynmt.model import build_model


@dataclass(frozen=True)
class NumberVocabulary:
    """A vocabulary of numbers with the attributes that JoeyNMT's model uses."""

    size: int
    pad_index: int = PAD
    unk_index: int = 1
    bos_index: int = BOS
    eos_index: int = EOS
    sep_index: None = None
    specials: tuple[str, ...] = ()
    lang_tags: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.size


def trainer(sizes: Sizes, device: str, precision: Precision) -> Step:
    words = NumberVocabulary(sizes.vocabulary)
    model = build_model(_settings(sizes), words, words).to(device).train()
    model.loss_function = ("crossentropy", LABEL_SMOOTHING)
    training: dict[str, Any] = {"optimizer": "adam", "learning_rate": RATE, "adam_betas": (0.9, 0.98)}
    training |= {"clip_grad_val": None, "clip_grad_norm": CLIP}
    optimizer = build_optimizer(training, model.parameters())
    clip = build_gradient_clipper(training)
    assert clip is not None
    torch_device = torch.device(device)

    def step(batch: PaddedBatch) -> None:
        toolkit_batch = Batch(
            batch.source,
            batch.source_lengths,
            src_prompt_mask=None,
            trg=batch.target,
            trg_prompt_mask=None,
            indices=torch.arange(len(batch.source)),
            device=torch_device,
            pad_index=PAD,
            eos_index=EOS,
        )
        toolkit_batch.sort_by_src_length()
        # Its own mixed precision is float16 with a scaler, which bfloat16 does not need.
        with torch.autocast(device, torch.bfloat16, enabled=precision == "bfloat16"):
            loss, _, _, correct = model(return_type="loss", **vars(toolkit_batch))
        loss = toolkit_batch.normalize(loss, "tokens")
        loss.backward()
        loss.item(), correct.item()  # which its trainer reads after every batch
        clip(parameters=model.parameters())
        optimizer.step()
        model.zero_grad()

    return step


def _settings(sizes: Sizes) -> dict[str, Any]:
    words = {"embedding_dim": sizes.width, "scale": sizes.kind == "transformer", "dropout": sizes.dropout}
    side: dict[str, Any] = {"embeddings": words, "hidden_size": sizes.width, "num_layers": sizes.layers}
    side["dropout"] = sizes.dropout
    if sizes.kind == "transformer":
        side |= {"type": "transformer", "num_heads": sizes.heads, "ff_size": sizes.inner, "layer_norm": "post"}
        return {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}
    # Its encoder must read both ways: for `luong`, where the others' reads one way, each way is half as wide.
    luong = sizes.kind == "luong"
    cell = {"type": "recurrent", "rnn_type": "lstm" if luong else "gru"}
    encoder = side | cell | {"bidirectional": True, "hidden_size": sizes.width // (2 if luong else 1)}
    decoder = side | cell | {"attention": sizes.kind, "input_feeding": True, "hidden_dropout": sizes.dropout}
    decoder["init_hidden"] = "last" if luong else "bridge"
    return {"encoder": encoder, "decoder": decoder, "tied_embeddings": True, "tied_softmax": True}
