"""Jobs on a Ray cluster of several nodes: the same bytes as on one machine, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from dragoman.bulk import BulkJob, LocalExecutor, RayExecutor
from dragoman.bulk.block_worker import ProcessRows, Rows
from dragoman.bulk.row_formats import RowResult
from dragoman.errors import UserError

ray = pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

DRIVER = """
import sys
sys.path.insert(0, sys.argv[1])
import test_ray_cluster
test_ray_cluster.drive(*sys.argv[2:])
"""


@dataclass(frozen=True)
class SlowUpperCase:
    """A run that writes capital letters, a block in a tenth of a second."""

    def __call__(self) -> ProcessRows:
        def process(rows: Rows, first_index: int) -> list[RowResult]:
            time.sleep(0.1)
            return [RowResult((text.upper(),), len(text.split())) for (text,) in rows]

        return process


def make_job(inputs: Path, output: Path) -> BulkJob:
    return BulkJob([f"{inputs}/*"], str(output), SlowUpperCase(), {}, block_bytes=400)


def drive(inputs: str, output: str, address: str) -> None:
    """Run a job as a driver process, which the test kills."""
    connect_with_path(address)
    for _ in make_job(Path(inputs), Path(output)).run(RayExecutor(address, num_actors=2), resume=True):
        pass


def connect_with_path(address: str) -> None:
    """Connect to a cluster whose workers find this module and the package."""
    paths = [str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    environment = {"env_vars": {"PYTHONPATH": ":".join(paths)}}
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=environment)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text("".join(f"{name} line {n}\n" for n in range(2000)))
    return folder


class Cluster:
    """Nodes of a Ray cluster on this machine, each a process group that can be killed."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        self.nodes: list[subprocess.Popen[bytes]] = []

    def add_node(self) -> None:
        """Start a node with one CPU; the first is the head."""
        address = ["--address", self.address] if self.nodes else ["--head", "--port", self.address.rpartition(":")[2]]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *address]
        command += ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--object-store-memory", "100000000"]
        command += [] if self.nodes else ["--include-dashboard", "false"]
        environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
        quiet = subprocess.DEVNULL
        node = subprocess.Popen(command, stdout=quiet, stderr=quiet, start_new_session=True, env=environment)
        self.nodes.append(node)

    def kill_node(self, index: int) -> None:
        """Kill all processes of a node at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.nodes[index].pid, signal.SIGKILL)
        self.nodes[index].wait()

    def wait(self, nodes: int) -> None:
        """Wait until the cluster has some nodes."""
        limit = time.monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) < nodes:
            assert time.monotonic() < limit, "the nodes did not start"
            time.sleep(0.5)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster of two nodes on loopback addresses."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    started = Cluster()
    started.add_node()
    host, port = started.address.split(":")
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            break
        time.sleep(0.5)
    started.add_node()
    try:
        yield started
    finally:
        ray.shutdown()
        for index in range(len(started.nodes)):
            started.kill_node(index)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def actor_processes() -> list[int]:
    """The processes of the actors that process blocks."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if "ray::MapWorker" in line]


def test_dying_workers_and_nodes_lose_nothing(inputs: Path, tmp_path: Path, cluster: Cluster) -> None:
    for _ in make_job(inputs, tmp_path / "local").run(LocalExecutor()):
        pass
    cluster.add_node()
    connect_with_path(cluster.address)
    cluster.wait(3)
    stop = threading.Event()

    def kill_workers() -> None:
        """Kill one worker every three seconds, and a node once."""
        for number in range(4):
            if stop.wait(3):
                return
            for process in actor_processes()[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if number == 1:
                cluster.kill_node(2)

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        states = list(make_job(inputs, tmp_path / "ray").run(RayExecutor(cluster.address, num_actors=2)))
    finally:
        stop.set()
        killer.join()
    assert states[-1].lines == 6000
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_killed_driver_resumes(inputs: Path, tmp_path: Path, cluster: Cluster) -> None:
    for _ in make_job(inputs, tmp_path / "local").run(LocalExecutor()):
        pass
    arguments = [sys.executable, "-c", DRIVER, str(Path(__file__).parent)]
    arguments += [str(inputs), str(tmp_path / "ray"), cluster.address]
    with subprocess.Popen(arguments) as driver:
        blocks = tmp_path / "ray" / "blocks"
        limit = time.monotonic() + 120
        while len(list(blocks.glob("*.json")) if blocks.exists() else ()) < 5 and time.monotonic() < limit:
            time.sleep(0.1)
        driver.kill()
    assert not (tmp_path / "ray" / "manifest.json").exists()
    subprocess.run(arguments, check=True, timeout=240)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_no_cluster_at_the_address(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no Ray cluster at '127.0.0.1:1'"):
        list(make_job(inputs, tmp_path / "out").run(RayExecutor("127.0.0.1:1")))
