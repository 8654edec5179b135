"""Starts the executors of this server, with what they need to know, and what they may not."""

import os
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from langgraph.store.base import BaseStore

from portside.agent.checkpoints.saver import PostgresBackend
from portside.agent.config import AgentConfig
from portside.agent.executors.graphs import RemoteGraphs
from portside.agent.executors.handlers import RemoteHandlers, handlers_of
from portside.agent.executors.pool import ExecutorPool, PoolLimits
from portside.agent.executors.process import Program
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.agent.settings import AgentSettings
from portside.executor import messages
from portside.executor.messages import ServerHello
from portside.kernel.aliases import environment_names

# Keys and databases of the server. Graphs reach what they protect through the server alone.
_KEYS = (*environment_names("GRAPH_AES_KEY"), *environment_names("GRAPH_AES_JSON_KEYS"))
_ADDRESSES = ("DATABASE_URI", "DATABASE_URL", "POSTGRES_URI", "REDIS_URI", "REDIS_URI_CUSTOM")


async def start_graphs(
    config: AgentConfig, settings: AgentSettings, backend: PostgresBackend, store: BaseStore
) -> RemoteGraphs:
    """Start the executors; the caller closes what this returns. Raises UserMistake if the project does not load."""
    project, ttl = config.project, store.ttl_config
    program = _program(
        config,
        settings,
        graphs={name: {"path": each.path, "description": each.description} for name, each in project.graphs.items()},
        loops=max(1, settings.slots) if settings.bg_job_isolated_loops else 1,
        serde=msgspec.structs.asdict(config.serde),
        is_encrypted=backend.is_encrypted,
        store_ttl=None if ttl is None else dict(ttl),
    )
    limits = PoolLimits(
        executors=settings.executors,
        max_runs=settings.executor_max_runs,
        max_memory_bytes=settings.executor_max_memory_mb * 1_000_000,
        idle_s=settings.executor_idle_secs,
    )
    scopes = Scopes(backend)
    pool = ExecutorPool(program, limits, ExecutorRequests(scopes, store).handlers)
    try:
        await pool.start()
    except BaseException:
        await pool.close()
        raise
    return RemoteGraphs(pool, backend.writer, scopes)


async def start_handlers(config: AgentConfig, settings: AgentSettings) -> RemoteHandlers | None:
    """Start the executor of the project's handlers; None if the configuration names none. The caller closes it.

    Raises UserMistake if the handlers do not load.
    """
    sources = handlers_of(config)
    if not sources:
        return None
    handlers = RemoteHandlers(_program(config, settings, graphs={}, loops=1, handlers=sources))
    try:
        await handlers.start()
    except BaseException:
        await handlers.close()
        raise
    return handlers


def _program(config: AgentConfig, settings: AgentSettings, **hello: Any) -> Program:
    project = config.project
    return Program(
        python=settings.executor_python or sys.executable,
        environment=without_keys(os.environ, settings),
        hello=ServerHello(
            protocol=messages.PROTOCOL,
            file=str(project.file),
            dependencies=list(project.dependencies),
            env=without_keys(project.env, settings),
            log_level=settings.log_level,
            **hello,
        ),
        heartbeat_s=settings.executor_heartbeat_secs,
        start_within_s=settings.executor_start_secs,
    )


def without_keys(environment: Mapping[str, str], settings: AgentSettings) -> dict[str, str]:
    """Return an environment without the server's keys and addresses of databases; a project may have its own."""
    own = {settings.database_url, settings.redis_uri}
    return {
        name: value
        for name, value in environment.items()
        if name not in _KEYS and not (name in _ADDRESSES and value in own)
    }
