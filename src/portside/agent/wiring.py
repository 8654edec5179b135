"""How the parts of the agent server are connected: services, applications and background tasks.

`compose` names the steps. `app.py` opens what they stand on, and closes it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from portside.agent.a2a.service import A2A, A2AServices
from portside.agent.access.authentication import AccessPolicy
from portside.agent.access.service import Access
from portside.agent.access.stream_limit import StreamLimit
from portside.agent.api_description import describe_api
from portside.agent.assistants.descriptions import Descriptions
from portside.agent.assistants.records import Assistants
from portside.agent.config import AgentConfig
from portside.agent.crons.firing import DueCrons
from portside.agent.crons.records import Crons
from portside.agent.custom.cache import OldCacheEntries
from portside.agent.custom.project_routes import ProjectRoutes
from portside.agent.custom.web_app import WebApp
from portside.agent.encryption.codec import find_encryptor, with_encryption_context
from portside.agent.encryption.key_renewal import RenewedKeys
from portside.agent.executors.pinned_graphs import FinishedPins, PinnedGraphs
from portside.agent.graphs import GraphService
from portside.agent.http import events, system
from portside.agent.http.context import Context, SocketContext
from portside.agent.http.services import AgentServices, Traffic
from portside.agent.mcp.service import Mcp
from portside.agent.mcp.tools import Tools
from portside.agent.middleware import wrap_for_clients, wrap_for_own_calls
from portside.agent.queue.backlog import QueueMonitor
from portside.agent.queue.chores import DueThreads, ExpiredLeases, LapsedRunKeys
from portside.agent.queue.rest import IdleBackoff
from portside.agent.queue.worker import Intake, Worker
from portside.agent.runs.service import Runs
from portside.agent.served_routes import ROUTES, list_operator_routes, list_served_routes
from portside.agent.settings import AgentSettings, Tier
from portside.agent.store.items import Items, build_store_tasks
from portside.agent.store.requests import StoreRequests
from portside.agent.store.search_index import StoreSetup
from portside.agent.streams.hub import Hub
from portside.agent.streams.postgres_log import OldStreams
from portside.agent.threads.long_values import with_long_values
from portside.agent.threads.records import ExpiredThreads, set_default_lifetime
from portside.agent.threads.searches import ThreadSearches
from portside.agent.threads.states import States
from portside.agent.ui import Bundles
from portside.agent.webhooks.deliveries import Deliveries, build_webhook_chores
from portside.agent.webhooks.log import WebhookLog
from portside.agent.webhooks.policy import Webhooks, read_policy
from portside.kernel.db import Database
from portside.kernel.diagnostics import Diagnostics
from portside.kernel.disk import DiskWatch
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.health import HealthChecks
from portside.kernel.http.routes import Api, Route, bind
from portside.kernel.http.websockets import SocketApi, bind_sockets
from portside.kernel.large_reads import ReadBudget
from portside.kernel.metrics import Siblings
from portside.kernel.reconcile import Driver, Task

if TYPE_CHECKING:
    from portside.agent.executors.core_api.listener import ExecutorListener

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


@dataclass(frozen=True, kw_only=True)
class Foundation:
    """What a server stands on: its configuration, its database, and what runs the project's code."""

    config: AgentConfig
    settings: AgentSettings
    pools: Mapping[str, Database]
    """The connections of the API, and those of graphs in this process."""
    graphs: GraphService
    store: StoreSetup
    access_policy: AccessPolicy
    join_app: Callable[[AgentConfig, SocketApi, Access], WebApp | None]
    """Adds the routes of this server to the project's web application."""
    listener: "ExecutorListener | None"
    """What executors on other machines connect to, if any may."""
    siblings: Siblings | None
    """The other processes that answer at the same address."""

    @property
    def db(self) -> Database:
        """The database of the API."""
        return self.pools["api"]


