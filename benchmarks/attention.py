"""Compare kernels for packed batches: FlexAttention, flash attention with variable lengths, and padded rows.

Times one attention layer in bfloat16, forward and backward, for sentences of several mean lengths. Needs a GPU:

    python benchmarks/attention.py [--tokens 25088 --heads 8 --head-dim 64]
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dragoman.parts.attention_function import AttentionArgs
from dragoman.parts.mixer import AttentionMasks, SequenceLayout
from dragoman.parts.packed_attention import PACK_MULTIPLE, packed_attention, varlen_attention
from dragoman.parts.visibility import Causal, Full, Visibility


def sentence_lengths(tokens: int, mean: float, max_length: int, seed: int = 0) -> list[int]:
    """Draw log-normal sentence lengths that fill a row of `tokens` tokens."""
    random = np.random.default_rng(seed)
    lengths: list[int] = []
    while True:
        length = int(np.clip(np.round(np.exp(random.normal(math.log(mean) - 0.125, 0.5))), 2, max_length))
        if sum(lengths) + length > tokens:
            return lengths
        lengths.append(length)


def milliseconds(function: Callable[[], object], times: int = 20) -> float:
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        function()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / times * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=25088)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    options = parser.parse_args()
    tokens = options.tokens // PACK_MULTIPLE * PACK_MULTIPLE
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {tokens} tokens, {options.heads} heads")
    print("| mean length | causal | flex | varying | padded | (ms, forward and backward)")
    for mean in (12, 28, 64, 256, 1024):
        max_length = max(64, 4 * mean)
        lengths = sentence_lengths(tokens, mean, max_length)
        lengths.append(tokens - sum(lengths))
        layout = SequenceLayout.packed_row(tokens, torch.tensor(lengths, device="cuda"), max(lengths))
        shape = (1, options.heads, tokens, options.head_dim)
        query, key, value, gradient = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        inputs = [x.requires_grad_() for x in (query, key, value)]
        rows = (len(lengths), options.heads, max(lengths), options.head_dim)
        padded = [torch.randn(rows, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        mask = (torch.arange(max(lengths), device="cuda") < torch.tensor(lengths, device="cuda")[:, None])[
            :, None, None
        ]
        for visibility in (Full(), Causal()):
            causal = visibility.causal

            def flex(q: Tensor, k: Tensor, v: Tensor, visibility: Visibility = visibility) -> Tensor:
                return packed_attention(q, k, v, layout, layout, AttentionMasks(), AttentionArgs(visibility))  # noqa: B023

            compiled = torch.compile(flex, dynamic=False)
            kernels: dict[str, Callable[[], object]] = {
                "flex": lambda c=compiled: torch.autograd.grad(c(*inputs), inputs, gradient),  # type: ignore[misc]  # noqa: B023
                "varying": lambda c=causal: torch.autograd.grad(  # type: ignore[misc]
                    varlen_attention(*inputs, layout, layout, c, None),  # noqa: B023
                    inputs,  # noqa: B023
                    gradient,  # noqa: B023
                ),
                "padded": lambda c=causal: torch.autograd.grad(  # type: ignore[misc]
                    F.scaled_dot_product_attention(*padded, attn_mask=None if c else mask, is_causal=c).sum(),  # noqa: B023
                    padded,  # noqa: B023
                ),
            }
            times = " | ".join(f"{milliseconds(kernel):.3f}" for kernel in kernels.values())
            print(f"| {mean} | {causal} | {times} |", flush=True)


if __name__ == "__main__":
    main()
