"""`dragoman serve`: a translation server."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dragoman.cli.options import ModelOptions, PrecisionOptions
from dragoman.cli.serve_config import ENVIRONMENT_PREFIX, apply_config, print_configuration
from dragoman.cli.serve_options import (
    AnalysisOptions,
    ClusterOptions,
    KeyOptions,
    LimitOptions,
    RoutingOptions,
    ServerOptionGroup,
    SuggestionOptions,
)
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.parts.inference import InferencePrecision
    from dragoman.run import Run
    from dragoman.serving import Service

#: environment variables of processes that serve a run, unless the user has set them
PROCESS_ENVIRONMENT = {
    # OpenMP: threads sleep while they wait, so that clients and the event loop get their cores
    "OMP_WAIT_POLICY": "PASSIVE",
    # kernels that oneDNN keeps, and PyTorch in each thread: one per shape of a batch, about 0.1 MB; default: 1024
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}


def serve(
    ctx: typer.Context,
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run folders of the models to serve, optionally with their languages: RUN=en-de. Required unless "
            f"--config or the environment variable {ENVIRONMENT_PREFIX}_RUNS names them.",
            envvar=f"{ENVIRONMENT_PREFIX}_RUNS",
            show_envvar=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="YAML file with values of options by name, such as 'port: 8080', and with a list 'runs' of run "
            f"folders. Environment variables such as {ENVIRONMENT_PREFIX}_PORT override the file, and options of "
            "the command line override both.",
            envvar=f"{ENVIRONMENT_PREFIX}_CONFIG",
            show_envvar=False,
            callback=apply_config,
            is_eager=True,
        ),
    ] = None,
    print_config: Annotated[bool, "Print all options with their origin as YAML, check them, and exit."] = False,
    *,
    server: ServerOptionGroup,
    keys: KeyOptions,
    limits: LimitOptions,
    suggestions: SuggestionOptions,
    routing: RoutingOptions,
    analysis: AnalysisOptions,
    cluster: ClusterOptions,
    model: ModelOptions,
    precision: PrecisionOptions,
) -> None:
    """Serve runs over HTTP: a web page that inspects translations, LibreTranslate's API, and a native API under /v1."""
    set_process_environment()  # before PyTorch is loaded, which reads it
    if print_config:
        print_configuration(ctx)
    if not runs:
        raise UserError(
            "there is no run to serve: name a run folder, or give --config a file with a list 'runs' of run folders"
        )
    # RUN=en-de is the folder RUN with its languages, unless there is a folder of this name
    model.check(*(run if Path(run).exists() or "=" not in run else run.rpartition("=")[0] for run in runs))

    from dragoman import serving

    options = server.server_options()
    build = ServiceBuilder(
        runs=runs,
        model=model,
        weights=precision.precision,
        limits=limits,
        keys=keys,
        suggestions=suggestions,
        routing=routing,
        analysis=analysis,
        is_local=serving.is_loopback(server.host),
    )
    service = build()
    if print_config:
        return
    if cluster.on != "local":
        cluster.serve(service, build.with_absolute_paths().of_each_run(), server, options)
        return
    socket = serving.bind_socket(server.host, server.port)
    address, port = socket.getsockname()[:2]

    def on_ready() -> None:
        """Log what is served, and print the addresses; called when all runs are loaded."""
        _log_runs(service)
        is_local = serving.is_loopback(address)
        if not is_local and not service.keys.required:
            serving.logger.info("other machines can reach this server without a key: see --api-keys")
        if port in serving.BLOCKED_PORTS:
            serving.logger.warning(f"browsers refuse to open pages at port {port}: choose another --port for the page")
        urls = serving.reachable_urls(address, port, "http" if options.tls is None else "https")
        print("\n".join(urls), flush=True)
        if is_local:
            return
        network_urls = [url for url in urls if "://localhost:" not in url]
        if network_urls:
            _print_qr_code(network_urls[0])
        else:
            serving.logger.warning("no network address of this machine was found: other machines may not reach it")

    serving.serve(service, socket, on_ready, options)


