"""Starts the executors of this server, with the variables that they need and without the server's keys.

Executors for JavaScript graphs are Node with the program that `executor-js/` of the repository builds.
"""

import math
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from portside.agent.checkpoints.postgres_backend import PostgresBackend
from portside.agent.config import AgentConfig
from portside.agent.executors.graph_cache import GraphCache
from portside.agent.executors.handlers_executor import list_handler_paths
from portside.agent.executors.pinned_graphs import PinnedGraphs, RevisionsFile
from portside.agent.executors.pool import ExecutorPool, PoolLimits
from portside.agent.executors.remote_app import RemoteHandlers
from portside.agent.executors.remote_graphs import RemoteGraphs
from portside.agent.executors.routed_graphs import GraphsByLanguage
from portside.agent.executors.serving import ExecutorRequests, Scopes
from portside.agent.executors.spawned_executor import Program
from portside.agent.graphs import GraphService
from portside.agent.settings import AgentSettings
from portside.agent.store.items import Items, StoreBatches, get_ttl_config
from portside.executor import messages
from portside.executor.messages import ServerHello
from portside.executor.project import Project
from portside.executor.requests import GraphFacts
from portside.kernel.aliases import EXECUTOR_VARIABLE, environment_names, is_javascript
from portside.kernel.errors import UserMistake

# The server's keys and databases, which executors do not get: they ask the server for what these protect.
_KEYS = (*environment_names("GRAPH_AES_KEY"), *environment_names("GRAPH_AES_JSON_KEYS"), "CORE_API_KEY")
_ADDRESSES = ("DATABASE_URI", "DATABASE_URL", "POSTGRES_URI", "REDIS_URI", "REDIS_URI_CUSTOM")
PROGRAM = "main.mjs"
BUILT = Path(__file__).parents[2] / "executor_js"
"""The folder of the package with the built program, and the list of the packages that it needs for TypeScript."""
# Linux kills the executor with its parent (PR_SET_PDEATHSIG): a node that never yields would not notice the lost link.
_END_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or sys.exit(0)\n"
    "os.execv(sys.argv[2], sys.argv[2:])\n"
)


class ProgramCommand(NamedTuple):
    """How to start a program: its arguments, its own variables, and the folder to start it in."""

    arguments: list[str]
    variables: Mapping[str, str]
    folder: Path | None


async def start_graphs(
    config: AgentConfig, settings: AgentSettings, backend: PostgresBackend, items: Items
) -> GraphService:
    """Start the executors of all graphs; the caller closes what this returns.

    In a deployment threads may continue with earlier revisions. Raises UserMistake if the project does not load, or the
    file with those revisions cannot be read.
    """
    if settings.pinned_revisions is not None:
        RevisionsFile(Path(settings.pinned_revisions)).check()

    graphs = await _start_revision(config, settings, backend, items)
    if settings.pinned_revisions is None or settings.revision_id is None:
        return graphs

    async def start_earlier(config: AgentConfig, settings: AgentSettings) -> GraphService:
        return await _start_revision(config, settings, backend, items)

    return PinnedGraphs(graphs, config, settings, db=items.db, start=start_earlier)


async def _start_revision(
    config: AgentConfig, settings: AgentSettings, backend: PostgresBackend, items: Items
) -> GraphService:
    """Start the executors of a revision. An orchestrator starts only those that EXECUTORS asks for."""
    if settings.uses_core_api and not settings.executors:
        no_command = ProgramCommand([], {}, None)
        pools = [
            await _start_pool(config, project, no_command, settings, (backend, items))
            for project in (config.project, config.javascript)
            if project.graphs
        ]
        return GraphsByLanguage(*pools)

    if not config.project.graphs:
        return await start_javascript(config, settings, backend, items)

    python = await _start_pool(config, config.project, _build_python_command(settings), settings, (backend, items))
    return await start_beside(python, config, settings, backend, items)


