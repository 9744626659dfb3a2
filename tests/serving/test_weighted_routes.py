"""Weighted routes between runs of the same languages."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits, create_app
from dragoman.serving.weighted_routes import WeightedRoute, check_routes, parse_route

CLIENTS = [f"client {number}" for number in range(10_000)]


def test_shares_are_proportional_to_weights() -> None:
    assert WeightedRoute("r", {"a": 9, "b": 1}).shares == {"a": 0.9, "b": 0.1}
    counts = Counter(WeightedRoute("r", {"a": 9, "b": 1}).choose(client) for client in CLIENTS)
    # binomial with standard deviation √(10,000 · 0.9 · 0.1) = 30
    assert abs(counts["a"] - 9000) < 4 * math.sqrt(len(CLIENTS) * 0.9 * 0.1)
    assert {WeightedRoute("r", {"a": 0, "b": 1}).choose(client) for client in CLIENTS} == {"b"}
    assert {WeightedRoute("r", {"a": 1, "b": 0}).choose(client) for client in CLIENTS} == {"a"}


def test_a_client_keeps_its_run_unless_the_weights_move_it() -> None:
    before, after = WeightedRoute("r", {"a": 0.9, "b": 0.1}), WeightedRoute("r", {"a": 0.7, "b": 0.3})
    assert all(before.choose(client) == before.choose(client) for client in CLIENTS[:100])
    moves = Counter((before.choose(client), after.choose(client)) for client in CLIENTS)
    assert moves["b", "a"] == 0
    other = WeightedRoute("other", {"a": 0.5, "b": 0.5})  # routes are independent of each other
    same = WeightedRoute("same", {"a": 0.5, "b": 0.5})
    agreeing = sum(other.choose(client) == same.choose(client) for client in CLIENTS)
    assert abs(agreeing - 5000) < 4 * 50


@pytest.mark.parametrize(
    ("argument", "weights"),
    [("en-de=a:0.9,b:0.1", {"a": 0.9, "b": 0.1}), ("x=y=a:1", {"a": 1}), ("r=a:b:2,c:0", {"a:b": 2, "c": 0})],
)
def test_routes_are_parsed(argument: str, weights: dict[str, float]) -> None:
    route = parse_route(argument)
    assert (route.name, route.weights) == (argument.rpartition("=")[0], weights)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        *((wrong, "such as en-de=") for wrong in ("", "a", "=a:1", "r=", "r=a", "r=a:x", "r=:1", "r=a:-1", "r=a:nan")),
        ("r=a:inf", "such as en-de="),
        ("r=a:1,a:2", "twice"),
        ("r=a:0,b:0", "only weights of 0"),
    ],
)
def test_wrong_routes(argument: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        parse_route(argument)


def test_names_of_routes_and_runs() -> None:
    for route, said in (("first=first:1", "name of a run"), ("r=frist:1", "did you mean 'first'")):
        with pytest.raises(UserError, match=said):
            check_routes([parse_route(route)], ["first", "second"])
    with pytest.raises(UserError, match="name of a route"):
        check_routes([parse_route("r=first:1"), parse_route("r=first:1")], ["first"])


def service_with_route(run: Run, second: LanguagePair) -> Service:
    service = Service([(run, LanguagePair("en", "de")), (run, second)], ServiceLimits(requests_per_minute=0))
    service.set_routes([parse_route("test=run:1,run-2:3")], service.run_names)
    return service


def test_runs_of_a_route_have_the_same_languages(run: Run) -> None:
    service = service_with_route(run, LanguagePair("en", "fr"))
    with pytest.raises(UserError, match=r"the runs run and run-2 of the route .* have different languages"):
        service.start()
    service.close()


def test_routes_over_http(run: Run) -> None:
    service = service_with_route(run, LanguagePair("en", "de"))
    with TestClient(create_app(service), "http://localhost") as client:

        def answering(route: str, body: dict[str, str], user: str) -> str:
            response = client.post(route, json=body, headers={"x-client-id": user})
            assert response.status_code == 200
            assert response.json().get("run") in (None, response.headers["x-dragoman-run"])
            return str(response.headers["x-dragoman-run"])

        users = [f"user {number}" for number in (0, 1, 6)]
        libre = {"q": "Anna reads.", "source": "en", "target": "de"}
        chosen = [answering("/translate", libre, user) for user in users]
        assert set(chosen) == {"run", "run-2"}
        expected = [service.routes["test"].choose(f"testclient/{user}") for user in users]
        assert chosen == expected
        for body in ({"run": "test"}, {"source": "en", "target": "de"}, {}):
            assert [answering("/v1/translate", {"text": "Ben sleeps.", **body}, user) for user in users] == expected
        assert {answering("/v1/translate", {"text": "Ben sleeps.", "run": "run"}, user) for user in users} == {"run"}
        service.route_by = "text"
        assert len({answering("/translate", libre, user) for user in users}) == 1
        described = {run["name"]: run["routes"] for run in client.get("/v1/runs").json()}
        assert described == {"run": {"test": 0.25}, "run-2": {"test": 0.75}}
        for name in ("run", "run-2"):
            assert f'dragoman_run_request_seconds_count{{run="{name}"}}' in client.get("/metrics").text