def set_process_environment() -> None:
    """Set the variables of PROCESS_ENVIRONMENT that the user has not set."""
    for name, value in PROCESS_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class ServiceBuilder:
    """Builds the service that answers requests with some runs, in this process or in a replica on a cluster.

    The fields are arguments and option groups of `dragoman serve`. A run is its folder, optionally with languages:
    "runs/a=en-de". `weights` is the number format of the weights in inference, and `is_local` says whether only this
    machine can reach the service.
    """

    runs: list[str]
    model: ModelOptions
    weights: InferencePrecision
    limits: LimitOptions
    keys: KeyOptions
    suggestions: SuggestionOptions
    routing: RoutingOptions
    analysis: AnalysisOptions
    is_local: bool

    def __call__(self) -> Service:
        """Return the service, whose runs are not loaded yet, with the limits, keys and routes of the option groups.

        Files that the options name, such as those of API keys and test sets, are read; a wrong one is a UserError.
        """
        from dragoman import serving

        set_process_environment()  # of a replica; the capacities of caches are read when the first kernel is made

        def open_run(folder: Path) -> Run:
            """Load the checkpoint of --checkpoint on the device of --device."""
            return self.model.load(folder, self.weights)

        sources = [
            serving.RunSource(folder, language_pair, self.model.checkpoint, open_run)
            for folder, language_pair in map(serving.parse_run_argument, self.runs)
        ]
        # the quotas count what each API key has used today
        keys, quotas = self.keys.read_keys(), serving.Quotas(self.keys.quota_file)
        service = serving.Service(sources, self.limits.limits(), self.limits.batching(), keys, quotas)
        self.suggestions.apply(service)
        self.routing.apply(service)
        folders = {name: source.folder for name, source in zip(service.run_names, sources)}
        self.analysis.apply(service, folders, self.is_local)
        self.keys.reload_with(service)
        return service

    def with_absolute_paths(self) -> ServiceBuilder:
        """Return the builder with absolute paths, which mean the same in processes with another working folder.

        These are the paths of the runs, and the files of API keys, quotas, suggestions and test sets.
        """
        runs = [str(Path(run).resolve()) for run in self.runs]
        keys, suggestions, analysis = map(absolute_paths, (self.keys, self.suggestions, self.analysis))
        return replace(self, runs=runs, keys=keys, suggestions=suggestions, analysis=analysis)

    def of_each_run(self) -> list[ServiceBuilder]:
        """Return builders of services with a single run, one for each run: replicas serve one run."""
        return [replace(self, runs=[run]) for run in self.runs]


def absolute_paths(options: Any) -> Any:
    """Return a group of options (a dataclass) with absolute instead of relative paths."""
    values = {field.name: getattr(options, field.name) for field in fields(options)}
    return replace(options, **{name: path.resolve() for name, path in values.items() if isinstance(path, Path)})


def _log_runs(service: Service) -> None:
    """Log the runs that are served, and their languages: "200 languages, by default en to de", or "en to de"."""
    from dragoman import serving

    for served in service.runs.values():
        languages = [f"{len(served.run.languages)} languages"] if served.is_multilingual else []
        # `pair`: the language pair, of a multilingual run the default one; None: unknown, or no default
        languages += [f"{served.pair.source} to {served.pair.target}"] if served.pair else []
        serving.logger.info(f"{served.name}: {', by default '.join(languages)}")


def _print_qr_code(url: str) -> None:
    """Print the QR code of a URL, for phones, on standard error if it is a terminal.

    Without the optional package segno nothing is printed.
    """
    try:
        import segno
    except ImportError:
        return
    if sys.stderr.isatty():
        segno.make(url, micro=False).terminal(sys.stderr, border=2, compact=True)
