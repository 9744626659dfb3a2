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
USABLE_MEMORY_SHARE = 0.9  # of the free memory; the rest is for differences between batches, and for validation
MAX_PAIRS_INSPECTED = 2**20  # to find the longest pair
REMEDIES = "choose a smaller system, lower data.max_length, or set training.gradient_checkpointing=true"


def find_batch_size(
    folder: Path, config: Config, spec: ModelSpec, log: Log, custom_parts: Sequence[type[Spec]] = ()
) -> tuple[int, str]:
    """Return the largest number of tokens per batch that fits into memory, and how it was found, as text.

    On a GPU it is measured by training steps on trial, on a CPU it is estimated.

    Args:
        folder: run folder that is being prepared, with tokenizers, tokenized training text and the file of the model.
        config: configuration, in which only the batch size is still to be chosen.
        spec: hyper-parameters of the model.
        log: prints a line for the user.
        custom_parts: layer classes of the user that the model contains besides those of the package.
    """
    store = TokenStore(folder / "data" / "train")  # the tokenized training pairs
    # sizes to try, in tokens: from four of the longest sentences to all pairs in one batch, with BOS and EOS
    lowest = 4 * (store.max_length + 2)
    # `store.tokens` counts the longer side; a row that contains both sides has at most twice as many tokens
    highest = max(lowest, 2 * (store.tokens + 2 * len(store)))
    if torch.device(config.training.device).type != "cuda":
        return estimate_batch_size(config, spec, lowest, highest)
    free_bytes, _ = torch.cuda.mem_get_info(config.training.device)
    limit = int(USABLE_MEMORY_SHARE * free_bytes)
    trials = 0

    def peak_memory(tokens: int) -> int | None:
        """Measure and log the peak memory in bytes of a batch size; None if it does not fit."""
        nonlocal trials
        trials += 1
        peak = measure_peak_memory(scratch, config, tokens, custom_parts)
        log(f"  {tokens:,} tokens per batch {'do not fit' if peak is None else f'take {peak / 2**30:.1f} GiB'}")
        return peak

    log("searching for the largest batch that fits into memory")
    with tempfile.TemporaryDirectory() as name:  # a copy of the run folder, into which the trial steps write
        scratch = Path(name)
        for path in folder.iterdir():
            mirror(path, scratch / path.name)  # links instead of copies, if possible
        tokens = largest_fitting(peak_memory, lowest, highest, limit)
    return tokens, f"the largest that fits into {limit / 2**30:.1f} GiB, by {trials} trials"


def largest_fitting(peak_memory: Callable[[int], int | None], lowest: int, highest: int, limit: int) -> int:
    """Return the largest batch size in tokens, within 5 %, whose peak memory is at most `limit` bytes.

    Sizes are doubled until one does not fit, then bisected. From the second measurement on, the next size is
    extrapolated linearly. It is a UserError if not even `lowest` fits.

    Args:
        peak_memory: measures the peak memory, in bytes, of a batch size in tokens; None if it runs out of memory.
        lowest, highest: smallest and largest batch size to try, in tokens.
        limit: bytes that may be used.
    """
    fitting: list[tuple[int, int]] = []  # batch sizes that fit, in tokens, each with its peak memory in bytes
    too_large: int | None = None
    tokens = lowest
    while True:
        peak = peak_memory(tokens)
        if peak is not None and peak <= limit:
            fitting.append((tokens, peak))
        else:
            too_large = tokens
        if not fitting:
            raise UserError(f"not even the smallest batch, of {lowest:,} tokens, fits into memory: {REMEDIES}")
        largest, _ = fitting[-1]
        tokens = min(highest, _next_size(fitting, too_large, limit))
        is_bracketed = too_large is not None and too_large < TOLERANCE * largest  # within 5 % of one that does not fit
        if tokens < TOLERANCE * largest or is_bracketed:  # another trial would gain less than 5 %
            return largest


def _next_size(fitting: list[tuple[int, int]], too_large: int | None, limit: int) -> int:
    """Return the batch size in tokens to try next, in a search for the largest one that needs at most `limit` bytes.

    It is extrapolated from the last two sizes that fit. If there are not two, or if the result is close to or above a
    size that does not fit, the last size is doubled, or the interval up to that size bisected.

    Args:
        fitting: the sizes that fit, in increasing order, each with its peak memory in bytes; at least one.
        too_large: the smallest size that does not fit; None if all have fitted so far.
        limit: bytes that may be used.
    """
    largest, peak = fitting[-1]
    size = 2.0 * largest if too_large is None else (largest + too_large) / 2
    if len(fitting) > 1:
        previous, previous_peak = fitting[-2]
        if (growth := peak - previous_peak) > 0:
            # slightly below the limit, because memory does not grow exactly linearly
            extrapolated = largest + 0.99 * (limit - peak) * (largest - previous) / growth
            # next to a size that does not fit, the extrapolated one would probably not fit either: bisect instead
            if too_large is None or extrapolated < too_large / 1.02:
                size = min(extrapolated, 16.0 * largest)  # a small measured growth may be noise
    return int(size)


