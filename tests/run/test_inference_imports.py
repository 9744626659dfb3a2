"""Inference needs no training code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "legacy" / "folders" / "transformer"
PROGRAM = """
import sys, dragoman
run = dragoman.load(sys.argv[1], device="cpu")
run.translate(["the dog sleeps"], beam_size=2, token_scores=True)
list(run.stream("the dog sleeps"))
run.score(["the dog"], ["der Hund"])
print(*sorted(name for name in sys.modules if name.startswith("dragoman.")))
"""


def test_opening_and_using_a_run_imports_no_training_code() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(FOLDER)], capture_output=True, text=True, check=True)
    folders = {name.split(".")[1] for name in done.stdout.split()}
    assert {"run", "search", "models"} <= folders
    assert folders.isdisjoint({"training", "interop", "lens", "serving", "cli"})
