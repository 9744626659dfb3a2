"""Some laws again, with the kernels of other processors and with several threads.

PyTorch chooses its kernels when a process starts. `make test-portability` runs more tests with all combinations.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent
FILES = [str(FOLDER / name) for name in ("test_laws.py", "test_inference_systems.py")]
OPTIONS = ["-q", "-m", "portable and not exhaustive", "-p", "no:cacheprovider", "-p", "no:xdist"]
PROGRAM = """
import sys, pytest, torch
assert torch.backends.cpu.get_cpu_capability() == sys.argv[1]
code = pytest.main(sys.argv[2:])
assert torch.get_num_threads() == int(__import__("os").environ["OMP_NUM_THREADS"])
sys.exit(code)
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="instruction sets of x86")
@pytest.mark.parametrize(("capability", "threads"), [("default", 2), ("avx2", 1)])
def test_laws_hold_on_other_processors(capability: str, threads: int) -> None:
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT" != capability.upper():
        pytest.skip("this processor has no AVX2")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-c", PROGRAM, capability.upper(), *OPTIONS, *FILES]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
