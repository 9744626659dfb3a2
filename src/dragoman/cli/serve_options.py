"""Options of `dragoman serve` in groups, and what each group configures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dragoman import console
from dragoman.errors import UserError

if TYPE_CHECKING:
    from dragoman.serving import ApiKeys, BatchingSettings, ServerOptions, Service, ServiceLimits


def _at_least(minimum: float, text: str) -> Any:
    """Declare an option that takes numbers from `minimum` on; `text` is its help."""
    return typer.Option(help=text, min=minimum)


@dataclass(frozen=True)
class ServerOptionGroup:
    """Where the server listens, who may reach it, and what it logs."""

    port: Annotated[int, typer.Option(help="Port to listen on; 0: any free port.", min=0, max=65535)] = 5000
    host: Annotated[str, "Address to listen on; 0.0.0.0: all interfaces."] = "127.0.0.1"
    tls_cert: Annotated[Path | None, "Certificate (PEM) for https, with those of its issuers."] = None
    tls_key: Annotated[Path | None, "Private key (PEM) of the certificate, without a password."] = None
    allowed_host: Annotated[
        list[str] | None,
        "Host name of the service, such as that of a reverse proxy, besides localhost, IP addresses and the name of "
        "this machine; '*': any. Repeatable.",
    ] = None
    cors_origin: Annotated[
        list[str] | None,
        "Web site whose scripts may use the service (CORS), such as https://example.org; '*': any. Repeatable.",
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        "Address or network of a reverse proxy whose X-Forwarded-For names the client. Repeatable. Default: 127.0.0.1.",
    ] = None
    shutdown_delay: Annotated[
        float,
        typer.Option(
            help="Seconds for which new requests are still accepted after a signal to stop the service, such as "
            "SIGTERM.",
            min=0,
        ),
    ] = 0.0
    log_format: Annotated[Literal["text", "json"], "Format of the log on standard error."] = "text"
    log_texts: Annotated[bool, "Log the texts of requests, too. They are private data of the users."] = False
    no_log_addresses: Annotated[bool, "Do not log IP addresses of clients."] = False

    def server_options(self) -> ServerOptions:
        """Return these options, without host and port, as the server takes them.

        Unreadable certificates and keys are a UserError.
        """
        from dragoman import serving

        return serving.ServerOptions(
            access=serving.WebAccess(
                allowed_hosts=tuple(self.allowed_host or ()), cors_origins=tuple(self.cors_origin or ())
            ),
            log=serving.LogSettings(
                format=self.log_format,
                texts=self.log_texts,
                addresses=not self.no_log_addresses,
                quiet=console.quiet,
            ),
            tls=serving.TlsFiles.from_options(self.tls_cert, self.tls_key),
            trusted_proxies=tuple(self.trusted_proxy or ()),
            shutdown_delay=self.shutdown_delay,
        )


@dataclass(frozen=True)
class KeyOptions:
    """API keys and their quotas."""

    api_keys: Annotated[
        Path | None, "File of API keys, one per line, or YAML with quotas. Requests without a key are rejected."
    ] = None
    quota_file: Annotated[
        Path | None, "File that stores what each API key has used today, so that a restart does not reset quotas."
    ] = None

    def read_keys(self) -> ApiKeys:
        """Read the API keys; without --api-keys there are none, and all requests are accepted.

        A file of quotas without keys, to which quotas belong, is a UserError.
        """
        from dragoman import serving

        if self.quota_file is not None and self.api_keys is None:
            raise UserError(
                "--quota-file has no effect without --api-keys, since quotas belong to keys: add --api-keys FILE, or "
                "leave --quota-file out"
            )
        return serving.ApiKeys() if self.api_keys is None else serving.ApiKeys.read(self.api_keys)

    def reload_with(self, service: Service) -> None:
        """Let the service read the file of API keys again whenever it reloads runs and files that have changed."""

        def reload_keys() -> None:
            """Replace the API keys of the service by those that the file has now."""
            service.keys = self.read_keys()

        if self.api_keys is not None:
            service.reloader.file_readers["API keys"] = reload_keys


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests, and batching."""

    max_characters: Annotated[int, _at_least(1, "Maximum characters of all texts of a request.")] = 10_000
    max_texts: Annotated[int, _at_least(1, "Maximum number of texts per request.")] = 100
    max_body_bytes: Annotated[int, _at_least(1, "Maximum size of a request in bytes.")] = 1_000_000
    max_file_bytes: Annotated[int, _at_least(1, "Maximum size of a document in bytes.")] = 10_000_000
    max_file_characters: Annotated[int, _at_least(1, "Maximum characters of the text in a document.")] = 100_000
    file_timeout: Annotated[float, _at_least(0.1, "Maximum seconds until a document is translated.")] = 600.0
    max_queue: Annotated[
        int, _at_least(1, "Maximum number of requests that wait for a run; further ones are rejected.")
    ] = 256
    requests_per_minute: Annotated[int, _at_least(0, "Maximum requests of a client per minute; 0: unlimited.")] = 600
    clients_per_address: Annotated[
        int,
        _at_least(
            1, "All clients behind an address or API key, which users may share, have the limits of this many clients."
        ),
    ] = 16
    max_pending_cost: Annotated[
        int,
        _at_least(1, "Maximum estimated cost, source tokens × (1 + hypotheses), of the waiting requests of a client."),
    ] = 250_000
    max_streams: Annotated[int, _at_least(1, "Maximum concurrent streamed translations.")] = 256
    max_client_streams: Annotated[int, _at_least(1, "Maximum concurrent streamed translations of a client.")] = 8
    max_inspections: Annotated[
        int,
        _at_least(1, "Maximum number of waiting requests of the page that inspect a sentence, such as its attention."),
    ] = 256
    timeout: Annotated[float, _at_least(0.1, "Maximum seconds until a request is answered.")] = 60.0
    batch_delay_ms: Annotated[
        float,
        typer.Option(
            help="Maximum time in milliseconds that a request waits for others, which are then translated with "
            "it in one batch.",
            min=0,
            max=10_000,
        ),
    ] = 5.0
    max_batch_tokens: Annotated[
        int | None,
        _at_least(
            1, "Maximum source tokens of a batch. Default: search.batch_tokens / hypotheses per source; fewer on a CPU."
        ),
    ] = None

    def limits(self) -> ServiceLimits:
        """Return the limits on requests; a limit that is out of range is a UserError."""
        from dragoman import serving

        names = [field.name for field in fields(serving.ServiceLimits)]  # some limits have no option
        return serving.ServiceLimits(**{name: getattr(self, name) for name in names if hasattr(self, name)})

    def batching(self) -> BatchingSettings:
        """Return how requests are batched: the maximum size of a batch, and how long a request waits for others."""
        from dragoman import serving

        return serving.BatchingSettings(max_tokens=self.max_batch_tokens, delay_seconds=self.batch_delay_ms / 1000)


