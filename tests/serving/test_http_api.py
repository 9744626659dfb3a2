"""What clients ask over HTTP, and what they are answered."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.search import Beam, Sample
from dragoman.serving import ApiKeys, LanguagePair, Service, ServiceLimits, create_app
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import RequestRecord

PAIR = {"source": "en", "target": "de"}
TEXT = "Anna reads the book. The man sleeps.\n\nThe dog sees him."


def best(run: Run, text: str) -> str:
    return run.translate([text], alignment=False)[0].text


# ---- as LibreTranslate has it


def test_text_is_split_into_sentences(client: TestClient, run: Run) -> None:
    answer = client.post("/translate", json={"q": TEXT, **PAIR})
    first, second, third = (best(run, text) for text in TEXT.replace("\n\n", " ").replace(". ", ".|").split("|"))
    assert answer.status_code == 200
    assert answer.json() == {"translatedText": f"{first} {second}\n\n{third}"}


def test_list_of_texts_gives_a_list(client: TestClient, run: Run) -> None:
    answer = client.post("/translate", json={"q": ["Anna reads.", "", " \n"], **PAIR, "format": "text"})
    assert answer.json() == {"translatedText": [best(run, "Anna reads."), "", " \n"]}


@pytest.mark.parametrize("way", ["form", "parts", "address"])
def test_forms_and_query_strings_are_parsed(client: TestClient, run: Run, way: str) -> None:
    fields = {"q": "Anna reads.", **PAIR, "alternatives": "0"}
    given = {
        "form": {"data": fields},
        "parts": {"files": {name: (None, value) for name, value in fields.items()}},
        "address": {"params": fields},
    }[way]
    assert client.post("/translate", **given).json() == {"translatedText": best(run, "Anna reads.")}


def test_alternatives_are_n_best(client: TestClient, run: Run) -> None:
    answer = client.post("/translate", json={"q": "Anna reads.", **PAIR, "alternatives": 3}).json()
    found = run.translate(["Anna reads."], search=Beam(5, n_best=4, length_limit=run.length_limit))[0]
    assert answer["translatedText"] == found.text
    others = [one.text for one in found.alternatives]
    assert answer["alternatives"] == [one for one in dict.fromkeys(others) if one != found.text]
    assert client.post("/translate", json={"q": "Anna reads.", **PAIR, "alternatives": 11}).status_code == 400


def test_html_tags_are_preserved(client: TestClient, run: Run) -> None:
    text = "<p class='a > b'>Anna reads.</p><!-- no --><pre>Anna reads.</pre> &lt;"
    answer = client.post("/translate", json={"q": text, **PAIR, "format": "html"}).json()["translatedText"]
    inner, last = (best(run, text) for text in ("Anna reads.", "<"))
    escaped = [text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for text in (inner, last)]
    assert answer == f"<p class='a > b'>{escaped[0]}</p><!-- no --><pre>Anna reads.</pre> {escaped[1]}"


def test_inline_tags_do_not_split_a_sentence(client: TestClient, run: Run) -> None:
    text = "The <b>old</b> dog<img src='a'> sleeps."
    answer = client.post("/translate", json={"q": text, **PAIR, "format": "html"}).json()["translatedText"]
    assert sorted(re.findall("<[^>]*>", answer)) == sorted(re.findall("<[^>]*>", text))
    assert html.unescape(re.sub("<[^>]*>", "", answer)) == best(run, "The old dog sleeps.")


def test_equal_languages_return_the_text(client: TestClient) -> None:
    fields = {"q": ["Anna <b>reads</b>."], "source": "en", "target": "en-GB", "format": "html"}
    assert client.post("/translate", json=fields).json()["translatedText"] == fields["q"]


def test_placeholders_are_preserved_unless_the_client_does_not_want_it(client: TestClient) -> None:
    text = "Anna sees {name} at https://example.org/a?b=1 today, %(x)d."
    answer = client.post("/translate", json={"q": text, **PAIR}).json()["translatedText"]
    assert [answer.count(part) for part in ("{name}", "https://example.org/a?b=1", "%(x)d")] == [1, 1, 1]
    plain = client.post("/translate", json={"q": text, **PAIR, "preserve": "none"}).json()["translatedText"]
    assert "{name}" not in plain


def test_languages_are_listed_and_detected(client: TestClient) -> None:
    assert client.get("/languages").json() == [
        {"code": "en", "name": "English", "targets": ["de"]},
        {"code": "de", "name": "German", "targets": []},
    ]
    for text, language in (("The woman sees the old man.", "en"), ("Die Frau sieht den alten Mann.", "de")):
        found = client.post("/detect", json={"q": text}).json()
        assert found[0]["language"] == language
        assert found[0]["confidence"] > 90
    strange = client.post("/detect", json={"q": "你好"}).json()
    assert all(one["confidence"] == 0 for one in strange)
    answer = client.post("/translate", json={"q": "The woman sleeps.", "source": "auto", "target": "de"}).json()
    assert answer["detectedLanguage"]["language"] == "en"
    german = {"q": "Die Frau  sieht den alten Mann.", "source": "auto", "target": "de"}
    answer = client.post("/translate", json=german).json()
    assert answer["translatedText"] == german["q"]  # as it is
    assert answer["detectedLanguage"]["language"] == "de"
    file = {"file": ("a.txt", german["q"], "text/plain")}
    where = client.post("/translate_file", data=german, files=file).json()["translatedFileUrl"]
    assert client.get(where).text == german["q"]
    variant = client.post("/translate", json={"q": "Anna reads.", "source": "en-GB", "target": "DE"})
    assert variant.status_code == 200


def test_health_settings_and_metrics(serving: Callable[..., TestClient]) -> None:
    client = serving()
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/frontend/settings").json()["charLimit"] == ServiceLimits().max_characters
    client.post("/translate", json={"q": "Anna reads.", **PAIR})
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.text.splitlines()
    assert 'dragoman_requests_total{route="/translate",status="200"} 1.0' in lines
    assert 'dragoman_sentences_total{run="run"} 1.0' in lines
    assert 'dragoman_batch_sentences_bucket{le="1.0",run="run"} 1.0' in lines
    assert 'dragoman_request_seconds_count{route="/health"} 1.0' in lines


def test_documentation_describes_the_routes_without_other_hosts(client: TestClient) -> None:
    page = client.get("/docs")
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//|<script|<style|style=", page.text)
    assert "/v1/translate" in page.text
    assert client.get("/spec").json() == client.get("/openapi.json").json()
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/translate", "/languages", "/detect", "/v1/translate", "/v1/stream", "/v1/runs"} <= set(paths)


# ---- our own


def test_runs_are_listed(client: TestClient, run: Run) -> None:
    (one,) = client.get("/v1/runs").json()
    assert (one["name"], one["source"], one["target"], one["system"]) == ("run", "en", "de", "bahdanau")
    assert one["search"]["kind"] == "Beam"
    assert one["parameters"] == sum(weight.numel() for weight in run.model.parameters())


def test_scores_alignments_and_n_best(client: TestClient, run: Run) -> None:
    asked = {"text": ["Anna reads. The man sleeps."], "n_best": 2, "alignment": True, "token_scores": True}
    (answer,) = client.post("/v1/translate", json=asked).json()["translations"]
    found = run.translate(
        ["Anna reads.", "The man sleeps."], search=Beam(5, n_best=2, length_limit=run.length_limit), token_scores=True
    )
    assert answer["text"] == " ".join(one.text for one in found)
    for sentence, one in zip(answer["sentences"], found, strict=True):
        first, second = sentence["hypotheses"]
        assert (first["text"], first["tokens"]) == (one.text, one.tokens)
        assert first["score"] == pytest.approx(one.score, abs=1e-4)
        assert [tuple(link) for link in first["alignment"]] == one.alignment
        assert first["token_scores"] == pytest.approx(one.token_scores, abs=1e-4)
        assert second["text"] == one.alternatives[0].text


def test_search_of_a_request(client: TestClient, run: Run) -> None:
    asked = {"text": TEXT, "split": False, "search": {"kind": "Sample", "seed": 3, "top_k": 5}}
    answers = [client.post("/v1/translate", json=asked).json()["translations"][0]["text"] for _ in range(2)]
    assert answers == [run.translate([TEXT], search=Sample(seed=3, top_k=5))[0].text] * 2


RERANK = {
    "kind": "Rerank",
    "candidates": {"kind": "Beam", "n_best": 2},
    "weights": {"kind": "RerankWeights", "channel": 1.0},
    "channel_model": "/etc",
}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"text": "a", "search": {"kind": "Exact"}}, "'Beam', 'Sample' and 'MinimumBayesRisk', not 'ExactSearch'"),
        (
            {"text": "a", "search": RERANK},
            "not 'Rerank'",
        ),
        ({"text": "a", "search": {"kind": "Beam", "size": 65}}, "64 hypotheses"),
        ({"text": "a", "search": {"kind": "Beam", "sise": 5}}, "sise"),
        ({"text": "a", "search": {"kind": "Beam", "early_stopping": "soon"}}, "'early_stopping' of Beam must be"),
        ({"text": "a", "search": {"kind": "Sample", "temperature": 1e-39}}, "'temperature' of Sample must be"),
        ({"text": "a", "search": {"kind": "Sample", "temperature": 1e39}}, "'temperature' of Sample must be"),
        ({"text": "a", "search": {"kind": "Sample", "top_p": 1e-300}}, "the field 'search': 'top_p' of Sample must be"),
        ({"text": "a", "search": {"kind": "Sample", "typical": 1e-300}}, "'typical_p' of Sample must be"),
        ({"text": "a", "search": {"kind": "Beam", "size": 2, "n_best": 3}}, "cannot return the 3 best"),
        (
            {"text": "a", "search": {"kind": "Sample", "length": {"kind": "Length", "most": 10**6}}},
            "tokens, but the search allows",
        ),
        ({"text": "a", "search": {"kind": "Beam"}, "n_best": 2}, "cannot be combined"),
        ({"text": "a", "n_best": 0}, "'n_best'"),
        ({"text": "a", "run": "rum"}, "did you mean 'run'"),
        ({"text": "a", "target": "de"}, "which run"),
        ({"text": "a", "colour": 1}, "no field 'colour'"),
        ({"text": ["a", "b"], "prefix": "Der"}, "one text"),
    ],
)
def test_invalid_fields_are_rejected(client: TestClient, asked: dict[str, object], said: str) -> None:
    answer = client.post("/v1/translate", json=asked)
    assert answer.status_code == 400
    assert said in answer.json()["error"]


def events(client: TestClient, **asked: object) -> list[tuple[str, dict[str, object]]]:
    answer = client.post("/v1/stream", json=asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = [block.split("\n") for block in answer.text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


def test_stream_events(client: TestClient, run: Run) -> None:
    found = events(client, text=TEXT, search={"kind": "Beam", "size": 1})
    whole = client.post("/v1/translate", json={"text": TEXT, "search": {"kind": "Beam", "size": 1}}).json()
    text = "".join(str(said["text"]) for name, said in found if name == "tokens")
    assert text == whole["translations"][0]["text"] == found[-1][1]["text"]
    assert [name for name, _ in found if name != "tokens"] == ["sentence"] * 3 + ["done"]
    streamed = [said["hypotheses"][0] for name, said in found if name == "sentence"]
    together = [one["hypotheses"][0] for one in whole["translations"][0]["sentences"]]
    for alone, batched in zip(streamed, together, strict=True):  # scores are rounded as the batch has it
        assert alone == batched | {"score": pytest.approx(batched["score"], rel=1e-5)}
    assert client.get("/metrics").text.count("dragoman_streams 0") == 1


def test_warnings_and_white_space_of_sentences(client: TestClient) -> None:
    text = "Der alte Mann liest heute das Buch. Anna reads.\n\nThe man sleeps."
    asked = {"text": text, "warnings": True, "search": {"kind": "Beam", "size": 1}}
    sentences = client.post("/v1/translate", json=asked).json()["translations"][0]["sentences"]
    assert [sentence["space_after"] for sentence in sentences] == [" ", "\n\n", ""]
    warnings = {warning["kind"]: warning for warning in sentences[0]["warnings"]}
    assert warnings["language"]["message"] == "The text looks like German, but this run translates from English."
    assert warnings["language"]["source_spans"] == [[0, len("Der alte Mann liest heute das Buch.")]]
    streamed = [data for name, data in events(client, **asked) if name == "sentence"]
    for name in ("warnings", "space_after"):
        assert [data[name] for data in streamed] == [sentence[name] for sentence in sentences]
    plain = client.post("/v1/translate", json={"text": text}).json()["translations"][0]["sentences"]
    assert {sentence["warnings"] for sentence in plain} == {None}


def test_invalid_stream_is_rejected(client: TestClient) -> None:
    answer = client.post("/v1/stream", json={"text": "a", "search": {"kind": "Beam", "size": 5, "groups": 2}})
    assert (answer.status_code, "groups" in answer.json()["error"]) == (400, True)
    assert events(client, text="")[-1] == ("done", {"run": "run", "text": ""})


# ---- many at once


def test_concurrent_responses_equal_single_ones(client: TestClient, run: Run) -> None:
    texts = [
        f"{who} {what} the {whom}." for who in ("Anna", "He") for what in ("sees", "reads") for whom in ("dog", "book")
    ]
    alone = [best(run, text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: client.post("/translate", json={"q": text, **PAIR}).json(), texts * 3))
    assert [one["translatedText"] for one in answers] == alone * 3


# ---- keys and limits


@pytest.fixture(scope="module")
def keyed(run: Run) -> Iterator[TestClient]:
    """A client of a service that needs a key."""
    limits = ServiceLimits(requests_per_minute=0)
    service = Service([(run, LanguagePair("en", "de"))], limits, keys=ApiKeys(["secret"]))
    with TestClient(create_app(service), "http://localhost", raise_server_exceptions=False) as opened:
        yield opened


def test_api_keys_are_required(serving: Callable[..., TestClient]) -> None:
    client = serving(keys=ApiKeys(["secret"]))
    asked = {"q": "Anna reads.", **PAIR}
    assert client.post("/translate", json=asked).status_code == 403
    assert client.post("/translate", json={**asked, "api_key": "wrong"}).status_code == 403
    assert client.post("/translate", json={**asked, "api_key": "secret"}).status_code == 200
    assert client.post("/translate", data={**asked, "api_key": "secret"}).status_code == 200
    with_header = client.post("/v1/translate", json={"text": "a"}, headers={"authorization": "Bearer secret"})
    assert with_header.status_code == 200
    assert client.get("/languages").status_code == 200
    assert client.get("/frontend/settings").json()["keyRequired"] is True


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"{}", b'{"q": 5, "text": 5}', b'{"api_key": 5}', b"\xff"],
)
def test_without_a_key_nothing_is_said_about_the_body(keyed: TestClient, body: bytes) -> None:
    for path in ("/translate", "/detect", "/v1/translate", "/v1/stream", "/v1/lens", "/translate_file"):
        for kind in ("application/json", "text/xml", "multipart/form-data; boundary=x"):
            answer = keyed.post(path, content=body, headers={"content-type": kind})
            assert (answer.status_code, "API key" in answer.text) == (403, True), (path, kind)
        known = {"content-type": "application/json", "authorization": "Bearer secret"}
        assert keyed.post(path, content=body, headers=known).status_code in (400, 415)


def test_rate_limit(serving: Callable[..., TestClient]) -> None:
    """Two requests at once, then one every five seconds; an address has the requests of two clients."""
    client = serving(ServiceLimits(requests_per_minute=12, clients_per_address=2))
    answers = [client.post("/detect", json={"q": "a"}, headers={"x-client-id": "1"}) for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert "a client may send 12 per minute" in answers[2].json()["error"]
    assert 1 <= int(answers[2].headers["retry-after"]) <= 6
    others = [client.post("/detect", json={"q": "a"}, headers={"x-client-id": str(number)}) for number in range(2, 5)]
    assert [one.status_code for one in others] == [200, 200, 429], "new ids do not evade the limit of the address"
    assert "all clients of an address or API key may send 24 per minute" in others[2].json()["error"]
    assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("retry_after", "header"), [(0.0, "1"), (0.2, "1"), (1.0, "1"), (1.5, "2"), (2.0, "2"), (2.5, "3"), (3.0, "3")]
)
def test_seconds_to_wait_are_rounded_up(retry_after: float, header: str) -> None:
    assert RequestError(503, "wait", retry_after).response().headers["retry-after"] == header


def test_streams_are_shared_by_clients(run: Run) -> None:
    limits = ServiceLimits(requests_per_minute=0, max_client_streams=1, clients_per_address=2, stream_wait=1e-3)
    service = Service([(run, LanguagePair("en", "de"))], limits)
    with TestClient(create_app(service), "http://localhost") as client:

        def status(identity: str) -> int:
            answer = client.post("/v1/stream", json={"text": "Anna reads."}, headers={"x-client-id": identity})
            if answer.status_code == 503:
                assert int(answer.headers["retry-after"]) > 0
                assert "use /v1/translate" in answer.json()["error"]
            return answer.status_code

        first, anonymous = (RequestRecord(address="testclient", client_id=identity) for identity in ("1", ""))
        assert service.streams.acquire(first, 1) is None
        assert [status(identity) for identity in "12"] == [503, 200]
        assert service.streams.acquire(anonymous, 1) is None
        assert [status(identity) for identity in "12"] == [503, 503], "the share of the address is used up"
        service.streams.release(first, 1)
        assert [status(identity) for identity in "12"] == [200, 200]


def test_long_texts_are_queued_in_parts(run: Run) -> None:
    """The cost of the text is above the limit of a client, and that of each sentence is below."""
    text = "Anna reads. The man sleeps. The dog sees the tree. Ben reads. The woman sleeps."
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0, max_pending_cost=600))
    with TestClient(create_app(service), "http://localhost") as client:
        answer = client.post("/v1/translate", json={"text": text, "search": {"kind": "Beam", "size": 9}}).json()
    alone = run.translate([text], 9, split_sentences=True)
    assert answer["translations"][0]["text"] == alone[0].text
    assert len(answer["translations"][0]["sentences"]) == 5


def test_size_limits_and_timeout(serving: Callable[..., TestClient]) -> None:
    client = serving(
        ServiceLimits(requests_per_minute=0, max_characters=20, max_texts=2, max_body_bytes=1000, timeout=1e-9)
    )
    for q, status in (("a" * 21, 400), (["a", "b", "c"], 400), ("a" * 2000, 413), (["a" * 15, "b" * 15], 400)):
        answer = client.post("/translate", json={"q": q, **PAIR})
        assert (answer.status_code, list(answer.json())) == (status, ["error"])
    for path, accepted in (("/v1/translate", {"text": ["a", "b"]}), ("/v1/lens", {"text": "a", "prefix": "b"})):
        assert client.post(path, json=accepted).status_code == 503, "as many texts as a request may have"
    slow = client.post("/translate", json={"q": "Anna reads.", **PAIR})
    assert (slow.status_code, "longer" in slow.json()["error"]) == (503, True)


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        (b"{", "application/json", 400, "not valid JSON"),
        (b"[1]", "application/json", 400, "JSON object"),
        (b'"q"', "application/json", 400, "JSON object"),
        (b"[" * 100_000, "application/json", 400, "JSON"),
        (b'{"q": NaN}', "application/json", 400, "NaN"),
        (b"\xff\xfe", "application/json", 400, "not valid JSON"),
        (b"", "application/json", 400, "not valid JSON"),
        (b"{}", "application/json", 400, "Invalid request: missing q parameter"),
        (
            b'{"q": 5, "source": "en", "target": "de"}',
            "application/json",
            400,
            "the field 'q' must be a valid string or a valid list",
        ),
        (
            b'{"q": ["a", null], "source": "en", "target": "de"}',
            "application/json",
            400,
            "the field 'q[1]' must be a valid string",
        ),
        (
            b'{"q": "a", "source": "en", "target": "de", "alternatives": "many"}',
            "application/json",
            400,
            "alternatives",
        ),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": -1}', "application/json", 400, "alternatives"),
        (b'{"q": "a", "source": "en", "target": "de", "format": "pdf"}', "application/json", 400, "format"),
        (b'{"q": "", "source": "en", "target": "de"}', "application/json", 400, "missing q parameter"),
        (b'{"q": [], "source": "en", "target": "de"}', "application/json", 400, "missing q parameter"),
        (b'{"q": "\\ud800", "source": "en", "target": "de"}', "application/json", 400, "surrogate"),
        (b'{"q": "a", "source": "en\\udfff", "target": "de"}', "application/json", 400, "surrogate"),
        (b'{"q": "a", "source": "en", "target": "fr"}', "application/json", 400, "fr is not supported"),
        (b'{"q": "a", "source": "de", "target": "en"}', "application/json", 400, "not available as a target"),
        (b'{"q": "a", "source": "auto", "target": "fr"}', "application/json", 400, "could not be detected"),
        (b"q=a&source=en&target=%ff", "application/x-www-form-urlencoded", 400, "UTF-8"),
        (b"nothing", "multipart/form-data; boundary=x", 400, ""),
        (b"<q>a</q>", "text/xml", 415, "text/xml"),
    ],
)
def test_malformed_requests_get_an_error_message(
    client: TestClient, body: bytes, kind: str, status: int, said: str
) -> None:
    answer = client.post("/translate", content=body, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert said in answer.json()["error"]


def test_control_characters_are_spaces(client: TestClient, run: Run) -> None:
    answer = client.post("/translate", json={"q": "Anna\x00reads.\x1b", **PAIR}).json()["translatedText"]
    assert answer.startswith(best(run, "Anna reads."))


def test_unknown_routes_and_methods(client: TestClient) -> None:
    assert client.get("/nothing").json() == {"error": "not found"}
    answer = client.get("/translate")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_service_survives_internal_errors(client: TestClient, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(type(run), "translate_stream", lambda *_, **__: 1 / 0)
        answer = client.post("/translate", json={"q": "Anna reads.", **PAIR})
    assert answer.status_code == 500
    assert "failed" in answer.json()["error"]
    assert client.post("/translate", json={"q": "Anna reads.", **PAIR}).status_code == 200


def test_error_messages_hide_folders(client: TestClient, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def tired(*_: object, **__: object) -> None:
        raise UserError(f"{run.folder} is tired")

    monkeypatch.setattr(Run, "translate_stream", tired)
    answer = client.post("/translate", json={"q": "Anna reads.", **PAIR})
    assert (answer.status_code, answer.json()) == (400, {"error": "run is tired"})
