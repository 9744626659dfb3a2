"""The process that shows a training: python -m dragoman.watch RUN PORT. It ends with its standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from dragoman.errors import UserError
from dragoman.watch.watch_server import WatchServer, lower_priority


def main(folder: str, port: str) -> None:
    """Print the address of a page that shows the training of a run folder, and serve it until standard input ends.

    If the page cannot be served at `port` (0: any free one), say why and exit with status 2.
    """
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
