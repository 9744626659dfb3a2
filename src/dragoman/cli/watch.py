"""`dragoman watch`: a page that shows the training of another process."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from dragoman.errors import UserError
from dragoman.run_files import is_ensemble_folder, is_run_folder, read_ensemble


def watch(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", help="Run folder of the training to show, which may be running, finished or about to start."
        ),
    ],
    port: Annotated[
        int, typer.Option(help="Port of this machine to listen on; 0: any free port.", min=0, max=65535)
    ] = 0,
) -> None:
    """Show a training on a web page: loss and metrics, speed, time left, validation sentences and warnings.

    The page is read from the run folder, so that the training is not disturbed, and can be reached from this machine
    only. 'train --watch' starts it together with the training. Ctrl-C stops it.
    """
    if is_ensemble_folder(run):
        members = read_ensemble(run)["members"]
        raise UserError(
            f"the folder {run} holds {len(members)} runs with different seeds, but 'dragoman watch' shows one run: "
            f"name the folder of one, such as {run / members[0]}"
        )
    # a folder that is missing or empty may become a run
    is_other_folder = run.is_dir() and not is_run_folder(run) and any(run.iterdir())
    if not run.parent.is_dir() or (run.exists() and not run.is_dir()) or is_other_folder:
        raise UserError(f"{run} is not a run folder: name the folder that 'dragoman train' creates")

    from dragoman.watch.watch_server import WatchServer

    server = WatchServer(run, port)
    print(server.url, flush=True)
    with suppress(KeyboardInterrupt):
        server.serve()
