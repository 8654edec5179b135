"""How executors are started, and what a caller is told when the one of the handlers ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from portside.agent.config import load_config
from portside.agent.executors.handlers_executor import HandlersExecutor
from portside.agent.executors.spawned_executor import Program
from portside.agent.executors.start import build_graph_programs
from portside.agent.settings import AgentSettings
from portside.executor.link import LinkClosed
from portside.executor.messages import ServerHello
from portside.kernel.errors import Unavailable


def test_programs_have_the_times_of_the_settings(tmp_path: Path) -> None:
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    settings = AgentSettings(executor_heartbeat_secs=7, executor_start_secs=9)

    (program,) = build_graph_programs(
        load_config(tmp_path / "langgraph.json"), settings, is_encrypted=False, store_ttl=None
    )
    assert (program.heartbeat_s, program.start_within_s) == (7, 9)


async def test_a_call_whose_executor_ends_meanwhile_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have had an effect, so it is not made again; clients get 503."""

    async def lose(_method: str, _body: Any, *, on_item: Any) -> Any:
        raise LinkClosed("killed")

    @contextmanager
    def for_call_now(_pool: Any) -> Iterator[Any]:
        yield SimpleNamespace(link=SimpleNamespace(call=lose))

    monkeypatch.setattr("portside.agent.executors.pool.ExecutorPool.for_call_now", for_call_now)
    hello = ServerHello(protocol=1, file="", dependencies=[], env={}, log_level="INFO", graphs={}, loops=1)

    with pytest.raises(Unavailable, match="again"):
        await HandlersExecutor(Program([], {}, hello)).call("auth.authenticate")
