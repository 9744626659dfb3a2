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

QUOTA_SAVE_SECONDS = 5.0


def _now() -> datetime:
    """Return the present time, UTC."""
    return datetime.now(UTC)


class Quotas:
    """Counts what API keys have used. A day ends at midnight, UTC.

    With a file, the characters of the day survive a restart: it is written every few seconds if they have changed, and
    when the service stops.
    """

    def __init__(self, file: Path | None = None, now: Callable[[], datetime] = _now) -> None:
        """Continue with the counts in `file`, if it exists; None: begin with zero. `now` returns the time."""
        self.file, self._now = file, now
        self._lock, self._stopped = threading.Lock(), threading.Event()
        self._limiters: dict[str, RateLimiter] = {}
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
        """Save the counts."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        self.save()

    def check_rate(self, key: ApiKey) -> None:
        """Count a request with a key; raise a RequestError (429) if it has sent too many per minute."""
        limit = key.requests_per_minute
        if not limit:
            return
        limiter = self._limiters.get(key.name)
        if limiter is None or limiter.per_second != limit / 60:  # the limit was changed
            limiter = self._limiters[key.name] = RateLimiter(limit)
        try:
            limiter.take(key.name, limiter.per_second)
        except RequestError as error:
            message = f"the API key {key.name!r} may send {limit:,} requests per minute: slow down"
            raise RequestError(429, message, error.retry_after) from None

    def used_characters(self, name: str) -> int:
        """Return the number of characters that the key with a name has used today."""
        with self._lock:
            self._begin_day()
            return self._characters[name]

    def seconds_until_reset(self) -> float:
        """Return the seconds until the counts of the day are reset."""
        now = self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - now).total_seconds()

    def use_characters(self, key: ApiKey, characters: int) -> None:
        """Count the characters of a request; raise a RequestError (429) if that exceeds the daily quota of the key."""
        limit = key.characters_per_day
        with self._lock:
            self._begin_day()
            left = None if limit is None else limit - self._characters[key.name]
            if left is None or characters <= left:
                self._characters[key.name] += characters
                self._changed = True
                return
        raise RequestError(
            429,
            f"the API key {key.name!r} may use {limit:,} characters per day and has {max(0, left):,} left, but the "
            f"request has {characters:,}: try again after midnight (UTC)",
            retry_after=self.seconds_until_reset(),
        )

    def return_characters(self, key: ApiKey, characters: int) -> None:
        """Take back the characters of a request that the service failed to answer."""
        with self._lock:
            self._characters[key.name] = max(0, self._characters[key.name] - characters)
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
        """Reset the counts if a new day has begun."""
        day = self._now().date().isoformat()
        if day != self._day:
            self._day, self._characters = day, Counter()
            self._changed = True

    def _content(self) -> str:
        """Return the content of the file: the day and its characters by name of the key, as JSON."""
        return json.dumps({"day": self._day, "characters": dict(self._characters)}, indent=1) + "\n"

    def _read(self, file: Path) -> None:
        """Continue with the counts in the file, unless they are those of an earlier day; a missing file is none."""
        try:
            document = json.loads(file.read_text(encoding="utf-8"))
            day, counts = document["day"], {str(name): int(n) for name, n in document["characters"].items()}
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                f"the file of quotas {file} cannot be read: it must be one that the service has written; delete it to "
                "begin with zero"
            ) from None
        if day == self._day:
            self._characters.update(counts)
