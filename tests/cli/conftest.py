"""Fixtures of the command-line tests."""

from __future__ import annotations

import pytest
from calling import Answer, Dragoman

from dragoman.cli import main


@pytest.fixture
def dragoman(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Dragoman:
    """The command line, called in this process."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr("sys.argv", ["dragoman", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Answer(int(ended.value.code or 0), *capfd.readouterr())

    return call
