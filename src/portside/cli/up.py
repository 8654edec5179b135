"""Commands that run the platform: `portside up` and `portside listener`."""

import asyncio
import os
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from portside.cli.greeting import Greeter
from portside.cli.output import say
from portside.kernel import interruption
from portside.kernel.errors import UserMistake
from portside.kernel.local_addresses import is_loopback
from portside.platform.home import Home

if TYPE_CHECKING:
    from portside.platform.hand_over import HandedOver
    from portside.platform.serving import PublicEndpoint
    from portside.platform.settings import PlatformSettings


@click.command()
@click.option("--home", help="Folder for data, keys and builds. [default: PORTSIDE_HOME or ~/.portside]")
@click.option("--host", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(1, 65535), help="Port to listen on. [default: 8700]")
@click.option(
    "--front/--no-front",
    "is_fronted",
    default=None,
    help="Serve the agents at the platform's port too, with Caddy. [default: --front]",
)
@click.option("--domain", help="Public host name; the platform is then served there with HTTPS.")
@click.option(
    "--agents",
    type=click.Choice(["path", "host"]),
    help="Address of agents: DOMAIN/agents/NAME (path) or NAME.DOMAIN (host). [default: path]",
)
@click.option(
    "--tls",
    type=click.Choice(["acme", "internal", "files", "off"]),
    help="Where certificates come from. [default: acme]",
)
@click.option("--tls-certificate", help="Certificate chain (PEM), with --tls files.")
@click.option("--tls-key", help="Private key (PEM), with --tls files.")
@click.option("--example/--no-example", default=True, help="Deploy the example agent at the first start.")
def up(*, example: bool, **options: Any) -> None:
    """Start the platform: the control plane, the hosted API and a listener for this machine."""
    import uvloop

    from portside.dataplane.listener import kill_all_processes
    from portside.kernel.files import write_private
    from portside.kernel.settings import load_settings
    from portside.platform.app import PlatformApp
    from portside.platform.backups import build_embedded
    from portside.platform.hand_over import execute_next, take_handed_over
    from portside.platform.serving import DatabaseInUse, run_platform
    from portside.platform.settings import PlatformSettings

    inheritance = take_handed_over()
    settings = load_settings(PlatformSettings, os.environ, **options)
    _prepare_process(settings)
    home = Home(settings.home_path)

    home.lock()
    endpoint = _open_endpoint(home, settings, inheritance)
    embedded = None if settings.database_url else build_embedded(settings)

    # Before that of Postgres. Agents that were adopted are no children of this platform's listener.
    interruption.at_once(lambda: kill_all_processes(home.path / "dataplane"))
    try:
        say("starting Postgres" if embedded else "using the database of DATABASE_URL")

        if embedded is None:
            database = DatabaseInUse(settings.database_url or "")
        else:
            database = DatabaseInUse(embedded.acquire(), lambda: embedded.problem)

        if inheritance is not None and inheritance.postgres_lock is not None:
            os.close(inheritance.postgres_lock)

        say("starting the platform")

        async def on_ready(app: PlatformApp) -> None:
            write_private(home.address, settings.local_url + "\n")
            greeter = Greeter(home, settings, app.new_key)
            try:
                await interruption.in_abandoned_thread(partial(greeter.deploy_and_greet, with_example=example))
            except asyncio.CancelledError:
                if example and not home.example_done.exists():
                    say("the example agent is not deployed yet; the next start goes on with it")
                raise

        async def serve() -> None:
            to_hand_over = await run_platform(home, settings, database, endpoint=endpoint, on_ready=on_ready)
            if to_hand_over is not None:
                say("replacing this program")
                to_hand_over.postgres_lock = None if embedded is None else embedded.leave_running()

                # Inside of the event loop, whose end would take its child processes with it.
                execute_next(home.path, to_hand_over)

        interruption.run(serve(), uvloop.new_event_loop)
    finally:
        if embedded is not None:
            embedded.release()
        say("stopped")


def _prepare_process(settings: "PlatformSettings") -> None:
    from portside.kernel.files import raise_descriptor_limit
    from portside.kernel.logs import configure_logs

    interruption.accept_sigint()
    configure_logs(level=settings.log_level, as_json=settings.log_json)
    raise_descriptor_limit()


def _open_endpoint(home: Home, settings: "PlatformSettings", inheritance: "HandedOver | None") -> "PublicEndpoint":
    """Open the socket of the platform, behind a front if one is wanted and there is a Caddy. Raises UserMistake.

    What the program before handed over is open already.
    """
    from portside.ingress.caddy import INSTALL_CADDY, find_caddy
    from portside.ingress.front import Front
    from portside.kernel.http.server import listen
    from portside.platform.serving import PublicEndpoint

    options = settings.front
    if not is_loopback(settings.host) and options.domain is None:
        say(
            f"other machines reach {settings.host} by plain HTTP: others in the network can read keys and passwords; "
            "--domain gives HTTPS"
        )

    if not settings.is_fronted:
        if options.domain is not None:
            raise UserMistake("--domain needs the front; leave out --no-front and PORTSIDE_FRONT=false")
        return PublicEndpoint(inheritance.socket() if inheritance else listen(settings.host, settings.port))

    caddy = find_caddy(settings.caddy)
    if caddy is not None:
        front = Front(options, caddy, home.path)
        if inheritance is not None and inheritance.front is not None:
            front.adopt(inheritance.front)
            return PublicEndpoint(inheritance.socket(), front)

        return PublicEndpoint(front.prepare(), front)

    reason = f"PORTSIDE_CADDY names {settings.caddy}, which is no program" if settings.caddy else "there is no Caddy"
    if options.domain is not None:
        raise UserMistake(f"--domain needs Caddy, and {reason}; install it: {INSTALL_CADDY}")

    say(f"{reason}; without Caddy agents answer at their own ports only; install it: {INSTALL_CADDY}")
    return PublicEndpoint(inheritance.socket() if inheritance else listen(settings.host, settings.port))


@click.command()
@click.option(
    "--compute",
    type=click.Choice(["process", "kubernetes"]),
    default="process",
    show_default=True,
    help="Where deployments run.",
)
def listener(compute: str) -> None:
    """Run a listener: it polls the control plane at CONTROL_PLANE_URL and runs its deployments.

    With --compute process they run on this machine, with --compute kubernetes on the cluster of the service account or
    of KUBECONFIG.
    """
    import uvloop

    interruption.accept_sigint()
    from portside.dataplane.listener import open_compute, run_listener
    from portside.dataplane.settings import ListenerSettings
    from portside.kernel.files import raise_descriptor_limit
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings

    settings = load_settings(ListenerSettings, os.environ)
    configure_logs(level="INFO", as_json=False)
    raise_descriptor_limit()

    async def run() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        with interruption.instead(lambda: loop.call_soon_threadsafe(stop.set)):
            await run_listener(settings, stop, open_compute(compute, settings))

    interruption.run(run(), uvloop.new_event_loop)
