"""Freed memory is kept by the process, where the C library can be told to."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

import pytest

from dragoman.memory import keep_freed_memory

CODE = """
import resource
import torch
from dragoman.memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(2**22)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

usual = faults()
keep_freed_memory()
torch.ones(2**22)
print(usual, faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_reused() -> None:
    """Ten tensors of 16 MiB, one after the other, are 40,960 pages of 4 KiB."""
    told = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    usual, kept = map(int, told.split())
    assert kept < usual / 2


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    monkeypatch.delattr(ctypes, "CDLL")
    keep_freed_memory()
