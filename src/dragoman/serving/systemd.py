"""Messages to systemd: the service is ready, reloads, stops, or is alive. Elsewhere nothing happens."""

from __future__ import annotations

import asyncio
import os
import socket
import time


def notify_systemd(*lines: str) -> None:
    """Send lines such as READY=1 to the socket that systemd gives to services of type notify (see sd_notify(3)).

    Without such a socket, nothing happens.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        try:
            # @ stands for the zero byte with which the name of an abstract socket begins
            sender.connect(f"\0{address[1:]}" if address.startswith("@") else address)
            sender.send("\n".join(lines).encode())
        except OSError:  # nobody listens
            return


def notify_reloading() -> None:
    """Tell systemd that a reload begins, with the time in microseconds; READY=1 tells that it has ended."""
    notify_systemd("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")


async def keep_watchdog_quiet() -> None:
    """Tell systemd at half its interval (WatchdogSec) that the event loop works, until canceled.

    Without an interval, nothing happens.
    """
    try:
        interval = int(os.environ.get("WATCHDOG_USEC", "")) / 1e6 / 2  # from microseconds to seconds, and half of it
    except ValueError:
        return
    while interval > 0:
        notify_systemd("WATCHDOG=1")
        await asyncio.sleep(interval)
