"""`portside serve`: one agent server, without reload."""

import os
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="The graph configuration file. [default: the one here]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 2024]")
@click.option(
    "--tier",
    type=click.Choice(["all", "api", "queue"]),
    help="Answer requests (api), execute runs (queue), or both. [default: all]",
)
@click.option("--home", help="Home folder of the embedded Postgres, where no database is named.")
@click.option("--fd", type=int, hidden=True)
@click.option("--public-fd", type=int, hidden=True)
@click.option("--handover-fd", type=int, hidden=True)
def serve(config: Path | None, home: str | None, **options: Any) -> None:
    """Serve the agent that a configuration file describes.

    Threads and runs are kept in the Postgres that DATABASE_URI names, or in the embedded one of PORTSIDE_HOME.
    """
    import hashlib

    from portside.agent.config import find_config, load_config
    from portside.agent.settings import AgentSettings
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings

    settings = load_settings(AgentSettings, os.environ, **_given(options))
    configure_logs(level=settings.log_level, as_json=settings.log_json)
    path = (config or find_config(Path.cwd())).absolute()
    described = load_config(path)

    # These take seconds; what is wrong with the settings or the configuration has been said by now.
    import uvloop

    from portside.agent.graphs.load import load_graphs
    from portside.agent.server import Sockets
    from portside.agent.server import serve as serve_agent
    from portside.kernel.embedded import EmbeddedPostgres
    from portside.platform.settings import PlatformSettings

    graphs = load_graphs(described)
    sockets = Sockets(options["fd"], options["public_fd"], options["handover_fd"])
    if settings.database_url:
        uvloop.run(serve_agent(described, graphs, settings, settings.database_url, sockets))
        return
    embedded = EmbeddedPostgres(load_settings(PlatformSettings, os.environ, home=home).home_path)
    embedded.acquire()
    try:
        # A database for each configuration file, so that two projects on one home do not share threads.
        name = f"serve_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
        uvloop.run(serve_agent(described, graphs, settings, embedded.create_database(name), sockets))
    finally:
        embedded.release()


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("host", "port", "tier")}
