"""Long lists in the inputs and outputs of runs: what the spans of a conversation repeat is stored once.

Each span of a conversation has all messages so far. So the items of long lists are stored as *pieces*, and the run has
references to them (docs/why/traces.md). Readers of `readable_runs` get the exact text that the client sent.

A piece belongs to a *scope*: the runs of one thread, or of one trace, that arrived on one day. `piece_users` names the
runs that may refer to the pieces of a scope. A trigger removes deleted runs from it and marks the scope as stale:
`UnusedPieces` then deletes the pieces that no run needs any more.
"""

import asyncio
import re
from collections import defaultdict
from hashlib import blake2b
from uuid import UUID

import msgspec
from msgspec import structs

from portside.kernel.clock import now
from portside.kernel.db import Database, Transaction
from portside.kernel.reconcile import Status, Task
from portside.tracing.sql import sql
from portside.tracing.types import RunWrite

# Shorter values take less space in their row.
MIN_CHARS = 4_000
MIN_ITEMS = 4
MIN_ITEM_BYTES = 100
_INLINE_CHARS = 128 * 1024
_MAX_DEPTH = 4
# Each item that is taken apart needs a hundred bytes of memory, also where it is a digit.
_MAX_COMMAS = 100_000
# The first character of a value that is in pieces. No JSON text begins with it.
MARK = "\x02"
# One item in so many ends a piece. The item itself decides, so that lists that share items share pieces.
_ITEMS_OF_PIECE = 8
# The first key of the advisory locks; the second is one of so many numbers.
_LOCK_CLASS, _LOCKS = 0x70696563, 64
_THREAD = re.compile(r'"(?:session_id|thread_id|conversation_id)":\s*"([^"\\]{1,500})"')
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_dict = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# Text, or references to pieces that are joined with commas.
Part = bytes | list[str]


class RunPieces:
    """The pieces of one batch, and the runs that refer to them."""

    def __init__(self, workspace_id: UUID) -> None:
        self._workspace_id = workspace_id
        self._today = now().date().isoformat()
        self._pieces: dict[tuple[UUID, UUID], str] = {}
        self._users: set[tuple[UUID, UUID]] = set()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    async def cut(self, runs: list[RunWrite]) -> list[RunWrite]:
        """Return the runs with references in their long values, as copies; much is cut in a thread of its own."""
        chars = sum(len(run.inputs or "") + len(run.outputs or "") for run in runs)
        if chars < MIN_CHARS:
            return runs
        return await asyncio.to_thread(self._cut_runs, runs) if chars > _INLINE_CHARS else self._cut_runs(runs)

    def _cut_runs(self, runs: list[RunWrite]) -> list[RunWrite]:
        cut = list[RunWrite]()
        for run in runs:
            long = {name: text for name in ("inputs", "outputs") if len(text := getattr(run, name) or "") >= MIN_CHARS}
            changed = {name: self._cut(run, text) for name, text in long.items()}
            cut.append(structs.replace(run, **changed) if changed else run)
        return cut

    def _cut(self, run: RunWrite, value: str) -> str:
        pieces: dict[UUID, bytes] = {}
        whole = value.encode()
        try:
            parts = split_json(whole, pieces)
        except (msgspec.DecodeError, RecursionError):
            return value
        if not pieces:
            return value
        scope = self._scope(run)
        self._users.add((scope, run.id))
        for digest, data in pieces.items():
            self._pieces[scope, digest] = data.decode()
        listed = [part.decode() if isinstance(part, bytes) else part for part in parts]
        return f"{MARK}{scope.hex}{len(whole):010}{msgspec.json.encode(listed).decode()}"

    def _scope(self, run: RunWrite) -> UUID:
        thread = _THREAD.search(run.extra) if run.extra else None
        owner = thread[1] if thread else str(run.trace_id or run.id)
        return UUID(bytes=_digest(f"{self._workspace_id} {self._today} {owner}".encode()))

    async def store(self, tx: Transaction) -> None:
        """Store the pieces that are not stored yet, before the runs; none is deleted before the transaction ends."""
        # In order, so that two batches wait for each other instead of deadlocking.
        rows = sorted(self._pieces.items(), key=lambda row: (row[0][0].int, row[0][1].int))
        await tx.execute(
            sql.store_pieces,
            lock_class=_LOCK_CLASS,
            locks=sorted({_lock_of(scope) for (scope, _), _ in rows}),
            scopes=[scope for (scope, _), _ in rows],
            digests=[digest for (_, digest), _ in rows],
            data=[data for _, data in rows],
        )

    async def store_users(self, tx: Transaction) -> None:
        """Store which runs refer to pieces, after the runs: a deletion locks the rows in this order."""
        users = sorted(self._users, key=lambda user: (user[1].int, user[0].int))
        await tx.execute(
            sql.store_piece_users,
            workspace_id=self._workspace_id,
            run_ids=[run_id for _, run_id in users],
            scopes=[scope for scope, _ in users],
        )


