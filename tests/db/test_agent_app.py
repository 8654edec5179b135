"""What an agent server opens is closed at its end, also after a failure."""

import pytest

from portside.agent.access.service import Access
from portside.agent.app import _listening, open_app
from portside.agent.config import load_config
from portside.agent.executors.core_api import listener
from portside.agent.settings import AgentSettings
from portside.executor.load import load_graphs
from tests.servers import PROJECTS


class Failed(Exception):
    """The failure of a test."""


async def test_connections_of_authentication_are_closed_after_a_failure(agent_databases, monkeypatch):
    closed: list[str] = []
    close = Access.close

    async def note_close(access: Access) -> None:
        closed.append("access")
        await close(access)

    monkeypatch.setattr(Access, "close", note_close)
    url = await agent_databases()
    config = load_config(PROJECTS / "graphs" / "langgraph.json")
    with pytest.raises(Failed):
        async with open_app(config, load_graphs(config.project), AgentSettings(database_url=url), url) as app:
            await app.worker.drain(0.0)
            raise Failed

    assert closed == ["access"]


async def test_every_tier_but_the_one_of_the_api_performs_all_chores(agent_databases):
    url = await agent_databases()
    config = load_config(PROJECTS / "graphs" / "langgraph.json")
    graphs = load_graphs(config.project)
    performed: dict[str, set[str]] = {}
    for tier in ("all", "queue", "api"):
        async with open_app(config, graphs, AgentSettings(database_url=url, tier=tier), url) as app:
            performed[tier] = {type(chore).__name__ for chore in app.chores.tasks}
            await app.worker.drain(0.0)

    assert performed["all"] == performed["queue"]
    assert performed["all"] - performed["api"] == {
        "DueCrons",
        "DueThreads",
        "Deliveries",
        "ExpiredItems",
        "ExpiredLeases",
        "ExpiredThreads",
        "LapsedRunKeys",
        "OldCacheEntries",
        "OldStreams",
        "WebhookCleanup",
    }


async def test_listener_for_executors_is_closed_although_the_graphs_fail_to_close(monkeypatch):
    done: list[str] = []

    class Graphs:
        pools = ()

        async def close(self) -> None:
            raise Failed

    class Listener:
        def __init__(self, *_: object) -> None:
            pass

        async def start(self) -> None:
            done.append("start")

        async def close(self) -> None:
            done.append("close")

    monkeypatch.setattr(listener, "ExecutorListener", Listener)
    settings = AgentSettings(tier="orchestrator")
    with pytest.raises(Failed):
        async with _listening(Graphs(), settings):  # type: ignore[arg-type]
            pass

    assert done == ["start", "close"]
