"""`portside up`: the whole platform in one command."""

import asyncio
import os
from typing import Any

import click

from portside.cli.output import say


@click.command()
@click.option("--home", help="Folder for data, keys and builds. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 8700]")
@click.option("--example/--no-example", default=True, help="Deploy the example agent at the first start.")
def up(*, example: bool, **options: Any) -> None:
    """Start the platform: the control plane, the hosted API and a listener that deploys on this machine."""
    import uvloop

    from portside.kernel.embedded import EmbeddedPostgres
    from portside.kernel.http.server import listen
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings
    from portside.platform.home import Home
    from portside.platform.run import run_platform
    from portside.platform.settings import PlatformSettings

    settings = load_settings(PlatformSettings, os.environ, **options)
    configure_logs(level=settings.log_level, as_json=settings.log_json)
    home = Home(settings.home_path)
    home.lock()
    listening = listen(settings.host, settings.port)
    embedded = None if settings.database_url else EmbeddedPostgres(home.path)
    try:
        say("starting Postgres" if embedded else "using the database of DATABASE_URL")
        database_url = settings.database_url or (embedded.acquire() if embedded else "")
        say("starting the platform")

        async def on_ready(_app: object) -> None:
            await asyncio.to_thread(_greet, home, settings.public_url, with_example=example)

        uvloop.run(run_platform(home, settings, database_url, listening, on_ready))
    finally:
        if embedded is not None:
            embedded.release()
        say("stopped")


def _greet(home: Any, url: str, *, with_example: bool) -> None:
    from portside.cli.client import Platform
    from portside.cli.first_agent import Greeting, deploy_example
    from portside.kernel.errors import UserMistake
    from portside.platform.home import read_key

    key = read_key(home.api_key)
    if key is None:
        say(f"the first API key was not kept in {home.api_key}; use one that you know")
    greeting = Greeting(url, key, home.path)
    if with_example and key is not None:
        try:
            deploy_example(Platform(url, key), home, greeting, say)
        except UserMistake as mistake:
            say(f"the example agent is not running: {mistake}")
    greeting.show()
