"""An agent server that forwards its log to the hosted API."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from prometheus_client import REGISTRY

from tests.api.hosted import hosted
from tests.conftest import eventually
from tests.servers import agent_server


async def test_an_agent_server_tells_its_log_to_the_platform(
    fresh_database: Callable[[], Awaitable[str]], module_database: str, tmp_path: Path
) -> None:
    async with hosted(await fresh_database()) as platform:
        settings = {"SELF_HOSTED_LOGS_ENABLED": "true", "SELF_HOSTED_LOGS_ENDPOINT": platform.url}
        agent = agent_server(module_database, tmp_path, **settings)
        server = await asyncio.to_thread(agent.__enter__)
        try:

            async def is_told() -> bool:
                return bool(REGISTRY.get_sample_value("portside_reported_log_lines_total"))

            await eventually(is_told)
            async with httpx2.AsyncClient(timeout=60) as client:
                shown = (await client.get(f"{server.url}/metrics")).text
            assert 'portside_log_lines_forwarded_total{outcome="sent"}' in shown
        finally:
            await asyncio.to_thread(agent.__exit__, None, None, None)
