"""Configuration of the command: file, environment and options; certificates; systemd."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from dragoman.cli import app, main
from dragoman.cli.options import ModelOptions
from dragoman.cli.serve import PROCESS_ENVIRONMENT, ServiceBuilder
from dragoman.cli.serve_options import AnalysisOptions, KeyOptions, LimitOptions, RoutingOptions, SuggestionOptions
from dragoman.errors import UserError
from dragoman.run import Run
from dragoman.serving import BLOCKED_PORTS, LanguagePair, ServerOptions, Service, TlsFiles, bind_socket, reachable_urls
from dragoman.serving.server import create_server
from dragoman.serving.systemd import keep_watchdog_quiet, notify_reloading, notify_systemd

PATIENCE = 300  # seconds: an upper bound for a busy machine
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `dragoman serve --print-config`; returns exit code, standard output and standard error."""

    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["dragoman", "serve", *map(str, arguments), "--print-config"])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return run_command


def test_options_before_environment_before_file_before_default(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "keys").write_text("secret\n")
    runs = [f"../{Path(shutil.copytree(folder, tmp_path / 'second', symlinks=True)).name}", f"{folder}=en-de"]
    values = {"runs": runs, "port": 1, "max_queue": 2, "max-texts": 3, "allowed-hosts": ["a.example", "b.example"]}
    values |= {"api-keys": "../keys", "watch-runs": True, "log-format": "json", "timeout": 5}
    values |= {"routes": [{"name": "both", "runs": {"second": 0.9, "run": 0.1}}], "cors-origin": "https://c.example"}
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "service.yaml").write_text(yaml.safe_dump(values | {"host": None}))
    monkeypatch.setenv("DRAGOMAN_SERVE_PORT", "11")
    monkeypatch.setenv("DRAGOMAN_SERVE_MAX_QUEUE", "12")
    monkeypatch.setenv("DRAGOMAN_SERVE_NO_LOG_ADDRESSES", "true")
    monkeypatch.setenv("DRAGOMAN_SERVE_CONFIG", str(tmp_path / "etc" / "service.yaml"))
    code, text, error = command("--port", 21)
    assert (code, error) == (0, "")
    found, etc = yaml.safe_load(text), tmp_path / "etc"
    expected = {"port": 21, "max-queue": 12, "max-texts": 3, "max-characters": 10_000, "host": "127.0.0.1"}
    expected |= {"allowed-host": ["a.example", "b.example"], "cors-origin": ["https://c.example"], "timeout": 5.0}
    expected |= {"runs": [f"{etc}/../second", f"{folder}=en-de"], "api-keys": f"{etc}/../keys", "watch-runs": True}
    expected |= {"route": ["both=run:0.1,second:0.9"], "no-log-addresses": True, "log-format": "json"}
    assert {name: found[name] for name in expected} == expected
    origins = dict(line.partition(":")[::2] for line in text.splitlines())
    for name, origin in (("port", "option"), ("max-queue", "environment"), ("max-texts", "file"), ("host", "default")):
        assert origins[name].endswith(f"# {origin}")
    (etc / "printed.yaml").write_text(text)
    monkeypatch.setenv("DRAGOMAN_SERVE_PORT", "")
    monkeypatch.delenv("DRAGOMAN_SERVE_MAX_QUEUE")
    assert yaml.safe_load(command("--config", etc / "printed.yaml")[1]) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot: 1", "unknown option 'prot': did you mean 'port'?"),
        ("port: x", "'port' has a wrong value"),
        ("port: 99999", "'port' has a wrong value"),
        ("port: true", "'port' must be a number or text, but is True"),
        ("port: [1]", "'port' takes one value"),
        ("port: {a: 1}", "'port' must be a number or text"),
        ("watch-runs: 1", "'watch-runs' must be true or false, but is 1"),
        ("log-format: xml", "'log-format' has a wrong value"),
        ("- 1", "must map options to values in lines such as 'port: 8080'"),
        ("a: [", "not valid YAML (line"),
        ("\ta: 1", "not valid YAML (line 1)"),
        ("routes: [{name: a}]", "a route must have a name, and runs with weights"),
        ("routes: [a]", "must have a name, and runs with weights"),
        ("routes: [{name: a, runs: {rnu: 1}}]", "did you mean 'run'?"),
        ("route-by: text", "--route-by has no effect"),
        ("quota-file: quotas.json", "--quota-file has no effect"),
        ("tls-cert: a.pem", "--tls-cert is given without --tls-key"),
        ("api-keys: none", "none cannot be read"),
        ("max-queue: 0", "'max-queue' has a wrong value: input should be greater than or equal to 1"),
    ],
)
def test_wrong_configuration(command: Command, folder: Path, tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "service.yaml").write_text(text)
    code, _, error = command(folder, "--config", tmp_path / "service.yaml")
    assert (code, said in error) == (2, True), error


