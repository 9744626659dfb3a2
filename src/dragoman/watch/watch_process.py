"""The process beside a training that shows it on a web page, as far as the run folder tells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dragoman.console import log
from dragoman.watch.watch_server import check_packages

END_TIMEOUT = 10.0  # seconds that the process gets to end


@contextmanager
def watched(folder: Path, port: int = 0, stay: bool = False) -> Iterator[None]:
    """Show the training of a run folder on a page while the block runs.

    The page is served by another process with a low priority: if it fails, the training goes on. That process ends when
    its standard input does: with the block, or with this process.

    Args:
        folder: the run folder, which need not exist yet.
        port: port of the page on this machine; 0: any free one.
        stay: serve the page after the block, until Ctrl-C.
    """
    check_packages()
    command = [sys.executable, "-m", "dragoman.watch", str(folder), str(port)]
    # in a session of its own, which Ctrl-C does not reach: it is for the training, which then saves a checkpoint
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield
        if stay and process.poll() is None:
            log("the page is still served: press Ctrl-C to stop")
            with suppress(KeyboardInterrupt):
                process.wait()
    finally:
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()  # at which the process ends
        try:
            process.wait(END_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
