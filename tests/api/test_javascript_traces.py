"""Runs of JavaScript graphs are traced by LangSmith's variables, with the tokens that their models used."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from langsmith import Client

from tests.api.hosted import hosted
from tests.conftest import eventually
from tests.javascript import javascript_server

pytestmark = pytest.mark.timeout(600)


async def test_runs_are_traced_with_usage(
    fresh_database: Callable[[], Awaitable[str]], module_database: str, tmp_path: Path
):
    async with hosted(await fresh_database()) as platform:
        traced = {
            "LANGSMITH_TRACING": "true", "LANGSMITH_ENDPOINT": platform.url, "LANGSMITH_API_KEY": platform.key,
            "LANGSMITH_PROJECT": "in JavaScript",
        }  # fmt: skip
        client = Client(api_url=platform.url, api_key=platform.key)

        def run(**more: Any) -> Any:
            body = {"assistant_id": "counted", "input": {"messages": [{"role": "user", "content": "count"}]}, **more}
            return httpx2.post(f"{server.url}/runs/wait", json=body, timeout=120).json()

        def roots(project: str) -> Any:
            asked = {"session": [str(client.read_project(project_name=project).id)], "is_root": True}
            headers = {"x-api-key": platform.key}
            found = httpx2.post(f"{platform.url}/runs/query", json=asked, headers=headers).json()["runs"]
            return found if found and all(each["end_time"] for each in found) else None

        async def ended(project: str) -> Any:
            # The project appears with its first run.
            is_there = await asyncio.to_thread(client.has_project, project)
            return await asyncio.to_thread(roots, project) if is_there else None

        serving = javascript_server(module_database, tmp_path, **traced)
        server = await asyncio.to_thread(serving.__enter__)
        try:
            assert (await asyncio.to_thread(run))["messages"][-1]["content"] == "seven"
            (root,) = await eventually(lambda: ended("in JavaScript"), within_s=60)
            assert (root["name"], root["total_tokens"]) == ("counted", 7)
            await asyncio.to_thread(run, langsmith_tracer={"project_name": "elsewhere"})
            (other,) = await eventually(lambda: ended("elsewhere"), within_s=60)
            assert other["total_tokens"] == 7
        finally:
            await asyncio.to_thread(serving.__exit__, None, None, None)
