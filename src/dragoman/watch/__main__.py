"""The process that shows a training: python -m dragoman.watch RUN PORT. It ends with its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from dragoman.errors import UserError
from dragoman.watch.watch_server import WatchServer, lower_priority


def main(folder: str, port: str) -> None:
    """Serve the page of a run folder, and print its address."""
    try:
        server = WatchServer(Path(folder), int(port))
    except UserError as error:
        print(f"the training is not shown on a page: {error}", file=sys.stderr, flush=True)
        sys.exit(2)
    lower_priority()
    print(f"watch the training at {server.url}", file=sys.stderr, flush=True)
    server.stop_at_end_of(sys.stdin.buffer)
    server.serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
