"""The service keeps to its own OpenAPI description, whatever it is sent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKER = "from schemathesis.cli import schemathesis; schemathesis()"


@pytest.mark.parametrize(
    ("phases", "examples"), [("examples,fuzzing", 2), pytest.param("all", 5, marks=pytest.mark.exhaustive)]
)
def test_responses_match_the_openapi_description(phases: str, examples: int, url: str, tmp_path: Path) -> None:
    """Schemathesis sends what the description allows and what it does not, from a process of its own.

    Which languages and searches there are the description does not say, so that what it allows may still be refused.
    """
    options = ["--exclude-checks", "positive_data_acceptance", "--seed", "1", "--no-color"]
    options += ["--max-examples", str(examples), *(["--phases", phases] if phases != "all" else [])]
    command = [sys.executable, "-c", CHECKER, "run", url + "openapi.json", *options]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
    selected, total = re.findall(r"(\d+) selected / (\d+) total", ended.stdout)[0]
    assert (selected, int(total) >= 14) == (total, True)
