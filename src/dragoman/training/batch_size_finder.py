"""The largest token budget that fits the memory, found by trying before training (as Marian's --mini-batch-fit)."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dragoman.config import Config, to_yaml
from dragoman.data import Batch, Batches, TokenStore
from dragoman.errors import UserError
from dragoman.models import ModelSpec, count_parameters
from dragoman.run import CONFIG_FILE, write_model_file, write_tokenizers
from dragoman.text import Framing, Tokenizer
from dragoman.training.display import SilentDisplay
from dragoman.training.oom import InsufficientMemoryError
from dragoman.training.resolve import estimate_activations
from dragoman.training.trainer import Trainer

NEAR = 1.05  # budgets that differ by less are alike
MARGIN = 0.9  # of the memory; the rest is for what varies from batch to batch, and for validation
LOOKED_AT = 2**20  # pairs among which the longest is looked for

Say = Callable[[str], None]


def find_batch_size(
    config: Config, spec: ModelSpec, data: Path, tokenizers: tuple[Tokenizer, Tokenizer], framing: Framing, say: Say
) -> tuple[int, str]:
    """The tokens a batch, and how they were found; `config` is resolved but for them, `data` the run's stores."""
    store = TokenStore(data / "train")
    least, most = 4 * (store.max_length + 2), 2 * (store.tokens + 2 * len(store))  # an epoch, source and target as one
    if torch.device(config.training.device).type != "cuda":
        return estimate_batch_size(config, spec, least, most)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_tokenizers(scratch, *tokenizers)
        write_model_file(scratch, config.system.name or "", spec, framing)
        (scratch / CONFIG_FILE).write_text(to_yaml(config), encoding="utf-8")
        (scratch / "data").symlink_to(data.resolve())
        limit = int(MARGIN * torch.cuda.mem_get_info(config.training.device)[0])
        trials = 0

        def peak(tokens: int) -> int | None:
            nonlocal trials
            trials += 1
            used = measure_peak_memory(scratch, config, tokens)
            say(f"  {tokens:,} tokens a batch {'do not fit' if used is None else f'take {used / 2**30:.1f} GiB'}")
            return used

        say("looking for the most tokens a batch that fit the memory")
        tokens = largest_fitting(peak, least, max(least, most), limit)
    return tokens, f"the most that fit {limit / 2**30:.1f} GiB, by {trials} trials"


def largest_fitting(peak: Callable[[int], int | None], least: int, most: int, limit: int) -> int:
    """The largest budget whose peak is within the limit, to 5 %; `peak` answers None where memory ran out.

    Budgets are doubled until one does not fit, and halved between then on. From two peaks on the next budget is
    foretold, as if memory grew by as much for every token; a forecast may be wrong, and is always tried.
    """
    fitting: list[tuple[int, int]] = []
    high: int | None = None
    tokens = least
    while True:
        used = peak(tokens)
        if used is not None and used <= limit:
            fitting.append((tokens, used))
        else:
            high = tokens
        if not fitting:
            raise UserError(
                f"not even {least:,} tokens a batch fit the memory: choose a smaller system, lower data.max_length, or "
                "set training.gradient_checkpointing=true"
            )
        low = fitting[-1][0]
        tokens = min(most, _next(fitting, high, limit))
        if tokens < NEAR * low or (high is not None and high < NEAR * low):
            return low


def _next(fitting: list[tuple[int, int]], high: int | None, limit: int) -> int:
    low, used = fitting[-1]
    guess = 2.0 * low if high is None else (low + high) / 2
    if len(fitting) > 1 and (grown := used - fitting[-2][1]) > 0:
        foretold = low + 0.99 * (limit - used) * (low - fitting[-2][0]) / grown
        guess = min(foretold, 16.0 * low) if high is None or foretold < high / 1.02 else guess
    return int(guess)


def measure_peak_memory(folder: Path, config: Config, tokens: int) -> int | None:
    """Bytes that steps over the widest batch of such a budget take; None where it did not fit."""
    gpu = torch.device(config.training.device).type == "cuda"
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    try:
        return _used(folder, replace(config, training=replace(config.training, batch_tokens=tokens)))
    except InsufficientMemoryError:
        return None
    finally:  # nothing of a trial is left for the next
        gc.collect()
        if config.training.compile:
            torch._dynamo.reset()
        if gpu:
            torch.cuda.empty_cache()


def _used(folder: Path, config: Config) -> int | None:
    """Three steps: what is replayed later is recorded in the third, and takes memory of its own."""
    trainer = Trainer(folder, SilentDisplay(), config)
    batch = widest_batch(trainer.batches)
    trainer.model.train()
    for step in (1, 2, 3):
        trainer.train_step([(0, batch)], step, 0.0, max(1, batch.target_tokens))
        if trainer.train_step.splitter.max_parts > 1:
            return None
    return torch.cuda.max_memory_reserved(trainer.device) if trainer.device.type == "cuda" else 0


def widest_batch(batches: Batches) -> Batch:
    """A batch as large as any: packed ones are all alike; padded, the longest row as often as there is room for it."""
    if batches.packed_shape is not None:
        return batches.build_batch(batches.plan_window(0, 0)[0], 0)
    some = slice(0, min(LOOKED_AT, len(batches.store)))
    widths = batches.rows.row_length(*(np.asarray(side.lengths[some], np.int64) for side in batches.store.columns))
    longest = int(widths.argmax())
    return batches.build_batch(np.full(max(1, batches.budget // int(widths[longest])), longest), 0)


def estimate_batch_size(config: Config, spec: ModelSpec, least: int, most: int) -> tuple[int, str]:
    """On a CPU, where running out of memory ends the process: what is free, by the estimate of the preflight."""
    free, many = available_memory(), 2**20
    some, more = (
        estimate_activations(spec, count, config.training.gradient_checkpointing) for count in (many, 2 * many)
    )
    each = (more - some) / many
    model = 16 * count_parameters(spec) + some - many * each  # weights, gradients, two moments, a chunk of logits
    tokens = int((MARGIN * free - model) / each)
    if tokens < least:
        raise UserError(
            f"training needs about {(model + least * each) / 2**30:.1f} GiB, but {free / 2**30:.1f} GiB are free: "
            "choose a smaller system, lower data.max_length, or set training.gradient_checkpointing=true"
        )
    return min(tokens, most), f"the most that fit {free / 2**30:.1f} GiB, by an estimate: nothing is tried on a CPU"


def available_memory() -> int:
    """Bytes that this process may still take."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        limits += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
        used, most = (Path(f"/sys/fs/cgroup/memory.{name}").read_text(encoding="ascii") for name in ("current", "max"))
        limits.append(int(most) - int(used))
    except (OSError, ValueError):  # another system, or no limit
        pass
    return min(limits)
