"""Quotas of API keys: requests per minute and characters per day."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dragoman.errors import UserError
from dragoman.serving.api_keys import ApiKey
from dragoman.serving.request_guard import RateLimiter
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.service_log import logger
from dragoman.storage import write_file

QUOTA_SAVE_SECONDS = 5.0  # between two writes of the counts to the file


def _now() -> datetime:
    """Return the present time, UTC."""
    return datetime.now(UTC)


class Quotas:
    """Counts what API keys have used. A day ends at midnight, UTC.

    With a file, the characters of the day survive a restart: it is written every few seconds if they have changed, and
    when the service stops.
    """

    def __init__(self, file: Path | None = None, now: Callable[[], datetime] = _now) -> None:
        """Continue with the counts in `file`, if it exists; None: begin with zero. `now` returns the time (UTC)."""
        self.file, self._now = file, now
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._limiters: dict[str, RateLimiter] = {}  # by name of the key
        self._day, self._characters = now().date().isoformat(), Counter[str]()
        self._changed = False
        self._thread = threading.Thread(target=self._save_regularly, name="saving quotas", daemon=True)
        if file is not None:
            self._read(file)
            write_file(file, self._content())  # a file that cannot be written is reported at once

    def start(self) -> None:
        """Begin to save the counts every few seconds, if there is a file."""
        if self.file is not None:
            self._thread.start()

    def close(self) -> None:
        """Stop the thread that saves the counts every few seconds, and save them once more."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self.save()

    def check_rate(self, key: ApiKey) -> None:
        """Count a request with a key; raise a RequestError (429) if it has sent too many per minute."""
        limit = key.requests_per_minute
        if not limit:  # 0: unlimited; None: the service applies its own limit
            return
        limiter = self._limiters.get(key.name)
        if limiter is None or limiter.per_second != limit / 60:  # the limit was changed
            limiter = self._limiters[key.name] = RateLimiter(limit)
        if seconds := limiter.take(key.name, limiter.per_second):  # until the next request is allowed; 0: now
            message = f"the API key {key.name!r} may send {limit:,} requests per minute: slow down"
            raise RequestError(429, message, seconds)

    def used_characters(self, name: str) -> int:
        """Return the number of characters that the key called `name` has used today (UTC)."""
        with self._lock:
            self._begin_day()
            return self._characters[name]

    def seconds_until_reset(self) -> float:
        """Return the seconds until midnight (UTC), when the counts of the day are reset."""
        now = self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - now).total_seconds()

    def use_characters(self, key: ApiKey, characters: int) -> str:
        """Count the characters of a request, and return the day for which they count.

        If that exceeds the daily quota of the key, nothing is counted, and a RequestError (429) is raised.
        """
        limit = key.characters_per_day
        with self._lock:
            self._begin_day()
            left = None if limit is None else limit - self._characters[key.name]
            if left is None or characters <= left:
                self._characters[key.name] += characters
                self._changed = True
                return self._day
        raise RequestError(
            429,
            f"the API key {key.name!r} may use {limit:,} characters per day and has {max(0, left):,} left, but the "
            f"request has {characters:,}: try again after midnight (UTC)",
            retry_after=self.seconds_until_reset(),
        )

    def return_characters(self, key: ApiKey, characters: int, day: str) -> None:
        """Take back the characters of a request that the service failed to answer, unless their day has ended.

        `day` is the result of `use_characters` for the request.
        """
        with self._lock:
            self._begin_day()
            if day == self._day:
                self._characters[key.name] -= characters
                self._changed = True

    def save(self) -> None:
        """Write the counts to the file, if there is one and they have changed; a failure is logged."""
        if self.file is None or not self._changed:
            return
        with self._lock:
            content, self._changed = self._content(), False
        try:
            write_file(self.file, content)
        except UserError as error:
            self._changed = True
            logger.error("the quotas of API keys cannot be saved: %s", error)

    def _save_regularly(self) -> None:
        """Save the counts every few seconds until the service stops."""
        while not self._stopped.wait(QUOTA_SAVE_SECONDS):
            self.save()

    def _begin_day(self) -> None:
        """Reset the counts of characters if a new day has begun (UTC); the caller holds `_lock`."""
        day = self._now().date().isoformat()
        if day != self._day:
            self._day, self._characters = day, Counter()
            self._changed = True

    def _content(self) -> str:
        """Return the content of the file: the day and its characters by name of the key, as JSON."""
        return json.dumps({"day": self._day, "characters": dict(self._characters)}, indent=1) + "\n"

    def _read(self, file: Path) -> None:
        """Continue with the counts in the file, unless they are those of another day.

        A missing file is no error, but one that cannot be read is a UserError.
        """
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            day, counts = document["day"], {str(name): int(n) for name, n in document["characters"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"the file {file} of --quota-file, in which the service stores how many characters each API key "
                "has translated today, cannot be read or is damaged: delete it to begin with zero characters"
            ) from None
        if day == self._day:
            self._characters.update(counts)