@dataclass(frozen=True, kw_only=True)
class Core:
    """The services that applications and background tasks share."""

    assistants: Assistants
    access: Access
    runs: Runs
    due_crons: DueCrons
    own_routes: ProjectRoutes
    disk: DiskWatch | None
    traffic: Traffic
    draining: asyncio.Event


class Applications(NamedTuple):
    """The same server for its clients and for itself, with the project's web application if it has one."""

    for_clients: Any
    for_own_calls: Any
    custom: WebApp | None


async def compose(base: Foundation) -> AgentApp:
    """Connect the parts of a server. Raises UserMistake."""
    settings = base.settings
    core = await _build_core(base)

    routes = list_served_routes(
        ROUTES, base.config.http, has_diagnostics=settings.debug_folder is not None, has_ui=bool(base.config.ui)
    )
    services = _build_services(base, core, routes)
    applications = _build_applications(base, core, routes, services)

    worker = core.runs.worker
    if base.listener is not None and settings.slots:
        base.listener.share_slots(worker, settings.slots if settings.executors else 0)

    return AgentApp(
        asgi=applications.for_clients,
        worker=worker,
        traffic=core.traffic,
        draining=core.draining,
        hub=core.runs.hub,
        chores=Driver(_build_tasks(base, core)),
        access=core.access,
        in_process=applications.for_own_calls,
        custom=applications.custom,
        libraries=base.graphs.libraries,
        describe_worker=partial(system.describe_worker, services),
    )


async def _build_core(base: Foundation) -> Core:
    db = base.db
    config = base.config
    settings = base.settings

    assistants = Assistants(db, base.graphs.facts)
    await assistants.create_system_assistants()
    await set_default_lifetime(db, config.thread_ttl)

    disk = None
    if settings.disk_folder is not None:
        disk = DiskWatch(Path(settings.disk_folder), settings.disk_reserve)

    own_routes = ProjectRoutes()
    policy = read_policy(config.webhooks, os.environ, is_disabled=config.http.disable_webhooks, own_routes=own_routes)

    draining = asyncio.Event()
    runs = Runs(db, assistants, base.graphs, settings, intake=Intake(draining, disk), webhooks=Webhooks(policy))

    return Core(
        assistants=assistants,
        access=Access(db, assistants, base.access_policy),
        runs=runs,
        due_crons=DueCrons(db, assistants, runs),
        own_routes=own_routes,
        disk=disk,
        traffic=Traffic(),
        draining=draining,
    )


def _build_services(base: Foundation, core: Core, routes: Sequence[Route[Context]]) -> AgentServices:
    """Return the services of the routes."""
    db = base.db
    config = base.config
    settings = base.settings
    graphs = base.graphs
    access = core.access
    assistants = core.assistants
    runs = core.runs

    descriptions = Descriptions(assistants, graphs.descriptions)
    states = States(db, graphs.states, runs.hub, memory_bytes=settings.state_memory_bytes)
    a2a_services = A2AServices(
        db=db,
        runs=runs,
        access=access,
        assistants=assistants,
        descriptions=descriptions,
        states=states,
    )

    return AgentServices(
        db=db,
        access=access,
        searches=ThreadSearches(db),
        assistants=assistants,
        bundles=Bundles(config.folder, config.ui),
        descriptions=descriptions,
        states=states,
        a2a=A2A(a2a_services, settings),
        mcp=Mcp(db, Tools(db, assistants, descriptions, access), runs),
        hub=runs.hub,
        runs=runs,
        crons=Crons(db, assistants, runs.webhooks, on_change=core.due_crons.signal.set),
        webhook_log=WebhookLog(db),
        store=StoreRequests(Items(db, base.store)),
        config=config,
        libraries=graphs.libraries,
        settings=settings,
        siblings=base.siblings,
        traffic=core.traffic,
        monitor=QueueMonitor(db, runs.worker, base.pools),
        count_threads=graphs.count_threads if isinstance(graphs, PinnedGraphs) else None,
        health=_build_health(base, core),
        api_description=describe_api(routes, list(graphs.facts), security=access.security, own_routes=core.own_routes),
        diagnostics=None if settings.debug_folder is None else Diagnostics(Path(settings.debug_folder)),
    )


