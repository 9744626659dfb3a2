"""Dropout, by torch's kernel on a GPU and in compiled graphs, and on the CPU by sixteen random bits a number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS = 2**16  # the share that is dropped is so many parts fine


class Dropout(nn.Dropout):
    """y = x ⊙ m / (1 − p), each m being 0 with probability p, in training alone (Srivastava et al. 2014)."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p, self.training)


def dropout(x: Tensor, share: float, training: bool) -> Tensor:
    """The same as a function.

    On the CPU a draw of 64 bits serves four numbers here, where torch's dropout draws for each: 4 % of a small
    Transformer's step.
    """
    if not training or not share:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(x, share, training)
    dropped = min(round(share * STEPS), STEPS - 1)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
    bits = draws.view(torch.int16)[: x.numel()].view(x.shape)
    kept = (bits >= dropped - STEPS // 2).to(x.dtype)
    return x * kept.mul_(STEPS / (STEPS - dropped))
