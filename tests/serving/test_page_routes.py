"""What the page asks the service for: its own files, and what can be inspection of runs and sentences."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving import ApiKeys, LanguagePair, Service, ServiceLimits, create_app

Serving = Callable[..., TestClient]
SENTENCE = "Anna reads the book."


# ---- the files of the page


def test_page_files_have_content_types(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "<script>" not in page.text
    kinds = {"main.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml"}
    for name, kind in kinds.items():
        assert f"/page/{name}" in page.text
        assert client.get(f"/page/{name}").headers["content-type"].startswith(kind)
    assert client.get("/", headers={"if-none-match": page.headers["etag"]}).status_code == 304


@pytest.mark.parametrize("name", ["../pages.py", "..%2fpages.py", "%2e%2e/pages.py", "/etc/passwd", "none.js", ""])
def test_other_files_are_not_served(client: TestClient, name: str) -> None:
    assert client.get(f"/page/{name}").status_code == 404


# ---- byte-pair encoding


def test_bpe_of_the_classical_counts(client: TestClient) -> None:
    answer = client.post("/v1/bpe", json={"text": "low=5 lower=2 newest=6 widest=3", "counts": True, "vocab_size": 13})
    assert answer.status_code == 200
    found = answer.json()
    assert found["words"][0] == [5, ["l", "o", "w", "</w>"]]
    assert [merge["pair"] for merge in found["merges"]] == [["e", "s"], ["es", "t"]]
    assert (found["merges"][0]["count"], found["merges"][0]["tied"]) == (9, [["s", "t"], ["t", "</w>"]])
    assert found["merges"][0]["pair_counts"][:2] == [["e", "s", 9], ["s", "t", 9]]
    assert found["final_counts"][0] == ["est", "</w>", 9]
    assert found["stopped"] == "the vocabulary has 13 symbols"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"text": " "}, "the text is empty"),
        ({"text": "low=5 lower", "counts": True}, "expected words with counts"),
        ({"text": "a" * 2001}, "at most 2,000 characters"),
        ({"text": "a b", "compression_ratio": 0.5}, "compression_ratio"),
    ],
)
def test_bpe_is_bounded(client: TestClient, fields: dict[str, object], message: str) -> None:
    answer = client.post("/v1/bpe", json=fields)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


# ---- a sentence


def test_lens_returns_the_inspection(client: TestClient, run: Run) -> None:
    answer = client.post("/v1/lens", json={"text": SENTENCE, "alternatives": 3})
    assert answer.status_code == 200
    assert answer.json() == {
        "run": "run",
        "forced_tokens": 0,
        "inspection": run.lens(SENTENCE, alternatives=3).to_dict(),
    }
    rows = answer.json()["inspection"]["attention"][0]["weights"][0]
    assert all(math.isclose(sum(row), 1, abs_tol=1e-4) for row in rows)


def test_lens_with_translation_or_search(client: TestClient, run: Run) -> None:
    given = client.post("/v1/lens", json={"text": SENTENCE, "translation": "Anna liest."}).json()["inspection"]
    assert given == run.lens(SENTENCE, "Anna liest.").to_dict()
    inspection = client.post("/v1/lens", json={"text": SENTENCE, "search": {"kind": "Beam", "size": 2}}).json()[
        "inspection"
    ]
    assert max(node["beam_index"] for node in inspection["beam"]["nodes"]) == 1


def test_lens_continues_from_token_ids(client: TestClient, run: Run) -> None:
    """What is forced costs what the model says, and what follows is the run's own."""
    step = run.lens(SENTENCE).steps[0]
    other = step.alternatives[-1]
    answer = client.post("/v1/lens", json={"text": SENTENCE, "prefix": [other.token_id]}).json()
    assert answer["forced_tokens"] == 1
    assert answer["inspection"]["steps"][0]["token_id"] == other.token_id
    assert math.isclose(answer["inspection"]["steps"][0]["probability"], other.probability, abs_tol=1e-5)
    whole = [one["token_id"] for one in answer["inspection"]["steps"]][:3]
    assert [one.token_id for one in run.lens(SENTENCE, prefix=whole).steps][:3] == whole


