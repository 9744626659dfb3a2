"""One computation at a time on the device: short ones first, long ones in the background with a share of their own."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

BACKGROUND_SHARE = 0.1  # of the device's time for long requests while short ones wait
MAX_CREDIT_SECONDS = 0.2  # of background work at a time, after others have had the device
ROUND_ROBIN_SECONDS = 0.1  # after which a long computation lets another long one continue


@dataclass(eq=False)
class Turn:
    """The use of the device by one computation; a background turn can be interrupted between decoding steps."""

    is_background: bool
    granted: threading.Event = field(default_factory=threading.Event)
    start: float = 0.0  # of the present use of the device
    seconds: float = 0.0  # for which the device was used before


class DeviceScheduler:
    """Lets one computation use the device at a time.

    Foreground work (batches of short requests, inspections) is served in the order of arrival. Background work gets the
    device when no foreground work waits, and otherwise for `background_share` of the time, so that it never starves.
    Its holder calls `yield_turn` between decoding steps: foreground work waits for at most one of them.
    """

    def __init__(self, background_share: float = BACKGROUND_SHARE, clock: Callable[[], float] = time.monotonic) -> None:
        """Give background work this share of the time (0 to 1) while foreground work waits; `clock` returns seconds."""
        # seconds that background work earns in a second of foreground work: with 0.1, 1 of 10 seconds, thus 1 per 9
        self.credit_per_second = background_share / (1 - background_share)
        self.clock = clock
        self._lock = threading.Lock()
        self._holder: Turn | None = None  # that uses the device now
        self._foreground: deque[Turn] = deque()
        self._background: deque[Turn] = deque()
        self._credit = 0.0  # seconds that background work may use although foreground work waits

    @contextmanager
    def turn(self, is_background: bool = False) -> Iterator[Turn]:
        """Wait for the device, and hold it within the context.

        Background work waits for foreground work, except for a small share of the time. Its holder must call
        `yield_turn` with the turn regularly, so that others get the device.
        """
        turn = Turn(is_background)
        self._wait_until_granted(turn)
        try:
            yield turn
        finally:
            with self._lock:
                self._release()

    def yield_turn(self, turn: Turn) -> None:
        """Let waiting work use the device if its time has come, and wait to get it back.

        Only background work (`turn.is_background`) gives way: to foreground work when its credit (the seconds that it
        may hold the device while foreground work waits) is used up, and to other background work after
        ROUND_ROBIN_SECONDS.
        """
        if not turn.is_background:
            return
        with self._lock:
            seconds = self.clock() - turn.start  # since it got the device
            if self._foreground:
                if seconds < self._credit:
                    return
            elif not self._background or seconds < ROUND_ROBIN_SECONDS:
                return
            self._release(next_turn=self._foreground.popleft() if self._foreground else None)
        self._wait_until_granted(turn)

    def _wait_until_granted(self, turn: Turn) -> None:
        """Join the queue of foreground or background work, and wait until the device is granted to `turn`."""
        with self._lock:
            turn.granted.clear()
            (self._background if turn.is_background else self._foreground).append(turn)
            if self._holder is None:
                self._grant(self._take_next())  # at least `turn` waits
        turn.granted.wait()

    def _release(self, next_turn: Turn | None = None) -> None:
        """End the present use of the device, and grant it to `next_turn`, or (None) to the next one in order, if any.

        Background work pays for its time with the credit of all background work (the seconds that it may use although
        foreground work waits). Foreground work adds to this credit if background work waits meanwhile. The caller holds
        `_lock`.
        """
        turn, now = self._holder, self.clock()
        assert turn is not None
        seconds = now - turn.start
        turn.seconds += seconds
        if turn.is_background:
            self._credit = max(0.0, self._credit - seconds)
        elif self._background:
            self._credit = min(MAX_CREDIT_SECONDS, self._credit + seconds * self.credit_per_second)
        self._holder = None
        if next_turn is None:
            next_turn = self._take_next()
        if next_turn is not None:
            self._grant(next_turn)

    def _take_next(self) -> Turn | None:
        """Remove the next turn from its queue, and return it; None if nobody waits. The caller holds `_lock`.

        Foreground work comes first, unless the credit of waiting background work has grown to MAX_CREDIT_SECONDS.
        """
        if self._foreground and not (self._background and self._credit >= MAX_CREDIT_SECONDS):
            return self._foreground.popleft()
        return self._background.popleft() if self._background else None

    def _grant(self, turn: Turn | None) -> None:
        """Let the thread that waits for `turn` (not None) use the device from now on; the caller holds `_lock`."""
        assert turn is not None
        self._holder, turn.start = turn, self.clock()
        turn.granted.set()
