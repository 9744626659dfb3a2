"""A connection that is not held open by a client that says nothing, or its headers a letter at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

Connection: Any = AutoHTTPProtocol  # of whichever library reads HTTP here


def header_timeout_protocol(patience: float) -> type[asyncio.Protocol]:
    """Connections that end where no request's headers have come for so many seconds; uvicorn waits for them for ever.

    For a body the application waits itself, and between requests uvicorn does.
    """

    class Impatient(Connection):
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            self._watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget()
            super().connection_lost(exc)

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
                self._forget()
            elif self.late is None:
                self.late = self.loop.call_later(patience, self._end)

        def _forget(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

        def _end(self) -> None:
            said = json.dumps({"error": f"the request did not come within {patience:g} seconds"}).encode()
            head = "HTTP/1.1 408 Request Timeout\r\ncontent-type: application/json\r\nconnection: close\r\n"
            self.transport.write(f"{head}content-length: {len(said)}\r\n\r\n".encode() + said)
            self.transport.close()

    return Impatient
