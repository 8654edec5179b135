"""`portside serve`: one agent server, without reload."""

import contextlib
import gc
import hashlib
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import click

from portside.cli.output import show_text
from portside.kernel import interruption
from portside.kernel.errors import UserMistake
from portside.kernel.startup import defer_packages, import_without_rich

if TYPE_CHECKING:
    from portside.agent.config import AgentConfig
    from portside.agent.server import Sockets, WorkerContext
    from portside.agent.settings import AgentSettings

SHOWN_GRAPHS = 8
TIERS = {
    "all": "answers requests and executes up to {slots} runs at once",
    "api": "answers requests; runs wait for a server of tier queue or all",
    "queue": "executes up to {slots} runs at once; answers only /ok, /metrics and /info",
    "orchestrator": "answers requests; executors that connect to {core_api} execute runs",
    "executor": "executes up to {slots} runs at once for the orchestrator at {core_api}",
}


@click.command()
@click.option(
    "--config", type=click.Path(path_type=Path), help="The graph configuration file. [default: the one in this folder]"
)
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 2024]")
@click.option(
    "--tier",
    type=click.Choice(list(TIERS)),
    help="Answer requests (api), execute runs (queue), or both; or execute them elsewhere (orchestrator and executor). "
    "[default: all]",
)
@click.option(
    "--workers",
    metavar="[auto|1-64]",
    help="Serve in this many processes, to use as many cores; auto is as many as the load needs. [default: 1]",
)
@click.option("--core-api", help="Address of the orchestrator, as HOST:PORT, for --tier executor.")
@click.option("--executors", type=click.IntRange(0, 256), help="Execute graphs in this many processes. [default: 0]")
@click.option("--executor-python", help="Python interpreter of those processes. [default: the server's own]")
@click.option("--home", help="Home folder of the embedded Postgres, which is used without a database URL.")
@click.option("--studio", is_flag=True, hidden=True)
@click.option("--listening-fd", type=int, hidden=True)
@click.option("--fd", type=int, hidden=True)
@click.option("--public-fd", type=int, hidden=True)
@click.option("--handover-fd", type=int, hidden=True)
@click.option("--heir-fd", type=int, hidden=True)
def serve(config: Path | None, home: str | None, **options: Any) -> None:
    """Serve the agent of a configuration file.

    Threads and runs are stored in the Postgres of DATABASE_URI, or in the embedded one in PORTSIDE_HOME.
    """
    interruption.accept_sigint()
    # Imported objects are never garbage; collections during the imports would take a tenth of the start.
    gc.disable()
    defer_packages()
    import_without_rich("structlog")
    import msgspec

    from portside.agent.config import find_config, load_config
    from portside.agent.settings import AgentSettings, Tier
    from portside.kernel.files import make_private_dir, raise_descriptor_limit
    from portside.kernel.http.server import listen
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings

    names = ("host", "port", "tier", "workers", "executors", "executor_python", "core_api")
    settings = load_settings(AgentSettings, os.environ, **{name: options[name] for name in names})
    if settings.most_workers > 1 and (settings.tier == Tier.EXECUTOR or settings.uses_core_api):
        raise UserMistake("--workers cannot be combined with executors on other machines; use --executors there")

    configure_logs(level=settings.log_level, as_json=settings.log_json)
    raise_descriptor_limit()

    agent_config = load_config((config or find_config(Path.cwd(), os.environ)).absolute(), os.environ)
    if agent_config.has_javascript and None in {settings.executor_node, settings.executor_javascript}:
        settings = _with_node(settings, agent_config, home)

    if options["fd"] is None and options["listening_fd"] is None:
        # Fail early on a busy port, before imports that take seconds; the socket is opened again when all is ready.
        listen(settings.host, settings.port).close()

    if settings.tier == Tier.EXECUTOR:
        _execute(agent_config, settings)
        return

    with _open_database(settings, home, agent_config.file) as database:
        if settings.disk_folder is None and database.folder is not None:
            settings = msgspec.structs.replace(settings, disk_folder=str(make_private_dir(database.folder)))
        _serve(agent_config, settings, database.url, options)


