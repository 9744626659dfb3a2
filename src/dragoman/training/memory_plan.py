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
from dragoman.models import ModelSpec, cached_meta_model
from dragoman.parts.spec import find_specs, replace_everywhere
from dragoman.parts.stack import Stack
from dragoman.training.trainable_weights import count_trained

if TYPE_CHECKING:
    from dragoman.training.defaults import Defaults

ESTIMATED_CHUNK_LOGITS = 2**22  # logits that exist at a time in training on a CPU
PLANNED_MEMORY_SHARE = 0.8  # of the free memory, that a training may be planned to use: estimates are rough
SUGGESTED_LORA_RANK = 16  # if training all weights does not fit
#: smallest batches, in tokens, that a device computes about as fast as larger ones
MIN_EFFICIENT_TOKENS = {"cpu": 1024, "cuda": 4096}


def estimate_activations(spec: ModelSpec, tokens: int, gradient_checkpointing: bool = False) -> int:
    """Estimate the bytes that the activations of a batch of `tokens` tokens take in training, in float32.

    `spec` has the hyper-parameters of the model. The rough count is 16 vectors of its width per token and sublayer.
    With gradient checkpointing it is three vectors per token and layer, and 16 per token and sublayer of one layer.
    Added are three tensors of logits, which are computed for a limited number of tokens at a time.
    """
    # for each stack (encoder, decoder): layers, and sublayers per layer; a recurrent part counts once for each of its
    # `layers`
    stacks = [
        (stack.depth, sum(getattr(part, "layers", 1) for part in stack.block)) for stack in find_specs(spec, Stack)
    ]
    vectors = 16 * sum(depth * sublayers for depth, sublayers in stacks)
    if gradient_checkpointing:
        vectors = 3 * sum(depth for depth, _ in stacks) + 16 * max(sublayers for _, sublayers in stacks)
    logits = min(tokens * cached_meta_model(spec).vocab_size, ESTIMATED_CHUNK_LOGITS)
    return 4 * (tokens * spec.dim * vectors + 3 * logits)  # 4 bytes per float32


@dataclass(frozen=True)
class MemoryPlan:
    """Number of batches that a step is divided into, gradient checkpointing, and the bytes that a step then needs."""

    batches: int
    gradient_checkpointing: bool
    needed: int


