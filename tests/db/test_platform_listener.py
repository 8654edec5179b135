"""A listener that ends again and again is started less and less often, and the platform says so."""

from pathlib import Path

import pytest

from portside.platform.listener import ListenerProcess
from tests.conftest import eventually


async def test_listener_that_keeps_ending_is_a_problem_of_the_platform(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CONTROL_PLANE_URL", raising=False)
    listener = ListenerProcess({"PORTSIDE_HOME": str(tmp_path)}, tmp_path / "listener.log")
    listener.start()

    async def is_named() -> bool:
        return "the next start is in 2 seconds" in (listener.problem or "")

    try:
        await eventually(is_named)
        assert (listener.problem or "").startswith(
            "The listener exited with code 1 again, so deployments do not change"
        )
    finally:
        await listener.stop()

    assert "CONTROL_PLANE_URL" in (tmp_path / "listener.log").read_text()
