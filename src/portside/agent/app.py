"""The composition of the agent server: its services, the routes it serves by its configuration, and its middleware.

Depending on its tier, a server answers requests, executes runs, or does both. A server that executes runs also performs
the periodic chores of the database; several processes may perform each chore at once. A server that only answers
requests still has its graphs, to read states with.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from portside.agent.a2a.service import A2A, A2AServices
from portside.agent.access.authentication import AccessPolicy, ProjectAuth, load_access_policy
from portside.agent.access.service import Access, StreamLimit
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.checkpoints.backend import CheckpointWriter, PostgresBackend
from portside.agent.config import AgentConfig, HttpConfig
from portside.agent.crons.crons import Crons, DueCrons
from portside.agent.custom.application import ProjectRoutes, WebApp, described_with, join_custom, running
from portside.agent.custom.cache import OldCacheEntries
from portside.agent.encryption.ciphers import EncryptionCalls
from portside.agent.encryption.codec import EncryptionCodec, find_encryptor, prepare_codec, with_encryption_context
from portside.agent.encryption.encryptor import Encryptor, make_encryptor
from portside.agent.encryption.reencryption import RenewedKeys
from portside.agent.executors.application import RemoteApp, RemoteHandlers
from portside.agent.executors.pinned import FinishedPins, PinnedGraphs
from portside.agent.executors.start import start_beside, start_graphs, start_handlers
from portside.agent.graphs import GraphService
from portside.agent.http import (
    agents,
    resources,
    runs,
    system,
    threads,
)
from portside.agent.http.services import AgentServices, ApiDescription, Context, Traffic
from portside.agent.http.system import SERVER_INFO
from portside.agent.mcp.service import Mcp
from portside.agent.mcp.tools import Tools
from portside.agent.problems import watch_tracing
from portside.agent.queue.backlog import QueueMonitor
from portside.agent.queue.chores import DueThreads, ExpiredLeases, LapsedRunKeys
from portside.agent.queue.rest import IdleBackoff
from portside.agent.queue.worker import Worker
from portside.agent.runs.service import Runs
from portside.agent.settings import AgentSettings
from portside.agent.store.items import Items, store_tasks
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import Embeds, StoreSetup, open_setup
from portside.agent.streams.bus import open_bus
from portside.agent.streams.hub import Hub
from portside.agent.streams.postgres_log import OldStreams
from portside.agent.streams.remote import PostgresTransport, WorkCallbacks
from portside.agent.threads.long_values import with_long_values
from portside.agent.threads.records import ExpiredThreads, ThreadSearches, set_default_lifetime
from portside.agent.threads.states import States
from portside.agent.types.access import AuthOpenApi
from portside.agent.ui import Bundles
from portside.agent.webhooks.deliveries import Deliveries, WebhookLog, webhook_chores
from portside.agent.webhooks.policy import read_policy
from portside.kernel.db import Database
from portside.kernel.diagnostics import Diagnostics
from portside.kernel.disk import DiskWatch
from portside.kernel.http.cors import Cors, CorsRules
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.headers import ForwardHeaders
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.middleware import ANY, AllowedHosts, LimitBody, MountBelow, RequestMiddleware
from portside.kernel.http.openapi import document
from portside.kernel.http.proxies import ForwardedHeaders
from portside.kernel.http.routes import Api, C, Route
from portside.kernel.http.websockets import SocketApi
from portside.kernel.large_reads import ReadBudget, return_large_blocks
from portside.kernel.metrics import Siblings
from portside.kernel.migrations import migrate
from portside.kernel.reconcile import Driver, Task

if TYPE_CHECKING:
    from portside.agent.executors.core_api.listener import ExecutorListener
    from portside.executor.load import Graphs

SCHEMA = "portside"
ROUTES: list[Route[Context]] = [
    *system.routes,
    *system.debug_routes,
    *resources.routes,
    *threads.routes,
    *threads.state_routes,
    *runs.routes,
    *resources.cron_routes,
    *resources.store_routes,
    *threads.stream_routes,
    *threads.protocol_routes,
    *agents.routes,
    *agents.mcp_routes,
    *agents.ui_routes,
]


class AgentApp(msgspec.Struct):
    """A running agent server, without its sockets."""

    asgi: Any
    worker: Worker
    traffic: Traffic
    draining: asyncio.Event
    hub: Hub
    chores: Driver
    access: Access
    in_process: Any
    """The application as this process itself calls it."""
    custom: WebApp | None
    libraries: Mapping[str, str]
    describe_worker: Callable[[], Awaitable[bytes]]
    """Describes this process to its siblings, which answer at the same address."""
    idle_backoff: IdleBackoff
    takeover: asyncio.Task[None] | None = None
    """Starts to accept on the deployment's socket; kept here because asyncio keeps no strong reference to a task."""


