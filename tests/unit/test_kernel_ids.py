import time
from concurrent.futures import ThreadPoolExecutor

from portside.kernel import ids
from portside.kernel.ids import uuid7


def test_ids_are_version_7_and_carry_the_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert before - 1 <= made.int >> 80 <= time.time_ns() // 1_000_000 + 100


def test_ids_rise_strictly_in_each_thread_and_never_tie() -> None:
    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: [uuid7() for _ in range(5_000)], range(4)))
    assert all(run == sorted(run) for run in runs)
    assert len({made for run in runs for made in run}) == 20_000


def test_ids_rise_when_the_clock_goes_back(monkeypatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    assert uuid7() > first
