"""`dragoman translate --stream`: translations as they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dragoman.cli import main
from dragoman.cli.translation_output import print_streams
from dragoman.run import StreamedTokens
from dragoman.search import Beam


class Speaker:
    """A run that says what it was told to."""

    def stream(self, source: str | np.ndarray, **options: object) -> object:
        yield StreamedTokens("zwei", tentative_text=" Worte")
        yield StreamedTokens(" Wör", tentative_text="ter")
        yield StreamedTokens("ter\nmehr")


def test_streams_are_printed_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_streams(Speaker(), ["one", "two"], Beam(), None, ())  # type: ignore[arg-type]
    assert capsys.readouterr().out == "zwei Wörter mehr\nzwei Wörter mehr\n"


def test_a_terminal_shows_tentative_tokens(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_streams(Speaker(), ["one"], Beam(), None, ())  # type: ignore[arg-type]
    out = capsys.readouterr().out
    assert "zwei\x1b[2m Worte" in out
    assert "zwei Wör\x1b[2mter" in out
    assert out.endswith("zwei Wörter mehr\n\x1b[?25h")  # and the cursor is shown again


def test_stream_excludes_other_output_formats(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["dragoman", "translate", str(tmp_path), "--stream", "--json"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "--stream prints plain text while it is generated: leave --json out" in capsys.readouterr().err
