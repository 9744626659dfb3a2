"""API keys with quotas: files of keys, requests per minute, characters per day."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving import ApiKeys, LanguagePair, Quotas, Service, ServiceLimits, create_app
from dragoman.serving.api_keys import ApiKey
from dragoman.serving.request_parsing import RequestError

PAIR = {"source": "en", "target": "de"}
QUESTION = {"q": "Anna reads.", **PAIR}  # 11 characters
SHA256_OF_SECRET = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"  # echo -n secret | sha256sum


def read(tmp_path: Path, text: str, name: str = "keys.yaml") -> ApiKeys:
    (tmp_path / name).write_text(text)
    return ApiKeys.read(tmp_path / name)


def test_plain_file_has_a_key_per_line(tmp_path: Path) -> None:
    keys = read(tmp_path, "# comment\n\n first \nsecond\n", "keys")
    assert [keys.accepts(key) for key in ("first", "second", "# comment", "", None)] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert keys.names[0] == "key-" + hashlib.sha256(b"first").hexdigest()[:8]
    assert keys.required


@pytest.mark.parametrize("name", ["keys.yaml", "keys.yml", "keys"])
def test_yaml_file_has_names_quotas_and_rights(tmp_path: Path, name: str) -> None:
    text = f"""
keys:
  - name: newsroom
    key: first
    requests_per_minute: 120
    characters_per_day: 2000
    priority: 1
  - {{name: operator, sha256: {SHA256_OF_SECRET}, admin: true}}
