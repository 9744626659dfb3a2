"""Metrics of the service in the Prometheus text format."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # histogram bounds
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]


class Metric:
    """A counter, gauge or histogram with a value for each combination of labels."""

    def __init__(self, name: str, kind: str, description: str, bounds: tuple[float, ...] = ()) -> None:
        self.name, self.kind, self.description = name, kind, description
        self.bounds = (*bounds, float("inf"))
        self._values: dict[Labels, float] = defaultdict(float)
        self._counts: dict[Labels, list[int]] = {}  # of a histogram: number of values up to each bound
        self._functions: dict[Labels, Callable[[], float]] = {}  # of a gauge
        self._lock = threading.Lock()

    def add(self, amount: float, **labels: str) -> None:
        """Increase a counter."""
        with self._lock:
            self._values[tuple(labels.items())] += amount

    def set_function(self, function: Callable[[], float], **labels: str) -> None:
        """Set the function that computes a gauge when the metrics are read."""
        self._functions[tuple(labels.items())] = function

    def observe(self, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        key = tuple(labels.items())
        with self._lock:
            self._values[key] += value
            counts = self._counts.get(key, [0] * len(self.bounds))
            self._counts[key] = [count + (value <= bound) for count, bound in zip(counts, self.bounds)]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.description}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, function in self._functions.items():
            yield _line(self.name, labels, function())
        with self._lock:
            values, histograms = dict(self._values), dict(self._counts)
        for labels, value in values.items():
            counts = histograms.get(labels, [])
            for bound, count in zip(self.bounds, counts):
                yield _line(f"{self.name}_bucket", (*labels, ("le", f"{bound:g}".replace("inf", "+Inf"))), count)
            yield _line(f"{self.name}_sum" if counts else self.name, labels, value)
            if counts:
                yield _line(f"{self.name}_count", labels, counts[-1])


class Metrics:
    """All metrics of the service."""

    def __init__(self) -> None:
        self.requests = Metric("dragoman_requests_total", "counter", "Requests by route and status.")
        self.request_seconds = Metric("dragoman_request_seconds", "histogram", "Time to answer a request.", SECONDS)
        self.characters = Metric("dragoman_characters_total", "counter", "Accepted characters.")
        self.sentences = Metric("dragoman_sentences_total", "counter", "Translated sentences.")
        self.batch_seconds = Metric("dragoman_batch_seconds", "histogram", "Time to translate a batch.", SECONDS)
        self.batch_sentences = Metric("dragoman_batch_sentences", "histogram", "Sentences per batch.", BATCH_SIZES)
        self.queue = Metric("dragoman_queue", "gauge", "Requests waiting for a run.")
        self.streams = Metric("dragoman_streams", "gauge", "Translations being streamed.")
        self.inspections = Metric("dragoman_inspections", "gauge", "Inspections waiting or running.")

    def text(self) -> str:
        return "".join(f"{line}\n" for metric in vars(self).values() for line in metric.lines())


def _line(name: str, labels: Labels, value: float) -> str:
    escaped = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{escaped}}} {value:.12g}" if escaped else f"{name} {value:.12g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