def test_alternatives_are_words_with_their_probability(client: TestClient, run: Run) -> None:
    """The probability of a word is that of its tokens by teacher forcing, and its translation begins with it."""
    prefix = [step.token_id for step in run.lens(SENTENCE).steps[:1]]
    answer = client.post("/v1/alternatives", json={"text": SENTENCE, "prefix": prefix, "count": 6}).json()
    words = answer["alternatives"]
    assert 1 < len(words) <= 6
    assert [word["probability"] for word in words] == sorted((word["probability"] for word in words), reverse=True)
    assert len({word["word"] for word in words}) == len(words)
    for word in words:
        if len(word["token_ids"]) > 8:  # nearly the length limit of the run
            continue
        steps = run.lens(SENTENCE, prefix=[*prefix, *word["token_ids"]]).steps
        probability = math.prod(step.probability for step in steps[1 : 1 + len(word["token_ids"])])
        assert math.isclose(probability, word["probability"], rel_tol=1e-3)
        assert word["word"] in word["text"]


def test_alternatives_at_the_end_and_invalid_prefixes(client: TestClient, run: Run) -> None:
    def ask(**fields: object) -> tuple[int, dict[str, list[dict[str, object]]]]:
        answer = client.post("/v1/alternatives", json={"text": SENTENCE, **fields})
        return answer.status_code, answer.json()

    everything = ask(count=20)[1]["alternatives"]
    ends = [word for word in everything if word["token_ids"] == [run.framing.eos]]
    assert all((word["word"], word["text"]) == ("", "") for word in ends)
    assert ask(prefix=[run.framing.eos])[0] == 400
    assert ask(prefix=[10**9])[0] == 400
    assert ask(prefix=[300] * 200)[0] == 400
    assert ask(text=" ")[0] == 400


def test_eos_can_be_forced(client: TestClient, run: Run) -> None:
    first = run.lens(SENTENCE).steps[0].token_id
    inspection = client.post("/v1/lens", json={"text": SENTENCE, "prefix": [first, run.framing.eos]}).json()[
        "inspection"
    ]
    assert [step["token_id"] for step in inspection["steps"]] == [first, run.framing.eos]
    assert (inspection["from_search"], inspection["finished"], inspection["beam"]) == (False, True, None)


def test_invalid_token_ids_are_rejected(client: TestClient, run: Run) -> None:
    for prefix in ([10**9], [-1], [run.framing.pad], [run.framing.eos, 300], [10**30]):
        answer = client.post("/v1/lens", json={"text": SENTENCE, "prefix": prefix})
        assert (answer.status_code, "which the model never generates" in answer.json()["error"]) == (400, True)
    with pytest.raises(UserError, match="never generates"):
        run.lens(SENTENCE, prefix=[-5])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text": ""}, "nothing to inspect"),
        ({"text": "the man " * 100}, "of at most 128 tokens can be inspected"),
        ({"text": SENTENCE, "translation": "der Mann " * 100}, "of at most 128 tokens can be inspected"),
        ({"text": SENTENCE, "run": "none"}, "none"),
        ({"text": SENTENCE, "alternatives": 0}, "alternatives"),
        ({"text": SENTENCE, "search": {"kind": "Exact"}}, "supported searches are 'Beam'"),
        ({"text": SENTENCE, "translation": "x", "prefix": "y"}, "none is searched"),
        ({"text": "a" * 10_001}, "10,000 characters"),
    ],
)
def test_invalid_lens_requests_are_rejected(client: TestClient, fields: dict[str, object], said: str) -> None:
    answer = client.post("/v1/lens", json=fields)
    assert (answer.status_code, said in answer.json()["error"]) == (400, True), answer.text


