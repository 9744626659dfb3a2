"""Requests are gathered, scheduled short first, can be given up, and do not harm one another."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch

from dragoman.preemption import preemption_point
from dragoman.run import StreamedTokens, Translation
from dragoman.search import Beam, MinimumBayesRisk, Sample
from dragoman.serving.client_shares import ClientShares
from dragoman.serving.device_scheduler import DeviceScheduler
from dragoman.serving.inspection_queue import InspectionJob, InspectionQueue, SharedSearch
from dragoman.serving.job_queue import MAX_SHORT_COST, QueueLimits
from dragoman.serving.request_batching import Batcher, DecodeOptions, TranslationJob
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import RequestRecord
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
        self.device, self.engine_cache = torch.device("cpu"), None

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

    def stream_batch(self, texts: Sequence[str], settings: object, **_: object) -> Iterator[tuple[int, StreamedTokens]]:
        for number, found in enumerate(self.translate_stream(texts, settings, 0)):
            yield number, StreamedTokens(found.text, translation=found)


@pytest.fixture
def run() -> Upper:
    return Upper()


@pytest.fixture
def batcher(run: Upper) -> Iterator[Callable[..., Batcher]]:
    made = []

    def make(tokens: int | None = None, delay: float = 0.0, most: int = 100, pending_cost: float = 1e9) -> Batcher:
        limits = QueueLimits(DeviceScheduler(), ClientShares(math.inf, pending_cost, 4), clients_per_address=4)
        one = Batcher(run, "upper", limits, BatchingSettings(tokens, delay), most, Metrics())  # type: ignore[arg-type]
        made.append(one)
        one.start()
        return one

    yield make
    run.may.set()
    for one in made:
        one.close()


def job(
    *texts: str, way: DecodeOptions = WAY, client: str = "", address: str = "hall", tokens: int = 1
) -> TranslationJob:
    record = RequestRecord(address=address, client_id=client)
    return TranslationJob(sentences=texts, token_counts=[tokens] * len(texts), options=way, record=record)


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
    large = one.submit(job("l", tokens=7))
    waiting = one.submit(job("a", "b", "c", tokens=2))
    run.may.set()
    assert texts(waiting) == ["A", "B", "C"]
    assert texts(large) == ["L"]
    assert run.batches[1:] == [["a", "b"], ["c"], ["l"]]


def test_cheapest_request_first_unless_another_has_waited(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=1)
    busy(run, one)
    lengths = {"d": 1600, "b": 800, "a": 400, "c": 1200}
    waiting = [one.submit(job(name, tokens=tokens, address=name)) for name, tokens in lengths.items()]
    old = one.submit(job("old", tokens=2000, address="old"))
    old.arrival_time -= 10  # seconds
    run.may.set()
    assert [texts(some) for some in (*waiting, old)] == [["D"], ["B"], ["A"], ["C"], ["OLD"]]
    assert run.batches[1:] == [["old"], ["a"], ["b"], ["c"], ["d"]]


def test_client_with_many_requests_does_not_overtake_others(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one = batcher(tokens=1)
    busy(run, one)
    greedy = [one.submit(job(f"greedy {number}", client="greedy", tokens=600)) for number in range(3)]
    single = one.submit(job("single", address="elsewhere", tokens=800))
    run.may.set()
    assert texts(single) == ["SINGLE"]
    assert all(texts(some) for some in greedy)
    assert run.batches[1:] == [["greedy 0"], ["single"], ["greedy 1"], ["greedy 2"]]


def test_long_request_lets_short_ones_go_first_between_its_steps(run: Upper, batcher: Callable[..., Batcher]) -> None:
    """A long translation holds the device, and a short one gets it after the next decoding step."""
    order: list[str] = []
    is_running, short_arrived = threading.Event(), threading.Event()

    def steps(texts: Sequence[str], *_: object, **__: object) -> Iterator[Translation]:
        for text in texts:
            for _step in range(1 if text == "short" else 3):
                is_running.set()
                assert short_arrived.wait(300)
                order.append(text)
                preemption_point()
            yield Translation(text.upper(), 0.0)

    run.translate_stream = steps  # type: ignore[method-assign]
    one = batcher()
    long = one.submit(job("long", tokens=MAX_SHORT_COST))
    assert is_running.wait(300)
    short = one.submit(job("short"))
    short_arrived_at_device(one)
    short_arrived.set()
    assert (texts(short), texts(long)) == (["SHORT"], ["LONG"])
    assert order == ["long", "short", "long", "long"]


def short_arrived_at_device(one: Batcher) -> None:
    """Wait until a thread waits for the device."""
    while not one.limits.device._foreground:
        threading.Event().wait(0.001)


def test_background_work_gets_its_share_while_others_wait() -> None:
    """Simulated time: short work always waits, and long work still gets a tenth of the device."""
    now = [0.0]
    device = DeviceScheduler(0.1, clock=lambda: now[0])
    used = {True: 0.0, False: 0.0}
    threads = [threading.Thread(target=work, args=(device, kind, now, used)) for kind in (True, False, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.08 < used[True] / (used[True] + used[False]) < 0.12


def work(device: DeviceScheduler, is_background: bool, now: list[float], used: dict[bool, float]) -> None:
    """Use the device for pieces of 0.05 s, until 50 s have passed, and let go when the others wait for it."""
    while now[0] < 50:
        with device.turn(is_background) as turn:
            for _ in range(1000 if is_background else 1):
                if now[0] >= 50:
                    break
                while now[0] < 50 and not (device._foreground and (is_background or device._background)):
                    threading.Event().wait(1e-5)
                now[0] += 0.05
                used[is_background] += 0.05
                device.yield_turn(turn)


def test_share_of_a_client_and_of_its_address(run: Upper, batcher: Callable[..., Batcher]) -> None:
    """A request costs 2: one token is read and one generated. An address has the share of four clients."""
    one = batcher(pending_cost=4)
    busy(run, one).future.cancel()
    first = one.submit(job("a", client="1"))
    one.submit(job("a", client="1"))
    with pytest.raises(RequestError, match=r"this client may have an estimated cost of 4 \(--max-pending") as refused:
        one.submit(job("a", client="1"))
    assert (refused.value.status, refused.value.retry_after) == (429, 5)
    for client in ("2", "3", "4"):  # other ids, until the share of the address is used up
        one.submit(job("a", "b", client=client))
    with pytest.raises(RequestError, match="this address or API key may have an estimated cost of 16"):
        one.submit(job("a", client="5"))
    one.submit(job("a", address="elsewhere"))
    assert first.future.cancel()  # which frees the share
    one.submit(job("a", client="5"))
    with pytest.raises(RequestError, match=r"is 6, but may be at most 4") as refused:
        one.submit(job("a", "b", "c", address="elsewhere"))
    assert refused.value.status == 400


def test_streamed_sentences_share_a_batch(run: Upper, batcher: Callable[..., Batcher]) -> None:
    one, way = batcher(), DecodeOptions(Beam(1), is_streamed=True)
    busy(run, one)
    parts: list[tuple[str, int, str]] = []
    waiting = []
    for name in "ab":
        new = job(name, name * 2, way=way)
        new.on_tokens = lambda number, part, name=name: parts.append((name, number, part.text))  # type: ignore[misc]
        waiting.append(one.submit(new))
    run.may.set()
    assert [texts(some) for some in waiting] == [["A", "AA"], ["B", "BB"]]
    assert run.batches[1:] == [["a", "aa", "b", "bb"]]
    assert parts == [("a", 0, "A"), ("a", 1, "AA"), ("b", 0, "B"), ("b", 1, "BB")]


def test_inspections_are_ordered_by_cost(run: Upper, batcher: Callable[..., Batcher]) -> None:
    queue = InspectionQueue(batcher().limits, max_pending=100)
    order: list[int] = []
    jobs = [InspectionJob(inspect=lambda _, cost=cost: order.append(cost), cost=cost) for cost in (3000, 1000, 2000)]
    for one in jobs:
        queue.submit(one)
    queue.start()
    for one in jobs:
        one.future.result(300)
    queue.close()
    assert order == [1000, 2000, 3000]


def test_searches_of_inspections_are_shared(run: Upper, batcher: Callable[..., Batcher]) -> None:
    """Equal keys share a search; a search that fails is repeated by each inspection alone."""
    queue, searched = InspectionQueue(batcher().limits, max_pending=100), []

    def search_all(sources: list[Sequence[int]]) -> list[int]:
        searched.append(sources)
        return [10 * source[0] for source in sources]

    def submit(key: str, number: int, search: Callable[..., list[int]]) -> InspectionJob:
        return queue.submit(InspectionJob(inspect=repr, cost=1, search=SharedSearch(key, [number], search)))

    jobs = [submit(key, number, search_all) for number, key in enumerate("aab")]
    failing = [submit("c", number, lambda _: 1 / 0) for number in range(2)]  # type: ignore[arg-type,return-value]
    queue.start()
    assert [one.future.result(300) for one in jobs] == ["0", "10", "None"], "one that is alone is searched alone"
    assert [one.future.result(300) for one in failing] == ["None", "None"]
    queue.close()
    assert searched == [[[0], [1]]]


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
