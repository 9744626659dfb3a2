"""The service on Ray Serve: replicas that hold a run, and a front that repeats the requests of one that dies."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from dragoman.bulk.ray_executor import connect, first_line
from dragoman.errors import UserError
from dragoman.serving.app import create_app
from dragoman.serving.document_store import EXPIRY_SECONDS, DocumentStore, StoredDocument
from dragoman.serving.server import ServerOptions
from dragoman.serving.service import Service

MAX_ATTEMPTS = 4  # to answer a request whose replicas die
MAX_FRONTS, FRONT_REQUESTS = 8, 64  # processes of the front, and requests that one of them should have at a time
HEAD_NODE_RESOURCE = "node:__internal_head__"  # that only the head node of a Ray cluster has
#: entries of an ASGI scope that a replica gets
SCOPE_KEYS = (
    *("type", "asgi", "http_version", "method", "scheme", "path", "raw_path", "root_path"),
    *("query_string", "headers", "client", "server"),
)


@dataclass(frozen=True)
class ReplicaOptions:
    """How many replicas there are, and what each of them needs.

    Attributes:
        min_replicas, max_replicas: replicas are added when there are more than `target_requests` requests per replica
            that are not answered yet, and removed when there are fewer.
        gpus, cpus: share of GPUs and CPUs of a replica.
    """

    min_replicas: int = 1
    max_replicas: int = 1
    target_requests: int = 16
    gpus: float = 0.0
    cpus: float = 1.0


class DocumentHolder(DocumentStore):
    """The translated documents of all replicas, in an actor."""

    def add(self, document: StoredDocument) -> str:
        """Store a document that a replica, perhaps on another machine, has made, and return its name.

        Its time of expiry is set anew, because the monotonic clocks of machines differ.
        """
        return super().add(replace(document, expires=time.monotonic() + EXPIRY_SECONDS))


class SharedDocuments(DocumentStore):
    """Access of a replica to the documents of all replicas."""

    def __init__(self, actor: Any) -> None:
        """Use `actor`, the handle of the Ray actor (`DocumentHolder`) that stores the documents of all replicas."""
        self.actor = actor

    def add(self, document: StoredDocument) -> str:
        """Store a document, and return the name under which it can be downloaded."""
        import ray

        return str(ray.get(self.actor.add.remote(document)))

    def get(self, key: str) -> StoredDocument | None:
        """Return the document that was stored under the name `key`; None if there is none (any more)."""
        import ray

        found: StoredDocument | None = ray.get(self.actor.get.remote(key))
        return found


class RunReplica:
    """A replica: a service with a run, which answers requests that the front has received.

    `version` is that of the run; another one replaces the replicas of a deployment one after the other.
    """

    def __init__(self, build: Callable[[], Service], options: ServerOptions, documents: Any, version: str) -> None:
        """Load the run, and build the application that answers requests.

        Args:
            build: makes the service with the run.
            options: host names and log of the application.
            documents: handle of the actor (`DocumentHolder`) with the translated documents of all replicas.
            version: of the run; not used here, but Ray replaces the replica if it changes.
        """
        self.service = build()
        self.service.documents = SharedDocuments(documents)
        self.app = create_app(self.service, options.access, options.log, start=False)
        self.service.start()

    def check_health(self) -> None:
        """Raise an error if the service is starting or stopping (not if it is full); Ray then replaces the replica."""
        if self.service.readiness in ("starting", "stopping"):
            raise RuntimeError(f"the service is {self.service.readiness}")

    async def respond(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Any]:
        """Yield the ASGI messages that answer a request, given as an ASGI scope and the whole body."""
        messages: asyncio.Queue[Any] = asyncio.Queue()
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> Any:
            """Return the message with the body; later calls wait forever, as for a client that does not disconnect."""
            return unread.pop() if unread else await asyncio.Event().wait()

        answering = asyncio.create_task(self.app(scope, receive, messages.put))
        answering.add_done_callback(lambda _: messages.put_nowait(None))  # ends the loop below
        try:
            while (message := await messages.get()) is not None:
                yield message
            await answering  # raises the error of the application, if any
        finally:
            answering.cancel()  # if the client has gone


class Front:
    """Receives requests, and has them answered by a replica; if it dies before it has answered, by another one."""

    def __init__(self, replicas: Any, max_bytes: int) -> None:
        """Use `replicas`, the handle of a deployment of RunReplica, and reject requests with more than `max_bytes`."""
        self.replicas = replicas.options(stream=True, method_name="respond")
        self.max_bytes = max_bytes

    async def __call__(self, request: Request) -> Response:
        """Send a request to a replica, and return its answer; if the replica dies, the next one is asked.

        That is possible only until the first message of the answer: later parts are streamed to the client. At most
        MAX_ATTEMPTS replicas are asked. A request with more than `max_bytes` is answered with status 413.
        """
        from ray.exceptions import RayActorError, WorkerCrashedError

        scope, body = {key: request.scope[key] for key in SCOPE_KEYS if key in request.scope}, b""
        scope["path"] = scope["path"].removeprefix(scope.get("root_path", ""))  # replicas need not know their prefix
        if not scope["path"]:  # the prefix without a slash, which the relative addresses of the web page need
            return RedirectResponse(f"{request.url.path}/")
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.max_bytes:
                return JSONResponse({"error": f"the request has more than {self.max_bytes:,} bytes"}, 413)
        for attempt in range(MAX_ATTEMPTS):
            messages = self.replicas.remote(scope, body)
            try:
                start = await anext(messages)  # with status and headers
                break
            except (RayActorError, WorkerCrashedError):  # nothing has been sent to the client yet
                if attempt + 1 == MAX_ATTEMPTS:
                    raise
        response = StreamingResponse(_contents(messages), start["status"])
        response.raw_headers = [(bytes(name), bytes(value)) for name, value in start["headers"]]
        return response


async def _contents(messages: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    """Yield the parts of the body of an answer, given as ASGI messages after the first one."""
    async for message in messages:
        yield message.get("body", b"")


def deploy(
    name: str,
    build: Callable[[], Service],
    version: str,
    options: ServerOptions,
    replicas: ReplicaOptions,
    *,
    address: str = "",
    host: str = "127.0.0.1",
    port: int = 5000,
    route_prefix: str = "/",
) -> Any:
    """Deploy a service on a Ray cluster, or replace its replicas one after the other; return the module `ray.serve`.

    Args:
        name: name of the application in Ray Serve.
        build: makes the service with its run; called in each replica, and once here for its limits.
        version: of the run; another one than that of a deployed service replaces its replicas.
        options: host names and log of the service.
        replicas: how many replicas there are, and what each of them needs.
        address: HOST:PORT of the cluster; "": that of this machine, or a new one.
        host, port: where every machine of the cluster listens.
        route_prefix: path below which the service is offered.

    It is a UserError if ray[serve] is missing, or the cluster or the service cannot be reached or started.
    """
    ray = connect(address)
    try:
        from ray import serve
    except ImportError:
        raise UserError(
            "serving on a Ray cluster (--on ray) needs the package ray[serve]: install it with pip install "
            "'dragoman[cluster]'"
        ) from None
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    serve.start(http_options={"host": host, "port": port}, logging_config={"log_level": "WARNING"})
    documents = ray.remote(num_cpus=0, max_restarts=-1)(DocumentHolder).options(
        name=f"{name} documents", namespace="dragoman", lifetime="detached", get_if_exists=True
    )
    limits = build().limits
    run = serve.deployment(
        name=f"{name} run",
        autoscaling_config={
            "min_replicas": replicas.min_replicas,
            "max_replicas": replicas.max_replicas,
            "target_ongoing_requests": replicas.target_requests,
        },
        max_ongoing_requests=limits.max_queue,
        ray_actor_options={"num_cpus": replicas.cpus, "num_gpus": replicas.gpus},
    )(RunReplica).bind(build, options, documents.remote(limits.max_stored_bytes), version)
    front = serve.deployment(
        name=f"{name} front",
        autoscaling_config={"min_replicas": 1, "max_replicas": MAX_FRONTS, "target_ongoing_requests": FRONT_REQUESTS},
        max_ongoing_requests=limits.max_connections,
        # on the head node, without which there is no cluster; 0.001: any number of fronts fits
        ray_actor_options={"num_cpus": 0, "resources": {HEAD_NODE_RESOURCE: 0.001}},
    )(Front)
    try:
        max_bytes = limits.max_body_bytes + limits.max_file_bytes  # above either limit, which replicas check exactly
        serve.run(front.bind(run, max_bytes), name=name, route_prefix=route_prefix)
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the service could not be started on the Ray cluster: {first_line(error)}; Ray's command 'serve status' "
            "shows which deployment failed"
        ) from None
    return serve


def wait_for_signal() -> None:
    """Wait for Ctrl-C or SIGTERM."""
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    stopped.wait()