def test_attention_limit(serving: Serving) -> None:
    answer = serving(ServiceLimits(requests_per_minute=0, max_attention_weights=10)).post(
        "/v1/lens", json={"text": SENTENCE}
    )
    assert (answer.status_code, "weights" in answer.json()["error"]) == (400, True)


def test_inspections_wait_for_the_device_up_to_a_limit(run: Run) -> None:
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=0, max_inspections=2))
    with TestClient(create_app(service), "http://localhost") as client, ThreadPoolExecutor(3) as pool:

        def ask() -> int:
            return client.post("/v1/lens", json={"text": SENTENCE}).status_code

        with service.device.turn():
            asked = [pool.submit(ask) for _ in range(3)]
            assert next(as_completed(asked, timeout=300)).result() == 503
        assert sorted(future.result() for future in asked) == [200, 200, 503]


# ---- a run


def test_curves_equal_the_training_metrics(client: TestClient, run: Run) -> None:
    curves = {one["name"]: one["points"] for one in client.get("/v1/runs/run/curves").json()["curves"]}
    valid = [record for record in run.metrics() if record["kind"] == "valid"]
    assert curves["validation loss"] == [[record["step"], record["loss"]] for record in valid]
    assert curves["BLEU"] == [[record["step"], record["bleu"]] for record in valid]


def test_positions_and_examples(client: TestClient) -> None:
    assert client.get("/v1/runs/run/positions").json() == {"run": "run", "positions": []}  # it is recurrent
    examples = client.get("/v1/runs/run/examples").json()["examples"]
    assert all(isinstance(text, str) and text for text in examples)


@pytest.mark.parametrize("what", ["curves", "positions", "examples"])
def test_unknown_runs(client: TestClient, what: str) -> None:
    answer = client.get(f"/v1/runs/rum/{what}")
    assert (answer.status_code, "run" in answer.json()["error"]) == (404, True)


@pytest.mark.parametrize("address", ["curves", "positions", "examples"])
def test_inspection_requires_api_keys(serving: Serving, address: str) -> None:
    client = serving(keys=ApiKeys(["secret"]))
    assert client.get(f"/v1/runs/run/{address}").status_code == 403
    assert client.post("/v1/lens", json={"text": SENTENCE}).status_code == 403
    known = {"authorization": "Bearer secret"}
    assert client.get(f"/v1/runs/run/{address}", headers=known).status_code == 200
    assert client.get("/").status_code == 200  # the page asks for the key


def test_walk_through_a_prediction(client: TestClient) -> None:
    inspection = client.post("/v1/lens", json={"text": "The man sees the dog."}).json()["inspection"]
    tokens = [step["token_id"] for step in inspection["steps"][:1]]
    response = client.post("/v1/walk", json={"text": "The man sees the dog.", "tokens": tokens})
    assert response.status_code == 200
    walk = response.json()["walk"]
    probabilities = {one["token_id"]: one["probability"] for one in walk["candidates"]}
    step = inspection["steps"][1]
    assert probabilities[step["token_id"]] == pytest.approx(step["probability"], abs=1e-5)
    weights = next(one for one in walk["steps"] if one["name"] == "attention weights")
    assert weights["values"] == pytest.approx(inspection["cross_attention"][1], abs=1e-5)
    assert weights["key_labels"] == walk["source"] == inspection["source"]["tokens"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"head": 9}, "head must be from 1 to 1, but is 9"),
        ({"position": 500}, "position must be from 0 to"),
        ({"tokens": [-1]}, "contain the id -1"),
        ({"text": ""}, "empty"),
        ({"tokens": [1] * 500}, "a translation of at most 128 tokens"),
        ({"tokens": "x"}, "tokens"),
    ],
)
def test_impossible_walks_are_explained(client: TestClient, fields: dict[str, Any], reason: str) -> None:
    response = client.post("/v1/walk", json={"text": "The man sees the dog."} | fields)
    assert response.status_code == 400
    assert reason in response.json()["error"]
