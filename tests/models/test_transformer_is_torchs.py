"""The Transformer against torch.nn.Transformer with the same weights: outputs and gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from dragoman.models import EncoderDecoderModel
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes

VOCABULARY, WIDTH, HEADS, INNER = 11, 16, 4, 24
SOURCE = torch.tensor([[4, 5, 6, 7, 8], [9, 10, 4, 0, 0], [5, 0, 0, 0, 0]])
TARGET = torch.tensor([[2, 7, 8, 9], [2, 4, 0, 0], [2, 6, 5, 0]])
SOURCE_LENGTHS, TARGET_LENGTHS = torch.tensor([5, 3, 1]), torch.tensor([4, 2, 3])


def close(mine: Tensor | None, torchs: Tensor | None, name: str) -> None:
    torch.testing.assert_close(mine, torchs, atol=1e-5, rtol=1e-5, msg=lambda message: f"{name}: {message}")


def ours(pre_norm: bool) -> EncoderDecoderModel:
    settings: dict[str, Any] = {
        "model_dim": WIDTH,
        "layers": 3,
        "decoder_layers": 2,
        "heads": HEADS,
        "ffn_dim": INNER,
        "dropout": 0.0,
    }
    spec = SYSTEMS["transformer"].spec(
        VocabularySizes(VOCABULARY, VOCABULARY, joint=True), **settings, pre_norm=pre_norm
    )
    model = spec.build()
    for weight in model.parameters():  # norms and biases too, so that one in the wrong place shows
        nn.init.normal_(weight, std=0.3)
    return model


def theirs(pre_norm: bool) -> nn.Transformer:
    """torch's own; after its layers it normalises once more, which only the pre-norm Transformer does."""
    sizes: dict[str, Any] = {"dropout": 0.0, "batch_first": True, "norm_first": pre_norm}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, **sizes),
        num_layers=3,
        norm=nn.LayerNorm(WIDTH) if pre_norm else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(WIDTH, HEADS, INNER, **sizes),
        num_layers=2,
        norm=nn.LayerNorm(WIDTH) if pre_norm else None,
    )
    return nn.Transformer(WIDTH, HEADS, custom_encoder=encoder, custom_decoder=decoder, batch_first=True)


def torch_names(pre_norm: bool) -> dict[str, list[str]]:
    """torch's name of each weight → ours; where torch fuses what we keep apart, ours one below the other."""
    names: dict[str, list[str]] = {}
    stacks = {"encoder": (3, ["self_attn", "feed forward"]), "decoder": (2, ["self_attn", "multihead_attn", "ff"])}
    for stack, (layers, parts) in stacks.items():
        for i in range(layers):
            for j, part in enumerate(parts):
                torchs, our = f"{stack}.layers.{i}", f"{stack}.layers.{i}.{j}"
                for kind in ("weight", "bias"):
                    norm = "before" if pre_norm else "after"
                    names[f"{torchs}.norm{j + 1}.{kind}"] = [f"{our}.{norm}.{kind}"]
                    if part.endswith("attn"):
                        fused = ["project"] if part == "self_attn" else ["query", "project"]
                        names[f"{torchs}.{part}.in_proj_{kind}"] = [f"{our}.body.{name}.{kind}" for name in fused]
                        names[f"{torchs}.{part}.out_proj.{kind}"] = [f"{our}.body.output.{kind}"]
                    else:
                        names[f"{torchs}.linear1.{kind}"] = [f"{our}.body.widen.{kind}"]
                        names[f"{torchs}.linear2.{kind}"] = [f"{our}.body.narrow.{kind}"]
        if pre_norm:
            names |= {f"{stack}.norm.{kind}": [f"{stack}.norm.{kind}"] for kind in ("weight", "bias")}
    return names


def positions(length: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^{2i/d}), PE(pos, 2i+1) = cos of the same, entry by entry."""
    table = np.empty((length, WIDTH))
    for pos in range(length):
        for column in range(WIDTH):
            angle = pos / 10000 ** (2 * (column // 2) / WIDTH)
            table[pos, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return torch.tensor(table, dtype=torch.float32)


@pytest.mark.parametrize("pre_norm", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_transformer_equals_torchs(pre_norm: bool, training: bool) -> None:
    model, reference = ours(pre_norm).train(training), theirs(pre_norm).train(training)
    mine = dict(model.named_parameters())
    names = torch_names(pre_norm)
    reference.load_state_dict({name: torch.cat([mine[n].detach() for n in ns]) for name, ns in names.items()})
    table = mine["target_embedding.weight"].detach().clone().requires_grad_()
    assert len(mine) == sum(len(ns) for ns in names.values()) + 1  # every weight has a counterpart; one shared table

    source_pads = torch.arange(5) >= SOURCE_LENGTHS[:, None]
    target_pads = torch.arange(4) >= TARGET_LENGTHS[:, None]
    hidden = torch.ones(4, 4, dtype=torch.bool).triu(1)  # True is what torch hides
    source = table[SOURCE] * math.sqrt(WIDTH) + positions(5)
    target = table[TARGET] * math.sqrt(WIDTH) + positions(4)
    states = reference.encoder(source, src_key_padding_mask=source_pads)
    features = reference.decoder(
        target, states, hidden, tgt_key_padding_mask=target_pads, memory_key_padding_mask=source_pads
    )
    expected = features @ table.T

    memory = model.encode(SOURCE, SequenceLayout.padded(5, SOURCE_LENGTHS))
    logits, _ = model.decode(TARGET, Context(SequenceLayout.padded(4, TARGET_LENGTHS), memory))
    close(memory.states[~source_pads], states[~source_pads], "encoder")
    close(logits[~target_pads], expected[~target_pads], "logits")

    answers = torch.randn_like(expected[~target_pads])
    ((logits[~target_pads] * answers).mean()).backward()
    ((expected[~target_pads] * answers).mean()).backward()
    weights = dict(reference.named_parameters())
    for name, ns in names.items():
        gradients = [gradient for n in ns if (gradient := mine[n].grad) is not None]
        close(torch.cat(gradients), weights[name].grad, name)
    close(mine["target_embedding.weight"].grad, table.grad, "embedding")
