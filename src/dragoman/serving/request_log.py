"""ASGI middleware around all others: request ids, the log, metrics of requests by run, and internal errors."""

from __future__ import annotations

import time

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import REQUEST_ID_PATTERN, RequestRecord, new_request_id, set_request_record
from dragoman.serving.service import Service
from dragoman.serving.service_log import LogSettings, log_failure, log_request

#: headers of responses: the id of the request, and the run and version that answered it
ID_HEADER, RUN_HEADER, VERSION_HEADER = "x-request-id", "x-dragoman-run", "x-dragoman-version"
MAX_CLIENT_ID_CHARACTERS = 128


class RequestLog:
    """Gives every request an id, logs and counts it, and answers an internal error with status 500.

    The id is that of the header `X-Request-Id` if it is valid. Every response has it in a header, too.
    """

    def __init__(self, app: ASGIApp, service: Service, settings: LogSettings) -> None:
        """Log the requests to the application `app` of the service; `settings` say what is logged."""
        self.app, self.service, self.settings = app, service, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and log and count it when it has been answered.

        An unexpected error is logged, and answered with status 500. If the service fails, `record.on_failure` is
        called.
        """
        if scope["type"] != "http":  # such as lifespan events of ASGI
            await self.app(scope, receive, send)
            return
        record, started = _new_record(scope), False  # started: whether headers have been sent
        record.hides_texts = not self.settings.texts
        set_request_record(record)  # for the functions that answer the request

        async def send_with_id(message: Message) -> None:
            """Send a message of the response; its headers get the id of the request and the run."""
            nonlocal started
            if message["type"] == "http.response.start":
                started, record.status = True, message["status"]
                headers = MutableHeaders(scope=message)
                headers[ID_HEADER] = record.id
                if record.run:
                    headers[RUN_HEADER], headers[VERSION_HEADER] = record.run, record.version
            await send(message)

        self.service.active_requests.add(record)
        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            record.status = 500
            log_failure(record)
            if not started:
                message = f"the service failed: see its log for the request {record.id}"
                await RequestError(500, message).response()(scope, receive, send_with_id)
        finally:
            self.service.active_requests.discard(record)
            if record.status >= 500 and record.on_failure is not None:
                record.on_failure()  # such as returning the characters to the quota of an API key
            self._count(record)
            log_request(record, self.settings)

    def _count(self, record: RequestRecord) -> None:
        """Count a request in the metrics of the run that answered it, with its time and its time in the queue."""
        metrics = self.service.metrics
        if record.run:
            metrics.run_requests.labels(record.run, record.version, str(record.status)).inc()
            metrics.run_seconds.labels(record.run).observe(time.monotonic() - record.start)
        if record.queue_seconds is not None:
            metrics.queue_seconds.labels(record.run).observe(record.queue_seconds)


def _new_record(scope: Scope) -> RequestRecord:
    """Return the record of a request that has arrived, with its id, method, address and client id.

    The request id is that of its header, or a new one if the header is missing or has forbidden characters.
    """
    headers = Headers(scope=scope)
    client_request_id = headers.get(ID_HEADER, "")
    address, _port = scope.get("client") or ("", 0)
    return RequestRecord(
        id=client_request_id if REQUEST_ID_PATTERN.fullmatch(client_request_id) else new_request_id(),
        method=scope["method"],
        address=address,
        client_id=headers.get("x-client-id", "")[:MAX_CLIENT_ID_CHARACTERS],
    )
