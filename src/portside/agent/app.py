"""The composition of the agent server: its services, its routes and its background tasks.

Depending on its tier, a server answers requests, executes runs, or does both. A server that executes runs also performs
the periodic chores of the database; several processes may perform each chore at once. A server that only answers
requests still has its graphs, to read states with.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from portside.agent.a2a.service import A2A, A2AServices
from portside.agent.access.authentication import AccessPolicy, load_access_policy
from portside.agent.access.service import Access
from portside.agent.access.stream_limit import StreamLimit
from portside.agent.api_description import describe_api
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import AgentConfig
from portside.agent.crons.firing import DueCrons
from portside.agent.crons.records import Crons
from portside.agent.custom.cache import OldCacheEntries
from portside.agent.custom.openapi import add_project_api
from portside.agent.custom.project_routes import ProjectRoutes
from portside.agent.custom.web_app import WebApp, running
from portside.agent.encryption.codec import EncryptionCodec, find_encryptor, prepare_codec, with_encryption_context
from portside.agent.encryption.encryptor import Encryptor, build_encryptor
from portside.agent.encryption.key_renewal import RenewedKeys
from portside.agent.executors.pinned_graphs import FinishedPins, PinnedGraphs
from portside.agent.executors.remote_app import RemoteApp
from portside.agent.executors.start import start_beside, start_graphs
from portside.agent.graphs import GraphService
from portside.agent.http import events, system
from portside.agent.http.services import AgentServices, Traffic
from portside.agent.mcp.service import Mcp
from portside.agent.mcp.tools import Tools
from portside.agent.middleware import wrap_for_clients, wrap_for_own_calls
from portside.agent.problems import watch_tracing
from portside.agent.project_handlers import start_project_handlers
from portside.agent.queue.backlog import QueueMonitor
from portside.agent.queue.chores import DueThreads, ExpiredLeases, LapsedRunKeys
from portside.agent.queue.rest import IdleBackoff
from portside.agent.queue.worker import Worker
from portside.agent.runs.service import Runs
from portside.agent.served_routes import ROUTES, list_operator_routes, list_served_routes
from portside.agent.settings import AgentSettings, Tier
from portside.agent.store.items import Items, build_store_tasks
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import StoreSetup, open_setup
from portside.agent.streams.bus import open_bus
from portside.agent.streams.hub import Hub
from portside.agent.streams.postgres_log import OldStreams
from portside.agent.streams.postgres_transport import PostgresTransport, WorkCallbacks
from portside.agent.threads.lifetimes import ExpiredThreads, set_default_lifetime
from portside.agent.threads.long_values import with_long_values
from portside.agent.threads.searches import ThreadSearches
from portside.agent.threads.states import States
from portside.agent.ui import Bundles
from portside.agent.webhooks.configuration import read_policy
from portside.agent.webhooks.deliveries import Deliveries, build_webhook_chores
from portside.agent.webhooks.log import WebhookLog
from portside.kernel.db import Database
from portside.kernel.diagnostics import Diagnostics
from portside.kernel.disk import DiskWatch
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.routes import Api
from portside.kernel.http.websockets import SocketApi
from portside.kernel.large_reads import ReadBudget, return_large_blocks
from portside.kernel.metrics import Siblings
from portside.kernel.migrations import migrate
from portside.kernel.reconcile import Driver, Task

if TYPE_CHECKING:
    from portside.agent.executors.core_api.listener import ExecutorListener
    from portside.executor.load import Graphs

SCHEMA = "portside"
# A server that has nothing to do performs these chores less often.
RESTING_CHORES = (ExpiredLeases, OldStreams, DueCrons, Deliveries, FinishedPins)


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

    handlers = await start_project_handlers(graphs, config, settings)
    try:
        encryptor = build_encryptor(settings, handlers.encryption, f"{config.file}: encryption.path")
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
                code = ProjectCode(
                    graphs=service,
                    store=setup,
                    access=policy,
                    join_app=handlers.join_app,
                    listener=listener,
                )
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
    assistants = Assistants(db, graphs.facts)
    access = Access(db, assistants, code.access)

    await assistants.create_system_assistants()
    await set_default_lifetime(db, config.thread_ttl)

    traffic = Traffic()
    draining = asyncio.Event()
    runs = Runs(db, assistants, graphs, settings, draining)
    worker = runs.worker
    runs.webhooks.policy = read_policy(config.webhooks, os.environ, is_disabled=config.http.disable_webhooks)

    disk = None
    if settings.disk_folder is not None:
        # Pending runs are claimed once there is enough disk space again.
        worker.disk = disk = DiskWatch(
            Path(settings.disk_folder), settings.disk_reserve, on_change=worker.wake, on_critical=worker.suspend_runs
        )

    if code.listener is not None and settings.slots:
        code.listener.share_slots(worker, settings.slots if settings.executors else 0)

    due_crons = DueCrons(db, assistants, runs)
    descriptions = Descriptions(assistants, graphs.descriptions)
    states = States(db, graphs.states, runs.hub, memory_bytes=settings.state_memory_bytes)
    routes = list_served_routes(
        ROUTES, config.http, has_diagnostics=settings.debug_folder is not None, has_ui=bool(config.ui)
    )

    services = AgentServices(
        db=db,
        read_budget=ReadBudget(settings.answer_max_bytes, settings.large_reads_max_bytes),
        disk=disk,
        access=access,
        searches=ThreadSearches(db),
        assistants=assistants,
        bundles=Bundles(config.folder, config.ui),
        descriptions=descriptions,
        states=states,
        a2a=A2A(
            A2AServices(
                db=db,
                runs=runs,
                access=access,
                assistants=assistants,
                descriptions=descriptions,
                states=states,
            ),
            settings,
        ),
        mcp=Mcp(db, Tools(db, assistants, descriptions, access), runs),
        hub=runs.hub,
        runs=runs,
        crons=Crons(db, assistants, runs.webhooks, on_change=due_crons.signal.set),
        webhook_log=WebhookLog(db),
        store=StoreRequests(Items(db, code.store)),
        config=config,
        libraries=graphs.libraries,
        settings=settings,
        siblings=siblings,
        traffic=traffic,
        monitor=QueueMonitor(db, worker, pools),
        count_threads=graphs.count_threads if isinstance(graphs, PinnedGraphs) else None,
        health=HealthChecks(
            _build_checks(db, worker, code.listener, settings, draining),
            {} if disk is None else {"disk": lambda: disk.shortage},
        ),
        api_description=describe_api(routes, list(graphs.facts), access.security),
        diagnostics=None if settings.debug_folder is None else Diagnostics(Path(settings.debug_folder)),
    )

    encryptor = find_encryptor(db)
    guard = StreamLimit(settings.max_streams_per_caller).guarded(with_encryption_context(access.guard, encryptor))
    sockets = list_served_routes(events.sockets, config.http, has_diagnostics=False)
    api = SocketApi(Api(routes, services, guard), sockets, guard, draining=draining, form=ErrorFormat.TEXT)

    custom = code.join_app(config, api, access)
    if custom is not None:
        fetch = custom.fetch_document if isinstance(custom, RemoteApp) else None
        services.api_description.extend(partial(add_project_api, app=custom.app), fetch)
        runs.webhooks.policy = msgspec.structs.replace(runs.webhooks.policy, own_routes=ProjectRoutes(custom))

    handler: Any = custom or api
    in_process = wrap_for_own_calls(handler, config.http, settings)
    if settings.tier == Tier.QUEUE:
        operations = Api(list_operator_routes(routes), services, guard)
        handler = SocketApi(operations, [], guard, draining=draining, form=ErrorFormat.TEXT)

    tasks: list[Task] = [] if disk is None else [disk]
    if settings.tier != Tier.API:
        tasks += _build_chores(db, code, config, settings, runs)
        tasks.append(due_crons)

    resting = [task for task in tasks if isinstance(task, RESTING_CHORES)]
    idle_backoff = IdleBackoff(db, worker, traffic, resting)
    if settings.stream_bus != "none":
        # Without notifications a process finds the work of others only by looking, so it never looks less often.
        tasks.append(idle_backoff)

    return AgentApp(
        asgi=wrap_for_clients(handler, config.http, settings, draining=draining, traffic=traffic),
        worker=worker,
        traffic=traffic,
        draining=draining,
        hub=runs.hub,
        chores=Driver(tasks),
        access=access,
        in_process=in_process,
        custom=custom,
        libraries=graphs.libraries,
        describe_worker=partial(system.describe_worker, services),
        idle_backoff=idle_backoff,
    )


def _build_chores(
    db: Database, code: ProjectCode, config: AgentConfig, settings: AgentSettings, runs: Runs
) -> list[Task]:
    """Return the periodic chores of the database; several processes may perform each at once."""
    chores: list[Task] = [
        ExpiredLeases(db, max_retries=settings.bg_job_max_retries, on_released=runs.worker.wake),
        DueThreads(db),
        LapsedRunKeys(db),
        ExpiredThreads(db, config.thread_ttl),
        OldStreams(db, settings.resumable_stream_ttl_seconds),
        *build_store_tasks(db, code.store),
        *build_webhook_chores(db, runs.webhooks, settings, with_long_values),
        OldCacheEntries(db),
    ]

    if isinstance(code.graphs, PinnedGraphs):
        chores.append(FinishedPins(db, code.graphs))

    encryptor = find_encryptor(db)
    if encryptor is not None and encryptor.keys is not None:
        chores.append(RenewedKeys(db.pool, encryptor, encryptor.keys))

    return chores


def _build_checks(
    db: Database, worker: Worker, listener: "ExecutorListener | None", settings: AgentSettings, draining: asyncio.Event
) -> Mapping[str, Callable[[], Awaitable[bool]]]:
    async def is_working() -> bool:
        return draining.is_set() or worker.is_working

    checks = {"postgres": db.is_alive}
    if settings.tier == Tier.QUEUE:
        checks["worker"] = is_working

    if listener is not None:
        checks["grpc"] = listener.is_healthy

    return checks
