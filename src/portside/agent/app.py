"""The life of an agent server: what it opens at the start, in which order, and closes at the end.

Depending on its tier, a server answers requests, executes runs, or does both. A server that executes runs also performs
the periodic chores of the database; several processes may perform each chore at once. A server that only answers
requests still has its graphs, to read states with. `wiring.py` connects the parts.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from portside.agent.access.authentication import load_access_policy
from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.checkpoints.writer import CheckpointWriter
from portside.agent.config import AgentConfig
from portside.agent.custom.web_app import running
from portside.agent.encryption.codec import EncryptionCodec, prepare_codec
from portside.agent.encryption.encryptor import Encryptor, build_encryptor
from portside.agent.executors.start import start_beside, start_graphs
from portside.agent.graphs import GraphService
from portside.agent.problems import watch_tracing
from portside.agent.project_handlers import start_project_handlers
from portside.agent.settings import AgentSettings
from portside.agent.store.items import Items
from portside.agent.store.search_index import StoreSetup, open_setup
from portside.agent.streams.bus import open_bus
from portside.agent.streams.postgres_transport import PostgresTransport, WorkCallbacks
from portside.agent.wiring import AgentApp, Foundation, compose
from portside.kernel.db import Database
from portside.kernel.large_reads import return_large_blocks
from portside.kernel.metrics import Siblings
from portside.kernel.migrations import migrate

if TYPE_CHECKING:
    from portside.agent.executors.core_api.listener import ExecutorListener
    from portside.executor.load import Graphs

SCHEMA = "portside"


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
    async with _closing(handlers):
        encryptor = build_encryptor(settings, handlers.encryption, f"{config.file}: encryption.path")
        codec = EncryptionCodec(encryptor) if encryptor else None
        connect = partial(Database.connect, database_url, max_size=settings.pool_size, schema=SCHEMA, codec=codec)

        db = await connect()
        async with _closing(db):
            await migrate(db, ["portside.agent"], schema=SCHEMA)
            await prepare_codec(db)
            store = await open_setup(db, config, handlers.embeddings)
            access = DatabaseAccess(db, connect, encryptor, store)

            service, pools = await _start_graphs(graphs, config, settings, access)
            async with _listening(service, settings) as listener:
                app = await compose(
                    Foundation(
                        config=config,
                        settings=settings,
                        pools=pools,
                        graphs=service,
                        store=store,
                        access_policy=load_access_policy(config, settings, handlers.auth),
                        join_app=handlers.join_app,
                        listener=listener,
                        siblings=siblings,
                    )
                )

                bus = await open_bus(db, settings, database_url)
                work = WorkCallbacks(app.worker.wake, app.worker.check_cancellations)
                connected = app.hub.connected(lambda hub: PostgresTransport(db, bus, hub, work, app.draining))
                async with _closing(app.access), connected, running(app.custom, app.in_process, db):
                    app.worker.start(app.chores)
                    yield app


class Closeable(Protocol):
    """A part that is closed at the end."""

    async def close(self) -> None:
        """End it."""
        ...


@asynccontextmanager
async def _closing(part: Closeable) -> AsyncIterator[None]:
    """Close a part at the end, also if the block fails."""
    try:
        yield
    finally:
        await part.close()


class DatabaseAccess(NamedTuple):
    """The database as graphs use it; `connect` opens more connections for those of this process."""

    db: Database
    connect: Callable[[], Awaitable[Database]]
    encryptor: Encryptor | None
    store: StoreSetup


async def _start_graphs(
    graphs: "Graphs | None", config: AgentConfig, settings: AgentSettings, access: DatabaseAccess
) -> tuple[GraphService, dict[str, Database]]:
    """Start the graphs, here or in executors. Returns them, and the connections by their use. Raises UserMistake."""
    db = access.db
    backend = PostgresBackend(db, encryptor=access.encryptor, writer=CheckpointWriter(db))
    if graphs is None:
        return await start_graphs(config, settings, backend, Items(db, access.store)), {"api": db}

    # Imported here: a server with executors does not need the libraries of graphs.
    from portside.agent.local_graphs import start_local

    local = await start_local(graphs, access.connect, config, settings, (backend, access.store))
    pools = {"api": db, "graphs": local.database}

    # The API's connections are found dead first, because reads of graphs have no time limit but the statement's.
    db.on_dead(local.replace_connections)
    if not config.javascript.graphs:
        return local, pools

    return await start_beside(local, config, settings, backend, Items(db, access.store)), pools


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
