"""Metrics of the service in the Prometheus text format."""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from dragoman import __version__

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # histogram bounds
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """All metrics of one service."""

    def __init__(self) -> None:
        """Register the metrics in a registry of their own."""
        disable_created_metrics()  # no additional time series with the time at which each metric was created
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "dragoman_requests_total", "Requests by route and status.", ["route", "status"], registry=registry
        )
        self.request_seconds = Histogram(
            "dragoman_request_seconds", "Time to answer a request.", ["route"], buckets=SECONDS, registry=registry
        )
        self.characters = Counter("dragoman_characters_total", "Accepted characters.", registry=registry)
        self.sentences = Counter("dragoman_sentences_total", "Translated sentences.", ["run"], registry=registry)
        self.batch_seconds = Histogram(
            "dragoman_batch_seconds", "Time to translate a batch.", ["run"], buckets=SECONDS, registry=registry
        )
        self.batch_sentences = Histogram(
            "dragoman_batch_sentences", "Sentences per batch.", ["run"], buckets=BATCH_SIZES, registry=registry
        )
        self.queue = Gauge("dragoman_queue", "Requests waiting for a run.", ["run"], registry=registry)
        self.streams = Gauge("dragoman_streams", "Translations being streamed.", registry=registry)
        self.inspections = Gauge("dragoman_inspections", "Inspections waiting or running.", registry=registry)
        self._add_run_metrics()
        self.ready = Gauge("dragoman_ready", "1: /readyz answers with 200.", registry=registry)
        Gauge("dragoman_build_info", "Version of dragoman.", ["version"], registry=registry).labels(__version__).set(1)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def _add_run_metrics(self) -> None:
        """Register the metrics of runs and their versions."""
        registry, labels = self.registry, ["run", "version"]
        self.run_requests = Counter(
            "dragoman_run_requests_total",
            "Requests by run, version and status.",
            [*labels, "status"],
            registry=registry,
        )
        self.run_seconds = Histogram(
            "dragoman_run_request_seconds",
            "Time to answer a request to a run.",
            ["run"],
            buckets=SECONDS,
            registry=registry,
        )
        self.queue_seconds = Histogram(
            "dragoman_queue_seconds",
            "Time until the first sentence of a request is translated.",
            ["run"],
            buckets=SECONDS,
            registry=registry,
        )
        self.run_info = Gauge(
            "dragoman_run_info", "Loaded versions of the runs.", [*labels, "checkpoint"], registry=registry
        )
        self.reloads = Counter(
            "dragoman_reloads_total", "Reloads of a run by result.", ["run", "result"], registry=registry
        )
        self.source_tokens = Counter("dragoman_source_tokens_total", "Source tokens.", labels, registry=registry)
        self.target_tokens = Counter("dragoman_target_tokens_total", "Generated tokens.", labels, registry=registry)

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry).decode()
