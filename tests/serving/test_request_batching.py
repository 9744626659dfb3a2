"""Requests are gathered, take turns, can be given up, and do not harm one another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest

from dragoman.run import Translation
from dragoman.search import Beam, MinimumBayesRisk, Sample
from dragoman.serving.request_batching import Batcher, DecodeOptions, TranslationJob
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import BatchingSettings

WAY = DecodeOptions(Beam(1))


class Upper:
    """A run that writes capitals, remembers its batches, and works only when it may."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.started = threading.Event()
        self.may = threading.Event()
        self.may.set()
        self.config = SimpleNamespace(search=SimpleNamespace(batch_tokens=100))

    def with_languages(self, source: str | None, target: str | None) -> Upper:
        return self

    def translate_stream(
        self, texts: Sequence[str], settings: object, first_index: int, **_: object
    ) -> Iterator[Translation]:
        self.batches.append(list(texts))
        self.started.set()
        assert self.may.wait(300)
        if "bad" in texts:
            raise ValueError("bad")
        for number, text in enumerate(texts, first_index):
            yield Translation(f"{text.upper()}{number if isinstance(settings, Sample) else ''}", 0.0)


@pytest.fixture
def run() -> Upper:
    return Upper()


@pytest.fixture
def batcher(run: Upper) -> Iterator[Callable[..., Batcher]]:
    made = []

    def make(tokens: int | None = None, delay: float = 0.0, most: int = 100) -> Batcher:
        one = Batcher(run, "upper", threading.Lock(), BatchingSettings(tokens, delay), most, Metrics())  # type: ignore[arg-type]
        made.append(one)
        one.start()
        return one

    yield make
    run.may.set()
    for one in made:
        one.close()


def job(*texts: str, way: DecodeOptions = WAY) -> TranslationJob:
    return TranslationJob(texts, [1] * len(texts), way)


def busy(run: Upper, batcher: Batcher) -> TranslationJob:
    """The run is kept at work until it may go on."""
    run.may.clear()
    first = batcher.submit(job("first"))
    assert run.started.wait(300)
    return first


def texts(one: TranslationJob) -> list[str]:
    return [found.text for found in one.future.result(300)]


def test_requests_during_a_batch_form_the_next(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher()
    busy(run, one)
    waiting = [one.submit(job(name, name * 2)) for name in "abc"]
    run.may.set()
    assert [texts(some) for some in waiting] == [["A", "AA"], ["B", "BB"], ["C", "CC"]]
    assert run.batches == [["first"], ["a", "aa", "b", "bb", "c", "cc"]]


def test_idle_run_waits_for_others(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(delay=10.0)  # closing ends the wait
    waiting = [one.submit(job(name)) for name in "ab"]
    one.close()
    assert [texts(some) for some in waiting] == [["A"], ["B"]]
    assert run.batches == [["a", "b"]]


def test_full_batch_starts_at_once(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=2)
    object.__setattr__(one.batching, "delay_seconds", 1e6)  # seconds, for which nobody would wait
    assert texts(one.submit(job("a", "b"))) == ["A", "B"]


def test_batch_respects_the_token_budget(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=5)
    busy(run, one)
    large = one.submit(TranslationJob(["l"], [7], WAY))
    waiting = one.submit(TranslationJob(list("abc"), [2, 2, 2], WAY))
    run.may.set()
    assert texts(waiting) == ["A", "B", "C"]
    assert texts(large) == ["L"]
    assert run.batches[1:] == [["l"], ["a", "b"], ["c"]]


def test_short_requests_overtake_long_ones(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=20)
    busy(run, one)
    long = one.submit(job(*["x"] * 60))
    short = one.submit(job("y"))
    run.may.set()
    assert texts(short) == ["Y"]
    assert len(texts(long)) == 60
    assert "y" in run.batches[1]


def test_canceled_request_is_skipped(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher()
    busy(run, one)
    left, stays = one.submit(job("gone")), one.submit(job("here"))
    assert left.future.cancel()
    run.may.set()
    assert texts(stays) == ["HERE"]
    assert run.batches == [["first"], ["here"]]


def test_failure_affects_only_its_request(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher()
    busy(run, one)
    good, bad = one.submit(job("good")), one.submit(job("bad"))
    run.may.set()
    assert texts(good) == ["GOOD"]
    with pytest.raises(ValueError, match="bad"):
        bad.future.result(300)
    assert texts(one.submit(job("next"))) == ["NEXT"]


def test_different_options_are_not_batched_together(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher()
    busy(run, one)
    drawn = [one.submit(job("a", "b", way=DecodeOptions(Sample()))) for _ in range(2)]
    wide = one.submit(job("c", way=DecodeOptions(Beam(2))))
    run.may.set()
    assert [texts(some) for some in drawn] == [["A0", "B1"]] * 2  # by their number within the request
    assert texts(wide) == ["C"]
    assert sorted(run.batches[1:]) == [["a", "b"], ["a", "b"], ["c"]]
    assert MinimumBayesRisk(Sample(n_best=4)).is_random
    assert not MinimumBayesRisk(Beam(4, n_best=4)).is_random


def test_full_queue_rejects(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(most=2)
    busy(run, one)
    waiting = [one.submit(job("a")), one.submit(job("b"))]
    with pytest.raises(RequestError) as refused:
        one.submit(job("c"))
    assert (refused.value.status, refused.value.retry_after) == (503, 1)
    waiting[0].future.cancel()  # which makes room
    one.submit(job("d"))


def test_closing_finishes_accepted_requests(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(delay=5.0)
    accepted = [one.submit(job(name)) for name in "abc"]
    one.close()
    assert [texts(some) for some in accepted] == [["A"], ["B"], ["C"]]
    with pytest.raises(RequestError, match="stopped"):
        one.submit(job("d"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_requests_fail_if_the_thread_ends(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=2)
    busy(run, one)
    waiting = one.submit(job("a"))
    one.batching = None  # type: ignore[assignment]
    run.may.set()
    with pytest.raises(AttributeError):
        waiting.future.result(300)
    with pytest.raises(RequestError, match="stopped"):
        one.submit(job("b"))
