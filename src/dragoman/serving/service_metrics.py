"""What a service counts, in the text format that Prometheus reads."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # seconds
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # sentences of a batch
Labels = tuple[tuple[str, str], ...]


class _Histogram:
    """How many values were no larger than each bound, and their sum."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.sum, self.total = bounds, [0] * len(bounds), 0.0, 0

    def add(self, value: float) -> None:
        self.sum, self.total = self.sum + value, self.total + 1
        for number, bound in enumerate(self.bounds):
            self.counts[number] += value <= bound


class Metrics:
    """Counters, histograms, and gauges that are asked when somebody looks; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._help: dict[str, str] = {}
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, _Histogram]] = defaultdict(dict)
        self._gauges: dict[str, dict[Labels, Callable[[], float]]] = defaultdict(dict)

    def gauge(self, name: str, what: str, ask: Callable[[], float], **labels: str) -> None:
        self._help[name] = what
        self._gauges[name][tuple(labels.items())] = ask

    def count(self, name: str, what: str, by: float = 1, **labels: str) -> None:
        with self._lock:
            self._help[name] = what
            self._counters[name][tuple(labels.items())] += by

    def observe(self, name: str, what: str, value: float, bounds: tuple[float, ...] = BOUNDS, **labels: str) -> None:
        with self._lock:
            self._help[name] = what
            self._histograms[name].setdefault(tuple(labels.items()), _Histogram(bounds)).add(value)

    def text(self) -> str:
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for name, counters in self._counters.items():
            yield from self._head(name, "counter")
            yield from (_line(name, labels, value) for labels, value in counters.items())
        for name, gauges in self._gauges.items():
            yield from self._head(name, "gauge")
            yield from (_line(name, labels, ask()) for labels, ask in gauges.items())
        for name, histograms in self._histograms.items():
            yield from self._head(name, "histogram")
            for labels, one in histograms.items():
                for bound, below in zip(one.bounds, one.counts):
                    yield _line(f"{name}_bucket", (*labels, ("le", f"{bound:g}")), below)
                yield _line(f"{name}_bucket", (*labels, ("le", "+Inf")), one.total)
                yield _line(f"{name}_sum", labels, one.sum)
                yield _line(f"{name}_count", labels, one.total)

    def _head(self, name: str, kind: str) -> Iterator[str]:
        yield f"# HELP {name} {self._help[name]}"
        yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Labels, value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{told}}} {value:.12g}" if told else f"{name} {value:.12g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
