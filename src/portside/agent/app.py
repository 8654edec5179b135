"""The agent server put together: the only place that makes its parts and joins them.

By its tier it answers requests, executes runs, or both. What executes runs also does the chores of the database; each
of them is safe in several processes at once. A server that only answers keeps its graphs to read states with.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from portside.agent.a2a.service import A2A, Services
from portside.agent.access.crowding import OpenAnswers
from portside.agent.access.loading import load_protection
from portside.agent.access.service import Access
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.checkpoints.saver import PostgresSaver
from portside.agent.checkpoints.serde import make_serde
from portside.agent.checkpoints.staging import Stage
from portside.agent.config import AgentConfig
from portside.agent.crons.firing import DueCrons
from portside.agent.crons.records import Crons
from portside.agent.custom.application import CustomApp, join_custom, running
from portside.agent.custom.cache import OldCacheEntries
from portside.agent.custom.description import described_with
from portside.agent.custom.own_routes import OwnRoutes
from portside.agent.encryption.codec import vault_of
from portside.agent.encryption.setup import codec_of, guarded_by, let_replace, make_vault
from portside.agent.encryption.vault import Vault
from portside.agent.engine import Engine
from portside.agent.front import from_inside, from_outside
from portside.agent.graphs.imports import add_to_path, import_named
from portside.agent.graphs.load import Graphs
from portside.agent.http import (
    a2a,
    assistants,
    crons,
    debugging,
    mcp,
    protocol,
    runs,
    states,
    store,
    streams,
    system,
    threads,
    webhooks,
)  # fmt: skip
from portside.agent.http.serving import describe, served_routes, without_api
from portside.agent.http.system import Manual, Traffic
from portside.agent.mcp.methods import Methods
from portside.agent.mcp.tools import Tools
from portside.agent.queue.backlog import Monitor
from portside.agent.queue.sweep import DueThreads, ExpiredLeases, LapsedRunKeys
from portside.agent.queue.worker import Worker
from portside.agent.runs.service import Runs
from portside.agent.settings import AgentSettings
from portside.agent.store.chores import store_chores
from portside.agent.store.items import Items
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import StoreSetup, open_setup
from portside.agent.store.store import make_store
from portside.agent.streams.choose import open_bus
from portside.agent.streams.chores import OldStreams
from portside.agent.streams.hub import Hub
from portside.agent.streams.relay import PostgresRelay, Work
from portside.agent.threads.lifetimes import ExpiredThreads, set_default_lifetime
from portside.agent.threads.searches import Searches
from portside.agent.threads.states import States
from portside.agent.webhooks.deliveries import webhook_chores
from portside.agent.webhooks.policy import read_policy
from portside.agent.webhooks.records import WebhookLog
from portside.kernel.db import Database
from portside.kernel.diagnostics import Diagnostics
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.refusals import ErrorForm
from portside.kernel.http.routes import Api, Route
from portside.kernel.http.websockets import SocketApi
from portside.kernel.migrations import migrate
from portside.kernel.reconcile import Driver, Task

SCHEMA = "portside"
ROUTES: list[Route] = [
    *system.routes, *debugging.routes, *assistants.routes, *threads.routes, *states.routes, *runs.routes, *crons.routes,
    *store.routes, *streams.routes, *protocol.routes, *a2a.routes, *mcp.routes, *webhooks.routes,
]  # fmt: skip


class AgentApp(msgspec.Struct):
    """A running agent server, short of its sockets."""

    asgi: Any
    worker: Worker
    traffic: Traffic
    draining: asyncio.Event
    hub: Hub
    chores: Driver
    access: Access
    inside: Any
    custom: CustomApp | None
    takeover: asyncio.Task[None] | None = None

    @property
    def work(self) -> Work:
        """Whom to tell of runs to claim and to stop that other processes know of."""
        return Work(self.worker.wake, self.worker.look_for_cancels)


@asynccontextmanager
async def open_app(
    config: AgentConfig, graphs: Graphs, settings: AgentSettings, database_url: str
) -> AsyncIterator[AgentApp]:
    """Start everything behind the routes, and stop it at the end. Raises UserMistake."""
    vault = _vault(config, settings)
    size, codec = settings.graph_postgres_pool_max_size, codec_of(vault)
    connect = partial(Database.connect, database_url, max_size=size, schema=SCHEMA, codec=codec)
    db = await connect()
    make_saver = partial(PostgresSaver, serde=make_serde(config.serde), vault=vault, stage=Stage(db))
    loops = settings.slots if settings.bg_job_isolated_loops and settings.slots else 1
    try:
        await migrate(db, ["portside.agent"], schema=SCHEMA)
        let_replace(db)
        setup = await open_setup(db, config)
        engine = await Engine.start(graphs, connect, loops=loops, make_saver=make_saver, make_store=make_store(setup))
        try:
            app = await _join(db, engine, config, settings, setup)
            bus = await open_bus(db, settings, database_url)
            # What is sealed is read from the database, where it is opened.
            bus.carries_chunks = bus.carries_chunks and vault is None
            relayed = app.hub.joined(lambda hub: PostgresRelay(db, bus, hub, app.work, app.draining))
            async with relayed, running(app.custom, app.inside, db):
                app.worker.start(app.chores)
                yield app
            await app.access.close()
        finally:
            await engine.close()
    finally:
        await db.close()


def _vault(config: AgentConfig, settings: AgentSettings) -> Vault | None:
    source = config.encryption.path
    given = None if source is None else import_named(config, "encryption", source, add_to_path(config))
    return make_vault(settings, given, f"{config.file}: encryption.path ({source})")


async def _join(
    db: Database, engine: Engine, config: AgentConfig, settings: AgentSettings, setup: StoreSetup
) -> AgentApp:
    known = Assistants(db, engine.graphs)
    access = Access(db, known, load_protection(config, settings))
    await known.make_system_assistants()
    await set_default_lifetime(db, config.thread_ttl)
    traffic, draining = Traffic(), asyncio.Event()
    service = Runs(db, known, engine, settings, draining)
    worker = service.worker
    service.webhooks.policy = read_policy(config.webhooks, os.environ, is_disabled=config.http.disable_webhooks)
    due_crons = DueCrons(db, known, service)
    descriptions, thread_states = (
        Descriptions(known, engine),
        States(db, engine, service.hub, memory_bytes=settings.state_memory_bytes),
    )
    services: dict[type, Any] = {
        Database: db,
        Access: access,
        Searches: Searches(db),
        Assistants: known,
        Descriptions: descriptions,
        States: thread_states,
        A2A: A2A(Services(db, service, access, known, descriptions, thread_states), settings, config),
        Methods: Methods(Tools(db, known, descriptions, access), service),
        Hub: service.hub,
        asyncio.Event: draining,
        Runs: service,
        Crons: Crons(db, known, service.webhooks, on_change=due_crons.signal.set),
        WebhookLog: WebhookLog(db),
        StoreRequests: StoreRequests(Items(db, setup)),
        AgentConfig: config,
        AgentSettings: settings,
        Traffic: traffic,
        Monitor: Monitor(db, worker, {"api": db, "graphs": engine.database}),
        HealthChecks: _checks(db, worker, settings, draining),
    }
    routes = served_routes(ROUTES, config.http, has_diagnostics=settings.debug_folder is not None)
    services[Manual] = manual = describe(routes, engine.graphs.ids(), access.security)
    if settings.debug_folder is not None:
        services[Diagnostics] = Diagnostics(Path(settings.debug_folder))
    kept = [ExpiredThreads(db, config.thread_ttl), OldStreams(db, settings.resumable_stream_ttl_seconds)]
    told = webhook_chores(db, service.webhooks, settings)
    chores = [*_queue_chores(db, worker, settings), *kept, due_crons, *store_chores(db, setup), *told]
    chores.append(OldCacheEntries(db))
    guard = OpenAnswers(settings.max_streams_per_caller).guarded(guarded_by(access.guard, vault_of(db)))
    sockets = served_routes(protocol.sockets, config.http, has_diagnostics=False)
    api = SocketApi(Api(routes, services, guard), sockets, guard, draining=draining, form=ErrorForm.TEXT)
    custom = join_custom(config, api, access)
    if custom is not None:
        services[Manual] = Manual(partial(_described_with_own, manual, custom), manual.tags)
        service.webhooks.policy = msgspec.structs.replace(service.webhooks.policy, own=OwnRoutes(custom))
    shown: Any = custom or api
    inside = from_inside(shown, config.http, settings)
    if settings.tier == "queue":
        operated = Api(without_api(routes), services, guard)
        shown = SocketApi(operated, [], guard, draining=draining, form=ErrorForm.TEXT)
    asgi = from_outside(shown, config.http, settings, draining)
    driver = Driver([] if settings.tier == "api" else chores)
    return AgentApp(asgi, worker, traffic, draining, service.hub, driver, access, inside, custom)


def _described_with_own(manual: Manual, custom: CustomApp) -> bytes:
    return described_with(manual.openapi, custom.app)


def _queue_chores(db: Database, worker: Worker, settings: AgentSettings) -> list[Task]:
    sweep = ExpiredLeases(db, max_retries=settings.bg_job_max_retries, on_released=worker.wake)
    return [sweep, DueThreads(db), LapsedRunKeys(db)]


def _checks(db: Database, worker: Worker, settings: AgentSettings, draining: asyncio.Event) -> HealthChecks:
    async def is_working() -> bool:
        return draining.is_set() or worker.is_working

    checks = {"postgres": db.is_alive}
    return HealthChecks(checks | {"worker": is_working} if settings.tier == "queue" else checks)