"""
    keys = read(tmp_path, text, name)
    assert keys.find("first") == ApiKey("newsroom", hashlib.sha256(b"first").digest(), 120, 2000, 1, False)
    operator = keys.find("secret")
    assert operator is not None
    assert (operator.name, operator.admin, operator.characters_per_day) == ("operator", True, None)
    assert [keys.accepts(key) for key in ("keys:", SHA256_OF_SECRET, "other", None)] == [False] * 4


def test_keys_may_be_optional(tmp_path: Path) -> None:
    keys = read(tmp_path, "required: false\nkeys: [{name: a, key: x}]")
    assert [keys.accepts(key) for key in ("x", "y", None)] == [True, False, True]
    assert ApiKeys().accepts("any")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys: [", "not valid YAML (line 1)"),
        ("a: 1", "needs a list 'keys'"),
        ("first\nsecond", "needs a list 'keys'"),
        ("keys: [{name: a, key: x}]\nrequird: no", "did you mean 'required'?"),
        ("keys: [{name: a, key: x}]\nrequired: 1", "true or false"),
        ("keys: []", "has none, so all requests would be rejected"),
        ("keys: [x]", "must have fields, such as 'name' and 'key', but is no mapping"),
        ("keys: [{key: very-secret}]", "without 'name'"),
        ("keys: [{name: a}]", "either 'key' or its hash"),
        (f"keys: [{{name: a, key: x, sha256: {SHA256_OF_SECRET}}}]", "either 'key' or its hash"),
        ("keys: [{name: a, key: 123}]", "quotation marks"),
        ("keys: [{name: a, sha256: abc}]", "64 hexadecimal digits"),
        ("keys: [{name: a, key: x, characters_per_dya: 1}]", "did you mean 'characters_per_day'?"),
        ("keys: [{name: a, key: x, characters_per_day: -1}]", "has 'characters_per_day' -1, but it must be a whole"),
        ("keys: [{name: a, key: x, requests_per_minute: 1.5}]", "whole number"),
        ("keys: [{name: a, key: x, admin: 1}]", "has 'admin' 1, but it must be true or false"),
        ("keys: [{name: a, key: x}, {name: a, key: y}]", "has the name or the key of an earlier one"),
        ("keys: [{name: a, key: x}, {name: b, key: x}]", "has the name or the key of an earlier one"),
    ],
)
def test_wrong_files_of_keys(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        read(tmp_path, text)
    assert said in str(error.value)
    assert "secret" not in str(error.value).replace(str(tmp_path), "")


def test_characters_per_day_are_reset_at_midnight_and_survive_a_restart(tmp_path: Path) -> None:
    time = datetime(2026, 3, 1, 22, 0, tzinfo=UTC)
    key, free, file = ApiKey("a", b"", characters_per_day=100), ApiKey("b", b""), tmp_path / "quotas.json"
    quotas = Quotas(file, now=lambda: time)
    quotas.use_characters(key, 60)
    quotas.use_characters(free, 10**9)
    with pytest.raises(RequestError, match="100 characters per day and has 40 left, but the request has 41") as error:
        quotas.use_characters(key, 41)
    assert (error.value.status, error.value.retry_after) == (429, 7200)
    quotas.close()
    assert json.loads(file.read_text())["characters"] == {"a": 60, "b": 10**9}
    restarted = Quotas(file, now=lambda: time)
    assert restarted.used_characters("a") == 60
    day = restarted.use_characters(key, 40)
    restarted.return_characters(key, 40, day)
    time += timedelta(hours=2)
    assert restarted.used_characters("a") == 0
    restarted.use_characters(key, 100)
    assert Quotas(file, now=lambda: time).used_characters("a") == 0  # it was not closed


def test_a_request_that_fails_after_midnight_returns_nothing_to_the_new_day() -> None:
    time = datetime(2026, 3, 1, 23, 59, tzinfo=UTC)
    quotas, key = Quotas(now=lambda: time), ApiKey("a", b"", characters_per_day=100)
    first, second = quotas.use_characters(key, 40), quotas.use_characters(key, 50)
    quotas.return_characters(key, 50, second)
    assert quotas.used_characters("a") == 40
    time += timedelta(minutes=2)
    quotas.use_characters(key, 70)
    quotas.return_characters(key, 40, first)
    assert quotas.used_characters("a") == 70


@pytest.mark.parametrize("content", ["{", "[]", '{"day": "2026-03-01", "characters": {"a": "x"}}', "\x00"])
def test_damaged_file_of_quotas(tmp_path: Path, content: str) -> None:
    (tmp_path / "quotas").write_text(content)
    with pytest.raises(UserError, match="delete it to begin with zero"):
        Quotas(tmp_path / "quotas")


def test_file_of_quotas_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        Quotas(tmp_path / "none" / "quotas")


@pytest.fixture
def ask(run: Run) -> Callable[..., TestClient]:
    keys = ApiKeys(
        [
            ApiKey("daily", hashlib.sha256(b"daily").digest(), characters_per_day=30),
            ApiKey("slow", hashlib.sha256(b"slow").digest(), requests_per_minute=6),
            ApiKey("free", hashlib.sha256(b"free").digest(), requests_per_minute=0),
        ]
    )
    service = Service([(run, LanguagePair("en", "de"))], ServiceLimits(requests_per_minute=60), keys=keys)
    return TestClient(create_app(service), "http://localhost", raise_server_exceptions=False)


def test_quotas_over_http(ask: TestClient, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def status(key: str) -> int:
        return ask.post("/translate", json={**QUESTION, "api_key": key}).status_code

    with ask:
        assert [status("daily") for _ in range(2)] == [200, 200]
        with monkeypatch.context() as patch:
            patch.setattr(type(run), "translate_stream", lambda *_, **__: 1 / 0)
            short = {"q": "Anna re", **PAIR, "api_key": "daily"}
            assert ask.post("/translate", json=short).status_code == 500  # its 7 characters do not count
        rejected = ask.post("/v1/translate", json={"text": "Anna reads.", "api_key": "daily"})
        assert rejected.status_code == 429
        assert "'daily' may use 30 characters per day and has 8 left" in rejected.json()["error"]
        assert 0 < int(rejected.headers["retry-after"]) <= 86401
        assert ask.post("/translate", json={"q": "12345678", **PAIR, "api_key": "daily"}).status_code == 200
        assert [status("slow") for _ in range(2)] == [200, 429]
        slow = ask.post("/translate", json=QUESTION, headers={"authorization": "Bearer slow"})
        assert "'slow' may send 6 requests per minute" in slow.json()["error"]
        assert 1 <= int(slow.headers["retry-after"]) <= 11
        assert {status("free") for _ in range(15)} == {200}  # the service allows 10 at once
        assert status("wrong") == 403
