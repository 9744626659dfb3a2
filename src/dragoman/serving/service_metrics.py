"""Metrics of the service in the Prometheus text format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # histogram bounds
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]


class Counter:
    """A counter for each combination of labels."""

    kind = "counter"

    def __init__(self, name: str, description: str) -> None:
        self.name, self.description = name, description
        self._values: dict[Labels, float] = {}
        self._lock = threading.Lock()

    def add(self, amount: float, **labels: str) -> None:
        with self._lock:
            key = tuple(labels.items())
            self._values[key] = self._values.get(key, 0) + amount

    def lines(self) -> Iterator[str]:
        for labels, value in list(self._values.items()):
            yield _line(self.name, labels, value)


class Gauge(Counter):
    """A value for each combination of labels that is computed when the metrics are read."""

    kind = "gauge"

    def __init__(self, name: str, description: str) -> None:
        super().__init__(name, description)
        self._functions: dict[Labels, Callable[[], float]] = {}

    def set_function(self, function: Callable[[], float], **labels: str) -> None:
        self._functions[tuple(labels.items())] = function

    def lines(self) -> Iterator[str]:
        for labels, function in self._functions.items():
            yield _line(self.name, labels, function())


class Histogram(Counter):
    """Counts of values up to each bound, and their sum, for each combination of labels."""

    kind = "histogram"

    def __init__(self, name: str, description: str, bounds: tuple[float, ...]) -> None:
        super().__init__(name, description)
        self.bounds = bounds
        self._counts: dict[Labels, list[int]] = {}

    def observe(self, value: float, **labels: str) -> None:
        self.add(value, **labels)
        with self._lock:
            counts = self._counts.setdefault(tuple(labels.items()), [0] * (len(self.bounds) + 1))
            for n, bound in enumerate((*self.bounds, float("inf"))):
                counts[n] += value <= bound

    def lines(self) -> Iterator[str]:
        for labels, counts in list(self._counts.items()):
            for bound, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), counts):
                yield _line(f"{self.name}_bucket", (*labels, ("le", bound)), count)
            yield _line(f"{self.name}_sum", labels, self._values[labels])
            yield _line(f"{self.name}_count", labels, counts[-1])


class Metrics:
    """All metrics of the service."""

    def __init__(self) -> None:
        self.requests = Counter("dragoman_requests_total", "Requests by route and status.")
        self.request_seconds = Histogram("dragoman_request_seconds", "Time to answer a request.", SECONDS)
        self.characters = Counter("dragoman_characters_total", "Accepted characters.")
        self.sentences = Counter("dragoman_sentences_total", "Translated sentences.")
        self.batch_seconds = Histogram("dragoman_batch_seconds", "Time to translate a batch.", SECONDS)
        self.batch_sentences = Histogram("dragoman_batch_sentences", "Sentences per batch.", BATCH_SIZES)
        self.queue = Gauge("dragoman_queue", "Requests waiting for a run.")
        self.streams = Gauge("dragoman_streams", "Translations being streamed.")
        self.inspections = Gauge("dragoman_inspections", "Inspections waiting or running.")

    def text(self) -> str:
        lines: list[str] = []
        for metric in vars(self).values():
            lines += [f"# HELP {metric.name} {metric.description}", f"# TYPE {metric.name} {metric.kind}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n"


def _line(name: str, labels: Labels, value: float) -> str:
    escaped = ",".join(f'{key}="{_escape(text)}"' for key, text in labels)
    return f"{name}{{{escaped}}} {value:.12g}" if escaped else f"{name} {value:.12g}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
