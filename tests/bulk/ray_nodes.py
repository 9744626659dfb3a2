"""Ray clusters of several nodes on this machine, whose nodes and processes can be killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

NODE: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100_000_000}


def worker_environment() -> dict[str, dict[str, str]]:
    """The environment of workers, which find the modules of these tests and the package."""
    paths = [str(Path(__file__).parent), *filter(None, os.environ.get("PYTHONPATH", "").split(":"))]
    return {"env_vars": {"PYTHONPATH": ":".join(paths)}}


def connect_with_path(address: str) -> None:
    """Connect to a cluster whose workers find the modules of these tests and the package."""
    ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env=worker_environment())


class Nodes:
    """A cluster of nodes with one CPU each; the first is the head."""

    def __init__(self) -> None:
        """Start the head."""
        self.cluster = Cluster(initialize_head=True, head_node_args=NODE | {"include_dashboard": False})
        self.address: str = self.cluster.address
        self.others: list[Any] = []

    def add(self) -> None:
        """Start another node."""
        self.others.append(self.cluster.add_node(**NODE))

    def kill_last(self) -> None:
        """Kill all processes of the node that was started last."""
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)

    def wait(self, count: int) -> None:
        """Wait until the cluster has some nodes."""
        limit = time.monotonic() + 60
        while sum(node["Alive"] for node in ray.nodes()) < count:
            assert time.monotonic() < limit, "the nodes did not start"
            time.sleep(0.5)


@contextmanager
def two_nodes() -> Iterator[Nodes]:
    """Start a cluster of two nodes, and end it."""
    nodes = Nodes()
    try:
        nodes.add()
        yield nodes
    finally:
        ray.shutdown()
        nodes.cluster.shutdown()


def ray_processes(name: str) -> list[int]:
    """The processes of Ray with a name, such as ray::MapWorker."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [int(line.split()[0]) for line in listed if name in line]
