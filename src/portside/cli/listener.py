"""`portside listener`: deploys what a control plane asks for."""

import click


@click.command()
@click.option("--compute", type=click.Choice(["process", "kubernetes"]), default="process", show_default=True)
def listener(compute: str) -> None:
    """Run a listener. It asks the control plane that CONTROL_PLANE_URL names what to run, and runs it.

    With compute process it runs it on this machine, with compute kubernetes on the cluster of the service account or of
    KUBECONFIG.
    """
    import asyncio
    import os
    import signal

    import uvloop

    from portside.dataplane.compute.kinds import open_compute
    from portside.dataplane.listener import run_listener
    from portside.dataplane.settings import ListenerSettings
    from portside.kernel.logs import configure_logs
    from portside.kernel.settings import load_settings

    settings = load_settings(ListenerSettings, os.environ)
    configure_logs(level="INFO", as_json=False)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await run_listener(settings, stop, open_compute(compute, settings))

    uvloop.run(run())
