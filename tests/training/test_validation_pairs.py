"""How many training pairs are held out for validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from dragoman.config import from_dict
from dragoman.errors import UserError
from dragoman.training.prepare import prepare_run


def prepare(folder: Path, lines: list[str], **data: object) -> str:
    """Prepare a run that copies the lines; return its messages."""
    messages: list[str] = []
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    files = {"source": [str(folder / "source")], "target": [str(folder / "target")]}
    config = from_dict({"data": files | data, "training": {"device": "cpu"}})
    prepare_run(folder / "run", config, messages.append)
    return "\n".join(messages)


def test_the_number_of_held_out_pairs_is_reported(tmp_path: Path) -> None:
    assert "holding out 20 of 200 pairs for validation" in prepare(
        tmp_path, [f"the dog {n} sleeps" for n in range(200)]
    )


def test_more_than_half_of_the_pairs_are_not_held_out(tmp_path: Path) -> None:
    lines = [f"the dog {n} sleeps" for n in range(50)]
    with pytest.raises(UserError, match=r"validation_size=26 would hold out more than half of 50 pairs.* at most 25"):
        prepare(tmp_path, lines, validation_size=26)
    assert not (tmp_path / "run").exists()