class ProjectParts(Protocol):
    """The parts of a project beside its graphs, in this process or in an executor. Each may raise UserMistake."""

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        ...

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None."""
        ...

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        ...

    def join_app(self, config: AgentConfig, api: SocketApi[Any], access: Access) -> WebApp | None:
        """Return the web application with our routes in it."""
        ...

    async def close(self) -> None:
        """End the processes that run the handlers."""
        ...


class LocalHandlers:
    """The handlers in this process. Each property imports its handler."""

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self.join_app = join_custom

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        path = self._config.auth.path
        if path is None:
            return None

        from portside.executor.auth import load_auth

        return load_auth(self._config.project, path)

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None."""
        path = self._config.encryption.path
        if path is None:
            return None

        from portside.executor.encryption import load_encryption

        return load_encryption(self._config.project, path)

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        index = self._config.store.index
        if index is None:
            return None

        from portside.executor.embeddings import load_embeddings

        return load_embeddings(self._config.project, index.embed)

    async def close(self) -> None:
        """Do nothing: the handlers end with this process."""


class HandlersByLanguage:
    """The handlers of a project that has some in Python and some in JavaScript, but only one of each kind."""

    def __init__(self, python: ProjectParts, javascript: RemoteHandlers) -> None:
        self._python = python
        self._javascript = javascript

    @property
    def auth(self) -> ProjectAuth | None:
        """Authentication and authorization."""
        return self._javascript.auth or self._python.auth

    @property
    def encryption(self) -> EncryptionCalls | None:
        """The project's encryption handlers, or None. They cannot be in JavaScript."""
        return self._python.encryption

    @property
    def embeddings(self) -> Embeds | None:
        """The embedding of the store's index."""
        return self._javascript.embeddings or self._python.embeddings

    def join_app(self, config: AgentConfig, api: SocketApi[Any], access: Access) -> WebApp | None:
        """Return the web application with our routes in it."""
        return self._javascript.join_app(config, api, access) or self._python.join_app(config, api, access)

    async def close(self) -> None:
        """End the processes that run the handlers."""
        try:
            await self._javascript.close()
        finally:
            await self._python.close()


@asynccontextmanager
async def open_app(
    config: AgentConfig,
    graphs: "Graphs | None",
    settings: AgentSettings,
    database_url: str,
    siblings: Siblings | None = None,
) -> AsyncIterator[AgentApp]:
    """Start all services of the server, and stop them at the end. Without graphs, executors have the project's code.

    `siblings` are the other processes that answer at the same address. Raises UserMistake.
    """
    return_large_blocks()
    watch_tracing()

    handlers = await _start_handlers(graphs, config, settings)
    try:
        encryptor = make_encryptor(settings, handlers.encryption, f"{config.file}: encryption.path")
        codec = EncryptionCodec(encryptor) if encryptor else None

        connect = partial(Database.connect, database_url, max_size=settings.pool_size, schema=SCHEMA, codec=codec)
        db = await connect()
        try:
            await migrate(db, ["portside.agent"], schema=SCHEMA)
            await prepare_codec(db)
            setup = await open_setup(db, config, handlers.embeddings)
            pools = {"api": db}
            access = DatabaseAccess(pools, connect, encryptor, setup)

            service = await _start_graphs(graphs, config, settings, access)
            async with _listening(service, settings) as listener:
                policy = load_access_policy(config, settings, handlers.auth)
                code = ProjectCode(service, setup, policy, handlers.join_app, listener)
                app = await _compose(pools, code, config, settings, siblings)
                bus = await open_bus(db, settings, database_url)

                # Encrypted events are read from the database, whose codec decrypts them.
                bus.carries_chunks = bus.carries_chunks and encryptor is None
                callbacks = WorkCallbacks(app.worker.wake, app.worker.check_cancellations)

                def join_others(hub: Hub) -> PostgresTransport:
                    transport = PostgresTransport(db, bus, hub, callbacks, app.draining)
                    app.idle_backoff.parts.append(lambda is_resting: transport.rest(is_resting=is_resting))
                    return transport

                connected = app.hub.connected(join_others)
                async with _closing(app.access), connected, running(app.custom, app.in_process, db):
                    app.worker.start(app.chores)
                    yield app
        finally:
            await db.close()
    finally:
        await handlers.close()


