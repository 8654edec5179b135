"""The log file of the platform's listener does not grow without bound."""

from pathlib import Path

from portside.platform.listener import ListenerLog


async def test_listener_log_is_rotated(tmp_path: Path):
    task = ListenerLog(tmp_path / "listener.log", max_bytes=10)
    assert (await task.activate()).did == {"rotated": 0}
    (tmp_path / "listener.log").write_text("a line of the listener\n")
    assert (await task.activate()).did == {"rotated": 1}
    assert (tmp_path / "listener.log").stat().st_size == 0
