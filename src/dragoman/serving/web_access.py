"""Who may use the service from a browser, and at which addresses: host names, other web sites, HEAD requests."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dragoman.errors import UserError
from dragoman.serving.request_parsing import RequestError

ANY = "*"  # all host names, or all origins
ORIGIN = re.compile(r"https?://[^/\s?#@]+|null")  # scheme, host and port
#: addresses for documentation (RFC 5737, RFC 3849): a route to them is that to the internet; nothing is sent there
REMOTE_ADDRESSES = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}


@dataclass(frozen=True)
class WebAccess:
    """Host names of the service, and other web sites that may use it.

    A page of an attacker whose host name is made to point to this machine (DNS rebinding) would be of the same origin
    as the service. So a request must name the service by an IP address, as localhost, by the name of this machine, or
    by one of `allowed_hosts`.

    Attributes:
        allowed_hosts: further host names, such as translate.example.org; "*" accepts all.
        cors_origins: origins of web sites whose scripts may read the responses (CORS), such as https://example.org;
            "*" accepts all.
    """

    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise a UserError if an origin is not one: a browser would never send it."""
        for origin in self.cors_origins:
            if origin != ANY and not ORIGIN.fullmatch(origin):
                raise UserError(
                    f"--cors-origin must be '*', or scheme and host without a path, such as https://example.org, got "
                    f"{origin!r}"
                )

    def accepts_host(self, header: str) -> bool:
        """Whether the service may be called by the name in the `Host` header of a request, such as localhost:5000.

        Allowed are localhost, the name of this machine, IP addresses and `allowed_hosts`: a page of an attacker cannot
        have such a name.
        """
        if ANY in self.allowed_hosts or not header:  # a browser always sends a host
            return True
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
        except ValueError:
            return False
        machine = socket.gethostname().lower()
        own_names = {"localhost", machine, f"{machine}.local", *map(str.lower, self.allowed_hosts)}
        return name in own_names or name.endswith(".localhost") or _is_address(name)


class HostCheck:
    """ASGI middleware that rejects requests for other host names, and answers HEAD like GET, without a body."""

    def __init__(self, app: ASGIApp, access: WebAccess) -> None:
        """Pass requests on to the application `app` if they call it by a host name that `access` accepts."""
        self.app, self.access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with status 421 (misdirected request) if it names another host.

        A HEAD request is passed on as GET, and answered without a body.
        """
        if scope["type"] != "http":  # such as lifespan events of ASGI
            await self.app(scope, receive, send)
            return
        host = Headers(scope=scope).get("host", "")
        if not self.access.accepts_host(host):
            message = f"this service is not called {host!r}: use its address, or start it with --allowed-host NAME"
            await RequestError(421, message).response()(scope, receive, send)
        elif scope["method"] == "HEAD":
            await self.app({**scope, "method": "GET"}, receive, _without_body(send))
        else:
            await self.app(scope, receive, send)


def _without_body(send: Send) -> Send:
    """Return an ASGI send function that sends status and headers, but an empty body."""

    async def send_headers(message: Message) -> None:
        """Send a message of the response without its part of the body."""
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return send_headers


def _is_address(name: str) -> bool:
    """Whether a host name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def reachable_urls(address: str, port: int, scheme: str = "http") -> list[str]:
    """Return the URLs of a server that listens at an address, first those that other machines can use, if any.

    Instead of 0.0.0.0 and ::, which stand for all addresses of this machine, those in its networks are returned, and
    localhost.
    """
    names = [address]
    if ipaddress.ip_address(address).is_unspecified:
        names = [*network_addresses(include_ipv6=":" in address), "localhost"]
    return [f"{scheme}://{f'[{name}]' if ':' in name else name}:{port}" for name in names]


def network_addresses(include_ipv6: bool) -> list[str]:
    """Return the addresses (IPv4, and IPv6 if `include_ipv6`) at which other machines may reach this one.

    The first are those from which it would reach the internet: nothing is sent, connecting a UDP socket only chooses
    its own address. A network without a route to the internet is found by the name of this machine.
    """
    addresses = []
    for family in (socket.AF_INET, socket.AF_INET6) if include_ipv6 else (socket.AF_INET,):
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect((REMOTE_ADDRESSES[family], 9))  # any port
                addresses.append(str(probe.getsockname()[0]))
            except OSError:  # no route
                pass
        try:
            own = socket.getaddrinfo(socket.gethostname(), None, family, socket.SOCK_DGRAM)
        except OSError:  # the name has no address
            continue
        addresses += [str(entry[4][0]) for entry in own]
    usable = (address for address in addresses if "%" not in address and not ipaddress.ip_address(address).is_loopback)
    return list(dict.fromkeys(usable))