async def _start_handlers(graphs: "Graphs | None", config: AgentConfig, settings: AgentSettings) -> ProjectParts:
    """Start what runs the project's handlers, in each of their languages. Raises UserMistake."""
    python: ProjectParts = LocalHandlers(config) if graphs is not None else await start_handlers(config, settings)
    try:
        javascript = await start_handlers(config, settings, in_javascript=True)
    except BaseException:
        await python.close()
        raise

    return HandlersByLanguage(python, javascript)


@asynccontextmanager
async def _closing(access: Access) -> AsyncIterator[None]:
    """Close the connections of authentication at the end, also if the block fails."""
    try:
        yield
    finally:
        await access.close()


@asynccontextmanager
async def _listening(service: GraphService, settings: AgentSettings) -> AsyncIterator["ExecutorListener | None"]:
    """Listen for executors on other machines, if they may connect; close the graphs at the end.

    Raises UserMistake and DependencyUnavailable.
    """
    listener = None
    try:
        if settings.uses_core_api:
            # Imported here, because importing gRPC takes a tenth of a second.
            from portside.agent.executors.core_api.listener import ExecutorListener

            listener = ExecutorListener(service.pools, settings)
            await listener.start()

        yield listener
    finally:
        try:
            await service.close()
        finally:
            if listener is not None:
                await listener.close()


class DatabaseAccess(NamedTuple):
    """The database as graphs use it; `pools` are its connections."""

    pools: dict[str, Database]
    connect: Callable[[], Awaitable[Database]]
    encryptor: Encryptor | None
    setup: StoreSetup


async def _start_graphs(
    graphs: "Graphs | None", config: AgentConfig, settings: AgentSettings, access: DatabaseAccess
) -> GraphService:
    """Start the graphs, here or in executors. Raises UserMistake."""
    db = access.pools["api"]
    backend = PostgresBackend(db, encryptor=access.encryptor, writer=CheckpointWriter(db))
    if graphs is None:
        return await start_graphs(config, settings, backend, Items(db, access.setup))

    # Imported here: a server with executors does not need the libraries of graphs.
    from portside.agent.local_graphs import start_local

    local = await start_local(graphs, access.connect, config, settings, (backend, access.setup))
    access.pools["graphs"] = local.database

    # The API's connections are found dead first, because reads of graphs have no time limit but the statement's.
    db.on_dead(local.replace_connections)
    if not config.javascript.graphs:
        return local

    return await start_beside(local, config, settings, backend, Items(db, access.setup))


class ProjectCode(NamedTuple):
    """The parts that run the project's code, in this process or in executors."""

    graphs: GraphService
    store: StoreSetup
    access: AccessPolicy
    join_app: Callable[[AgentConfig, SocketApi[Any], Access], WebApp | None]
    """Adds the routes of this server to the project's web application."""
    listener: "ExecutorListener | None" = None
    """What executors on other machines connect to, if any may."""


