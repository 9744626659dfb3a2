"""A multilingual run: languages of requests, and batches that do not mix them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits, create_app, parse_run_argument
from dragoman.text.language_codes import LanguageCodes

CODES = {"eng_Latn": 20, "fra_Latn": 21, "kin_Latn": 22}  # any tokens will do


@pytest.fixture(scope="module")
def multilingual(run: Run) -> Run:
    """A run whose model is told languages, which it has never learned."""
    opened = copy(run)
    opened._set_framing(replace(run.model_framing, languages=LanguageCodes(CODES)))
    return opened


@pytest.fixture(scope="module")
def client(multilingual: Run) -> Iterator[TestClient]:
    service = Service([(multilingual, None)], ServiceLimits(requests_per_minute=0))
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def test_requests_name_the_languages(client: TestClient, multilingual: Run) -> None:
    text = "The dog sees a cat."
    seen = set()
    for target in ("fra_Latn", "kin_Latn"):
        expected = multilingual.translate([text], source_language="eng_Latn", target_language=target)[0].text
        fields = {"source": "en", "target": target}
        answer = client.post("/v1/translate", json={"text": text, **fields}).json()
        assert answer["translations"][0]["text"] == expected
        assert client.post("/translate", json={"q": text, **fields}).json()["translatedText"] == expected
        streamed = client.post("/v1/stream", json={"text": text, **fields}).text
        assert json.loads(streamed.rsplit("data: ", 1)[1])["text"] == expected
        lens = client.post("/v1/lens", json={"text": text, **fields}).json()
        assert lens["inspection"]["target"]["text"] == expected
        seen.add(expected)
    assert len(seen) == 2


def test_languages_are_listed(client: TestClient) -> None:
    languages = client.get("/languages").json()
    assert {"code": "kin_Latn", "name": "Kinyarwanda", "targets": ["eng_Latn", "fra_Latn"]} in languages
    (run,) = client.get("/v1/runs").json()
    assert (run["source"], run["target"]) == (None, None)
    assert run["languages"][0] == {"code": "eng_Latn", "name": "English"}
    assert client.get("/frontend/settings").json()["language"]["source"]["code"] == "eng_Latn"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "give the source (--from) and target (--to) language"),
        ({"source": "en", "target": "kin_Latin"}, "did you mean kin_Latn (Kinyarwanda)"),
        ({"target": "fr"}, "give the source (--from) language"),
    ],
)
def test_wrong_languages_are_answered_with_the_nearest_ones(
    client: TestClient, fields: dict[str, str], message: str
) -> None:
    answer = client.post("/v1/translate", json={"text": "a", **fields})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_waiting_requests_of_different_pairs_are_not_mixed(client: TestClient, multilingual: Run) -> None:
    """All requests wait for the device, and then the batches of each pair are made."""
    texts = [f"The dog sees {n} cats." for n in range(4)]
    pairs = [("eng_Latn", "fra_Latn"), ("eng_Latn", "kin_Latn"), ("fra_Latn", "eng_Latn")]

    def ask(task: tuple[str, tuple[str, str]]) -> str:
        text, (source, target) = task
        answer = client.post("/v1/translate", json={"text": text, "source": source, "target": target})
        return answer.json()["translations"][0]["text"]

    tasks = [(text, pair) for text in texts for pair in pairs]
    with ThreadPoolExecutor(len(tasks)) as pool:
        found = list(pool.map(ask, tasks))
    for (text, (source, target)), answer in zip(tasks, found):
        expected = multilingual.translate([text], source_language=source, target_language=target)[0].text
        assert answer == expected


def test_a_default_pair_is_given_with_the_run(multilingual: Run) -> None:
    assert parse_run_argument("runs/nllb=eng_Latn-kin_Latn")[1] == ("eng_latn", "kin_latn")
    service = Service([(multilingual, LanguagePair("eng_latn", "kin_latn"))])
    served = service.resolve_run(None, None, None)
    assert served.pair == ("eng_Latn", "kin_Latn")
    assert service.resolve_run(None, None, "French").pair == ("eng_Latn", "fra_Latn")
