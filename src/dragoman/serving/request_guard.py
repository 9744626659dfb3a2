"""Checks before every request: limits on its body, request metrics, and rate limits per client."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import RequestRecord, request_record
from dragoman.serving.service_metrics import Metrics
from dragoman.serving.service_settings import ServiceLimits

MAX_TRACKED_CLIENTS = 10_000
MAX_DISCARD_FACTOR = 64  # × max_body_bytes that are read and discarded, so that the client receives the error
UPLOAD_PATH = "/translate_file"  # whose body is a document
MULTIPART_BYTES = 10_000  # of other fields in the body of an upload
BURST_SECONDS = 10  # a client may use the requests of this many seconds at once


class RequestGuard:
    """ASGI middleware that reads the body within its limits, and counts requests by route and status."""

    def __init__(self, app: ASGIApp, limits: ServiceLimits, metrics: Metrics) -> None:
        """Guard the application `app` by the `limits` on size and receive time of bodies; `metrics` count requests."""
        self.app, self.limits, self.metrics = app, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body of a request, pass the request to the application, and count it by route and status.

        A body that is too large or too slow is answered with an error. If the client disconnects before the body is
        complete, nothing is answered, and the request counts with status 499.
        """
        if scope["type"] != "http":  # such as lifespan events of ASGI
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), 500  # status if the application raises an error before it answers

        async def send_and_record(message: Message) -> None:
            """Send a message of the response, and remember its status."""
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            try:
                async with asyncio.timeout(self.limits.receive_timeout):
                    body = await self._read_body(receive, self._max_bytes(scope))
            except TimeoutError:
                limit = f"{self.limits.receive_timeout:g} seconds"
                raise RequestError(408, f"the request did not arrive within {limit}") from None
            await self.app(scope, _replay(body, receive), send_and_record)
        except RequestError as error:
            await error.response()(scope, receive, send_and_record)
        except _DisconnectedError:
            status = request_record().status = 499  # client closed request
        finally:
            # the router has stored the route in the scope: its path without values, or "other" for an unknown path
            route = request_record().route = getattr(scope.get("route"), "path", "other")
            self.metrics.requests.labels(route, str(status)).inc()
            self.metrics.request_seconds.labels(route).observe(time.monotonic() - start)

    def _max_bytes(self, scope: Scope) -> int:
        """Return the largest body in bytes that is accepted for the path of a request: more for a document."""
        is_upload = scope["path"] == UPLOAD_PATH
        return self.limits.max_file_bytes + MULTIPART_BYTES if is_upload else self.limits.max_body_bytes

    async def _read_body(self, receive: Receive, limit: int) -> bytes:
        """Return the whole body; reject one above `limit` bytes, and stop reading one that is far too large.

        If the client disconnects before its end, a _DisconnectedError is raised.
        """
        body, size = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size <= limit:
                body += chunk
            # a body that is too large is read to its end, unless that is far away, so that the client gets the error
            if size > MAX_DISCARD_FACTOR * limit or (size > limit and not more):
                raise RequestError(413, f"a request may have at most {limit:,} bytes: send the text in parts")
            if not more:
                return bytes(body)


class _DisconnectedError(Exception):
    """The client disconnected before its request was complete."""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return an ASGI receive function for a body that was read already.

    It first delivers `body` as one message, and then the messages of `receive`, such as a disconnect.
    """
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        """Return the body, or the next message of the client."""
        return messages.pop() if messages else await receive()

    return replayed


class RateLimiter:
    """A token bucket per client, refilled with `requests_per_minute`; 0 disables the limit.

    All clients of an address or API key have a bucket, too, which is larger (see `ClientShares`).
    """

    def __init__(self, requests_per_minute: int, clients_per_address: int = 1) -> None:
        """Allow each client this number of requests per minute, and at once those of BURST_SECONDS. 0: no limit.

        All clients of an address or API key together may send those of `clients_per_address` clients.
        """
        self.per_second, self.clients_per_address = requests_per_minute / 60, clients_per_address
        # client or address → (requests that it may send at once, time at which that was true)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, record: RequestRecord) -> None:
        """Count a request; raise a RequestError (429) if its client, or its address or API key, has sent too many."""
        if not self.per_second:  # 0: no limit
            return
        # `take` returns the seconds until the next request is allowed, 0 if this one is
        if record.client_id and (seconds := self.take(record.identity, self.per_second)):
            limit = f"a client may send {60 * self.per_second:,.0f} per minute (--requests-per-minute)"
            raise RequestError(429, f"too many requests: {limit}", seconds)
        shared = self.per_second * self.clients_per_address
        if seconds := self.take(record.address_or_key, shared):
            limit = f"all clients of an address or API key may send {60 * shared:,.0f} per minute"
            raise RequestError(429, f"too many requests: {limit} (--clients-per-address)", seconds)

    def take(self, name: str, per_second: float) -> float:
        """Count a request of the client or address `name`, which may send `per_second`, and return 0.

        If it has sent too many, return the seconds until it may send the next one. This is a token bucket: its level is
        the number of requests that may be sent at once. A request takes 1, and the level rises by `per_second` up to
        the requests of BURST_SECONDS.
        """
        now, capacity = time.monotonic(), max(1.0, per_second * BURST_SECONDS)
        level, updated = self._buckets.pop(name, (capacity, now))  # stored again below, as the latest one
        level = min(capacity, level + (now - updated) * per_second)
        self._buckets[name] = (level - 1 if level >= 1 else level), now
        while len(self._buckets) > MAX_TRACKED_CLIENTS:
            self._buckets.popitem(last=False)  # that of the client whose last request is the oldest
        return max(0.0, 1 - level) / per_second  # seconds until the level is 1