async def _compose(
    pools: dict[str, Database],
    code: ProjectCode,
    config: AgentConfig,
    settings: AgentSettings,
    siblings: Siblings | None,
) -> AgentApp:
    db = pools["api"]
    graphs = code.graphs
    setup = code.store
    all_assistants = Assistants(db, graphs.facts)
    access = Access(db, all_assistants, code.access)

    await all_assistants.make_system_assistants()
    await set_default_lifetime(db, config.thread_ttl)
    traffic = Traffic()
    draining = asyncio.Event()
    service = Runs(db, all_assistants, graphs, settings, draining)
    worker = service.worker
    disk = None

    if settings.disk_folder is not None:
        # Pending runs are claimed once there is enough disk space again.
        worker.disk = disk = DiskWatch(
            Path(settings.disk_folder), settings.disk_reserve, on_change=worker.wake, on_critical=worker.suspend_runs
        )

    if code.listener is not None and settings.slots:
        code.listener.share_slots(worker, settings.slots if settings.executors else 0)

    service.webhooks.policy = read_policy(config.webhooks, os.environ, is_disabled=config.http.disable_webhooks)
    due_crons = DueCrons(db, all_assistants, service)
    descriptions = Descriptions(all_assistants, graphs)
    thread_states = States(db, graphs, service.hub, memory_bytes=settings.state_memory_bytes)
    routes = served_routes(
        ROUTES, config.http, has_diagnostics=settings.debug_folder is not None, has_ui=bool(config.ui)
    )

    services = AgentServices(
        db=db,
        read_budget=ReadBudget(settings.answer_max_bytes, settings.large_reads_max_bytes),
        disk=disk,
        access=access,
        searches=ThreadSearches(db),
        assistants=all_assistants,
        bundles=Bundles(config.folder, config.ui),
        descriptions=descriptions,
        states=thread_states,
        a2a=A2A(A2AServices(db, service, access, all_assistants, descriptions, thread_states), settings),
        mcp=Mcp(db, Tools(db, all_assistants, descriptions, access), service),
        hub=service.hub,
        runs=service,
        crons=Crons(db, all_assistants, service.webhooks, on_change=due_crons.signal.set),
        webhook_log=WebhookLog(db),
        store=StoreRequests(Items(db, setup)),
        config=config,
        libraries=code.graphs.libraries,
        settings=settings,
        siblings=siblings,
        traffic=traffic,
        monitor=QueueMonitor(db, worker, pools),
        count_threads=graphs.count_threads if isinstance(graphs, PinnedGraphs) else None,
        health=HealthChecks(
            _checks(db, worker, code.listener, settings, draining),
            {} if disk is None else {"disk": lambda: disk.shortage},
        ),
        api_description=describe(routes, list(graphs.facts), access.security),
        diagnostics=None if settings.debug_folder is None else Diagnostics(Path(settings.debug_folder)),
    )

    chores: list[Task] = [
        ExpiredLeases(db, max_retries=settings.bg_job_max_retries, on_released=worker.wake),
        DueThreads(db),
        LapsedRunKeys(db),
        ExpiredThreads(db, config.thread_ttl),
        OldStreams(db, settings.resumable_stream_ttl_seconds),
        due_crons,
        *store_tasks(db, setup),
        *webhook_chores(db, service.webhooks, settings, with_long_values),
        OldCacheEntries(db),
    ]

    if isinstance(graphs, PinnedGraphs):
        chores.append(FinishedPins(db, graphs))

    if (encryptor := find_encryptor(db)) is not None and encryptor.keys is not None:
        chores.append(RenewedKeys(db.pool, encryptor, encryptor.keys))

    guard = StreamLimit(settings.max_streams_per_caller).guarded(with_encryption_context(access.guard, encryptor))
    sockets = served_routes(threads.sockets, config.http, has_diagnostics=False)
    api = SocketApi(Api(routes, services, guard), sockets, guard, draining=draining, form=ErrorFormat.TEXT)

    custom = code.join_app(config, api, access)
    if custom is not None:
        fetch = custom.fetch_document if isinstance(custom, RemoteApp) else None
        services.api_description.extend(partial(described_with, app=custom.app), fetch)
        service.webhooks.policy = msgspec.structs.replace(service.webhooks.policy, own_routes=ProjectRoutes(custom))

    handler: Any = custom or api
    in_process = for_own_calls(handler, config.http, settings)

    if settings.tier == "queue":
        operations = Api(without_api(routes), services, guard)
        handler = SocketApi(operations, [], guard, draining=draining, form=ErrorFormat.TEXT)

    asgi = for_clients(handler, config.http, settings, draining, traffic)
    tasks: list[Task] = [] if disk is None else [disk]

    if settings.tier != "api":
        tasks += chores

    frequent = (ExpiredLeases, OldStreams, DueCrons, Deliveries, FinishedPins)
    idle_backoff = IdleBackoff(db, worker, traffic, [task for task in tasks if isinstance(task, frequent)])

    # Without notifications a process finds the work of others only by looking, so it never looks less often.
    if settings.stream_bus != "none":
        tasks.append(idle_backoff)

    describe_worker = partial(system.describe_worker, services)
    return AgentApp(
        asgi,
        worker,
        traffic,
        draining,
        service.hub,
        Driver(tasks),
        access,
        in_process,
        custom,
        code.graphs.libraries,
        describe_worker,
        idle_backoff,
    )


def _checks(
    db: Database, worker: Worker, listener: "ExecutorListener | None", settings: AgentSettings, draining: asyncio.Event
) -> Mapping[str, Callable[[], Awaitable[bool]]]:
    async def is_working() -> bool:
        return draining.is_set() or worker.is_working

    checks = {"postgres": db.is_alive}
    if settings.tier == "queue":
        checks["worker"] = is_working

    if listener is not None:
        checks["grpc"] = listener.is_healthy

    return checks


# The groups of routes that a configuration can disable, by tag. Other groups are always served.
OPTIONAL = {
    "assistants": "disable_assistants",
    "threads": "disable_threads",
    "thread state": "disable_threads",
    "event streaming": "disable_threads",
    "runs": "disable_runs",
    "store": "disable_store",
    "a2a": "disable_a2a",
    "mcp": "disable_mcp",
    "ui": "disable_ui",
    "system": "disable_meta",
}

OPERATOR_ROUTES = frozenset({"/ok", "/metrics", "/info"})


