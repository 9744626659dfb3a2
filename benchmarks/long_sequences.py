"""Time and memory of long sequences: memory-compressed attention (transformer-dmca) and full attention (transformer-d).

    python benchmarks/long_sequences.py --lengths 1000,2000,4000,8000,11000 --model-dim 512 --layers 5 --heads 8

Times training steps (forward and backward; bfloat16 on a GPU) of both systems at each length with at most --tokens
tokens per step, and prints the time per token, its growth from the shortest length, and the growth predicted by the
number of multiplications. Then encodes a source of the largest length and generates --generate tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dragoman.models import Model, count_parameters
from dragoman.parts.mixer import Context, SequenceLayout
from dragoman.systems import SYSTEMS, VocabularySizes

NAMES = ("transformer-dmca", "transformer-d")
VOCABULARY, BLOCK, KERNEL, STRIDE = 1000, 256, 3, 3
WARMUP_STEPS = 2


def multiplications(name: str, length: int, width: int, layers: int) -> float:
    """Return the multiplications of a token in the forward pass: linear layers, and attention over the visible keys."""
    compressed = layers // 2 if name == "transformer-dmca" else 0
    local = layers - compressed if name == "transformer-dmca" else 0
    linear = layers * 12 * width**2 + compressed * 2 * KERNEL / STRIDE * width**2 + VOCABULARY * width
    keys = (
        local * (min(BLOCK, length) + 1) / 2
        + compressed * ((length / STRIDE + 1) / 2 + 1 / STRIDE)
        + (layers - local - compressed) * (length + 1) / 2
    )
    return linear + 2 * width * keys


def wait(device: torch.device) -> float:
    """Wait for the device and return the time."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def train_step(model: Model, tokens: Tensor) -> None:
    batch, length = tokens.shape
    lengths = torch.full((batch,), length, device=tokens.device)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=tokens.device.type == "cuda"):
        logits = model(tokens[:, :0], torch.zeros_like(lengths), tokens, lengths)
    torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten()).backward()
    model.zero_grad()


def time_training(model: Model, length: int, batch: int, steps: int, device: torch.device) -> dict[str, Any]:
    """Return seconds per token and peak memory; NaN if unknown or out of memory."""
    tokens = torch.randint(4, VOCABULARY, (batch, length), device=device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    try:
        for _ in range(WARMUP_STEPS):
            train_step(model, tokens)
        start = wait(device)
        for _ in range(steps):
            train_step(model, tokens)
        seconds = (wait(device) - start) / (steps * batch * length)
    except torch.OutOfMemoryError:
        model.zero_grad()
        return {"seconds_per_token": math.nan, "peak_gib": math.nan}
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else math.nan
    return {"seconds_per_token": seconds, "peak_gib": peak}


@torch.inference_mode()
def time_generation(model: Model, length: int, count: int, device: torch.device) -> dict[str, Any]:
    """Time greedy search after a source of `length` tokens; special tokens are never generated."""
    source = torch.randint(4, VOCABULARY, (1, length), device=device)
    start = wait(device)
    begin = model.start_decoding(source, torch.tensor([length], device=device), beam=1, max_length=count, first=2)
    read = wait(device)
    tokens, state = begin.tokens, begin.state
    for step in range(count):
        logits, after = model.decode(
            tokens[:, None], Context(SequenceLayout.continuation(begin.positions + step), begin.memory), state
        )
        assert after is not None
        tokens, state = logits[:, 0, 4:].argmax(-1) + 4, after
    end = wait(device)
    return {"source": length, "read": read - start, "tokens": count, "seconds_per_token": (end - read) / count}


def measure(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    settings = {"model_dim": options.model_dim, "layers": options.layers, "heads": options.heads, "dropout": 0.0}
    lengths = [int(length) for length in options.lengths.split(",")]
    models, first, training = dict[str, Model](), dict[str, float](), []
    for name in NAMES:
        spec = SYSTEMS[name].spec(VocabularySizes(VOCABULARY, VOCABULARY, joint=True), **settings)
        models[name] = spec.build().to(device).train()
        print(f"{name}: {count_parameters(spec):,} parameters")
    columns = f"{'µs/token':>11}{'growth':>8}{'predicted':>11}{'peak GiB':>10}"
    print(f"{'':15}" + "".join(f"{name:>40}" for name in NAMES))
    print(f"{'length':>8}{'batch':>7}{columns}{columns}{'times as fast':>15}")
    for length in lengths:
        batch, line, seconds = max(1, options.tokens // length), "", []
        for name, model in models.items():
            row = {"system": name, "length": length, "batch": batch}
            row |= time_training(model, length, batch, options.steps, device)
            seconds.append(row["seconds_per_token"])
            first.setdefault(name, seconds[-1])
            cost, smallest = (multiplications(name, n, options.model_dim, options.layers) for n in (length, lengths[0]))
            row |= {"growth": seconds[-1] / first[name], "predicted": cost / smallest}
            training.append(row)
            line += f"{seconds[-1] * 1e6:>11.2f}{row['growth']:>8.2f}{row['predicted']:>11.2f}{row['peak_gib']:>10.2f}"
        print(f"{length:>8}{batch:>7}{line}{seconds[1] / seconds[0]:>15.2f}", flush=True)
    generation = time_generation(models["transformer-dmca"].eval(), max(lengths), options.generate, device)
    print(
        f"transformer-dmca read a source of {generation['source']:,} tokens in {generation['read']:.2f} s and wrote "
        f"{options.generate} tokens after it at {generation['seconds_per_token'] * 1e3:.1f} ms each"
    )
    return {"settings": settings, "training": training, "generation": generation}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="1000,2000,4000,8000,11000", help="sequence lengths, the shortest first")
    parser.add_argument("--model-dim", type=int, default=512)
    parser.add_argument("--layers", type=int, default=5)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument(
        "--tokens", type=int, default=44_000, help="maximum tokens per step, unless one sequence is longer"
    )
    parser.add_argument("--steps", type=int, default=10, help="timed steps, after two that warm up")
    parser.add_argument("--generate", type=int, default=100, help="tokens to generate after the longest source")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", type=Path, default=None, help="a file for the results")
    options = parser.parse_args()
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(automatic if options.device == "auto" else options.device)
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{machine}, PyTorch {torch.__version__}")
    results = {"machine": machine, "torch": torch.__version__} | measure(options, device)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1).replace("NaN", "null") + "\n")


if __name__ == "__main__":
    main()
