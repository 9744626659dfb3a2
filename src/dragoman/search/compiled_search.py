"""Steps of greedy and beam search on a CPU by one compiled function, which changes the state in place.

`select` of the strategies defines the result. A step computes little, so that most of its time would be spent on
starting operations.
"""

from __future__ import annotations

from ctypes import byref
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dragoman.parts import cpu_kernels
from dragoman.parts.cpu_kernels import can_read, check
from dragoman.search.search_state import HypothesisBuffer, SearchState, tensor_leaves

if TYPE_CHECKING:
    from dragoman.search.engine import SpecialTokens


def supports(state: SearchState, logits: Tensor, suppressed: Tensor) -> bool:
    """Whether the compiled functions can read logits, state and the ids of suppressed tokens."""
    if not (can_read(logits, state.scores) and can_read(state.done, dtype=torch.bool)):
        return False
    indices = (suppressed, state.step, state.tokens, state.max_length, state.output_tokens)
    is_contiguous = all(map(Tensor.is_contiguous, tensor_leaves(state.strategy)))
    return is_contiguous and can_read(*indices, dtype=torch.long) and logits.numel() > 0 < state.output_tokens.numel()


def greedy_step(logits: Tensor, suppressed: Tensor, special_tokens: SpecialTokens, state: SearchState) -> bool:
    """Append the most probable token of each source to `state`; logits are B 1 V. False if there are no kernels.

    The tokens `suppressed` (N ids), and EOS before `min_length` tokens, are not generated. Scores get log p of the
    token. Hypotheses that have ended do not change.
    """
    functions = None if torch.compiler.is_compiling() else cpu_kernels.library()
    if functions is None or not supports(state, logits, suppressed):
        return False
    assert state.strategy.ended_rows is not None
    sizes = len(logits), logits.shape[-1], torch.get_num_threads()
    search = _search_struct(state, suppressed, special_tokens)
    functions.greedy_step(byref(search), state.strategy.ended_rows.data_ptr(), logits.data_ptr(), *sizes)
    return True


def beam_step(
    logits: Tensor,
    suppressed: Tensor,
    special_tokens: SpecialTokens,
    state: SearchState,
    divisors: Tensor,
    rule: int,
    n_best: int,
    divisor_grows: bool,
) -> Tensor | None:
    """Continue the K best hypotheses of each source, and return those that they continue, B K; None without kernels.

    Args:
        logits: B K V.
        suppressed: N ids of tokens that are not generated.
        special_tokens: EOS, and the number of tokens before it.
        state: changed in place.
        divisors: length normalization by the number of tokens, for all lengths up to one more than the limits.
        rule: number of the stopping rule, in the order of `KERNEL_RULES`.
        n_best: number of finished hypotheses that are returned.
        divisor_grows: whether longer hypotheses are divided by larger numbers.
    """
    functions = None if torch.compiler.is_compiling() else cpu_kernels.library()
    batch, hypotheses, width = logits.shape
    if functions is None or not supports(state, logits, suppressed) or width < 2:  # 2K continuations are considered
        return None
    finished, truncated = map(_buffer_struct, (state.strategy.finished, state.strategy.truncated))
    numbers = rule, n_best, divisor_grows, len(divisors)
    beam = cpu_kernels.BeamStruct(finished, truncated, *numbers, divisors.data_ptr())
    parents = torch.empty(batch, hypotheses, dtype=torch.long)
    search, sizes = _search_struct(state, suppressed, special_tokens), (batch, width, torch.get_num_threads())
    check(functions.beam_step(byref(search), byref(beam), logits.data_ptr(), parents.data_ptr(), *sizes))
    return parents


def _search_struct(state: SearchState, suppressed: Tensor, special_tokens: SpecialTokens) -> cpu_kernels.SearchStruct:
    """Describe a search and its state for the kernels."""
    tensors = (state.max_length, state.step, state.tokens, state.output_tokens, state.scores, state.done)
    sizes = (*state.output_tokens.shape[1:], special_tokens.eos, special_tokens.min_length, suppressed.shape[0])
    return cpu_kernels.SearchStruct(*sizes, suppressed.data_ptr(), *map(Tensor.data_ptr, tensors))


def _buffer_struct(buffer: HypothesisBuffer | None) -> cpu_kernels.BufferStruct:
    """Describe a buffer of hypotheses for the kernels."""
    assert buffer is not None
    tensors = (buffer.normalized_scores, buffer.scores, buffer.lengths, buffer.tokens)
    return cpu_kernels.BufferStruct(buffer.scores.shape[1], *map(Tensor.data_ptr, tensors))
