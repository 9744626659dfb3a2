"""Jobs and preparation on a small Ray cluster: the same bytes as on local processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

ray = pytest.importorskip("ray")
from ray_nodes import worker_environment  # noqa: E402  # needs Ray
from test_bulk_job import contents, job, run  # noqa: E402
from test_ray_preparation import prepared_files, write_corpus  # noqa: E402

from dragoman.bulk import LocalExecutor, RayExecutor  # noqa: E402
from dragoman.data.data_formats import DataFormat  # noqa: E402
from dragoman.errors import UserError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    """A cluster of one node with two CPUs, which ends with the module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", worker_environment()["env_vars"]["PYTHONPATH"])
        ray.init("local", num_cpus=2, object_store_memory=100_000_000, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_the_same_bytes_as_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    for name in "ab":
        (tmp_path / "in" / f"{name}.txt").write_text("".join(f"{name} {n}\n" for n in range(50)) + "bad\n")
    run(job(tmp_path / "in", tmp_path / "local"))
    last = run(job(tmp_path / "in", tmp_path / "ray"), RayExecutor(num_actors=2))
    assert last.lines == 102
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    monkeypatch.setattr(DataFormat, "max_chunk_pairs", 100)
    write_corpus(tmp_path, 500)
    files = prepared_files(tmp_path, tmp_path / "prepared", RayExecutor())
    assert files == prepared_files(tmp_path, tmp_path / "local-prepared", LocalExecutor())
    assert "data/train/store.json" in files
    assert b"nearly the same words as an earlier pair" in files["preflight.json"]


def test_an_error_of_the_user_ends_the_map() -> None:
    def fail(number: int) -> int:
        if number == 5:
            raise UserError("5 is not allowed")
        return -number

    results = RayExecutor().map_in_order(fail, range(10))
    assert [next(results) for _ in range(5)] == [0, -1, -2, -3, -4]
    with pytest.raises(UserError, match=r"^5 is not allowed$"):
        next(results)
