"""Usage: which command of the command line uses a model."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """The command that uses a model, with a line of input as an example."""

    command: str
    purpose: str
    example: str

    def hint(self, program: str, run: str, vectors: bool = False) -> str:
        """A shell command that shows how to use a run; one that reads `vectors` is given a file of them."""
        used = f"{program} {self.command} {shlex.quote(run)}"
        return f"{used} FILE.npz" if vectors else f"echo {shlex.quote(self.example)} | {used}"


TRANSLATE = Usage("translate", "translate a file", "A sentence.")
CONTINUE = Usage("generate", "continue texts", "The first words")
REPLY = Usage("generate", "reply to dialogues", "Hello.")
FILL = Usage("fill", "fill gaps", "A <mask> sentence.")
TAG = Usage("tag", "tag words", "A sentence .")