def _execute(agent_config: "AgentConfig", settings: "AgentSettings") -> None:
    """Execute the runs of an orchestrator. No graph is imported here: the executors are processes of their own."""
    import uvloop

    require_grpc()
    from portside.agent.executors.core_api import executor_tier

    def show() -> None:
        if not settings.log_json:
            show_text("\n".join(summarize(agent_config, settings)), err=True)

    interruption.run(executor_tier.serve(agent_config, settings, on_ready=show), uvloop.new_event_loop)


def require_grpc() -> None:
    """Raise UserMistake if gRPC is not installed."""
    if find_spec("grpc") is None or find_spec("grpc_health") is None:
        raise UserMistake("executors on other machines need gRPC: install the wheel with its extra [grpc]")


def _serve(
    agent_config: "AgentConfig", settings: "AgentSettings", database: Callable[[], str], options: dict[str, Any]
) -> None:
    """Import the agent, which takes seconds, and serve it."""
    import msgspec
    import uvloop

    from portside.agent.custom.cache import SDK_CACHE
    from portside.agent.custom.loopback import let_sdk_find_server
    from portside.agent.server import ServedAgent, Sockets
    from portside.agent.server import serve as serve_agent
    from portside.executor.project import set_environment

    let_sdk_find_server(SDK_CACHE)
    set_environment(agent_config.project)

    if settings.uses_core_api:
        require_grpc()

    sockets = Sockets(
        listening_fd=options["listening_fd"],
        private_fd=options["fd"],
        public_fd=options["public_fd"],
        handover_fd=options["handover_fd"],
        heir_fd=options["heir_fd"],
    )

    def show() -> None:
        if sockets.private_fd is None and not settings.log_json:
            lines = summarize(agent_config, settings, database(), has_studio=options["studio"])
            show_text("\n".join(lines), err=True)

    def serve_here(context: "WorkerContext | None" = None, on_ready: Callable[[], None] = show) -> None:
        graphs = None

        if settings.has_local_graphs and agent_config.project.graphs:
            # A server with executors has no need of the libraries of graphs.
            from portside.executor.load import load_graphs

            graphs = load_graphs(agent_config.project)

        served = ServedAgent(agent_config, graphs, settings, database())
        if options["studio"]:
            # Only an installation with the platform has the console; that of a deployment does not.
            from portside.console.site import ServeConsole

            prefix = get_prefix(agent_config, settings)
            served = msgspec.structs.replace(served, wrap=lambda app: ServeConsole(app, prefix))

        serving = serve_agent(served, sockets, context=context, on_ready=on_ready)
        interruption.run(serving, uvloop.new_event_loop)

    if settings.most_workers == 1:
        serve_here()
        return

    if settings.has_local_graphs:
        # The libraries of graphs, which are most of the memory and of the time of a start.
        importlib.import_module("portside.executor.load")
        importlib.import_module("portside.agent.local_graphs")

    # The thread that starts it would not be in the processes.
    database()
    code = _serve_together(settings, sockets, serve_here, show)
    if code:
        sys.exit(code)


def _serve_together(
    settings: "AgentSettings",
    sockets: "Sockets",
    serve_here: Callable[["WorkerContext", Callable[[], None]], None],
    on_ready: Callable[[], None],
) -> int:
    """Serve in several processes until all have stopped, and return the exit code.

    They are forked from this one, which has imported the agent and its libraries but nothing of the project: modules of
    a project may start threads or connect to something, which a fork would break.
    """
    from portside.agent.server import WorkerContext, open_first_socket
    from portside.cli.main import reported_errors
    from portside.kernel.http.shared_listeners import ConnectionShare
    from portside.kernel.metrics import Siblings
    from portside.kernel.worker_processes import Scaling, WorkerProcess, WorkerProcesses

    count = settings.most_workers
    listening = open_first_socket(settings, sockets)
    scaling = Scaling(count, settings.workers_cpu_percent / 100, settings.workers_idle_secs)
    processes = scaling if settings.workers == "auto" else count
    share = ConnectionShare(count)

    def become(process: WorkerProcess) -> int:
        siblings = Siblings(Path(folder), process.number, count)
        try:
            with reported_errors():
                serve_here(WorkerContext(process, listening, share, siblings), process.report_ready)
        except SystemExit as exc:
            return exc.code if isinstance(exc.code, int) else 1

        return 0

    def stop_listening() -> None:
        listening.close()
        if sockets.public_fd is not None:
            os.close(sockets.public_fd)

    with tempfile.TemporaryDirectory(prefix="portside-") as folder:
        # So that collections do not write to the memory that the processes share.
        gc.freeze()
        return WorkerProcesses(processes, become, on_ready=on_ready, on_end=share.leave, on_stop=stop_listening).run()


