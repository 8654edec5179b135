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
_MAX_ITEMS = 100_000
_LIST, _OBJECT, _COMMA = b"[{,"
# The first character of a value that is in pieces. No JSON text begins with it.
MARK = "\x02"
# One item in so many ends a piece. The item itself decides, so that lists that share items share pieces.
_ITEMS_OF_PIECE = 8
# The first key of the advisory locks; the second is one of so many numbers.
_LOCK_CLASS = 0x70696563
_LOCKS = 64
_THREAD = re.compile(r'"(?:session_id|thread_id|conversation_id)":\s*"([^"\\]{1,500})"')
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_dict = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
# Text, or references to pieces that are joined with commas.
Part = bytes | list[str]
# Where a value begins in a text, and where it ends.
Span = tuple[int, int]


class RunPieces:
    """The pieces of one batch, and the runs that refer to them."""

    def __init__(self, workspace_id: UUID) -> None:
        self._workspace_id = workspace_id
        self._today = now().date().isoformat()
        self._pieces: dict[tuple[UUID, UUID], str] = {}
        self._users: set[tuple[UUID, UUID]] = set()

    def __bool__(self) -> bool:
        return bool(self._pieces)

    async def cut(self, runs: list[RunWrite]) -> None:
        """Put references into the long values of runs; many characters are cut in a thread of its own."""
        chars = sum(len(run.inputs or "") + len(run.outputs or "") for run in runs)
        if chars > _INLINE_CHARS:
            await asyncio.to_thread(self._cut_runs, runs)
        elif chars >= MIN_CHARS:
            self._cut_runs(runs)

    def _cut_runs(self, runs: list[RunWrite]) -> None:
        for run in runs:
            run.inputs = self._cut(run, run.inputs)
            run.outputs = self._cut(run, run.outputs)

    def _cut(self, run: RunWrite, value: str | None) -> str | None:
        if value is None or len(value) < MIN_CHARS:
            return value

        pieces: dict[UUID, bytes] = {}
        whole = value.encode()
        try:
            parts = split_json(whole, pieces)
        except (msgspec.DecodeError, RecursionError):
            return value

        if not pieces:
            return value

        scope = self._derive_scope(run)
        self._users.add((scope, run.id))

        while pieces:
            digest, data = pieces.popitem()
            self._pieces[scope, digest] = data.decode()

        texts = [part.decode() if isinstance(part, bytes) else part for part in parts]
        return f"{MARK}{scope.hex}{len(whole):010}{msgspec.json.encode(texts).decode()}"

    def _derive_scope(self, run: RunWrite) -> UUID:
        thread = _THREAD.search(run.extra) if run.extra else None
        owner = thread[1] if thread else str(run.trace_id or run.id)
        return UUID(bytes=_compute_digest(f"{self._workspace_id} {self._today} {owner}".encode()))

    async def store(self, tx: Transaction) -> None:
        """Store the pieces that are not stored yet, before the runs; none is deleted before the transaction ends."""
        # In order, so that two batches wait for each other instead of deadlocking.
        rows = sorted(self._pieces.items(), key=lambda row: (row[0][0].int, row[0][1].int))
        await tx.execute(
            sql.store_pieces,
            lock_class=_LOCK_CLASS,
            locks=sorted({_choose_lock(scope) for (scope, _), _ in rows}),
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


def split_json(raw: bytes, pieces: dict[UUID, bytes]) -> list[Part]:
    """Return the parts of JSON text, which are together exactly that text; add the pieces that they refer to.

    Raises DecodeError and RecursionError.
    """
    return _split(raw, (0, len(raw)), pieces, 0) or [raw]


def _split(raw: bytes, span: Span, pieces: dict[UUID, bytes], depth: int) -> list[Part]:
    """Return the parts of a value within a text; none if it has no references. Values may be large: none is copied."""
    begin, end = span
    if end - begin < MIN_CHARS or depth > _MAX_DEPTH:
        return []
    if not MIN_ITEMS <= raw.count(b",", begin, end) + 1 <= _MAX_ITEMS:
        return []

    spans = _find_items(raw, span)
    if raw[begin] == _LIST:
        is_worth_it = MIN_ITEMS <= len(spans) <= (end - begin) // MIN_ITEM_BYTES
        if is_worth_it:
            return [b"[", _add_pieces(raw, spans, pieces), b"]"]

    parts = list[Part]()
    text = b""
    position = begin
    for item in spans:
        if inner := _split(raw, item, pieces, depth + 1):
            first, *between, last = inner
            assert isinstance(first, bytes)  # noqa: S101 - a value begins and ends with text
            assert isinstance(last, bytes)  # noqa: S101
            parts += [text + raw[position : item[0]] + first, *between]
            text = last
            position = item[1]

    return [*parts, text + raw[position:end]] if parts else []


def _find_items(raw: bytes, span: Span) -> list[Span]:
    """Return the positions of the items of a list, or of the values of an object.

    Returns nothing if the text holds more than items and commas: spaces between the items, or a key twice.
    """
    begin, end = span
    view = memoryview(raw)[begin:end]
    if raw[begin] == _LIST:
        sizes = [(b"", memoryview(item).nbytes) for item in _decode_list(view)]
    elif raw[begin] == _OBJECT:
        fields = _decode_dict(view)
        sizes = [(msgspec.json.encode(key) + b":", memoryview(value).nbytes) for key, value in fields.items()]
    else:
        return []

    spans = list[Span]()
    at = begin + 1
    for key, size in sizes:
        if not raw.startswith(key, at):
            return []

        spans.append((at + len(key), at + len(key) + size))
        at = spans[-1][1] + 1
        if raw[at - 1] != (_COMMA if at < end else raw[end - 1]):
            return []

    return spans if at == end else []


def _add_pieces(raw: bytes, items: list[Span], pieces: dict[UUID, bytes]) -> list[str]:
    """Return references to the pieces of a list; add the pieces.

    The items after the last end of a piece are pieces of their own: the next version of the list adds to them.
    """
    references = list[str]()
    view = memoryview(raw)

    def refer(first: Span, last: Span, digest: bytes) -> None:
        pieces[UUID(bytes=digest)] = raw[first[0] : last[1]]
        references.append(digest.hex())

    digests = [_compute_digest(view[begin:end]) for begin, end in items]
    begin = 0
    for number, closing in enumerate(digests):
        if closing[0] % _ITEMS_OF_PIECE == 0:
            refer(items[begin], items[number], _compute_digest(b"".join(digests[begin : number + 1])))
            begin = number + 1

    for number in range(begin, len(items)):
        refer(items[number], items[number], digests[number])

    return references


def _compute_digest(data: bytes | memoryview) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _choose_lock(scope: UUID) -> int:
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
            by_lock[_choose_lock(row["scope"])].append(row["scope"])

        piece_count = 0
        scope_count = 0
        for lock, scopes in by_lock.items():
            async with self._db.transaction() as tx:
                if await tx.fetchval(sql.lock_scopes, lock_class=_LOCK_CLASS, lock=lock):
                    piece_count += await tx.execute(sql.delete_unused_pieces, scopes=scopes)
                    scope_count += len(scopes)

        return Status({"pieces": piece_count}, again=scope_count == self.scopes_at_once)
