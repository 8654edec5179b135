"""An agent server that forwards its log to the hosted API."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx2
from prometheus_client import REGISTRY

from tests.api.hosted import open_hosted
from tests.conftest import eventually
from tests.servers import agent_server, in_thread


async def test_an_agent_server_tells_its_log_to_the_platform(
    hosted_databases: Callable[[], Awaitable[str]], module_database: str, tmp_path: Path
) -> None:
    async with open_hosted(await hosted_databases()) as platform:
        settings = {"SELF_HOSTED_LOGS_ENABLED": "true", "SELF_HOSTED_LOGS_ENDPOINT": platform.url}
        before = REGISTRY.get_sample_value("portside_reported_log_lines_total") or 0
        async with in_thread(agent_server(module_database, tmp_path, **settings)) as server:
            # Other tests of this process may have counted lines before.
            async def is_told() -> bool:
                return (REGISTRY.get_sample_value("portside_reported_log_lines_total") or 0) > before

            await eventually(is_told)
            async with httpx2.AsyncClient(timeout=300) as client:
                # The agent server counts lines when it has the answer, which the platform sends after it has counted.
                async def is_counted() -> bool:
                    shown = (await client.get(f"{server.url}/metrics")).text
                    return 'portside_log_lines_forwarded_total{outcome="sent"}' in shown

                await eventually(is_counted)
