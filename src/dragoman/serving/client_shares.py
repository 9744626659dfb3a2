"""What a client may use of something limited, such as streams or the computing time of waiting requests."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Literal

from dragoman.serving.request_record import RequestRecord

ExceededLimit = Literal["total", "address", "client"]


class ClientShares:
    """Amounts in use, in total, by each address (or API key) and by each client behind it.

    A client is recognized by the id that it sends (`X-Client-Id`), as the web page does: the users of a lecture hall
    share an address. Ids are free, so all clients of an address together have a limit, too: that of
    `clients_per_address` clients. Requests without an id count for their address only.
    """

    def __init__(self, total: float, per_client: float, clients_per_address: int) -> None:
        """Allow these amounts in total and to a client, and to an address that of `clients_per_address` clients."""
        self.total, self.per_client, self.per_address = total, per_client, per_client * clients_per_address
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()  # by address or key, by client, and "" in total

    def acquire(self, record: RequestRecord, amount: int) -> ExceededLimit | None:
        """Take an amount for the client of a request; return the name of the limit that forbids it, or None."""
        owners = self._owners(record)
        with self._lock:
            for owner, (name, limit) in owners.items():
                if self._used[owner] + amount > limit:
                    return name
            self._used.update(dict.fromkeys(owners, amount))
        return None

    def release(self, record: RequestRecord, amount: int) -> None:
        """Give back an amount that `acquire` took for the client of a request."""
        owners = self._owners(record)
        with self._lock:
            self._used.subtract(dict.fromkeys(owners, amount))
            for owner in owners:
                if not self._used[owner]:
                    del self._used[owner]

    def used(self, record: RequestRecord) -> int:
        """Return what the client of a request uses: its address or key, if it has no id."""
        return self._used[list(self._owners(record))[-1]]

    def _owners(self, record: RequestRecord) -> dict[str, tuple[ExceededLimit, float]]:
        """Return those whose use a request counts for, with the names and sizes of their limits."""
        owners: dict[str, tuple[ExceededLimit, float]] = {
            "": ("total", self.total),
            record.group: ("address", self.per_address),
        }
        if record.client_id:
            owners[record.identity] = "client", self.per_client
        return owners
