"""How fast a run translates, by batch and beam, and where the time goes."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import cycle, islice
from typing import Any

import torch

from dragoman.data import TokenStore
from dragoman.errors import UserError
from dragoman.run.decoding import SearchRequest, decode
from dragoman.run.device_info import peak_memory_bytes, synchronize
from dragoman.run.run import Run
from dragoman.run.sources import Source, is_empty
from dragoman.search import Beam, Hypothesis, LengthLimit

SHARES = ("encoder", "decoder", "vocabulary", "search")


@dataclass(frozen=True)
class SpeedMeasurement:
    """From texts to texts, the encoder and the tokenizer counted in; a token is one of the best hypothesis, or END."""

    batch: int  # sentences
    beam: int
    sentences: int  # that were translated to measure it
    sentences_per_second: float
    tokens_per_second: float
    first_token: float  # seconds until a batch has its first word
    shares: dict[str, float] | None  # of the time; None where it cannot be told
    peak_memory: int  # bytes: of the GPU, or of this process so far

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def validation_texts(run: Run, limit: int) -> list[Source]:
    """Sources of the run's validation data."""
    place = run.folder / "data" / "valid"
    if not place.is_dir():
        raise UserError(f"{run.folder} holds no validation data: name a file of sentences to translate")
    store = TokenStore(place)
    rows = [store.source(i) for i in range(min(limit, len(store)))]
    return [run.source_tokenizer.decode(row.tolist()) if row.ndim == 1 else row for row in rows]


def measure_speed(run: Run, texts: Sequence[Source], batch: int, settings: Beam, seconds: float) -> SpeedMeasurement:
    """Batches of like length until all texts were translated or the time is over, after one to warm up."""
    texts = [text for text in texts if not is_empty(text)]
    if not texts:
        raise UserError("there is nothing to translate: give sentences to measure with")
    run.check_usage("translate")
    if not run.model.can_generate:
        raise UserError(f"{run.folder} holds an encoder alone, which writes no text: its speed is that of training")
    order = sorted(islice(cycle(texts), max(batch, len(texts))), key=len)
    batches = [order[i : i + batch] for i in range(0, len(order) - batch + 1, batch)]
    random.Random(0).shuffle(batches)
    if run.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(run.device)
    _translate(run, batches[0], settings)
    sentences = tokens = 0
    start = time.perf_counter()
    for some in batches:
        found = _translate(run, some, settings)
        sentences, tokens = sentences + len(some), tokens + sum(len(one[0].tokens) + 1 for one in found)
        if time.perf_counter() - start > seconds:
            break
    spent = max(1e-9, time.perf_counter() - start)
    return SpeedMeasurement(
        batch,
        settings.size,
        sentences,
        sentences / spent,
        tokens / spent,
        _first_token(run, batches[0], settings),
        _shares(run, batches[0], settings),
        peak_memory_bytes(run.device),
    )


def _translate(run: Run, texts: Sequence[Source], settings: Beam) -> list[list[Hypothesis]]:
    source, lengths = run.pad_batch(run.encode_sources(texts), run.framing.pad)
    found = decode(settings, run, SearchRequest(source, lengths, torch.arange(len(texts)), texts))
    for one in found:
        run.target_tokenizer.decode(one[0].tokens)
    return found


def _first_token(run: Run, texts: Sequence[Source], settings: Beam) -> float:
    """Seconds until the search for targets of one token is over: the median of three."""
    short = replace(settings, length_limit=LengthLimit(0.0, 1, 1))
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        _translate(run, texts, short)
        spent.append(time.perf_counter() - start)
    return sorted(spent)[1]


def _shares(run: Run, texts: Sequence[Source], settings: Beam) -> dict[str, float] | None:
    """Where the time of a batch goes, each part waited for. What is replayed as a graph calls no part of a model."""
    spent: defaultdict[str, float] = defaultdict(float)
    start = time.perf_counter()
    with _watched(run, spent):
        _translate(run, texts, settings)
    whole = max(1e-9, time.perf_counter() - start)
    if not spent["vocabulary"]:
        return None
    spent["decoder"] -= spent["vocabulary"]
    spent["search"] = whole - sum(spent.values())
    return {name: spent[name] / whole for name in SHARES}


@contextmanager
def _watched(run: Run, spent: defaultdict[str, float]) -> Iterator[None]:
    """Takes the time of what models do while a search goes on."""
    device = run.device

    def timed(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            synchronize(device)
            start = time.perf_counter()
            found = function(*arguments)
            synchronize(device)
            spent[name] += time.perf_counter() - start
            return found

        return call

    places = [
        (place, function, name)
        for model in run.inference_models
        for place, function, name in (
            (model, "start", "encoder"),
            (model, "decode", "decoder"),
            (model.output, "forward", "vocabulary"),
        )
    ]
    for place, function, name in places:
        setattr(place, function, timed(name, getattr(place, function)))
    try:
        yield
    finally:
        for place, function, _ in places:
            delattr(place, function)
