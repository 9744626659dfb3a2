"""Options of `dragoman serve` in groups, and what each group configures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        "Web site whose scripts may use the service, such as https://example.org; '*': any. Repeatable.",
    ] = None
    trusted_proxy: Annotated[
        list[str] | None,
        "Address or network of a reverse proxy whose X-Forwarded-For names the client. Repeatable. Default: 127.0.0.1.",
    ] = None
    shutdown_delay: Annotated[
        float,
        typer.Option(help="Seconds for which requests are still accepted when the service is told to stop.", min=0),
    ] = 0.0
    log_format: Annotated[Literal["text", "json"], "Format of the log on standard error."] = "text"
    log_texts: Annotated[bool, "Log the texts of requests, too. They are private data of the users."] = False
    no_log_addresses: Annotated[bool, "Do not log IP addresses of clients."] = False

    def server_options(self) -> ServerOptions:
        """Return these options as the server takes them; unreadable certificates and keys are a UserError."""
        from dragoman import serving

        return serving.ServerOptions(
            access=serving.WebAccess(tuple(self.allowed_host or ()), tuple(self.cors_origin or ())),
            log=serving.LogSettings(self.log_format, self.log_texts, not self.no_log_addresses, console.quiet),
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
    quota_file: Annotated[Path | None, "File that keeps what API keys have used today over a restart."] = None

    def read_keys(self) -> ApiKeys:
        """Read the API keys; without a file, all requests are accepted."""
        from dragoman import serving

        return serving.ApiKeys() if self.api_keys is None else serving.ApiKeys.read(self.api_keys)

    def reload_with(self, service: Service) -> None:
        """Read the API keys again whenever the service reloads."""
        if self.api_keys is not None:
            service.reloader.file_readers["API keys"] = lambda: setattr(service, "keys", self.read_keys())


@dataclass(frozen=True)
class LimitOptions:
    """Limits on requests, and batching."""

    max_characters: Annotated[int, _at_least(1, "Maximum characters per request.")] = 10_000
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
            1, "An address or API key has the limits of this number of clients: users may share it. 1: no sharing."
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
        float, typer.Option(help="Milliseconds that a request waits for others to form a batch.", min=0, max=10_000)
    ] = 5.0
    max_batch_tokens: Annotated[
        int | None,
        _at_least(1, "Maximum source tokens of a batch. Default: search.batch_tokens / hypotheses; fewer on a CPU."),
    ] = None

    def limits(self) -> ServiceLimits:
        """Return the limits on requests; a limit that is out of range is a UserError."""
        from dragoman import serving

        names = [field.name for field in fields(serving.ServiceLimits)]  # some have no option
        return serving.ServiceLimits(**{name: getattr(self, name) for name in names if hasattr(self, name)})

    def batching(self) -> BatchingSettings:
        """Return how requests are batched."""
        from dragoman import serving

        return serving.BatchingSettings(self.max_batch_tokens, self.batch_delay_ms / 1000)  # seconds


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
            help="Divide requests between runs by weight: those for the languages of these runs, and those that name "
            "NAME as their run. Repeatable.",
        ),
    ] = None
    route_by: Annotated[Literal["client", "text"], "What always gets the same run of a route: a client, or a text."] = (
        "client"
    )
    watch_runs: Annotated[bool, "Reload a run when its folder has a newer checkpoint, without dropping requests."] = (
        False
    )

    def apply(self, service: Service) -> None:
        """Set the routes of a service (which run answers which requests), and watch its runs with --watch-runs."""
        from dragoman import serving

        if self.route_by != "client" and not self.route:
            raise UserError("--route-by has no effect without --route: add a route, or leave it out")
        service.set_routes(map(serving.parse_route, self.route or ()), service.run_names, self.route_by)
        if self.watch_runs:
            service.reloader.watch()


@dataclass(frozen=True)
class AnalysisOptions:
    """The test set that the page analyzes, and whether it does."""

    test_source: Annotated[
        Path | None, "Test set of the page's error analysis: source texts. Default: the validation sentences of a run."
    ] = None
    test_reference: Annotated[Path | None, "Reference translations of the test set, unless --test-source has both."] = (
        None
    )
    analysis: Annotated[
        bool | None,
        typer.Option(
            "--analysis/--no-analysis",
            help="Allow analyses of test sets, which show their sentences. Default: if only this machine can reach the "
            "service, if it needs API keys, or with --test-source.",
        ),
    ] = None

    def apply(self, service: Service, is_local: bool) -> None:
        """Read the test set, and let the service analyze it; `is_local`: only this machine can reach the service."""
        from dragoman.cli.inputs import FileLayout, read_pairs
        from dragoman.serving import AnalysisSettings, NamedTestSet

        test_set = None
        if self.test_source is not None:
            FileLayout().corpus(self.test_source, self.test_reference).check()
            pairs = read_pairs(self.test_source, self.test_reference, FileLayout(), "--test-reference")
            test_set = NamedTestSet(self.test_source.name, *pairs)
        elif self.test_reference is not None:
            raise UserError("--test-reference has the references of a test set: name its sources with --test-source")
        by_default = is_local or service.keys.required or test_set is not None
        service.analysis = AnalysisSettings(by_default if self.analysis is None else self.analysis, test_set)


@dataclass(frozen=True)
class ClusterOptions:
    """Replicas on a Ray cluster."""

    on: Annotated[str, "Where: local, ray (a cluster on this machine), or ray://HOST:PORT of a cluster.", "PLACE"] = (
        "local"
    )
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

        `service` has all runs and is not started; each replica of a run calls its function in `builds` for a service of
        its own. `server` says where the cluster listens, `options` who may reach it and what it logs.
        """
        from dragoman.bulk import RayExecutor, executor_from_text
        from dragoman.console import log
        from dragoman.serving.ray_serving import ReplicaOptions, deploy, wait_for_signal

        executor = executor_from_text(self.on, None)
        assert isinstance(executor, RayExecutor)
        unsupported = {"--tls-cert": options.tls, "--shutdown-delay": options.shutdown_delay}
        if used := [name for name, value in unsupported.items() if value]:
            raise UserError(f"{used[0]} cannot be used with --on ray: use a reverse proxy, or leave it out")
        replicas = ReplicaOptions(
            self.min_replicas,
            max(self.min_replicas, self.max_replicas),
            self.target_requests,
            self.gpus_per_replica,
            self.cpus_per_replica,
        )
        names, prefix = service.run_names, f"/{self.path.strip('/')}".rstrip("/")
        for name, build in zip(names, builds):
            route_prefix = (prefix or "/") if len(names) == 1 else f"{prefix}/{name}"
            ray_serve = deploy(
                *(name, build, service.source_version(name), options, replicas),
                address=executor.address,
                host=server.host,
                port=server.port,
                route_prefix=route_prefix,
            )
            print(f"http://{server.host}:{server.port}{route_prefix.rstrip('/')}/", flush=True)
        if self.detach:
            log(f"{', '.join(names)}: on the cluster until 'serve shutdown'")
            return
        wait_for_signal()
        for name in names:
            ray_serve.delete(name)
