"""A service that listens: clients of others, clients that misbehave, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from deep_translator import LibreTranslator
from libretranslatepy import LibreTranslateAPI

from dragoman.cli import main
from dragoman.run import Run
from dragoman.serving import Service, bind_socket

PAIR = {"source": "en", "target": "de"}
PATIENCE = 300  # seconds: an upper bound for a busy machine


def test_libretranslatepy_client(url: str, run: Run) -> None:
    client = LibreTranslateAPI(url)
    assert client.translate("Anna reads.", "en", "de") == run.translate(["Anna reads."])[0].text
    assert [one["code"] for one in client.languages()] == ["en", "de"]
    assert client.detect("Die Frau sieht den Mann.")[0]["language"] == "de"


def test_deep_translator_client(url: str, run: Run) -> None:
    client = LibreTranslator(source="en", target="de", custom_url=url, api_key="any")
    texts = ["Anna reads.", "The man sleeps."]
    found = [one.text for one in run.translate(texts)]
    assert client.translate(texts[0]) == found[0]
    assert client.translate_batch(texts) == found


def ask(url: str, body: bytes) -> tuple[int, dict[str, str]]:
    request = urllib.request.Request(url + "translate", body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def test_ten_megabytes_are_rejected_with_a_response(url: str) -> None:
    status, said = ask(url, json.dumps({"q": "a" * 10_000_000, **PAIR}).encode())
    assert (status, "1,000,000 bytes" in said["error"]) == (413, True)


def send(connection: socket.socket, body: bytes) -> None:
    """A whole request at once, so that it does not arrive late on a busy machine."""
    head = "POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    connection.settimeout(PATIENCE)
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)


def test_slow_body_times_out(hasty: tuple[str, int]) -> None:
    with socket.create_connection(hasty) as slow, socket.create_connection(hasty) as other:
        slow.sendall(b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        send(other, json.dumps({"q": "Anna reads.", **PAIR}).encode())
        assert other.recv(100).startswith(b"HTTP/1.1 200")  # others go on
        slow.settimeout(PATIENCE)
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-slow: "])
def test_incomplete_headers_time_out(hasty: tuple[str, int], begun: bytes) -> None:
    with socket.create_connection(hasty) as slow:
        slow.settimeout(PATIENCE)
        slow.sendall(begun)
        said = b"".join(iter(lambda: slow.recv(1000), b""))
    assert said.startswith(b"HTTP/1.1 408")
    assert b"0.5 seconds" in said


def test_second_request_times_out_too(hasty: tuple[str, int]) -> None:
    with socket.create_connection(hasty) as slow:
        slow.settimeout(PATIENCE)
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
        slow.sendall(b"GET /health HTTP/1.1\r\nho")
        said = b"".join(iter(lambda: slow.recv(1000), b""))
    assert b"HTTP/1.1 408" in said


def test_slow_response_does_not_time_out(hasty: tuple[str, int], hasty_service: Service) -> None:
    with socket.create_connection(hasty) as client:
        with hasty_service.device.turn():  # the run cannot work now
            send(client, json.dumps({"q": "Anna reads.", **PAIR}).encode())
            client.settimeout(1.5)  # seconds, of which 0.5 are the client's
            with pytest.raises(TimeoutError):
                client.recv(100)
        client.settimeout(PATIENCE)
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_request_of_a_disconnected_client_is_dropped(
    url: str, address: tuple[str, int], service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    (served,) = service.runs.values()
    batches: list[list[object]] = []
    answer = served.batcher._translate
    monkeypatch.setattr(
        served.batcher, "_translate", lambda batch, is_long: (batches.append(batch), answer(batch, is_long))
    )
    body = json.dumps({"q": "Anna reads.", **PAIR}).encode()
    with service.device.turn():  # the run cannot work now
        first = threading.Thread(target=ask, args=(url, body))
        first.start()
        _until(lambda: batches)
        leaving = socket.create_connection(address)
        leaving.sendall(b"POST /translate HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n")
        leaving.sendall(b"content-length: %d\r\n\r\n" % len(body) + body)
        _until(lambda: len(served.batcher._jobs) == 1)
        leaving.close()
        _until(lambda: all(job.future.cancelled() for job in served.batcher._jobs))
    first.join()
    _until(lambda: 'route="/translate",status="499"' in service.metrics.text())
    assert ask(url, body)[0] == 200
    assert len(batches) == 2  # of the first and of the last


def test_stream_of_a_disconnected_client_stops(address: tuple[str, int], service: Service) -> None:
    body = json.dumps({"text": "\n" + "Anna reads. " * 50}).encode()
    with service.device.turn(), socket.create_connection(address) as client:  # the run cannot work now
        head = "POST /v1/stream HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        client.settimeout(PATIENCE)
        said = b""
        while b"event: tokens" not in said:  # the line break that the text begins with
            said += client.recv(1000)
        assert "dragoman_streams 1.0" in service.metrics.text()
    _until(lambda: "dragoman_streams 0.0" in service.metrics.text())


def _until(true: Callable[[], object]) -> None:
    ends = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.005)


def test_sighup_reloads_and_sigterm_finishes_accepted_requests(folder: Path, tmp_path: Path) -> None:
    """The command itself; the request waits for others to join it while SIGTERM comes."""
    folder = Path(shutil.copytree(folder, tmp_path / "run", symlinks=True))
    command = [
        sys.executable,
        "-m",
        "dragoman",
        "serve",
        str(folder),
        "--port",
        "0",
        "--batch-delay-ms",
        "1500",
        "--device",
        "cpu",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    url = process.stdout.readline().strip() + "/"
    version = json.load(urllib.request.urlopen(url + "v1/runs"))[0]["version"]
    with (folder / "config.yaml").open("a") as file:
        file.write("# changed\n")
    process.send_signal(signal.SIGHUP)
    _until(lambda: json.load(urllib.request.urlopen(url + "v1/runs"))[0]["version"] != version)
    answers: list[tuple[int, dict[str, str]]] = []
    body = json.dumps({"q": "Anna reads.", **PAIR}).encode()
    asking = threading.Thread(target=lambda: answers.append(ask(url, body)))
    asking.start()
    _until(lambda: answers or b'dragoman_queue{run="run"} 1' in urllib.request.urlopen(url + "metrics").read())
    process.send_signal(signal.SIGTERM)
    asking.join()
    said = process.communicate(timeout=PATIENCE)[1]
    assert answers[0][0] == 200
    assert process.returncode == 0, said
    assert "run: en to de" in said
    assert f"replaces {version}" in said
    (line,) = (line for line in said.splitlines() if "route=/translate" in line)
    assert "status=200" in line


def test_invalid_arguments_of_serve(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said(*arguments: object) -> str:
        monkeypatch.setattr("sys.argv", ["dragoman", "serve", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        return capsys.readouterr().err

    with bind_socket("127.0.0.1", 0) as taken:
        taken.listen()
        assert "cannot listen" in said(folder, "--port", taken.getsockname()[1])
    assert "does not exist" in said(tmp_path / "none")
    assert "is not of the form RUN=SOURCE-TARGET" in said(f"{folder}=english")
    assert "Invalid value for '--max-queue'" in said(folder, "--max-queue", 0)
    (tmp_path / "keys").write_text("# none yet\n")
    assert "is empty" in said(folder, "--api-keys", tmp_path / "keys")
