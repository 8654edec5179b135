"""Binds the checkpoints of a copied thread to the copy.

The copy has its original's checkpoints, bound to the original. What does not decrypt is left as it is, and will not
decrypt in the copy either.
"""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from portside.agent.encryption.encryptor import Encryptor, decrypt_document
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    Location,
    body_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.sql import sql
from portside.agent.sql.declarations import ModelField
from portside.executor.encryption_handlers import CannotDecrypt
from portside.kernel.codec import dump_api
from portside.kernel.db import Query, Record, Session, Transaction

# Values may be large, and those of one page are in memory together.
PAGE = 16
_METADATA = ModelField("checkpoint", "metadata")
Rows = list[Record]


async def rebind_checkpoints(encryptor: Encryptor, transaction: Transaction, source: str, target: str) -> None:
    """Bind the copies of a thread's checkpoints, in the transaction that copied them. Raises EncryptionFailed."""
    # Without a codec, which would expect the rows to be bound to the copy already.
    copy = _CopiedCheckpoints(encryptor, Session(transaction.connection), source, target)
    await copy.bind_checkpoints()
    await copy.bind_values()
    await copy.bind_pieces()
    await copy.bind_writes()


class _CopiedCheckpoints:
    """The checkpoints of one copy, with their values and pending writes."""

    def __init__(self, encryptor: Encryptor, session: Session, source: str, target: str) -> None:
        self._encryptor = encryptor
        self._session = session
        self._source = source
        self._target = target

    async def bind_checkpoints(self) -> None:
        async for rows in self._pages(sql.copied_checkpoints, {"ns": "checkpoint_ns", "id": "checkpoint_id"}):
            names = [(row["checkpoint_ns"], row["checkpoint_id"]) for row in rows]
            bound = [(body_binding(self._source, *name), body_binding(self._target, *name)) for name in names]
            await self._session.execute(
                sql.bind_checkpoints,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                checkpoint_ids=[row["checkpoint_id"] for row in rows],
                metadatas=[await self._metadata(row["metadata"], row["checkpoint_ns"]) for row in rows],
                bodies=await self._blobs([row["body"] for row in rows], CHECKPOINT_BODY, bound),
            )

    async def bind_values(self) -> None:
        after = {"ns": "checkpoint_ns", "channel": "channel", "version": "version"}
        async for rows in self._pages(sql.copied_values, after):
            names = [(row["checkpoint_ns"], row["channel"]) for row in rows]
            bound = [(value_binding(self._source, *name), value_binding(self._target, *name)) for name in names]
            await self._session.execute(
                sql.bind_values,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                channels=[row["channel"] for row in rows],
                versions=[row["version"] for row in rows],
                datas=await self._blobs([row["data"] for row in rows], CHECKPOINT_VALUE, bound),
            )

    async def bind_pieces(self) -> None:
        async for rows in self._pages(sql.copied_pieces, {"series": "series", "number": "number"}):
            names = [(row["series"], row["number"]) for row in rows]
            bound = [(piece_binding(self._source, *name), piece_binding(self._target, *name)) for name in names]
            await self._session.execute(
                sql.bind_pieces,
                thread_id=self._target,
                series=[row["series"] for row in rows],
                numbers=[row["number"] for row in rows],
                datas=await self._blobs([row["data"] for row in rows], CHECKPOINT_PIECE, bound),
            )

    async def bind_writes(self) -> None:
        after = {"ns": "checkpoint_ns", "id": "checkpoint_id", "task": "task_id", "idx": "idx"}
        async for rows in self._pages(sql.copied_writes, after):
            await self._session.execute(
                sql.bind_writes,
                thread_id=self._target,
                namespaces=[row["checkpoint_ns"] for row in rows],
                checkpoint_ids=[row["checkpoint_id"] for row in rows],
                task_ids=[row["task_id"] for row in rows],
                places=[row["idx"] for row in rows],
                datas=await self._blobs(
                    [row["data"] for row in rows],
                    CHECKPOINT_WRITE,
                    [(_write_in(self._source, row), _write_in(self._target, row)) for row in rows],
                ),
            )

    async def _pages(self, query: Query, after: dict[str, str]) -> AsyncIterator[Rows]:
        # Tasks have ids, so nothing sorts between the empty id with index 0 and the first row.
        numbers = {"idx": 0, "series": -1, "number": -1}
        cursor: dict[str, Any] = {f"after_{name}": numbers.get(name, "") for name in after}
        while rows := await self._session.fetch(query, thread_id=self._target, limit=PAGE, **cursor):
            yield rows
            cursor = {f"after_{name}": rows[-1][column] for name, column in after.items()}

    async def _metadata(self, stored: Any, checkpoint_ns: str) -> str:
        with suppress(CannotDecrypt):
            old = identify_row({"thread_id": self._source, "checkpoint_ns": checkpoint_ns})
            new = identify_row({"thread_id": self._target, "checkpoint_ns": checkpoint_ns})
            plain, _ = await decrypt_document(self._encryptor, stored, Location(old, _METADATA.field))
            stored = await self._encryptor.encrypt_document(plain, _METADATA, new)

        return dump_api(stored).decode()

    async def _blobs(self, stored: list[bytes], target: ModelField, bound: list[tuple[bytes, bytes]]) -> list[bytes]:
        return [
            await self._encryptor.rebind_blob(blob, target, *pair) for blob, pair in zip(stored, bound, strict=True)
        ]


def _write_in(thread_id: str, row: Record) -> bytes:
    return write_binding((thread_id, row["checkpoint_ns"], row["checkpoint_id"]), row["task_id"], row["channel"])
