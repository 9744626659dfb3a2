"""Weighted routes: requests are divided between runs of the same languages, to compare them (A/B tests)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from dragoman.errors import UserError, unknown_name

RouteBy = Literal["client", "text"]
EXAMPLE_ROUTE = "en-de=first:0.9,second:0.1"


@dataclass(frozen=True)
class WeightedRoute:
    """A name under which several runs answer, each for a share of the clients.

    Attributes:
        name: name that requests may give as their run
        weights: weight of each run; only their ratios count
    """

    name: str
    weights: dict[str, float]

    @property
    def shares(self) -> dict[str, float]:
        """The share of requests (0 to 1) that each run gets, by its name."""
        total = sum(self.weights.values())
        return {run: weight / total for run, weight in self.weights.items()}

    def choose(self, identity: str) -> str:
        """Return the name of the run for a client or a text (`identity`): always the same for the same one.

        A hash of the identity is a point in [0, 1), which the shares of the runs divide in their order. So a change of
        the weights moves only as many clients as it must.
        """
        digest = hashlib.sha256(f"{self.name}\0{identity}".encode(errors="surrogatepass")).digest()
        point, end = int.from_bytes(digest[:8]) / 2**64, 0.0  # end: of the interval of a run
        for run, share in self.shares.items():
            end += share
            if point < end:
                return run
        # the sum of the shares was rounded to less than 1: the last run that has a share
        return next(run for run in reversed(self.weights) if self.weights[run])


def parse_route(argument: str) -> WeightedRoute:
    """Parse a route NAME=RUN:WEIGHT,RUN:WEIGHT… of the command line, such as en-de=first:0.9,second:0.1.

    It is a UserError if a part is missing, a run is named twice, or no weight is above 0.
    """
    name, equals, runs = argument.rpartition("=")  # the last one: a name may contain "=", and that of a run ":"
    weights: dict[str, float] = {}
    for part in runs.split(","):
        run, _, weight = part.rpartition(":")
        try:
            value = float(weight)
        except ValueError:
            value = math.nan  # rejected below
        if not equals or not name or not run or not 0 <= value < math.inf:
            raise UserError(
                f"the route {argument!r} must have a name, and runs with weights of at least 0 (their shares of the "
                f"requests), such as {EXAMPLE_ROUTE}: correct it"
            )
        if run in weights:
            raise UserError(
                f"the route {name!r} (a name under which several runs answer, each with a share of the requests) lists "
                f"the run {run!r} twice: list it once, with the sum of its shares"
            )
        weights[run] = value
    if not any(weights.values()):
        raise UserError(
            f"the route {name!r} has only weights of 0 (shares of the requests): give at least one of its runs a "
            f"weight above 0, such as {EXAMPLE_ROUTE}"
        )
    return WeightedRoute(name, weights)


def check_routes(routes: Iterable[WeightedRoute], runs: Iterable[str]) -> dict[str, WeightedRoute]:
    """Return the routes by name after checking them; `runs` are the names of all runs.

    A UserError says that a route has the name of a run or of another route, or names an unknown run.
    """
    known, checked = list(runs), dict[str, WeightedRoute]()
    for route in routes:
        if route.name in known or route.name in checked:
            kind = "run" if route.name in known else "route"
            raise UserError(
                f"the route {route.name!r} (a name under which several runs answer, each with a share of the requests) "
                f"has the name of a {kind} that exists already: rename the route"
            )
        for run in route.weights:
            if run not in known:
                raise UserError(f"--route {route.name}: {unknown_name('run', run, known)}")
        checked[route.name] = route
    return checked
