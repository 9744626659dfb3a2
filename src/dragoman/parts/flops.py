"""Floating-point operations of modules.

As in `torch.utils.flop_counter`, only matrix products are counted, and a multiplication and an addition are two
operations: a matrix of I × O costs 2·I·O per token, attention of T queries to S keys of H heads 4·T·S·H·E (with values
of another width than keys, 2·T·S·H times the sum of both), masked or not. Look-ups, norms, softmax and other
elementwise operations cost nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from dragoman.parts.positions import Position


@dataclass(frozen=True)
class Workload:
    """The input sizes of a module, from which its floating-point operations are counted."""

    tokens: int  # T: tokens that it reads
    source: int  # S: source tokens that a decoder layer can attend to
    width: int  # D: model width
    shared_position: Position | None = None  # the stack's position encoding, used by every attention layer in it

    def with_tokens(self, tokens: int) -> Workload:
        """Return the workload with another number of tokens, such as `work.source` for work per source token."""
        return replace(self, tokens=tokens)


def module_flops(module: nn.Module, work: Workload) -> int:
    """Count the FLOPs of a forward pass over `work.tokens` tokens.

    A module with a method `flops` counts them itself; otherwise they are those of its matrices.
    """
    own_count = getattr(module, "flops", None)
    return matrix_flops(module, work) if own_count is None else own_count(work)


def matrix_flops(module: nn.Module, work: Workload) -> int:
    """Count the FLOPs of multiplying each of `work.tokens` tokens by each matrix of a module and of its submodules.

    Each element of a matrix takes part in a multiplication and an addition. A submodule with a method `flops` counts
    its own; weights that are no matrices cost nothing.
    """
    num_weights = sum(weight.numel() for weight in module.parameters(recurse=False) if weight.dim() == 2)
    return 2 * work.tokens * num_weights + sum(module_flops(child, work) for child in module.children())


def attention_flops(queries: int, keys: int, key_width: int, value_width: int) -> int:
    """FLOPs of the attention of `queries` tokens to `keys` tokens each: scores, and weighted sum of the values.

    `key_width` and `value_width` are the widths of keys and values of all heads together.
    """
    return 2 * queries * keys * (key_width + value_width)  # two products, each a multiplication and an addition
