"""Which command of the command line uses a model."""

from __future__ import annotations

import shlex
from dataclasses import dataclass


@dataclass(frozen=True)
class Usage:
    """The command that uses a model, with an example of an input line."""

    command: str
    purpose: str
    example: str

    def hint(self, program: str, run: str, file: str = "", options: str = "") -> str:
        """Return a shell command that uses the trained model in the folder `run`, such as "echo … | dragoman fill".

        `program` is the name of the command-line program. The input is `file` or, if it is empty, a line of example
        text from a pipe. `options` come last; empty: none.
        """
        command = " ".join(filter(None, (program, self.command, shlex.quote(run), file, options)))
        return command if file else f"echo {shlex.quote(self.example)} | {command}"


TRANSLATE = Usage("translate", "translate a file", "A sentence.")
CONTINUE = Usage("generate", "continue texts", "The first words")
REPLY = Usage("generate", "reply to dialogues", "Hello.")
FILL = Usage("fill", "fill gaps", "A <mask> sentence.")
TAG = Usage("tag", "tag words", "A sentence .")
CLASSIFY = Usage("classify", "classify texts", "A sentence.")
