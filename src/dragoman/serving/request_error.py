"""Requests that are not answered."""

from __future__ import annotations


class RequestError(Exception):
    """A request that is refused: an HTTP status, a plain sentence, and when to come again if that helps."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after