def _with_node(settings: "AgentSettings", agent_config: "AgentConfig", home: str | None) -> "AgentSettings":
    """Return settings that name Node and the JavaScript executor. Raises UserMistake."""
    if find_spec("portside.dataplane") is None:
        return settings

    import msgspec

    from portside.cli.dev import prepare_node
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    platform = load_settings(PlatformSettings, os.environ, home=home)
    paths = {name.lower(): value for name, value in prepare_node(agent_config, platform.home_path).items()}
    return msgspec.structs.replace(settings, **paths)


def get_prefix(agent_config: "AgentConfig", settings: "AgentSettings") -> str:
    """Return the path before the agent's routes."""
    return agent_config.http.mount_prefix or settings.mount_prefix or ""


class _Database(NamedTuple):
    """A function that returns the database's URL, and the home folder if it is the embedded one."""

    url: Callable[[], str]
    folder: Path | None


@contextlib.contextmanager
def _open_database(settings: "AgentSettings", home: str | None, config: Path) -> Iterator[_Database]:
    """Yield the database. The embedded Postgres starts while the agent is imported."""
    configured_url = settings.database_url
    if configured_url is not None:
        yield _Database(lambda: configured_url, None)
        return

    if find_spec("portside.platform") is None:
        raise UserMistake(
            "no database is configured; set DATABASE_URI, or install the whole platform, which has an embedded Postgres"
        )

    from concurrent.futures import ThreadPoolExecutor

    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    platform = load_settings(PlatformSettings, os.environ, home=home)
    embedded = EmbeddedPostgres(platform.home_path, connections=platform.postgres_max_connections)

    # One database per configuration file, so that two projects with one home do not share threads.
    name = f"serve_{hashlib.sha256(str(config).encode()).hexdigest()[:16]}"

    def start() -> str:
        embedded.acquire()
        return embedded.create_database(name)

    with ThreadPoolExecutor(1) as starter:
        try:
            starting = starter.submit(start)
            yield _Database(starting.result, platform.home_path)
        finally:
            # Before the thread has ended, whose start it ends; and after it, in case it had not begun.
            embedded.release()
            starter.shutdown(cancel_futures=True)
            embedded.release()


def summarize(
    agent_config: "AgentConfig", settings: "AgentSettings", database_url: str | None = None, *, has_studio: bool = False
) -> list[str]:
    """Return the lines to print when the server has started."""
    from portside import __version__
    from portside.agent.settings import Tier

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{settings.port}"
    lines = [f"Portside {__version__}, agent server", f"  address   {address}{get_prefix(agent_config, settings)}"]
    if has_studio:
        lines.append(f"  studio    {address}/studio")

    names = list(agent_config.graphs)
    more = f" and {len(names) - SHOWN_GRAPHS} more" if len(names) > SHOWN_GRAPHS else ""
    lines.append(f"  graphs    {', '.join(names[:SHOWN_GRAPHS])}{more}")

    if database_url is not None:
        embedded = "" if settings.database_url else ", embedded"
        lines.append(f"  database  {_without_credentials(database_url)}{embedded}")

    own_core_api = f"{settings.core_api_host}:{settings.core_api_port}"
    core_api = settings.core_api if settings.tier == Tier.EXECUTOR else own_core_api
    tier = TIERS[settings.tier].format(slots=settings.slots * settings.most_workers, core_api=core_api)
    lines.append(f"  tier      {settings.tier}: {tier}")

    if settings.most_workers > 1:
        least = "1 to " if settings.workers == "auto" else ""
        lines.append(f"  workers   {least}{settings.most_workers}")

    if settings.executors:
        lines.append(f"  executors {settings.executors}")

    return lines


def _without_credentials(database_url: str) -> str:
    """Return a database's address and name, without user and password."""
    parts = urlsplit(database_url)
    # Not `hostname` and `port`: a URL may name several hosts, whose ports urlsplit cannot parse.
    address = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{address}{parts.path}"
