"""`portside serve`: one agent server, without reload."""

import contextlib
import gc
import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import click

if TYPE_CHECKING:
    from portside.agent.config import AgentConfig
    from portside.agent.settings import AgentSettings

SHOWN_GRAPHS = 8
# Of these langgraph wants one small module each, and no more; what else they offer is a seventh of the start.
LATE_PACKAGES = ("langsmith.types", "langgraph_sdk")
TIERS = {
    "all": "answers requests and executes up to {slots} runs at once",
    "api": "answers requests; runs wait for a server of tier queue or all",
    "queue": "executes up to {slots} runs at once; answers only /ok, /metrics and /info",
}


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="The graph configuration file. [default: the one here]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 2024]")
@click.option(
    "--tier",
    type=click.Choice(list(TIERS)),
    help="Answer requests (api), execute runs (queue), or both. [default: all]",
)
@click.option("--home", help="Home folder of the embedded Postgres, where no database is named.")
@click.option("--fd", type=int, hidden=True)
@click.option("--public-fd", type=int, hidden=True)
@click.option("--handover-fd", type=int, hidden=True)
@click.option("--heir-fd", type=int, hidden=True)
def serve(config: Path | None, home: str | None, **options: Any) -> None:
    """Serve the agent that a configuration file describes.

    Threads and runs are kept in the Postgres that DATABASE_URI names, or in the embedded one of PORTSIDE_HOME.
    """
    # What is imported stays: looking for garbage in it again and again is a tenth of the start.
    gc.disable()
    from portside.agent.config import find_config, load_config
    from portside.agent.settings import AgentSettings
    from portside.kernel.http.server import listen
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings

    given = {name: options[name] for name in ("host", "port", "tier")}
    settings = load_settings(AgentSettings, os.environ, **given)
    configure_logs(level=settings.log_level, as_json=settings.log_json)
    described = load_config((config or find_config(Path.cwd(), os.environ)).absolute(), os.environ)
    if options["fd"] is None:
        # What is wrong with the port is said before what takes seconds; the socket itself is opened when all is there.
        listen(settings.host, settings.port).close()
    with _database(settings, home, described.file) as database:
        _serve(described, settings, database, options)


def _serve(
    described: "AgentConfig", settings: "AgentSettings", database: Callable[[], str], options: dict[str, Any]
) -> None:
    """Import the agent and serve it; these imports take seconds."""
    import uvloop

    from portside.kernel.late import put_off

    put_off(*LATE_PACKAGES)
    from portside.agent.custom import cache
    from portside.agent.custom.loopback import introduce
    from portside.agent.graphs.load import load_graphs
    from portside.agent.log_reports import told_logs
    from portside.agent.server import Served, Sockets
    from portside.agent.server import serve as serve_agent

    introduce(cache=cache.OFFERED)
    graphs = load_graphs(described)
    url = database()
    sockets = Sockets(options["fd"], options["public_fd"], options["handover_fd"], options["heir_fd"])

    def show() -> None:
        if sockets.private_fd is None and not settings.log_json:
            click.echo("\n".join(summary(described, settings, url)), err=True)

    with told_logs(settings):
        uvloop.run(serve_agent(Served(described, graphs, settings, url), sockets, on_ready=show))


@contextlib.contextmanager
def _database(settings: "AgentSettings", home: str | None, config: Path) -> Iterator[Callable[[], str]]:
    """Give what tells the database's URL. The embedded one starts while its caller imports the agent."""
    if (named := settings.database_url) is not None:
        yield lambda: named
        return
    from concurrent.futures import ThreadPoolExecutor

    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.settings import load_settings
    from portside.platform.settings import PlatformSettings

    embedded = EmbeddedPostgres(load_settings(PlatformSettings, os.environ, home=home).home_path)
    # A database for each configuration file, so that two projects on one home do not share threads.
    name = f"serve_{hashlib.sha256(str(config).encode()).hexdigest()[:16]}"

    def start() -> str:
        embedded.acquire()
        return embedded.create_database(name)

    with ThreadPoolExecutor(1) as starter:
        starting = starter.submit(start)
        try:
            yield starting.result
        finally:
            starter.shutdown()
            embedded.release()


def summary(described: "AgentConfig", settings: "AgentSettings", database_url: str) -> list[str]:
    """Return what people want to know of a server that has started, in lines."""
    from portside import __version__

    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    prefix = described.http.mount_prefix or settings.mount_prefix
    names = list(described.graphs)
    more = f" and {len(names) - SHOWN_GRAPHS} more" if len(names) > SHOWN_GRAPHS else ""
    return [
        f"Portside {__version__}, agent server",
        f"  address   http://{host}:{settings.port}{prefix}",
        f"  graphs    {', '.join(names[:SHOWN_GRAPHS])}{more}",
        f"  database  {_shown(database_url)}{'' if settings.database_url else ', embedded'}",
        f"  tier      {settings.tier}: {TIERS[settings.tier].format(slots=settings.slots)}",
    ]


def _shown(database_url: str) -> str:
    """Return a database's place and name, without who may enter it."""
    parts = urlsplit(database_url)
    # A name alone may hold several hosts, which are no number of a port.
    place = parts.netloc.rpartition("@")[2] or parse_qs(parts.query).get("host", ["localhost"])[0]
    return f"{place}{parts.path}"