def _build_health(base: Foundation, core: Core) -> HealthChecks:
    disk = core.disk

    async def is_working() -> bool:
        return core.draining.is_set() or core.runs.worker.is_working

    checks = {"postgres": base.db.is_alive}
    if base.settings.tier == Tier.QUEUE:
        checks["worker"] = is_working

    if base.listener is not None:
        checks["grpc"] = base.listener.is_healthy

    return HealthChecks(checks, {} if disk is None else {"disk": lambda: disk.shortage})


def _build_applications(
    base: Foundation, core: Core, routes: Sequence[Route[Context]], services: AgentServices
) -> Applications:
    http = base.config.http
    settings = base.settings
    draining = core.draining

    limit = StreamLimit(settings.max_streams_per_caller)
    guard = limit.guarded(with_encryption_context(core.access.guard, find_encryptor(base.db)))
    read_budget = ReadBudget(settings.answer_max_bytes, settings.large_reads_max_bytes)

    def build_api(routes: Sequence[Route[Context]], sockets: Sequence[Route[SocketContext]]) -> SocketApi:
        requests = Api(bind(routes, services), guard, read_budget=read_budget, disk=core.disk)
        return SocketApi(requests, bind_sockets(sockets, services), guard, draining=draining, form=ErrorFormat.TEXT)

    api = build_api(routes, list_served_routes(events.sockets, http, has_diagnostics=False))
    custom = base.join_app(base.config, api, core.access)
    if custom is not None:
        core.own_routes.open(custom)

    whole: Any = custom or api
    served = whole
    if settings.tier == Tier.QUEUE:
        served = build_api(list_operator_routes(routes), [])

    return Applications(
        for_clients=wrap_for_clients(served, http, settings, draining=draining, traffic=core.traffic),
        for_own_calls=wrap_for_own_calls(whole, http, settings),
        custom=custom,
    )


def _build_tasks(base: Foundation, core: Core) -> list[Task]:
    """Return the background tasks of this process."""
    tasks: list[Task] = [] if core.disk is None else [core.disk]
    if base.settings.tier != Tier.API:
        tasks += _build_chores(base, core)

    if base.settings.stream_bus != "none":
        # Without notifications a process finds the work of others only by looking, so it never looks less often.
        resting = [task for task in tasks if isinstance(task, RESTING_CHORES)]
        runs = core.runs
        tasks.append(IdleBackoff(base.db, runs.worker, core.traffic, tasks=resting, pollers=[runs.hub]))

    return tasks


def _build_chores(base: Foundation, core: Core) -> list[Task]:
    """Return the periodic chores of the database; several processes may perform each at once."""
    db = base.db
    settings = base.settings
    chores: list[Task] = [
        ExpiredLeases(
            db,
            max_retries=settings.bg_job_max_retries,
            on_released=core.runs.worker.wake,
            is_overdue=core.runs.worker.renew_overdue,
        ),
        DueThreads(db),
        LapsedRunKeys(db),
        ExpiredThreads(db, base.config.thread_ttl),
        OldStreams(db, settings.resumable_stream_ttl_seconds),
        *build_store_tasks(db, base.store),
        *build_webhook_chores(db, core.runs.webhooks, settings, with_long_values),
        OldCacheEntries(db),
        core.due_crons,
    ]

    if isinstance(base.graphs, PinnedGraphs):
        chores.append(FinishedPins(db, base.graphs))

    encryptor = find_encryptor(db)
    if encryptor is not None and encryptor.keys is not None:
        chores.append(RenewedKeys(db.pool, encryptor, encryptor.keys))

    return chores