async def start_beside(
    python: GraphService, config: AgentConfig, settings: AgentSettings, backend: PostgresBackend, items: Items
) -> GraphService:
    """Start the executors of the JavaScript graphs, if there are any, beside the Python graphs.

    The caller closes what this returns. Raises UserMistake if the JavaScript graphs do not load, and closes the others.
    """
    if not config.javascript.graphs:
        return python

    try:
        return GraphsByLanguage(python, await start_javascript(config, settings, backend, items))
    except BaseException:
        await python.close()
        raise


async def start_javascript(
    config: AgentConfig, settings: AgentSettings, backend: PostgresBackend, items: Items
) -> RemoteGraphs:
    """Start the executors of the JavaScript graphs. Raises UserMistake if they do not load."""
    command = _build_javascript_command(config, settings)
    return await _start_pool(config, config.javascript, command, settings, (backend, items))


def build_graph_programs(
    config: AgentConfig, settings: AgentSettings, *, is_encrypted: bool, store_ttl: dict[str, Any] | None
) -> list[Program]:
    """Return how the executors of each language are started. Raises UserMistake if Node is missing."""
    programs: list[Program] = []
    if config.project.graphs:
        command = _build_python_command(settings)
        programs.append(
            _build_graph_program(
                config, config.project, command, settings, is_encrypted=is_encrypted, store_ttl=store_ttl
            )
        )

    if config.javascript.graphs:
        command = _build_javascript_command(config, settings)
        programs.append(
            _build_graph_program(
                config, config.javascript, command, settings, is_encrypted=is_encrypted, store_ttl=store_ttl
            )
        )

    return programs


async def start_handlers(
    config: AgentConfig, settings: AgentSettings, *, in_javascript: bool = False
) -> RemoteHandlers:
    """Start the executor of the project's handlers in one language, if it has any. The caller closes it.

    Raises UserMistake if the handlers do not load, or if they need Node and it is not installed.
    """
    sources = list_handler_paths(config, in_javascript=in_javascript)
    command = (
        _build_javascript_command(config, settings) if in_javascript and sources else _build_python_command(settings)
    )
    program = _build_program(config, command, settings, graphs={}, loops=1, handlers=sources)

    handlers = RemoteHandlers(program, settings.executor_max_memory_mb * 1_000_000)
    try:
        if sources:
            await handlers.start()
    except BaseException:
        await handlers.close()
        raise

    return handlers


def _build_javascript_command(config: AgentConfig, settings: AgentSettings) -> ProgramCommand:
    return javascript_command(
        node=find_node(settings.executor_node),
        runtime=find_runtime(settings.executor_javascript),
        project=config.folder,
        parent=os.getpid(),
    )


def _build_python_command(settings: AgentSettings) -> ProgramCommand:
    # -P: otherwise a module of the working folder could hide one of the standard library.
    return ProgramCommand([settings.executor_python or sys.executable, "-P", "-m", "portside.executor"], {}, None)


def javascript_command(*, node: Path, runtime: Path, project: Path, parent: int) -> ProgramCommand:
    """Return the command of an executor for JavaScript graphs; `--socket PATH` is added to it.

    `node` is the program, of version 20 or newer. `runtime` is a copy of `BUILT` with its packages installed;
    JavaScript needs none of them, TypeScript does. `project` is the folder of the configuration file, and `parent` the
    id of the process that starts it.
    """
    arguments = [str(node), str(runtime / PROGRAM)]
    if sys.platform == "linux":
        arguments = [sys.executable, "-I", "-S", "-c", _END_WITH_PARENT, str(parent), *arguments]

    return ProgramCommand(arguments, {"NODE_NO_WARNINGS": "1"}, project)


def find_node(setting: str | None) -> Path:
    """Return the program Node: the given one, or that of the PATH. Raises UserMistake."""
    program = shutil.which(setting or "node")
    if program is None:
        raise UserMistake(
            f"EXECUTOR_NODE: {setting} is not a program; set it to Node 20 or newer, or leave it out"
            if setting
            else "the project has JavaScript graphs, and Node is not installed; install Node 20 or newer"
        )

    return Path(program)


def find_runtime(setting: str | None) -> Path:
    """Return the folder of the built program. Raises UserMistake if it is not there."""
    folder = Path(setting) if setting else BUILT
    if not (folder / PROGRAM).is_file():
        raise UserMistake(
            f"{folder} has no {PROGRAM}, which executes JavaScript graphs; "
            + ("correct EXECUTOR_JAVASCRIPT" if setting else "build it with `make install`")
        )

    return folder