def split_json(raw: bytes, pieces: dict[UUID, bytes], depth: int = 0) -> list[Part]:
    """Return the parts of JSON text, which are together exactly that text; add the pieces that they refer to."""
    if len(raw) < MIN_CHARS or depth > _MAX_DEPTH or raw[:1] not in {b"[", b"{"} or raw.count(b",") > _MAX_COMMAS:
        return [raw]
    if raw[:1] == b"[":
        keys, values = [b""], [bytes(value) for value in _decode_list(raw)]
        keys *= len(values)
    else:
        fields = _decode_dict(raw)
        keys, values = [msgspec.json.encode(key) + b":" for key in fields], [bytes(each) for each in fields.values()]
    # Text that has spaces between its items, or a key twice, is not made of them alone.
    if raw[:1] + b",".join(map(bytes.__add__, keys, values)) + raw[-1:] != raw:
        return [raw]
    if raw[:1] == b"[" and len(values) >= MIN_ITEMS and len(raw) >= MIN_ITEM_BYTES * len(values):
        return [b"[", _references(values, pieces), b"]"]
    texts, parts = [raw[:1]], list[Part]()
    for number, (key, value) in enumerate(zip(keys, values, strict=True)):
        texts.append(b"," + key if number else key)
        for part in split_json(value, pieces, depth + 1) if len(value) >= MIN_CHARS else (value,):
            if isinstance(part, bytes):
                texts.append(part)
            else:
                parts += [b"".join(texts), part]
                texts = []
    return [*parts, b"".join([*texts, raw[-1:]])]


def _references(items: list[bytes], pieces: dict[UUID, bytes]) -> list[str]:
    """Return references to the pieces of a list; add the pieces.

    The items after the last end of a piece are pieces of their own: the next version of the list adds to them.
    """
    references = list[str]()

    def refer(first: int, last: int, digest: bytes) -> None:
        pieces[UUID(bytes=digest)] = b",".join(items[first:last])
        references.append(digest.hex())

    digests = [_digest(item) for item in items]
    begin = 0
    for end, closing in enumerate(digests, 1):
        if closing[0] % _ITEMS_OF_PIECE == 0:
            refer(begin, end, _digest(b"".join(digests[begin:end])))
            begin = end
    for number in range(begin, len(items)):
        refer(number, number + 1, digests[number])
    return references


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _lock_of(scope: UUID) -> int:
    return scope.bytes[0] % _LOCKS


class UnusedPieces(Task):
    """Deletes the pieces that the remaining runs of a scope do not need, after runs of it were deleted."""

    every_s = 60.0
    deletes = True
    scopes_at_once = 500

    def __init__(self, db: Database) -> None:
        super().__init__()
        self._db = db

    async def activate(self) -> Status:
        """Clean some scopes. Those that a batch is being written to wait for the next time."""
        by_lock = defaultdict[int, list[UUID]](list)
        rows = await self._db.fetch(sql.find_stale_scopes, limit=self.scopes_at_once)
        for row in rows:
            by_lock[_lock_of(row["scope"])].append(row["scope"])
        deleted = cleaned = 0
        for lock, scopes in by_lock.items():
            async with self._db.transaction() as tx:
                if await tx.fetchval(sql.lock_scopes, lock_class=_LOCK_CLASS, lock=lock):
                    deleted += await tx.execute(sql.delete_unused_pieces, scopes=scopes)
                    cleaned += len(scopes)
        return Status({"pieces": deleted}, again=cleaned == self.scopes_at_once)