def plan_memory(
    estimate: Callable[[int, bool], int],
    free: float,
    tokens: int,
    min_tokens: int,
    efficient_tokens: int,
    can_checkpoint: bool,
) -> MemoryPlan:
    """Choose how to divide a step: the first plan that fits into `free` bytes, or else the last one, which needs least.

    First a step is divided into batches that are still computed efficiently, which changes nothing else. Then
    gradient checkpointing is tried, and then batches that are as small as possible.

    Args:
        estimate: returns the bytes of a step, from the tokens of a batch and whether gradient checkpointing is used.
        tokens: tokens of a step.
        min_tokens: tokens of the smallest possible batch.
        efficient_tokens: tokens of the smallest batch that is computed efficiently.
        can_checkpoint: whether gradient checkpointing can be used.
    """

    def divisions(smallest: int) -> list[int]:
        """Return into how many batches of at least `smallest` tokens a step can be divided: 1, 2, 4, ….

        A batch also has at least `min_tokens` tokens, unless the step is not divided.
        """
        return [2**power for power in range(20) if power == 0 or tokens // 2**power >= max(smallest, min_tokens)]

    attempts = [(batches, False) for batches in divisions(efficient_tokens)]
    if can_checkpoint:
        attempts += [(batches, True) for batches in divisions(efficient_tokens)]
    attempts += [(batches, can_checkpoint) for batches in divisions(min_tokens)]
    plans = [
        MemoryPlan(batches, gradient_checkpointing=checkpointing, needed=estimate(tokens // batches, checkpointing))
        for batches, checkpointing in attempts
    ]
    return next((plan for plan in plans if plan.needed <= free), plans[-1])


def choose_memory_plan(defaults: Defaults, spec: ModelSpec, device: str) -> None:
    """Choose gradient checkpointing, and divide a step into several batches if its batch does not fit into memory.

    What the user has set stays. If nothing fits, a warning says what would.

    Args:
        defaults: the configuration so far; chosen settings are set and recorded in it.
        spec: hyper-parameters of the model.
        device: on which the model is trained, such as "cpu" or "cuda:0".
    """
    if defaults.batch_is_measured:  # it fits, by trial steps with the present setting of gradient checkpointing
        defaults.set_quietly({"training.gradient_checkpointing": bool(defaults.config.training.gradient_checkpointing)})
        return
    config, free = defaults.config, free_memory(device)
    tokens, accumulation = config.training.batch_tokens or 0, config.training.gradient_accumulation
    can_divide = defaults.is_chosen("training.batch_tokens")  # otherwise the user has set the batch size
    # tokens of the smallest batch: one pair of the largest length with BOS and EOS; or the batch size of the user
    min_tokens = 2 * (config.data.max_length + 2) if can_divide else tokens
    requested = config.training.gradient_checkpointing  # by the user; None: to be chosen
    in_bfloat16 = device.startswith("cuda") and config.training.precision != "float32"  # half as many bytes
    counts = count_trained(spec, config)

    def estimate(batch_tokens: int, checkpointing: bool) -> int:
        """Estimate the bytes of a step with batches of so many tokens, with or without gradient checkpointing."""
        uses_checkpointing = bool(requested) or checkpointing  # always if the user has requested it
        activations = estimate_activations(spec, batch_tokens, uses_checkpointing)
        activations //= 2 if in_bfloat16 else 1
        return MemoryEstimate.for_adam(counts.total, counts.trained, activations).total

    efficient_tokens = MIN_EFFICIENT_TOKENS.get(device.split(":")[0], 1024) if can_divide else tokens
    plan = plan_memory(
        estimate,
        free=PLANNED_MEMORY_SHARE * free,
        tokens=tokens,
        min_tokens=min_tokens,
        efficient_tokens=efficient_tokens,
        can_checkpoint=requested is None and supports_checkpointing(spec),
    )
    if plan.needed > PLANNED_MEMORY_SHARE * free:
        defaults.warnings.append(_memory_warning(config, counts.trained, plan.needed, free))
    reason = f"{_gib(estimate(tokens, checkpointing=False))} are needed otherwise, {_gib(free)} are free"
    if plan.batches > 1:
        defaults.set_and_report("training.batch_tokens", tokens // plan.batches, reason)
        accumulation_reason = f"so that a step has {tokens:,} tokens"
        num_batches = accumulation * plan.batches
        defaults.set_and_report("training.gradient_accumulation", num_batches, accumulation_reason)
    if requested is None and plan.gradient_checkpointing:
        defaults.set_and_report("training.gradient_checkpointing", True, reason)
    elif requested is None:
        defaults.set_quietly({"training.gradient_checkpointing": False})


def supports_checkpointing(spec: ModelSpec) -> bool:
    """Whether all layers of the model with these hyper-parameters support gradient checkpointing.

    To find out, the model is built with it on the meta device, without memory for weights.
    """
    if not find_specs(spec, Stack):  # only stacks of layers recompute activations
        return False
    try:
        cached_meta_model(replace_everywhere(spec, Stack, gradient_checkpointing=True))
    except UserError:  # raised by a layer with batch normalization
        return False
    return True


def free_memory(device: str) -> int:
    """Return the bytes that are free on a device, such as "cpu" or "cuda:0"."""
    return torch.cuda.mem_get_info(torch.device(device))[0] if device.startswith("cuda") else available_memory()


def available_memory() -> int:
    """Return the bytes of main memory that this process can still allocate.

    On Linux it is the least of the physical memory, MemAvailable, and what the limit of the cgroup leaves.
    """
    if os.name == "nt":
        return _available_on_windows()
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]  # the physical memory
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        used, limit = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("current", "max"))
        limits.append(int(limit) - int(used))
    except (OSError, ValueError):  # another operating system, or no limit
        pass
    return min(limits)


def _available_on_windows() -> int:
    """Return the bytes of free physical memory, by GlobalMemoryStatusEx of the Windows API."""
    numbers = (ctypes.c_uint64 * 8)()  # MEMORYSTATUSEX: two 32-bit fields, then total and available physical memory …
    ctypes.cast(numbers, ctypes.POINTER(ctypes.c_uint32))[0] = ctypes.sizeof(numbers)  # dwLength, required by the API
    ctypes.CDLL("kernel32").GlobalMemoryStatusEx(ctypes.byref(numbers))
    return int(numbers[2])


def _memory_warning(config: Config, trained_weights: int, needed: int, free: int) -> str:
    """Return the warning that a training needs more bytes than are free, with advice to reduce them.

    `trained_weights` is the number of weights that are trained, `needed` and `free` are bytes.
    """
    message = f"training needs about {_gib(needed)} of memory, but {_gib(free)} are free"
    if config.lora.rank or not config.training.start_from:  # LoRA is used already, or has no model to adapt
        return f"{message}: lower data.max_length or training.batch_tokens, or choose a smaller model"
    # LoRA needs hardly any gradients (4 bytes per weight) and moments of Adam (8 bytes)
    needed_by_lora = needed - 12 * trained_weights
    return f"{message}: --lora-rank {SUGGESTED_LORA_RANK} would need about {_gib(needed_by_lora)}"


def _gib(num_bytes: float) -> str:
    """Format a number of bytes in GiB, such as "1.5 GiB"."""
    return f"{num_bytes / 2**30:.1f} GiB"
