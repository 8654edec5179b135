"""A spool returns all rows in order, after their generator was closed, and leaves nothing behind."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from uuid import UUID, uuid4

import msgspec
import pytest

from portside.kernel import spool
from portside.kernel.spool import DownloadTooLarge, TooManyDownloads, spooled


class Row(msgspec.Struct):
    id: UUID
    counts: dict[int, int]


def rows(count: int, closed: Callable[[], None]) -> tuple[list[Row], AsyncGenerator[Row]]:
    made = [Row(uuid4(), {number: number * 2}) for number in range(count)]

    async def generated() -> AsyncGenerator[Row]:
        try:
            for row in made:
                yield row
        finally:
            closed()

    return made, generated()


@pytest.mark.parametrize("count", [0, 1, 3, 1000])
async def test_rows_are_used_after_their_source_is_closed(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 100)
    closed: list[bool] = []
    made, source = rows(count, lambda: closed.append(True))
    found = []
    async for row in spooled(source, Row):
        assert closed
        found.append(row)

    assert found == made
    assert spool._in_files == 0


@pytest.mark.parametrize(
    ("limit", "refusal"), [("MAX_BYTES_OF_ONE", DownloadTooLarge), ("MAX_BYTES", TooManyDownloads)]
)
async def test_too_many_rows_are_refused_before_the_first_one(
    limit: str, refusal: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(spool, limit, 1000)
    closed: list[bool] = []

    _, source = rows(1000, lambda: closed.append(True))
    with pytest.raises(refusal):
        await anext(spooled(source, Row))

    assert closed
    assert spool._in_files == 0
    made, source = rows(20, lambda: None)
    assert [row async for row in spooled(source, Row)] == made


async def test_a_download_that_is_given_up_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 100)
    _, source = rows(1000, lambda: None)
    given_up = spooled(source, Row)
    await anext(given_up)
    assert spool._in_files > 0
    await given_up.aclose()
    assert spool._in_files == 0


async def test_a_request_that_is_cancelled_while_a_thread_writes_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spool, "_CHUNK_BYTES", 100)
    writes = threading.Event()
    may_write = threading.Event()
    encode = spool._Spool.append

    def append(self: spool._Spool, chunk: bytes) -> None:
        writes.set()
        may_write.wait()
        encode(self, chunk)

    monkeypatch.setattr(spool._Spool, "append", append)
    _, source = rows(1000, lambda: None)
    first = asyncio.ensure_future(anext(spooled(source, Row)))
    await asyncio.to_thread(writes.wait)
    first.cancel()

    with pytest.raises(asyncio.CancelledError):
        await first

    may_write.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert spool._in_files == 0
