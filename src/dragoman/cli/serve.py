"""`dragoman serve`: runs over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dragoman.cli.checks import check_run
from dragoman.cli.options import Checkpoint, Device, log, weights_of


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Run folders, or RUN=en-de to say the languages.", show_default=False),
    ],
    port: Annotated[int, typer.Option(help="0: any that is free.", min=0, max=65535)] = 5000,
    host: Annotated[str, typer.Option(help="0.0.0.0: other machines may ask too.")] = "127.0.0.1",
    keys: Annotated[Path | None, typer.Option(help="A file of API keys, one a line; only these are answered.")] = None,
    max_characters: Annotated[int, typer.Option(help="The most characters of a request.")] = 10_000,
    max_texts: Annotated[int, typer.Option(help="The most texts of a request.")] = 100,
    max_body_bytes: Annotated[int, typer.Option(help="The most bytes of a request.")] = 1_000_000,
    max_queue: Annotated[int, typer.Option(help="The most requests that wait for a run.")] = 256,
    rate: Annotated[int, typer.Option(help="The most requests a minute of a client; 0: any number.")] = 600,
    timeout: Annotated[float, typer.Option(help="The longest that a request may take.")] = 60.0,
    batch_delay_ms: Annotated[
        float, typer.Option(help="How many milliseconds a request waits for others to join it.")
    ] = 5.0,
    max_batch_tokens: Annotated[
        int | None, typer.Option(help="Source tokens of a batch, if not the run's search.batch_tokens.")
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    int8: Annotated[
        bool, typer.Option("--int8", help="Multiply by bytes, on a CPU: faster, a little less exact.")
    ] = False,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="Compute in bfloat16, on a GPU: faster, a little less exact.")
    ] = False,
) -> None:
    """Serve runs over HTTP: a page that shows what they think, LibreTranslate's interface, and our own under /v1."""
    for run in runs:
        check_run(run if Path(run).exists() or "=" not in run else run.rpartition("=")[0], checkpoint, device)

    from dragoman import load
    from dragoman.serving import (
        ApiKeys,
        BatchingSettings,
        Service,
        ServiceLimits,
        bind_socket,
        infer_language_pair,
        is_loopback,
        parse_run_argument,
    )
    from dragoman.serving import serve as serve_them

    limits = ServiceLimits(
        max_characters=max_characters,
        max_texts=max_texts,
        max_body_bytes=max_body_bytes,
        max_queue=max_queue,
        requests_per_minute=rate,
        timeout=timeout,
    )
    batching, known = (
        BatchingSettings(max_batch_tokens, batch_delay_ms / 1000),
        ApiKeys() if keys is None else ApiKeys.read(keys),
    )
    meant = [parse_run_argument(run) for run in runs]
    bound = bind_socket(host, port)
    opened = []
    for folder, pair in meant:
        loaded = load(folder, checkpoint, device, weights=weights_of(int8, bfloat16))
        opened.append((loaded, pair or infer_language_pair(loaded)))
    service = Service(opened, limits, batching, known)
    address, number = bound.getsockname()[:2]

    def ready() -> None:
        for served in service.runs.values():
            log(f"{served.name}: {served.pair.source} to {served.pair.target}")
        if not is_loopback(address) and not known.required:
            log("other machines can reach this service, and it asks for no key: see --keys")
        place = f"[{address}]" if ":" in address else address
        print(f"http://{place}:{number}", flush=True)

    serve_them(service, bound, ready)
