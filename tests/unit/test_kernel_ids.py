"""Ids are unique, and those of version 7 increase even if the clock goes back."""

import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from portside.kernel import ids
from portside.kernel.ids import random_id, uuid7


def test_uuid7_has_version_and_time() -> None:
    before = time.time_ns() // 1_000_000
    made = uuid7()
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"
    assert before - 1 <= made.int >> 80 <= time.time_ns() // 1_000_000 + 100


def test_uuid7_increases_in_each_thread_and_is_unique() -> None:
    with ThreadPoolExecutor(4) as threads:
        runs = list(threads.map(lambda _: [uuid7() for _ in range(5_000)], range(4)))

    assert all(run == sorted(run) for run in runs)
    assert len({made for run in runs for made in run}) == 20_000


def test_uuid7_increases_when_the_clock_goes_back(monkeypatch) -> None:
    first = uuid7()
    monkeypatch.setattr(ids.time, "time_ns", lambda: 0)
    assert uuid7() > first


def test_random_id_has_the_form_of_uuid4() -> None:
    made = {random_id() for _ in range(1000)}
    assert len(made) == 1000
    for text in made:
        read = UUID(text)
        assert (str(read), read.version, read.variant) == (text, 4, "specified in RFC 4122")
