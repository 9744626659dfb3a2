"""What is known about a request while it is answered: its id, client, run, texts and times, for logs and metrics."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

#: accepted values of the header X-Request-Id
REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")


def new_request_id() -> str:
    """Return a random id for a request."""
    return uuid.uuid4().hex


@dataclass(eq=False)
class RequestRecord:
    """A request and what became of it.

    Attributes:
        id: the client's header `X-Request-Id`, or a random one
        method: the HTTP method
        start: time of arrival on the monotonic clock, in seconds
        route: path of the route, such as /v1/runs/{name}/curves, without values from the request
        status: HTTP status of the response; 499: the client disconnected
        client: name of the API key, "" without one
        address: IP address of the client
        client_id: the client's header `X-Client-Id`, which names one user of many behind an address
        priority: that of the API key; requests with a higher one are preferred
        run, version: the run that answered, and its version
        characters: number of characters of the texts
        queue_seconds: time that the request waited before its first sentence was translated
        texts: texts of the request, which are private
        hides_texts: whether texts must not be logged
        error: message of a rejected or failed request
        on_failure: called if the service fails to answer (status 500 or above)
    """

    id: str = field(default_factory=new_request_id)
    method: str = ""
    start: float = field(default_factory=time.monotonic)
    route: str = "other"
    status: int = 500
    client: str = ""
    address: str = ""
    client_id: str = ""
    priority: int = 0
    run: str = ""
    version: str = ""
    characters: int = 0
    queue_seconds: float | None = None
    texts: Sequence[str] = ()
    hides_texts: bool = True
    error: str = ""
    on_failure: Callable[[], None] | None = None

    @property
    def address_or_key(self) -> str:
        """The API key of the request by name, or its address without one; several clients may share it."""
        return f"key {self.client}" if self.client else f"address {self.address}"

    @property
    def identity(self) -> str:
        """The client as far as it is known: its API key (by name) or address, and its client id if it sends one."""
        return f"{self.client or self.address}/{self.client_id}"


_current: ContextVar[RequestRecord | None] = ContextVar("request_record", default=None)


def request_record() -> RequestRecord:
    """Return the record of the request that is being answered; outside of a request, a new one that nobody reads."""
    return _current.get() or RequestRecord()


def set_request_record(record: RequestRecord) -> None:
    """Make `record` that of the request that is being answered."""
    _current.set(record)
