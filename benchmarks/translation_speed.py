"""How fast a run translates on this machine, by batch size and beam size, and which part takes the time.

    python benchmarks/translation_speed.py RUN [FILE] --batches 1,16,64 --beams 1,5 --seconds 5

Translates sentences of FILE, or of the run's validation data, in batches of similar length. Times are from text to
text; tokens are those of the best hypothesis, EOS included. benchmarks/decoding.py compares with other libraries.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch

import dragoman
from device_info import device_name, peak_memory_bytes, synchronize
from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.memory import keep_freed_memory
from dragoman.run import Run
from dragoman.run.sources import Source, is_empty
from dragoman.search import Beam, Hypothesis, LengthLimit, SearchRequest

MAX_SENTENCES = 4096
PARTS = ("encoder", "decoder", "output layer", "search")


@dataclass(frozen=True)
class TranslationSpeed:
    batch_size: int  # sentences
    beam_size: int
    sentences: int  # number of translated sentences
    sentences_per_second: float
    tokens_per_second: float
    first_token_seconds: float  # until a batch has its first token
    time_shares: dict[str, float] | None  # of PARTS; None if CUDA graphs hide the parts
    peak_memory: int  # bytes


def validation_texts(run: Run, limit: int) -> list[Source]:
    """Return sources of the run's validation data."""
    folder = run.folder / "data" / "valid"
    if not folder.is_dir():
        raise UserError(f"{run.folder} has no validation data: name a file of sentences to translate")
    store = TokenStore(folder)
    rows = [store.source(i) for i in range(min(limit, len(store)))]
    return [run.source_tokenizer.decode(row.tolist()) if row.ndim == 1 else row for row in rows]


def measure_speed(run: Run, texts: Sequence[Source], batch_size: int, beam: Beam, seconds: float) -> TranslationSpeed:
    """Warm up with one batch, then translate batches until all texts are done or `seconds` have passed."""
    texts = [text for text in texts if not is_empty(text)]
    if not texts:
        raise UserError("there is nothing to translate: all sentences are empty")
    run.check_usage("translate")
    by_length = sorted(islice(cycle(texts), max(batch_size, len(texts))), key=len)
    batches = [by_length[i : i + batch_size] for i in range(0, len(by_length) - batch_size + 1, batch_size)]
    random.Random(0).shuffle(batches)
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    _translate(run, batches[0], beam)
    sentences = tokens = 0
    start = time.perf_counter()
    for batch in batches:
        hypotheses = _translate(run, batch, beam)
        sentences += len(batch)
        tokens += sum(len(nbest[0].tokens) + 1 for nbest in hypotheses)
        if time.perf_counter() - start > seconds:
            break
    elapsed = max(1e-9, time.perf_counter() - start)
    return TranslationSpeed(
        batch_size,
        beam.size,
        sentences,
        sentences / elapsed,
        tokens / elapsed,
        _first_token_seconds(run, batches[0], beam),
        _time_shares(run, batches[0], beam),
        peak_memory_bytes(run.device),
    )


def _translate(run: Run, texts: Sequence[Source], beam: Beam) -> list[list[Hypothesis]]:
    source, lengths = run.pad_batch(run.encode_sources(texts))
    hypotheses = beam.decode(run, SearchRequest(source, lengths, torch.arange(len(texts)), texts))
    for nbest in hypotheses:
        run.target_tokenizer.decode(nbest[0].tokens)
    return hypotheses


def _first_token_seconds(run: Run, texts: Sequence[Source], beam: Beam) -> float:
    """Return the time of a search for one token: the median of three."""
    one_token = replace(beam, length_limit=LengthLimit(0.0, 1, 1))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        _translate(run, texts, one_token)
        times.append(time.perf_counter() - start)
    return sorted(times)[1]


def _time_shares(run: Run, texts: Sequence[Source], beam: Beam) -> dict[str, float] | None:
    """Return the shares of the parts in the time of a batch, with a synchronization after each part."""
    times: defaultdict[str, float] = defaultdict(float)
    start = time.perf_counter()
    with _timed_parts(run, times):
        _translate(run, texts, beam)
    total = max(1e-9, time.perf_counter() - start)
    if not times["output layer"]:
        return None
    times["decoder"] -= times["output layer"]
    times["search"] = total - sum(times.values())
    return {name: times[name] / total for name in PARTS}


@contextmanager
def _timed_parts(run: Run, times: defaultdict[str, float]) -> Iterator[None]:
    """Add the time of the methods of the run's models to `times`."""
    device = run.device

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            synchronize(device)
            start = time.perf_counter()
            result = function(*arguments, **options)
            synchronize(device)
            times[name] += time.perf_counter() - start
            return result

        return call

    methods = [
        (owner, method, name)
        for model in run.inference_models
        for owner, method, name in (
            (model, "start_decoding", "encoder"),
            (model, "decode", "decoder"),
            (model.output, "forward", "output layer"),
        )
    ]
    for owner, method, name in methods:
        setattr(owner, method, timed(name, getattr(owner, method)))
    try:
        yield
    finally:
        for owner, method, _ in methods:
            delattr(owner, method)


def table(speeds: Sequence[TranslationSpeed]) -> list[str]:
    heading = f"{'beam':>4}{'batch':>7}{'sentences/s':>13}{'tokens/s':>11}{'first token':>14}"
    lines = [heading + "".join(f"{name:>14}" for name in PARTS)]
    for speed in speeds:
        shares = [f"{share:.1%}" for share in speed.time_shares.values()] if speed.time_shares else ["–"] * len(PARTS)
        lines.append(
            f"{speed.beam_size:>4}{speed.batch_size:>7,}{speed.sentences_per_second:>13,.1f}"
            f"{speed.tokens_per_second:>11,.0f}{1000 * speed.first_token_seconds:>11,.1f} ms"
            + "".join(f"{share:>14}" for share in shares)
        )
    return [*lines, f"peak memory {max(speed.peak_memory for speed in speeds) / 2**30:.2f} GiB"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path, nargs="?", help="sentences, one per line (default: validation data)")
    parser.add_argument("--batches", default="1,16,64", help="sentences per batch (default: 1,16,64)")
    parser.add_argument("--beams", help="beam sizes (default: 1 and that of the run)")
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit of each measurement (default: 5)")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    keep_freed_memory()
    run = dragoman.load(options.run, device=options.device)
    if options.file:
        texts: list[Source] = [*options.file.read_text(encoding="utf-8").splitlines()[:MAX_SENTENCES]]
    else:
        texts = validation_texts(run, MAX_SENTENCES)
    beam_sizes = map(int, options.beams.split(",")) if options.beams else sorted({1, run.beam_config().size})
    speeds = []
    for beam_size in beam_sizes:
        for batch_size in map(int, options.batches.split(",")):
            print(f"measuring batches of {batch_size:,} with a beam of {beam_size}", file=sys.stderr)
            speeds.append(measure_speed(run, texts, batch_size, run.beam_config(beam_size), options.seconds))
    machine = f"{device_name(run.device)}, PyTorch {torch.__version__}"
    if options.json:
        print(json.dumps({"run": str(options.run), "machine": machine, "speeds": [asdict(s) for s in speeds]}))
    else:
        print("\n".join([f"{options.run}: {machine}", *table(speeds)]))


if __name__ == "__main__":
    main()