def served_routes(
    routes: Iterable[Route[C]], http: HttpConfig, *, has_diagnostics: bool, has_ui: bool = True
) -> list[Route[C]]:
    """Return the routes that the configuration does not disable."""
    disabled = {tag for tag, flag in OPTIONAL.items() if getattr(http, flag)}
    if not has_diagnostics:
        disabled.add("debugging")

    if not has_ui:
        disabled.add("ui")

    served = [route for route in routes if route.tag not in disabled]
    return [*served, *system.bare_routes] if http.disable_meta else served


def without_api(routes: Iterable[Route[C]]) -> list[Route[C]]:
    """Return the routes of a server that only executes runs: those for its operators."""
    return [route for route in routes if route.path in OPERATOR_ROUTES or route.tag == "debugging"]


def describe(
    routes: Sequence[Route[Any]], graph_ids: Sequence[str], security: AuthOpenApi | None = None
) -> ApiDescription:
    """Describe the routes; a `graph_id` in a request is one of these graphs.

    `security` describes how callers authenticate. Public routes need none of it.
    """

    def write() -> bytes:
        described = document(SERVER_INFO, routes)
        if security is not None:
            _describe_security(described, routes, security)

        _name_graphs(described, list(graph_ids))
        return msgspec.json.encode(described)

    return ApiDescription(write, frozenset(route.tag for route in routes))


def _describe_security(described: dict[str, Any], routes: Sequence[Route[Any]], security: AuthOpenApi) -> None:
    if security.securitySchemes:
        described.setdefault("components", {}).setdefault("securitySchemes", {}).update(security.securitySchemes)

    described["security"] = security.security
    own = {(path, method.lower()): wanted for path, by in security.paths.items() for method, wanted in by.items()}
    own |= {(route.path, route.method.lower()): [] for route in routes if route.public}
    for (path, method), wanted in own.items():
        if operation := described["paths"].get(path, {}).get(method):
            operation["security"] = wanted


def _name_graphs(described: dict[str, Any], graph_ids: list[str]) -> None:
    """Restrict graph ids in requests. Responses keep any text: an assistant outlives its graph."""
    schemas = described["components"]["schemas"]
    bodies = {
        shape["$ref"].rsplit("/", 1)[-1]
        for operations in described["paths"].values()
        for operation in operations.values()
        for content in operation.get("requestBody", {}).get("content", {}).values()
        for shape in (content["schema"], *content["schema"].get("anyOf", ()))
        if "$ref" in shape
    }

    for operations in described["paths"].values():
        for operation in operations.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "assistant_id" and "format" not in parameter["schema"]:
                    # An empty parameter counts as a missing one.
                    names = graph_ids if parameter["required"] else [*graph_ids, ""]
                    by_graph = {"type": "string", "enum": names}
                    parameter["schema"] = {"anyOf": [{"type": "string", "format": "uuid"}, by_graph]}

    for name in bodies:
        field = schemas[name].get("properties", {}).get("graph_id")
        for shape in () if field is None else (field, *field.get("anyOf", ())):
            if shape.get("type") == "string":
                shape["enum"] = graph_ids


# The middleware in front of the routes: for requests of clients, and for calls of this process to itself.
ALSO_AT_ROOT = frozenset({"/ok", "/metrics"})


def for_clients(app: Any, http: HttpConfig, settings: AgentSettings, draining: asyncio.Event, traffic: Traffic) -> Any:
    """Wrap an application for requests of clients, outermost last. The configuration file wins over the environment."""
    app = _bounded(app, http, settings)
    names = [name.strip() for name in settings.allowed_hosts.split(",") if name.strip()]
    if ANY not in names:
        app = AllowedHosts(app, names)

    if prefix := http.mount_prefix or settings.mount_prefix:
        app = MountBelow(app, prefix, ALSO_AT_ROOT)

    cors = Cors(http.cors or CorsRules.of(settings.cors_allow_origins))
    app = RequestMiddleware(app, ErrorFormat.TEXT, draining=draining, cors=cors, logged_headers=http.logging_headers)
    app.activity = traffic

    return ForwardedHeaders(app, settings.trusted_proxies) if settings.trusted_proxies else app


def for_own_calls(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    """Wrap an application for calls of this process to itself, which need neither a prefix nor CORS."""
    return RequestMiddleware(_bounded(app, http, settings), ErrorFormat.TEXT, logged_headers=http.logging_headers)


def _bounded(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    rules = http.configurable_headers
    return LimitBody(
        app if rules is None else ForwardHeaders(app, rules),
        settings.http_max_request_body_bytes,
        max_values=settings.http_max_request_body_values,
    )
