"""Search for the largest batch that fits into memory, before training (as Marian's --mini-batch-fit)."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dragoman.config import Config
from dragoman.data import Batch, Batches, MemoryEstimate, TokenStore
from dragoman.data.corpus_passes import Log
from dragoman.errors import UserError
from dragoman.models import ModelSpec
from dragoman.parts.spec import Spec
from dragoman.storage import mirror
from dragoman.training.display import SilentDisplay
from dragoman.training.memory_plan import available_memory, estimate_activations
from dragoman.training.train_step import InsufficientMemoryError
from dragoman.training.trainable_weights import count_trained
from dragoman.training.trainer import Trainer

TOLERANCE = 1.05  # batch sizes that differ by a smaller factor count as equal
USABLE_MEMORY = 0.9  # the rest is for differences between batches, and for validation
MAX_PAIRS_INSPECTED = 2**20  # to find the longest pair
REMEDIES = "choose a smaller system, lower data.max_length, or set training.gradient_checkpointing=true"


def find_batch_size(
    folder: Path, config: Config, spec: ModelSpec, log: Log, custom_parts: Sequence[type[Spec]] = ()
) -> tuple[int, str]:
    """Return the largest number of tokens per batch that fits into memory, and how it was found.

    Args:
        folder: run folder that is being prepared, with tokenizers, token stores and the file of the model.
        config: configuration, resolved except for the batch size.
        spec: hyper-parameters of the model.
        log: receives messages for the user.
        custom_parts: classes of custom parts that the model contains.
    """
    store = TokenStore(folder / "data" / "train")
    lowest = 4 * (store.max_length + 2)  # four of the longest sentences, with BOS and EOS
    highest = max(lowest, 2 * (store.tokens + 2 * len(store)))  # an epoch with source and target concatenated
    if torch.device(config.training.device).type != "cuda":
        return estimate_batch_size(config, spec, lowest, highest)
    limit = int(USABLE_MEMORY * torch.cuda.mem_get_info(config.training.device)[0])
    trials = 0

    def peak_memory(tokens: int) -> int | None:
        """Measure and log the peak memory in bytes of a batch size; None if it does not fit."""
        nonlocal trials
        trials += 1
        peak = measure_peak_memory(scratch, config, tokens, custom_parts)
        log(f"  {tokens:,} tokens per batch {'do not fit' if peak is None else f'take {peak / 2**30:.1f} GiB'}")
        return peak

    log("searching for the largest batch that fits into memory")
    with tempfile.TemporaryDirectory() as name:  # for the files that a training writes
        scratch = Path(name)
        for path in folder.iterdir():
            mirror(path, scratch / path.name)  # a link
        tokens = largest_fitting(peak_memory, lowest, highest, limit)
    return tokens, f"the largest that fits into {limit / 2**30:.1f} GiB, by {trials} trials"


def largest_fitting(peak_memory: Callable[[int], int | None], lowest: int, highest: int, limit: int) -> int:
    """Return the largest batch size, within 5 %, whose peak memory is within the limit.

    Sizes are doubled until one does not fit, then bisected. From the second measurement on, the next size is
    extrapolated linearly. `peak_memory` returns None if a size is out of memory.
    """
    fitting: list[tuple[int, int]] = []  # size and peak memory
    too_large: int | None = None
    tokens = lowest
    while True:
        peak = peak_memory(tokens)
        if peak is not None and peak <= limit:
            fitting.append((tokens, peak))
        else:
            too_large = tokens
        if not fitting:
            raise UserError(f"not even {lowest:,} tokens per batch fit into memory: {REMEDIES}")
        largest, _ = fitting[-1]
        tokens = min(highest, _next_size(fitting, too_large, limit))
        if tokens < TOLERANCE * largest or (too_large is not None and too_large < TOLERANCE * largest):
            return largest


def _next_size(fitting: list[tuple[int, int]], too_large: int | None, limit: int) -> int:
    """Return the batch size to try next, from the sizes that fit, each with its peak memory, and one that does not."""
    largest, peak = fitting[-1]
    size = 2.0 * largest if too_large is None else (largest + too_large) / 2
    if len(fitting) > 1:
        previous, previous_peak = fitting[-2]
        if (growth := peak - previous_peak) > 0:
            # slightly below the limit, because memory does not grow exactly linearly
            extrapolated = largest + 0.99 * (limit - peak) * (largest - previous) / growth
            if too_large is None or extrapolated < too_large / 1.02:  # else bisect: it would probably not fit either
                size = min(extrapolated, 16.0 * largest)  # a small measured growth may be noise
    return int(size)


def measure_peak_memory(
    folder: Path, config: Config, tokens: int, custom_parts: Sequence[type[Spec]] = ()
) -> int | None:
    """Return the peak memory in bytes of steps over the largest batch of this size; None if it does not fit."""
    gpu = torch.device(config.training.device).type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        config = replace(config, training=replace(config.training, batch_tokens=tokens))
        return _run_steps(Trainer(folder, SilentDisplay(), config, custom_parts=custom_parts))
    except InsufficientMemoryError:
        return None
    finally:  # leave nothing of a trial to the next one
        gc.collect()
        if config.training.compile:
            torch._dynamo.reset()
        if gpu:
            torch.cuda.empty_cache()


def _run_steps(trainer: Trainer) -> int | None:
    """Run three steps over the largest batch and return the peak of reserved bytes; None if the batch does not fit.

    The third step captures CUDA graphs, which need further memory. The learning rate is 0.
    """
    batch = widest_batch(trainer.batches)
    trainer.model.train()
    for step in (1, 2, 3):
        numbered_batches = [(0, batch)]  # the first and only one of the step
        trainer.train_step(numbered_batches, step, learning_rate=0.0, divisor=max(1, batch.target_tokens))
        if trainer.train_step.splitter.max_parts > 1:  # the batch did not fit and was split
            return None
    return torch.cuda.max_memory_reserved(trainer.device) if trainer.device.type == "cuda" else 0


def widest_batch(batches: Batches) -> Batch:
    """Build the largest batch: as many copies of the longest row as fit; a row is one sequence of a batch."""
    if batches.packed_shape is not None:  # packed batches all have the same shape
        first_pairs = batches.plan_window(epoch=0, window=0)[0]  # indices of the pairs of the first batch
        return batches.build_batch(first_pairs, epoch=0)
    rows = slice(0, min(MAX_PAIRS_INSPECTED, len(batches.store)))
    columns = (np.asarray(column.lengths[rows], np.int64) for column in batches.store.columns)
    lengths = batches.rows.row_length(*columns)
    longest = int(lengths.argmax())
    copies = max(1, batches.budget // int(lengths[longest]))  # the budget is in tokens
    return batches.build_batch(np.full(copies, longest), epoch=0)


def estimate_batch_size(config: Config, spec: ModelSpec, lowest: int, highest: int) -> tuple[int, str]:
    """Estimate the largest batch size on a CPU, where running out of memory would end the process.

    Returns the size in tokens, from `lowest` to `highest`, and how it was found.
    """
    free, sample = available_memory(), 2**20  # activations are estimated for 2**20 and 2**21 tokens
    checkpointing = bool(config.training.gradient_checkpointing)
    single, double = (estimate_activations(spec, tokens, checkpointing) for tokens in (sample, 2 * sample))
    per_token = (double - single) / sample
    counts = count_trained(spec, config)
    # bytes that do not depend on the batch: weights, gradients and Adam's two moments, and the logits of a chunk
    fixed = MemoryEstimate.for_adam(counts.total, counts.trained, activations=0).total + single - sample * per_token
    tokens = int((USABLE_MEMORY * free - fixed) / per_token)
    if tokens < lowest:
        needed = (fixed + lowest * per_token) / 2**30
        raise UserError(
            f"training needs about {needed:.1f} GiB of memory, but {free / 2**30:.1f} GiB are free: {REMEDIES}"
        )
    return min(tokens, highest), f"the largest that fits into {free / 2**30:.1f} GiB, by an estimate for the CPU"