async def _start_pool(
    config: AgentConfig,
    project: Project,
    command: ProgramCommand,
    settings: AgentSettings,
    served: tuple[PostgresBackend, Items],
) -> RemoteGraphs:
    """Start the pool that executes the graphs of a project in one language."""
    backend, items = served
    ttl = get_ttl_config(items.setup)
    program = _build_graph_program(config, project, command, settings, is_encrypted=backend.is_encrypted, store_ttl=ttl)
    executors = settings.executors if settings.uses_core_api else max(1, settings.executors)
    scopes = Scopes(backend)

    pool = ExecutorPool(
        program, build_limits(settings, executors), ExecutorRequests(scopes, StoreBatches(items)).handlers
    )
    if not executors:
        # What the configuration says of the graphs, until an executor connects and describes them.
        for graph_id, source in project.graphs.items():
            language = "JavaScript" if is_javascript(source.path) else "Python"
            pool.facts[graph_id] = GraphFacts(source.description, is_factory=True, language=language)

    cache = GraphCache(_cache_file(project, config, settings))
    if cache.load() and cache.facts.keys() == project.graphs.keys():
        pool.facts.update(cache.facts)
        pool.libraries.update(cache.libraries)

    try:
        await pool.start()
    except BaseException:
        await pool.close()
        raise

    return RemoteGraphs(pool, backend.writer, scopes, cache)


def _cache_file(project: Project, config: AgentConfig, settings: AgentSettings) -> Path | None:
    """Return the file that caches the descriptions of the graphs of one language; None if there is no such setting."""
    if settings.executor_known_graphs is None:
        return None

    language = "javascript" if project == config.javascript else "python"
    return Path(f"{settings.executor_known_graphs}.{language}")


def build_limits(settings: AgentSettings, executors: int) -> PoolLimits:
    """Return the limits of this many executors, or more if the settings allow them."""
    most = max(executors, settings.executors_max) if executors else 0
    return PoolLimits(
        executors=executors,
        most=most,
        runs_each=math.ceil(settings.n_jobs_per_worker / max(1, most)),
        max_runs=settings.executor_max_runs,
        max_memory_bytes=settings.executor_max_memory_mb * 1_000_000,
        idle_s=settings.executor_idle_secs,
        spares=settings.executor_spares if executors else 0,
    )


def _build_graph_program(
    config: AgentConfig, project: Project, command: ProgramCommand, settings: AgentSettings, **hello: Any
) -> Program:
    sources = project.graphs.items()
    return _build_program(
        config,
        command,
        settings,
        graphs={graph_id: {"path": source.path, "description": source.description} for graph_id, source in sources},
        loops=max(1, settings.slots) if settings.bg_job_isolated_loops else 1,
        serde=msgspec.structs.asdict(config.serde),
        **hello,
    )


def _build_program(config: AgentConfig, command: ProgramCommand, settings: AgentSettings, **hello: Any) -> Program:
    project = config.project
    return Program(
        command=command.arguments,
        environment={**executor_environment(os.environ, settings), **config.overrides, **command.variables},
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
        folder=command.folder,
    )


def executor_environment(environ: Mapping[str, str], settings: AgentSettings) -> dict[str, str]:
    """Return the variables of executors: the server's without its keys, and those that are for executors alone."""
    variables = without_keys(environ, settings)
    alone = {name: variables.pop(name) for name in list(variables) if name.startswith(EXECUTOR_VARIABLE)}
    return {**variables, **{name.removeprefix(EXECUTOR_VARIABLE): value for name, value in alone.items()}}


def without_keys(environment: Mapping[str, str], settings: AgentSettings) -> dict[str, str]:
    """Return an environment without the server's keys and addresses of databases; a project may have its own."""
    own_addresses = {settings.database_url, settings.redis_uri}
    return {
        name: value
        for name, value in environment.items()
        if name not in _KEYS and not (name in _ADDRESSES and value in own_addresses)
    }
