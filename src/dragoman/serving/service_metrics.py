"""Metrics of the service in the Prometheus text format."""

from __future__ import annotations

from functools import partial

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

#: upper bounds of the buckets of histograms: seconds, and sentences of a batch
SECOND_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SENTENCE_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """All metrics of one service."""

    def __init__(self) -> None:
        """Register the metrics in a registry of their own, not the global one: a process may have several services.

        Lists such as ["run", "status"] are the labels of a metric, by which its values are divided.
        """
        disable_created_metrics()  # no additional time series with the time at which each metric was created
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        self.requests = counter("dragoman_requests_total", "Requests by route and status.", ["route", "status"])
        self.request_seconds = histogram(
            "dragoman_request_seconds", "Time to answer a request.", ["route"], buckets=SECOND_BUCKETS
        )
        self.characters = counter("dragoman_characters_total", "Accepted characters.")
        self.sentences = counter("dragoman_sentences_total", "Translated sentences.", ["run"])
        self.batch_seconds = histogram(
            "dragoman_batch_seconds", "Time to translate a batch.", ["run"], buckets=SECOND_BUCKETS
        )
        self.batch_sentences = histogram(
            "dragoman_batch_sentences", "Sentences per batch.", ["run"], buckets=SENTENCE_BUCKETS
        )
        self.queue = gauge("dragoman_queue", "Requests waiting for a run.", ["run"])
        self.streams = gauge("dragoman_streams", "Translations being streamed.")
        self.inspections = gauge("dragoman_inspections", "Inspections waiting or running.")
        self.run_requests = counter(
            "dragoman_run_requests_total", "Requests by run, version and status.", ["run", "version", "status"]
        )
        self.run_seconds = histogram(
            "dragoman_run_request_seconds", "Time to answer a request to a run.", ["run"], buckets=SECOND_BUCKETS
        )
        self.queue_seconds = histogram(
            "dragoman_queue_seconds",
            "Time until the first sentence of a request is translated.",
            ["run"],
            buckets=SECOND_BUCKETS,
        )
        self.run_info = gauge("dragoman_run_info", "Loaded versions of the runs.", ["run", "version", "checkpoint"])
        self.reloads = counter("dragoman_reloads_total", "Reloads of a run by result.", ["run", "result"])
        self.source_tokens = counter("dragoman_source_tokens_total", "Source tokens.", ["run", "version"])
        self.target_tokens = counter("dragoman_target_tokens_total", "Generated tokens.", ["run", "version"])
        self.ready = gauge("dragoman_ready", "1: /readyz answers with 200.")
        gauge("dragoman_build_info", "Version of dragoman.", ["version"]).labels(__version__).set(1)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def text(self) -> str:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self.registry).decode()
