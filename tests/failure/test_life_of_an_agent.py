"""One agent of a platform, from its build to its sleep: the platform may lose each of its parts meanwhile.

It is what the modules on each of these parts show apart, on one platform: starting and building take most of the time.
"""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import eventually
from tests.failure.test_listener import at_work, says_that_it_starts_again, truly_ended
from tests.failure.test_sleep import sleep_and_be_woken_once
from tests.failure.test_upgrade import replace_while_agents_serve
from tests.platforms import Platform, Repository, find_listener

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self").exists(), reason="finds processes in /proc"),
]


async def test_agent_outlives_deaths_and_an_upgrade_and_sleeps(platform: Platform, repository: Repository):
    deployment = await platform.deploy(repository)
    await eventually(lambda: at_work(platform, deployment, "BUILDING"))
    await asyncio.to_thread(os.kill, find_listener(platform.server), signal.SIGKILL)
    await truly_ended(platform, deployment)
    await says_that_it_starts_again(platform, deployment)

    await replace_while_agents_serve(platform, deployment)
    await sleep_and_be_woken_once(platform, deployment)
