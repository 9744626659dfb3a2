"""Jobs on a Ray cluster of several nodes: the same bytes as on one machine, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

import dragoman
from dragoman.bulk import BulkJob, LocalExecutor, RayExecutor
from dragoman.bulk.block_worker import ProcessRows, Rows
from dragoman.bulk.row_formats import RowResult
from dragoman.errors import UserError

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402
from ray_nodes import NODE, Nodes, connect_with_path, ray_processes, two_nodes  # noqa: E402  # needs Ray

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


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in "abc":
        (folder / f"{name}.txt").write_text("".join(f"{name} line {n}\n" for n in range(2000)))
    return folder


@pytest.fixture
def cluster() -> Iterator[Nodes]:
    """A cluster of two nodes on the loopback address."""
    with two_nodes() as started:
        yield started


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_dying_workers_and_nodes_lose_nothing(inputs: Path, tmp_path: Path, cluster: Nodes) -> None:
    for _ in make_job(inputs, tmp_path / "local").run(LocalExecutor()):
        pass
    cluster.add()
    connect_with_path(cluster.address)
    cluster.wait(3)
    stop = threading.Event()

    def kill_workers() -> None:
        """Kill one worker every three seconds, and a node once."""
        for number in range(4):
            if stop.wait(3):
                return
            for process in ray_processes("ray::MapWorker")[:1]:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            if number == 1:
                cluster.kill_last()

    killer = threading.Thread(target=kill_workers)
    killer.start()
    try:
        states = list(make_job(inputs, tmp_path / "ray").run(RayExecutor(cluster.address, num_actors=2)))
    finally:
        stop.set()
        killer.join()
    assert states[-1].lines == 6000
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")


def test_a_killed_driver_resumes(inputs: Path, tmp_path: Path, cluster: Nodes) -> None:
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
    assert not (tmp_path / "out").exists()


def write_other_version(folder: Path) -> None:
    """Make a copy of the package that has another version."""
    package = Path(dragoman.__file__).parent
    (folder / "dragoman").mkdir(parents=True)
    for path in package.iterdir():
        if path.name not in ("__init__.py", "__pycache__"):
            (folder / "dragoman" / path.name).symlink_to(path)
    text = (package / "__init__.py").read_text(encoding="utf-8")
    (folder / "dragoman" / "__init__.py").write_text(text.replace(f'"{dragoman.__version__}"', '"9.9.9"'))


def test_a_machine_with_another_version(inputs: Path, tmp_path: Path) -> None:
    write_other_version(tmp_path / "other")
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path / "other")})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        executor = RayExecutor(cluster.address, num_actors=1)
        sentence = (
            rf"^the machine 127.0.0.1 of the Ray cluster has dragoman 9.9.9, but this machine has "
            rf"{dragoman.__version__}: install the same version on all machines$"
        )
        with pytest.raises(UserError, match=sentence):
            list(make_job(inputs, tmp_path / "out").run(executor))
        with pytest.raises(UserError, match=sentence):
            list(executor.map_in_order(len, ["a"]))
        assert not (tmp_path / "out" / "a.txt").exists()
    finally:
        ray.shutdown()
        cluster.shutdown()


def test_a_machine_without_the_package(tmp_path: Path) -> None:
    (tmp_path / "dragoman").mkdir()
    (tmp_path / "dragoman" / "__init__.py").write_text("raise ImportError('No module named dragoman')")
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 0, "include_dashboard": False})
    try:
        cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        with pytest.raises(UserError, match=r"127.0.0.1 of the Ray cluster has no dragoman \(No module named"):
            list(RayExecutor(cluster.address).map_in_order(len, ["a"]))
    finally:
        ray.shutdown()
        cluster.shutdown()
