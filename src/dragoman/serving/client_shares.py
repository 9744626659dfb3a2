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
        """Allow `total` to all clients, `per_client` to each, and `clients_per_address` times that to an address.

        The unit is that of the limited resource, such as streams or the cost of waiting requests.
        """
        self.total, self.per_client, self.per_address = total, per_client, per_client * clients_per_address
        self._lock = threading.Lock()
        self._used: Counter[str] = Counter()  # amount in use by client, by address or API key, and of all under ""

    def acquire(self, record: RequestRecord, amount: int) -> ExceededLimit | None:
        """Take an amount for the client of the request `record`, and return None.

        If that exceeds a limit, nothing is taken, and the name of the limit is returned.
        """
        limits = self._limits(record)
        with self._lock:
            for key, (name, limit) in limits.items():
                if self._used[key] + amount > limit:
                    return name
            self._used.update(dict.fromkeys(limits, amount))  # adds the amount to each
        return None

    def release(self, record: RequestRecord, amount: int) -> None:
        """Give back an amount that `acquire` took for the client of the request `record`."""
        keys = self._limits(record).keys()
        with self._lock:
            self._used.subtract(dict.fromkeys(keys, amount))
            for key in keys:
                if not self._used[key]:
                    del self._used[key]  # so that the counter does not grow with every client

    def used(self, record: RequestRecord) -> int:
        """Return the amount in use by the client of a request; without a client id, by its address or API key."""
        return self._used[record.identity if record.client_id else record.address_or_key]

    def _limits(self, record: RequestRecord) -> dict[str, tuple[ExceededLimit, float]]:
        """Return the limits of a request by their keys in `_used`: (name of the limit, its size).

        These are of all requests, of the address or API key, and of the client if the request has a client id.
        """
        limits: dict[str, tuple[ExceededLimit, float]] = {
            "": ("total", self.total),
            record.address_or_key: ("address", self.per_address),
        }
        if record.client_id:
            limits[record.identity] = "client", self.per_client
        return limits
