"""Files that are uploaded, translated and downloaded, and suggested translations."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from dragoman.run import Run
from dragoman.serving import LanguagePair, Service, ServiceLimits, create_app
from dragoman.serving.suggestions import SuggestionFile

Serving = Callable[..., TestClient]
PAIR = {"source": "en", "target": "de"}


def best(run: Run, text: str) -> str:
    return run.translate([text], alignment=False)[0].text


def test_files_are_translated_and_downloaded(client: TestClient, run: Run) -> None:
    text = "Anna reads.\r\n\r\n  Anna sleeps."
    upload = {"file": ("../Über uns.txt", text.encode(), "text/plain")}
    answer = client.post("/translate_file", data=PAIR, files=upload).json()
    name = answer["translatedFileUrl"].removeprefix("http://localhost")
    found = client.get(name)
    assert found.text == f"{best(run, 'Anna reads.')}\r\n\r\n  {best(run, 'Anna sleeps.')}"
    assert found.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%9Cber_uns.txt"
    assert found.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert client.get(name.replace("_uns", "_uns2")).status_code == 404


def test_markdown_keeps_its_structure(client: TestClient, run: Run) -> None:
    text = "# Anna reads.\n\n```\nAnna reads.\n```\n- Anna sleeps.\n"
    answer = client.post("/translate_file", data=PAIR, files={"file": ("a.md", text.encode())}).json()
    found = client.get(answer["translatedFileUrl"])
    first, second = best(run, "Anna reads."), best(run, "Anna sleeps.")
    assert found.text == f"# {first}\n\n```\nAnna reads.\n```\n- {second}\n"
    assert found.headers["content-type"] == "text/markdown; charset=utf-8"


@pytest.mark.parametrize(
    ("name", "content", "fields", "status", "message"),
    [
        ("a.exe", b"x", PAIR, 400, "format not supported"),
        ("a.txt", b"\xff\xfe\xff", PAIR, 400, "not UTF-16 text"),
        ("a.srt", b"Anna reads.", PAIR, 400, "no subtitles"),
        ("a.txt", b"x", {"source": "en"}, 400, "missing target parameter"),
        ("a.txt", b"x", {**PAIR, "target": "zz"}, 400, "zz is not supported"),
        ("a.txt", b"Anna reads.", {**PAIR, "run": "other"}, 400, "unknown run 'other'"),
    ],
)
def test_wrong_files_get_an_error_message(
    name: str, content: bytes, fields: dict[str, str], status: int, message: str, client: TestClient
) -> None:
    answer = client.post("/translate_file", data=fields, files={"file": (name, content)})
    assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


def test_large_files_are_rejected(serving: Serving) -> None:
    limits = ServiceLimits(requests_per_minute=0, max_file_bytes=1, max_file_characters=9, max_body_bytes=10)
    client = serving(limits)
    answers = [client.post("/translate_file", data=PAIR, files={"file": ("a.txt", b"x" * n)}) for n in (9, 10, 10_020)]
    assert [answer.status_code for answer in answers] == [200, 400, 413]
    assert "may have 9 characters, but this one has 10" in answers[1].json()["error"]


def test_uploads_without_a_file_or_a_complete_form_are_rejected(client: TestClient) -> None:
    answers = [
        client.post("/translate_file", data=PAIR, files={"other": b""}),
        client.post("/translate_file", json=PAIR),
        client.post(
            "/translate_file", content=b"--x\r\n\r\n", headers={"content-type": "multipart/form-data; boundary=x"}
        ),
        client.post("/translate_file", content=b"--x--", headers={"content-type": "multipart/form-data"}),
    ]
    assert [answer.status_code for answer in answers] == [400, 415, 400, 400]


def test_forms_may_have_a_thousand_fields(client: TestClient) -> None:
    fields = {**PAIR, **{f"other {n}": "x" for n in range(997)}}  # with the file 1000
    files = {"file": ("a.txt", b"Anna reads.")}
    assert client.post("/translate_file", data=fields, files=files).status_code == 200
    uploaded = client.post("/translate_file", data={**fields, "one": "more"}, files=files)
    typed = client.post("/translate", data={**fields, "one": "more", "q": "Anna reads."})
    for answer in (uploaded, typed):
        assert (answer.status_code, "1,001 fields, but may have 1,000" in answer.json()["error"]) == (400, True)


def test_suggestions_are_stored_if_the_operator_wants_them(run: Run, tmp_path: Path) -> None:
    service = Service([(run, LanguagePair("en", "de"))])
    fields = {"q": "Anna reads.", "s": "Anna liest.", **PAIR}
    with TestClient(create_app(service), base_url="http://localhost") as client:
        refused = client.post("/suggest", json=fields)
        assert (refused.status_code, refused.json()["error"]) == (403, "Suggestions are disabled on this server.")
        service.suggestions = SuggestionFile(tmp_path / "suggestions.jsonl", max_bytes=200)
        assert client.post("/suggest", data=fields).json() == {"success": True}
        assert client.post("/suggest", json={**fields, "s": ""}).status_code == 400
        assert client.post("/suggest", json=fields).status_code == 503
    (line,) = (tmp_path / "suggestions.jsonl").read_text(encoding="utf-8").splitlines()
    assert {**json.loads(line), "time": ""} == {**fields, "time": ""}