@dataclass(frozen=True)
class SuggestionOptions:
    """Translations that users suggest."""

    suggestions: Annotated[
        Path | None, "Accept better translations at /suggest, and append them to this file of JSON lines."
    ] = None

    def apply(self, service: Service) -> None:
        """Let the service accept better translations that users suggest, if --suggestions names a file for them."""
        from dragoman.serving.suggestions import SuggestionFile

        service.suggestions = None if self.suggestions is None else SuggestionFile(self.suggestions)


@dataclass(frozen=True)
class RoutingOptions:
    """Which run answers a request, and when runs are reloaded."""

    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=RUN:WEIGHT,…",
            help="Divide requests between runs, under a name of your choice: test=a:0.9,b:0.1 sends 90 % of them to "
            "the run a and 10 % to the run b. This applies to requests that name the run test, and to those for the "
            "languages of a and b. Repeatable.",
        ),
    ] = None
    route_by: Annotated[
        Literal["client", "text"],
        "With --route, what always gets the same run. client: all requests of a client (API key or IP "
        "address, and the header X-Client-Id if it is sent); text: all requests with the same text.",
    ] = "client"
    watch_runs: Annotated[bool, "Reload a run when its folder has a newer checkpoint, without dropping requests."] = (
        False
    )

    def apply(self, service: Service) -> None:
        """Set the routes of a service, and with --watch-runs reload runs that have a newer checkpoint.

        A route is a name under which several runs share the requests. It assigns a run to each client
        (`route_by` "client", the default) or to each text ("text"), which is a UserError without a route.
        """
        from dragoman import serving

        if self.route_by != "client" and not self.route:  # "client" is not an error: it may be the default
            raise UserError(
                "--route-by has no effect without --route, which divides requests between several runs: add --route "
                "NAME=RUN:WEIGHT,…, such as --route test=a:0.9,b:0.1, or leave --route-by out"
            )
        service.set_routes(map(serving.parse_route, self.route or ()), service.run_names, self.route_by)
        if self.watch_runs:
            service.reloader.watch()


