"""The heap dump and the profile of a server show types and stacks, but no values."""

import asyncio
import json
import re
import threading
from pathlib import Path

import pytest

from portside.kernel.diagnostics import DiagnosisUnderWay, Diagnostics


class Kept:
    """A type to find in the heap dump."""

    def __init__(self) -> None:
        self.secret = ["hunter2"]


def test_heap_dump_contains_types_but_no_values(tmp_path: Path) -> None:
    kept = [Kept() for _ in range(5000)]
    dump = asyncio.run(Diagnostics(tmp_path / "dumps").dump_heap())
    path = Path(dump.path)
    assert (path.parent, path.stat().st_size, path.stat().st_mode & 0o777) == (tmp_path / "dumps", dump.bytes, 0o600)
    text = path.read_text()
    found = {entry["type"]: entry["count"] for entry in json.loads(text)["types"]}
    assert found[f"{__name__}.Kept"] >= len(kept)

    assert "hunter2" not in text


async def test_profile_shows_stacks_of_threads(tmp_path: Path) -> None:
    stop = threading.Event()
    is_spinning = threading.Event()

    def spin_here() -> None:
        is_spinning.set()
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin_here, name="spinner", daemon=True)
    thread.start()
    try:
        assert await asyncio.to_thread(is_spinning.wait, 60)
        text = await Diagnostics(tmp_path).profile(0.2)
    finally:
        stop.set()
        thread.join()

    assert re.search(r"^spinner;.*\.spin_here\S* \d+$", text, re.MULTILINE), text


async def test_profile_has_a_sample_although_its_time_is_over(tmp_path: Path) -> None:
    """As where the process was paused between the request and the first look."""
    assert re.search(r"^MainThread;.* 1$", await Diagnostics(tmp_path).profile(0), re.MULTILINE)


async def test_second_diagnosis_gets_409(tmp_path: Path) -> None:
    diagnostics = Diagnostics(tmp_path)
    first = asyncio.create_task(diagnostics.profile(0.2))
    await asyncio.sleep(0)

    with pytest.raises(DiagnosisUnderWay):
        await diagnostics.dump_heap()

    await first
    await diagnostics.profile(0.01)