def measure_peak_memory(
    folder: Path, config: Config, tokens: int, custom_parts: Sequence[type[Spec]] = ()
) -> int | None:
    """Return the peak GPU memory, in bytes, of training steps with batches of `tokens` tokens; None if they do not fit.

    Args:
        folder: prepared run folder, with the tokenized training text and the file of the model.
        config: configuration of the training, whose batch size is replaced.
        tokens: batch size to measure.
        custom_parts: layer classes of the user that the model contains besides those of the package.
    """
    gpu = torch.device(config.training.device).type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()  # otherwise an earlier trial's peak would be returned
    try:
        config = replace(config, training=replace(config.training, batch_tokens=tokens))
        return _run_trial_steps(Trainer(folder, SilentDisplay(), config, custom_parts=custom_parts))
    except InsufficientMemoryError:
        return None
    finally:  # free the memory and the compiled functions of this trial before the next one
        gc.collect()
        if config.training.compile:
            torch._dynamo.reset()
        if gpu:
            torch.cuda.empty_cache()


def _run_trial_steps(trainer: Trainer) -> int | None:
    """Run three training steps over the largest batch, and return the peak of the GPU memory that torch reserved.

    The result is in bytes: 0 on a CPU, None if the batch does not fit. The third step captures CUDA graphs, which need
    further memory. The learning rate is 0, so that weights do not change.
    """
    batch = widest_batch(trainer.batches)
    trainer.model.train()
    divisor = max(1, batch.target_tokens)  # of the summed loss
    for step in (1, 2, 3):
        numbered_batches = [(0, batch)]  # number 0: the first and only batch of the step
        trainer.train_step(numbered_batches, step, learning_rate=0.0, divisor=divisor)
        if trainer.train_step.splitter.max_parts > 1:  # the batch did not fit and was split
            return None
    return torch.cuda.max_memory_reserved(trainer.device) if trainer.device.type == "cuda" else 0


def widest_batch(batches: Batches) -> Batch:
    """Build the batch that needs most memory: as many copies of the longest training pair as the batch size allows.

    Packed batches, whose rows contain several pairs, all have the same shape: the first one is built.
    """
    if batches.packed_shape is not None:
        first_pairs = batches.plan_window(epoch=0, window=0)[0]  # indices of the pairs of the first batch
        return batches.build_batch(first_pairs, epoch=0)
    inspected = slice(0, min(MAX_PAIRS_INSPECTED, len(batches.store)))
    source_lengths, target_lengths = (
        np.asarray(column.lengths[inspected], np.int64) for column in batches.store.columns
    )
    row_lengths = batches.rows.row_length(source_lengths, target_lengths)  # tokens that each pair takes in a batch
    longest_pair = int(row_lengths.argmax())
    copies = max(1, batches.budget // int(row_lengths[longest_pair]))  # the budget is in tokens
    return batches.build_batch(np.full(copies, longest_pair), epoch=0)


def estimate_batch_size(config: Config, spec: ModelSpec, lowest: int, highest: int) -> tuple[int, str]:
    """Estimate the largest batch size on a CPU, where running out of memory would end the process.

    Returns the size in tokens, from `lowest` to `highest`, and how it was found, as text; a UserError is raised if
    `lowest` does not fit. `spec` has the hyper-parameters of the model.
    """
    free_gib = available_memory() / 2**30
    # the estimate is linear in the number of tokens: two points give its slope
    sample_tokens, checkpointing = 2**20, bool(config.training.gradient_checkpointing)
    sample_bytes = estimate_activations(spec, sample_tokens, checkpointing)
    bytes_per_token = (estimate_activations(spec, 2 * sample_tokens, checkpointing) - sample_bytes) / sample_tokens
    counts = count_trained(spec, config)  # all weights, and those that are trained
    # bytes that do not depend on the batch: weights, gradients and Adam's two moments, and the logits, which are
    # computed for a limited number of tokens at a time
    weight_bytes = MemoryEstimate.for_adam(counts.total, counts.trained, activations=0).total
    fixed_bytes = weight_bytes + sample_bytes - sample_tokens * bytes_per_token
    tokens = int((USABLE_MEMORY_SHARE * free_gib * 2**30 - fixed_bytes) / bytes_per_token)
    if tokens < lowest:
        needed_gib = (fixed_bytes + lowest * bytes_per_token) / 2**30
        raise UserError(
            f"training needs about {needed_gib:.1f} GiB of memory, but {free_gib:.1f} GiB are free: {REMEDIES}"
        )
    return min(tokens, highest), f"the largest that fits into {free_gib:.1f} GiB, by an estimate for the CPU"
