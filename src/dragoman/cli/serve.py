"""`dragoman serve`: a translation server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from dragoman import console
from dragoman.cli.options import ModelOptions, PrecisionOptions


def serve(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN", help="Folders of the runs to serve, optionally with their languages: RUN=en-de."),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = 5000,
    host: Annotated[str, "Address to listen on; 0.0.0.0: all interfaces."] = "127.0.0.1",
    api_keys: Annotated[
        Path | None, "File of API keys, one per line, or YAML with quotas. Requests without a key are rejected."
    ] = None,
    quota_file: Annotated[Path | None, "File that keeps what API keys have used today over a restart."] = None,
    allowed_host: Annotated[
        list[str] | None,
        "Host name of the service, such as that of a reverse proxy, besides localhost, IP addresses and the name of "
        "this machine; '*': any. Repeatable.",
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        "Web site whose scripts may use the service, such as https://example.org; '*': any. Repeatable.",
    ] = None,
    max_characters: Annotated[int, "Maximum characters per request."] = 10_000,
    max_texts: Annotated[int, "Maximum texts per request."] = 100,
    max_body_bytes: Annotated[int, "Maximum size of a request in bytes."] = 1_000_000,
    max_queue: Annotated[int, "Maximum requests waiting for a run."] = 256,
    requests_per_minute: Annotated[int, "Maximum requests of a client per minute; 0: unlimited."] = 600,
    timeout: Annotated[float, "Maximum seconds until a request is answered."] = 60.0,
    batch_delay_ms: Annotated[float, "Milliseconds that a request waits for others to form a batch."] = 5.0,
    max_batch_tokens: Annotated[
        int | None, "Maximum source tokens of a batch. Default: the run's search.batch_tokens."
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RUN:WEIGHT,…",
            help="Divide requests for the languages of some runs, or for the run NAME, between these runs. Repeatable.",
        ),
    ] = None,
    route_by: Annotated[
        Literal["client", "text"], "What always gets the same run of a route: a client, or a text."
    ] = "client",
    watch_runs: Annotated[
        bool, "Reload a run when its folder has a newer checkpoint, without dropping requests."
    ] = False,
    log_format: Annotated[Literal["text", "json"], "Format of the log on standard error."] = "text",
    log_texts: Annotated[bool, "Log the texts of requests, too. They are private data of the users."] = False,
    no_log_addresses: Annotated[bool, "Do not log IP addresses of clients."] = False,
    *,
    model: ModelOptions,
    precision: PrecisionOptions,
) -> None:
    """Serve runs over HTTP: a web page that inspects translations, LibreTranslate's API, and a native API under /v1."""
    model.check(*(run if Path(run).exists() or "=" not in run else run.rpartition("=")[0] for run in runs))

    from dragoman import serving

    limits = serving.ServiceLimits(
        max_characters=max_characters,
        max_texts=max_texts,
        max_body_bytes=max_body_bytes,
        max_queue=max_queue,
        requests_per_minute=requests_per_minute,
        timeout=timeout,
    )
    batching = serving.BatchingSettings(max_batch_tokens, batch_delay_ms / 1000)  # seconds
    keys = serving.ApiKeys() if api_keys is None else serving.ApiKeys.read(api_keys)
    quotas = serving.Quotas(quota_file)
    folders_and_languages = [serving.parse_run_argument(run) for run in runs]
    socket = serving.bind_socket(host, port)
    weights = precision.precision
    sources = [
        serving.RunSource(folder, pair, model.checkpoint, lambda folder: model.load(folder, weights))
        for folder, pair in folders_and_languages
    ]
    service = serving.Service(sources, limits, batching, keys, quotas)
    service.set_routes(map(serving.parse_route, route or ()), service.run_names, route_by)
    if api_keys is not None:
        service.reloader.also["API keys"] = lambda: setattr(service, "keys", serving.ApiKeys.read(api_keys))
    if watch_runs:
        service.reloader.watch()
    address, actual_port = socket.getsockname()[:2]

    def on_ready() -> None:
        """Log what is served, and print the address."""
        for served in service.runs.values():
            languages = [f"{len(served.run.languages)} languages"] if served.codes else []
            languages += [f"{served.pair.source} to {served.pair.target}"] if served.pair else []
            serving.logger.info(f"{served.name}: {', by default '.join(languages)}")
        if not serving.is_loopback(address) and not keys.required:
            serving.logger.info("other machines can reach this server without a key: see --api-keys")
        urls = serving.reachable_urls(address, actual_port)
        print("\n".join(urls), flush=True)
        if not serving.is_loopback(address):
            _print_qr_code(urls[0])

    access = serving.WebAccess(tuple(allowed_host or ()), tuple(cors_origin or ()))
    log_settings = serving.LogSettings(log_format, log_texts, not no_log_addresses, console.quiet)
    serving.serve(service, socket, on_ready, serving.ServerOptions(access, log_settings))


def _print_qr_code(url: str) -> None:
    """Print the QR code of a URL, for phones, on a terminal that can show it."""
    try:
        import segno
    except ImportError:
        return
    if sys.stderr.isatty():
        segno.make(url, micro=False).terminal(sys.stderr, border=2, compact=True)
