"""An upgrade fails no request on agents and loses nothing; it halts at an agent whose new server does not start.

The version before is a commit of this repository, installed beside this checkout.
"""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import eventually
from tests.failure.test_listener import EndlessClients
from tests.platforms import Platform, Repository, listener_of, servers_of

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


async def state_of(platform: Platform) -> dict[str, Any]:
    return dict(await platform.call("GET", "/system/upgrade"))


async def test_platform_is_replaced_while_agents_serve(platform: Platform, repository: Repository):
    """The same process goes on with another program; agents, and requests to the platform, do not notice."""
    deployment = await platform.deploy(repository)
    assert (await platform.ended(deployment))["status"] == "DEPLOYED"
    clients = EndlessClients(await platform.url(deployment), platform.headers)
    serving, listener = servers_of(platform.home), listener_of(platform.server)
    assert platform.server.process is not None
    os.kill(platform.server.process.pid, signal.SIGUSR2)

    async def is_replaced() -> bool:
        # Requests wait meanwhile; kept connections are closed.
        await platform.call("GET", "/ok")
        try:
            return listener_of(platform.server) != listener
        except ValueError:
            return False

    await eventually(is_replaced)

    async def is_current() -> bool:
        return [agent["state"] for agent in (await state_of(platform))["agents"]] == ["current"]

    await eventually(is_current)
    answered = clients.answered
    await eventually(lambda: asyncio.sleep(0, clients.answered > answered))
    await clients.leave()
    assert clients.failures == []
    assert servers_of(platform.home) == serving