def test_wrong_environment(command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "cannot be read: No such file" in command(folder, "--config", tmp_path / "none.yaml")[2]
    with monkeypatch.context() as patch:
        patch.setenv("DRAGOMAN_SERVE_PROT", "1")
        assert "did you mean 'DRAGOMAN_SERVE_PORT'?" in command(folder)[2]
    for name, value, said in (
        ("PORT", "x", "should be a valid integer"),
        ("MAX_QUEUE", "0", "greater than or equal to 1"),
        ("LOG_FORMAT", "xml", "'xml' is not one of"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(f"DRAGOMAN_SERVE_{name}", value)
            error = command(folder)[2]
            assert f"the environment variable DRAGOMAN_SERVE_{name} has a wrong value" in error
            assert (said in error, "--" in error) == (True, False)
            # an option counts before the variable
            wrong = command(folder, f"--{name.lower().replace('_', '-')}", "-")[2]
            assert (f"--{name.lower().replace('_', '-')}" in wrong, "environment" in wrong) == (True, False)


def test_memory_of_kernels_is_limited_unless_the_user_says_otherwise(
    command: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the process of the command, and where a cluster builds the service again."""
    groups = (LimitOptions(), KeyOptions(), SuggestionOptions(), RoutingOptions(), AnalysisOptions())
    builder = ServiceBuilder([str(folder)], ModelOptions(device="cpu"), "float32", *groups, is_local=True)
    for start in (command, builder):
        for given in ({}, {"LRU_CACHE_CAPACITY": "7"}):
            others = {name: value for name, value in os.environ.items() if name not in PROCESS_ENVIRONMENT}
            monkeypatch.setattr(os, "environ", others | given)
            start()
            expected = PROCESS_ENVIRONMENT | given
            assert {name: os.environ[name] for name in PROCESS_ENVIRONMENT} == expected


def test_runs_come_from_arguments_or_the_configuration(command: Command, folder: Path, tmp_path: Path) -> None:
    assert "there is no run to serve: name a run folder, or give --config" in command()[2]
    (tmp_path / "service.yaml").write_text(f"runs: [{folder}]")
    code, out, _ = command("--config", tmp_path / "service.yaml")
    assert (code, str(folder) in out) == (0, True)
    usage = CliRunner().invoke(app, ["serve", "--help"]).output
    assert "serve [OPTIONS] [RUN]..." in usage


def test_ports_that_browsers_refuse() -> None:
    """Chromium answers ERR_UNSAFE_PORT; the list is that of the Fetch standard."""
    assert {5060, 5061, 6000, 6667, 10080} <= BLOCKED_PORTS
    assert not BLOCKED_PORTS & {5000, 8000, 8080, 8443}


# ---- https


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates for localhost with their keys, and a key with a password."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    for name in ("first", "second"):
        files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
        subprocess.run([*make.split(), *files], cwd=folder, check=True, capture_output=True)
    lock = "openssl pkey -in first.key -aes256 -passout pass:secret -out locked.key"
    subprocess.run(lock.split(), cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize(
    ("certificate", "key", "said"),
    [
        ("first.pem", "second.key", "the key does not belong to the certificate"),
        ("first.pem", "locked.key", "has a password"),
        ("first.pem", "none.key", "none.key of --tls-key cannot be read"),
        ("first.key", "first.key", "has no certificate in PEM format"),
        ("first.pem", "first.pem", "has no private key in PEM format"),
    ],
)
def test_wrong_certificates(certificates: Path, certificate: str, key: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        TlsFiles.from_options(certificates / certificate, certificates / key)


def test_https_with_a_certificate_that_is_renewed(certificates: Path, run: Run, tmp_path: Path) -> None:
    for kind in ("pem", "key"):
        shutil.copy(certificates / f"first.{kind}", tmp_path / f"used.{kind}")
    files = TlsFiles.from_options(tmp_path / "used.pem", tmp_path / "used.key")
    service, ready, bound = Service([(run, LanguagePair("en", "de"))]), threading.Event(), bind_socket("127.0.0.1", 0)
    server = create_server(service, ready.set, ServerOptions(tls=files))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    assert ready.wait(PATIENCE)
    (url,) = reachable_urls(*bound.getsockname(), "https")
    assert url.startswith("https://127.0.0.1:")

    def status(trusted: str) -> int:
        context = ssl.create_default_context(cafile=certificates / trusted)
        with urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE, context=context) as response:
            return int(response.status)

    try:
        assert status("first.pem") == 200
        for kind in ("pem", "key"):
            shutil.copy(certificates / f"second.{kind}", tmp_path / f"used.{kind}")
        assert service.reloader.reload()["certificate"].result == "reloaded"
        assert status("second.pem") == 200
        with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            status("first.pem")
        (tmp_path / "used.key").write_text("damaged")
        assert service.reloader.reload()["certificate"].result == "failed"
        assert status("second.pem") == 200
    finally:
        server.should_exit = True
        thread.join()
        bound.close()


# ---- stopping and systemd


@pytest.mark.parametrize(("proxies", "client"), [((), "203.0.113.9"), (("192.0.2.1",), "127.0.0.1")])
def test_address_behind_a_proxy(
    run: Run, proxies: tuple[str, ...], client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that a trusted proxy names; by default, proxies on this machine are trusted."""
    service, seen = Service([(run, LanguagePair("en", "de"))]), []
    monkeypatch.setattr("dragoman.serving.request_log.log_request", lambda record, _: seen.append(record.address))
    server = create_server(service, options=ServerOptions(trusted_proxies=proxies))
    server.config.load()
    transport = httpx.ASGITransport(server.config.loaded_app)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await client.get("/livez", headers={"x-forwarded-for": "203.0.113.9"})

    asyncio.run(ask())
    assert seen == [client]


def test_requests_are_accepted_during_the_shutdown_delay(run: Run) -> None:
    service, ready, bound = Service([(run, LanguagePair("en", "de"))]), threading.Event(), bind_socket("127.0.0.1", 0)
    server = create_server(service, ready.set, ServerOptions(shutdown_delay=PATIENCE))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    assert ready.wait(PATIENCE)
    (url,) = reachable_urls(*bound.getsockname())
    server.handle_exit(signal.SIGTERM, None)
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{url}/readyz", timeout=PATIENCE)
    assert (error.value.code, json.load(error.value)["status"]) == (503, "stopping")
    assert urllib.request.urlopen(f"{url}/v1/runs", timeout=PATIENCE).status == 200
    server.should_exit = True
    thread.join()
    bound.close()


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="systemd needs Unix sockets")
def test_messages_to_systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notify_systemd("READY=1")  # without systemd: nothing
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        notify_systemd("READY=1", "STATUS=x")
        assert receiver.recv(100) == b"READY=1\nSTATUS=x"
        notify_reloading()
        reloading, _, microseconds = receiver.recv(100).partition(b"\nMONOTONIC_USEC=")
        assert (reloading, int(microseconds) > 0) == (b"RELOADING=1", True)

        async def watch() -> None:
            task = asyncio.create_task(keep_watchdog_quiet())
            await asyncio.sleep(0.05)
            task.cancel()

        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        asyncio.run(watch())
        assert [receiver.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    notify_systemd("READY=1")  # nobody listens


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--on", "spark"), "--on must be local (processes of this machine), ray"),
        (("--on", "ray", "--shutdown-delay", "3"), "--shutdown-delay cannot be used with --on ray"),
        (("--on", "ray://127.0.0.1:1"), "there is no Ray cluster at '127.0.0.1:1'"),
    ],
)
def test_wrong_options_of_a_cluster(
    folder: Path,
    options: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "127.0.0.1:1" in said:
        pytest.importorskip("ray")
    monkeypatch.setattr("sys.argv", ["dragoman", "serve", str(folder), *options])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err