@dataclass(frozen=True)
class AnalysisOptions:
    """The test set that the page analyzes, and whether it does."""

    test_source: Annotated[
        Path | None,
        "Test set of the error analysis on the web page: source texts. Default: the validation sentences of a run.",
    ] = None
    test_reference: Annotated[Path | None, "Reference translations of the test set, unless --test-source has both."] = (
        None
    )
    analysis: Annotated[
        bool | None,
        typer.Option(
            "--analysis/--no-analysis",
            help="Allow error analyses on the web page of the service, which show the sentences of a test set. "
            "Default: allowed if only this machine can reach the service, if it requires API keys, or with "
            "--test-source.",
        ),
    ] = None

    def apply(self, service: Service, run_folders: Mapping[str, Path], is_local: bool) -> None:
        """Read the test set of the page's error analysis, if one is given, and allow or forbid analyses.

        `run_folders` are the folders of the served runs by name: each run reads the columns that it was trained with.
        `is_local` says whether only this machine can reach the service: others should not see the sentences by default.
        A test set that cannot be read, and references without sources, are a UserError.
        """
        from dragoman.cli.inputs import FileLayout, read_pairs
        from dragoman.serving import AnalysisSettings, NamedTestSet

        test_sets: dict[str, NamedTestSet] = {}
        if self.test_source is not None:
            layouts = {name: FileLayout().for_run(folder) for name, folder in run_folders.items()}
            by_layout: dict[FileLayout, NamedTestSet] = {}  # the files are read once for runs with the same columns
            for layout in dict.fromkeys(layouts.values()):
                layout.corpus(self.test_source, self.test_reference).check()
                pairs = read_pairs(self.test_source, self.test_reference, layout, "--test-reference")
                by_layout[layout] = NamedTestSet(self.test_source.name, *pairs)
            test_sets = {name: by_layout[layout] for name, layout in layouts.items()}
        elif self.test_reference is not None:
            raise UserError(
                "--test-reference names the references of a test set, whose sources are not given: name them with "
                "--test-source"
            )
        allowed_by_default = is_local or service.keys.required or bool(test_sets)
        allowed = allowed_by_default if self.analysis is None else self.analysis
        service.analysis = AnalysisSettings(enabled=allowed, test_sets=test_sets)


@dataclass(frozen=True)
class ClusterOptions:
    """Replicas on a Ray cluster."""

    on: Annotated[
        str, "Where runs are served: local, ray (a cluster on this machine), or ray://HOST:PORT of a cluster.", "PLACE"
    ] = "local"
    min_replicas: Annotated[int, _at_least(1, "With --on ray, minimum number of replicas of the run.")] = 1
    max_replicas: Annotated[int, _at_least(1, "With --on ray, maximum number of replicas of the run.")] = 1
    target_requests: Annotated[
        int, _at_least(1, "With --on ray, add replicas if more requests per replica than this are not answered yet.")
    ] = 16
    gpus_per_replica: Annotated[
        float, _at_least(0, "With --on ray, GPUs of each replica of a run; 0.5 puts two on a GPU.")
    ] = 0.0
    cpus_per_replica: Annotated[float, _at_least(0, "With --on ray, CPUs of each replica of a run.")] = 1.0
    path: Annotated[
        str, "With --on ray, path of the service, if the cluster has several. Of several runs, each is at PATH/RUN."
    ] = "/"
    detach: Annotated[bool, "With --on ray, end when the service is ready; it stays on the cluster."] = False

    def serve(
        self,
        service: Service,
        builds: Sequence[Callable[[], Service]],
        server: ServerOptionGroup,
        options: ServerOptions,
    ) -> None:
        """Serve runs by replicas on a Ray cluster until Ctrl-C, or only start them with --detach.

        Args:
            service: has all runs and is not started.
            builds: for each run, the function that its replicas call to get a service of their own.
            server: says on which host and port the cluster listens.
            options: who may reach the service, and what it logs. Certificates (TLS) and a delay of the shutdown, which
                the cluster does not support, are a UserError.
        """
        from dragoman.bulk import RayExecutor, executor_from_text
        from dragoman.console import log
        from dragoman.serving.ray_serving import ReplicaOptions, deploy, wait_for_signal

        executor = executor_from_text(self.on, num_workers=None)
        assert isinstance(executor, RayExecutor)  # --on is not local
        unsupported = {"--tls-cert": options.tls, "--shutdown-delay": options.shutdown_delay}
        if used := [name for name, value in unsupported.items() if value]:
            raise UserError(
                f"{used[0]} cannot be used with --on ray: leave it out, and configure this in a reverse proxy in front "
                "of the cluster"
            )
        replicas = ReplicaOptions(
            min_replicas=self.min_replicas,
            max_replicas=max(self.min_replicas, self.max_replicas),
            target_requests=self.target_requests,
            gpus=self.gpus_per_replica,
            cpus=self.cpus_per_replica,
        )
        names, prefix = service.run_names, f"/{self.path.strip('/')}".rstrip("/")  # prefix: "/PATH", or "" for "/"
        for name, build in zip(names, builds):
            route_prefix = (prefix or "/") if len(names) == 1 else f"{prefix}/{name}"
            ray_serve = deploy(  # returns the module `ray.serve`
                name=name,
                build=build,
                version=service.source_version(name),
                options=options,
                replicas=replicas,
                address=executor.address,
                host=server.host,
                port=server.port,
                route_prefix=route_prefix,
            )
            print(f"http://{server.host}:{server.port}{route_prefix.rstrip('/')}/", flush=True)
        if self.detach:
            log(f"{', '.join(names)}: served by the cluster until Ray's command 'serve shutdown' ends it")
            return
        wait_for_signal()
        for name in names:
            ray_serve.delete(name)
