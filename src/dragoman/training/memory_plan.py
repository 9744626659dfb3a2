"""The memory plan of a training: batches and gradient checkpointing, so that it fits into what is free."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dragoman.config import Config
from dragoman.data import MemoryEstimate
from dragoman.errors import UserError
from dragoman.models import ModelSpec, described_model
from dragoman.parts.spec import find_specs, replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.training.trainable_weights import ParameterCounts, count_trained

if TYPE_CHECKING:
    from dragoman.training.defaults import Defaults

ESTIMATED_CHUNK_LOGITS = 2**22  # logits that exist at a time in training on a CPU
PLANNED_MEMORY = 0.8  # share of the free memory that a training may be planned to use: estimates are rough
SUGGESTED_RANK = 16  # of LoRA, if training all weights does not fit
#: smallest batches, in tokens, that a device computes about as fast as larger ones
MIN_EFFICIENT_TOKENS = {"cpu": 1024, "cuda": 4096}


def estimate_activations(spec: ModelSpec, tokens: int, gradient_checkpointing: bool = False) -> int:
    """Estimate the bytes of activations: 16 vectors per token and sublayer, and three times a chunk of logits.

    With gradient checkpointing: three vectors per token and layer, and one layer in full.
    """
    stacks = [  # layers of each stack, and sublayers per layer
        (stack.depth, sum(getattr(part, "layers", 1) for part in stack.block)) for stack in find_specs(spec, Stack)
    ]
    vectors = 16 * sum(depth * sublayers for depth, sublayers in stacks)
    if gradient_checkpointing:
        vectors = 3 * sum(depth for depth, _ in stacks) + 16 * max(sublayers for _, sublayers in stacks)
    logits = min(tokens * described_model(spec).vocab_size, ESTIMATED_CHUNK_LOGITS)
    return 4 * (tokens * spec.dim * vectors + 3 * logits)  # 4 bytes per float32


@dataclass(frozen=True)
class MemoryPlan:
    """Division of a step into batches, gradient checkpointing, and the bytes that a step then needs."""

    batches: int
    gradient_checkpointing: bool
    needed: int


def plan_memory(
    estimate: Callable[[int, bool], int],
    free: float,
    tokens: int,
    min_tokens: int,
    efficient_tokens: int,
    recompute: bool,
) -> MemoryPlan:
    """Choose the first plan that fits into `free` bytes, or the one that needs least.

    First a step is divided into batches that are still computed efficiently, which changes nothing else. Then
    activations are recomputed, and then the batches become as small as possible.

    Args:
        estimate: bytes of a step, by the tokens of a batch and whether activations are recomputed.
        tokens: tokens of a step.
        min_tokens: smallest possible batch.
        efficient_tokens: smallest batch that is computed efficiently.
        recompute: whether activations can be recomputed.
    """

    def divisions(smallest: int) -> list[int]:
        """Return the numbers of batches, powers of two, whose batches have at least `smallest` tokens."""
        return [2**power for power in range(20) if power == 0 or tokens // 2**power >= max(smallest, min_tokens)]

    plans = [(number, False) for number in divisions(efficient_tokens)]
    if recompute:
        plans += [(number, True) for number in divisions(efficient_tokens)]
    plans += [(number, recompute) for number in divisions(min_tokens)]
    sized = [
        MemoryPlan(batches=number, gradient_checkpointing=recomputes, needed=estimate(tokens // number, recomputes))
        for number, recomputes in plans
    ]
    return next((plan for plan in sized if plan.needed <= free), sized[-1])


def choose_memory_plan(defaults: Defaults, spec: ModelSpec, device: str) -> None:
    """Choose gradient checkpointing, and divide a step into several batches if its batch does not fit into memory.

    What the user has set stays. If nothing fits, a warning says what would. `device` is cpu or cuda.
    """
    if defaults.batch_is_measured:  # with the present gradient checkpointing
        defaults.set_quietly({"training.gradient_checkpointing": bool(defaults.config.training.gradient_checkpointing)})
        return
    config, free = defaults.config, free_memory(device)
    tokens, accumulation = config.training.batch_tokens or 0, config.training.gradient_accumulation
    is_open = defaults.is_chosen("training.batch_tokens")  # not set by the user, so that the batch may be divided
    longest_row = 2 * (config.data.max_length + 2) if is_open else tokens
    requested = config.training.gradient_checkpointing  # by the user; None: to be chosen
    in_bfloat16 = device.startswith("cuda") and config.training.precision != "float32"  # half as many bytes
    counts = count_trained(spec, config)

    def estimate(batch_tokens: int, recomputes: bool) -> int:
        """Estimate the bytes of a step with batches of `batch_tokens`."""
        activations = estimate_activations(spec, batch_tokens, bool(requested) or recomputes)
        activations //= 2 if in_bfloat16 else 1
        return MemoryEstimate.for_adam(counts.total, counts.trained, activations).total

    efficient = MIN_EFFICIENT_TOKENS.get(device.split(":")[0], 1024) if is_open else tokens
    plan = plan_memory(
        estimate,
        free=PLANNED_MEMORY * free,
        tokens=tokens,
        min_tokens=longest_row,
        efficient_tokens=efficient,
        recompute=requested is None and can_recompute(spec),
    )
    if plan.needed > PLANNED_MEMORY * free:
        defaults.warnings.append(_does_not_fit(config, counts, plan, free))
    reason = f"{_gib(estimate(tokens, recomputes=False))} are needed otherwise, {_gib(free)} are free"
    if plan.batches > 1:
        defaults.set_and_report("training.batch_tokens", tokens // plan.batches, reason)
        reason = f"so that a step has {tokens:,} tokens"
        defaults.set_and_report("training.gradient_accumulation", accumulation * plan.batches, reason)
    if requested is None and plan.gradient_checkpointing:
        defaults.set_and_report("training.gradient_checkpointing", True, reason)
    elif requested is None:
        defaults.set_quietly({"training.gradient_checkpointing": False})


def can_recompute(spec: ModelSpec) -> bool:
    """Whether the layers of a model support gradient checkpointing."""
    try:
        described_model(replace_everywhere(spec, Stack, gradient_checkpointing=True))
    except UserError:  # batch normalization does not support it
        return False
    return bool(find_specs(spec, Stack))


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device, cpu or cuda."""
    return torch.cuda.mem_get_info(torch.device(device))[0] if device.startswith("cuda") else available_memory()


