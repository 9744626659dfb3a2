"""What stands before every request: its body is read within limits, and it is counted."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serving.request_error import RequestError
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import ServiceLimits

CLIENTS = 10_000  # whose rates are remembered
SPILT = 64  # times the limit that is read and thrown away, so that a client hears what was wrong


class RequestGuard:
    """Reads the body of a request up to a number of bytes and a time; counts requests by route and status."""

    def __init__(self, app: ASGIApp, limits: ServiceLimits, metrics: Metrics) -> None:
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), 500

        async def watched(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            try:
                async with asyncio.timeout(self.limits.receive_timeout):
                    body = await self._body(receive)
            except TimeoutError:
                raise RequestError(
                    408, f"the request did not come within {self.limits.receive_timeout:g} seconds"
                ) from None
            await self.app(scope, _again(body, receive), watched)
        except RequestError as refused:
            await _answer(watched, refused)
        except _LeftError:
            status = 499
        finally:
            route = getattr(scope.get("route"), "path", "other")
            seconds = time.monotonic() - began
            self.metrics.count(
                "dragoman_requests_total", "Requests by route and status.", route=route, status=str(status)
            )
            self.metrics.observe(
                "dragoman_request_seconds", "The time until a request was answered.", seconds, route=route
            )

    async def _body(self, receive: Receive) -> bytes:
        body, size = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _LeftError
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= self.limits.max_body_bytes:
                body += chunk
            if size > SPILT * self.limits.max_body_bytes or (
                size > self.limits.max_body_bytes and not message.get("more_body")
            ):
                raise RequestError(
                    413, f"a request may have {self.limits.max_body_bytes:,} bytes: send the text in parts"
                )
            if not message.get("more_body"):
                return bytes(body)


class _LeftError(Exception):
    """The client has left before it had said what it wanted."""


def _again(body: bytes, receive: Receive) -> Receive:
    """The body that was read, and then whatever comes."""
    told = False

    async def told_again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return told_again


def error_headers(refused: RequestError) -> dict[str, str]:
    return {} if refused.retry_after is None else {"retry-after": str(max(1, round(refused.retry_after + 0.5)))}


async def _answer(send: Send, refused: RequestError) -> None:
    text = json.dumps({"error": refused.message}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
    headers += [(name.encode(), value.encode()) for name, value in error_headers(refused).items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": text})


class RateLimiter:
    """A bucket for each client that fills with so many requests a minute, up to those of ten seconds."""

    def __init__(self, rate: int) -> None:
        self.rate, self.most = rate / 60, max(1.0, rate / 6)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is in it, and when that was

    def check(self, client: str) -> None:
        """Count a request of a client, or refuse it."""
        if not self.rate:
            return
        now = time.monotonic()
        left, then = self._buckets.pop(client, (self.most, now))
        left = min(self.most, left + (now - then) * self.rate)
        self._buckets[client] = max(left - 1, 0) if left >= 1 else left, now
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        if left < 1:
            raise RequestError(429, "too many requests: slow down", retry_after=(1 - left) / self.rate)