def available_memory() -> int:
    """Return the bytes that this process can still allocate: the least of what machine, system and cgroup allow."""
    if os.name == "nt":
        return _available_on_windows()
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        used, limit = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("current", "max"))
        limits.append(int(limit) - int(used))
    except (OSError, ValueError):  # another operating system, or no limit
        pass
    return min(limits)


def _available_on_windows() -> int:
    """Return the physical memory that is free, by GlobalMemoryStatusEx of the Windows API."""
    numbers = (ctypes.c_uint64 * 8)()  # MEMORYSTATUSEX: two 32-bit fields, then total and available physical memory …
    ctypes.cast(numbers, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(numbers)
    ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(numbers))
    return int(numbers[2])


def _does_not_fit(config: Config, counts: ParameterCounts, plan: MemoryPlan, free: int) -> str:
    """Return the message that a training will probably not fit into memory, with what would."""
    message = f"training needs about {_gib(plan.needed)} of memory, but {_gib(free)} are free"
    if config.lora.rank or not config.training.start_from:
        return f"{message}: lower data.max_length or training.batch_tokens, or choose a smaller model"
    saved = 12 * counts.trained  # bytes of gradients and Adam's two moments, of which LoRA's updates need hardly any
    return f"{message}: --lora-rank {SUGGESTED_RANK} would need about {_gib(plan.needed - saved)}"


def _gib(size: float) -> str:
    """Format a number of bytes in GiB."""
    return f"{size / 2**30:.1f} GiB"
