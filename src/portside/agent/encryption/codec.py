"""Between named queries and the database: parameters are encrypted on the way out, rows decrypted on the way back.

What is encrypted is declared in the header of each query (`sql/declarations.py`). Rows need no declaration: whatever
looks like ciphertext in a column that may hold some is decrypted, wherever it comes from.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.authentication import UnauthenticatedUser

from portside.agent.encryption.context import HEADER, read_header, set_context
from portside.agent.encryption.encryptor import Encryptor, decrypt_document, decrypt_part
from portside.agent.encryption.envelopes import MARK, escape_document, escape_key
from portside.agent.encryption.locations import (
    BLOB_COLUMNS,
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    DOCUMENT_COLUMNS,
    EVENTS,
    Location,
    Row,
    body_binding,
    events_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.encryption.replacements import ReplacementWriter, build_blob_statement, build_document_statements
from portside.agent.sql import sql
from portside.agent.sql.declarations import Declarations, ModelField
from portside.executor.checkpoints.stored_pieces import PIECE_SIZE, parse_ranges
from portside.executor.encryption_handlers import CannotDecrypt
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Database, Query, Record, Session
from portside.kernel.errors import Invalid
from portside.kernel.http.headers import get_header
from portside.kernel.http.routes import Context, Guard, Route, S
from portside.kernel.logs import get_logger

log = get_logger(__name__)

# The key that replaces what cannot be decrypted; clients see it.
UNDECRYPTABLE = "__unreadable__"
# The start of an envelope's key in JSON text; a client's own key of that name, escaped, starts with it as well.
_MARK_TEXT = f'"{MARK}'
_THREAD_METADATA = ModelField("thread", "metadata")
_LOGGED_IDS = ("run_id", "thread_id", "assistant_id", "version", "cron_id", "namespace", "key")
# This statement returns its own parameters, which are encrypted already. The event log ignores them then.
_RETURNS_PARAMETERS = sql.append_stream_chunks
# The column with the sizes of the pieces of values.
SIZES = "value_sizes"
# The column with the values that a search of threads extracted; `_keep_first_steps` made their aliases.
_EXTRACTED = "extracted"


class EncryptionCodec:
    """Encrypts and decrypts for the database sessions of one server."""

    def __init__(self, encryptor: Encryptor) -> None:
        self.encryptor = encryptor
        self.replacements: ReplacementWriter | None = None

    async def encode(self, query: Query, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters as they are stored.

        Raises EncryptionFailed, and Invalid for a search or an access filter that looks at what is encrypted.
        """
        declared: Declarations = query.declared
        if not declared.changes_parameters:
            return values

        stored = dict(values)
        for parameter, target in declared.searched.items():
            stored[parameter] = await self._encode_filter(values[parameter], target)

        for parameter in declared.access:
            await self._check_access(values[parameter])

        for parameter in declared.access_lists:
            for text in values[parameter]:
                await self._check_access(None if text is None else load(text))

        for parameter, target in declared.documents.items():
            row = identify_row({column: values[name] for column, name in declared.row.items()})
            stored[parameter] = await self._encrypt(values[parameter], target, row)

        for parameter, target in declared.lists.items():
            rows = _iterate_rows(declared, values)
            pairs = zip(values[parameter], rows, strict=True)
            stored[parameter] = await self.encryptor.gather(self._encrypt(item, target, row) for item, row in pairs)

        for parameter, fields in declared.records.items():
            records = values[parameter]
            stored[parameter] = await self.encryptor.gather(self._encrypt_record(item, fields) for item in records)

        for parameter in declared.paths:
            stored[parameter] = _keep_first_steps(values[parameter]) if values[parameter] else values[parameter]

        return stored

    async def _encode_filter(self, condition: Any, target: ModelField) -> Any:
        """Return a filter in the form of the documents it is compared with. Raises Invalid for what is encrypted."""
        plain = load(condition) if isinstance(condition, str) else condition
        await self.encryptor.refuse_encrypted(plain, target, ["body", target.field])
        escaped = escape_document(plain)
        return dump_api(escaped).decode() if isinstance(condition, str) else escaped

    async def _check_access(self, rule: Any) -> None:
        """Refuse an access filter on metadata that is encrypted: it would match nothing. Raises Invalid."""
        if rule is not None:
            await self.encryptor.refuse_encrypted(_list_compared_keys(rule), _THREAD_METADATA, ["authorization filter"])

    async def _encrypt(self, value: Any, target: ModelField, row: Row) -> Any:
        """Encrypt a document; a `str` is its JSON text."""
        if value is None:
            return None
        if isinstance(value, str):
            return dump_api(await self.encryptor.encrypt_document(load(value), target, row)).decode()

        return await self.encryptor.encrypt_document(value, target, row)

    async def _encrypt_record(self, record: Mapping[str, Any], fields: Mapping[str, ModelField]) -> dict[str, Any]:
        row = identify_row({"thread_id": record["thread_id"]})
        encrypted = {name: await self._encrypt(record[name], target, row) for name, target in fields.items()}
        return {**record, **encrypted}

    async def decode(self, query: Query, values: dict[str, Any], rows: list[Record]) -> list[Any]:
        """Return the rows decrypted.

        Raises CannotDecrypt, unless the query declares that such rows are marked: one bad row must not hide the others,
        nor stop the queue.
        """
        if query is _RETURNS_PARAMETERS:
            return rows
        return await self.encryptor.gather(_RowDecoder(self, query, values, row).decode() for row in rows)


class _RowDecoder:
    """Decrypts one row that a query returned."""

    def __init__(self, codec: EncryptionCodec, query: Query, values: Mapping[str, Any], row: Record) -> None:
        self._codec = codec
        self._encryptor = codec.encryptor
        self._query = query
        self._declared: Declarations = query.declared
        self._row = row

        # Not every query selects the id that it was given.
        thread = {"thread_id": values["thread_id"]} if "thread_id" in values else {}
        self._ids = {**thread, **row}

        # The sizes of the pieces of each value; decryption replaces those of the ciphertext by those of the plain text.
        self._sizes: list[bytes | None] = []

    async def decode(self) -> Any:
        changed: dict[str, Any] = {}
        if any(self._row.get(SIZES) or ()):
            changed[SIZES] = list(self._row[SIZES])
            self._sizes = changed[SIZES]

        for column, value in self._row.items():
            if value is None or not (column in BLOB_COLUMNS or _may_hold_ciphertext(column, value)):
                continue

            try:
                changed[column] = await self._decode_column(column, value)
            except CannotDecrypt as exc:
                if not self._declared.marks_undecryptable:
                    raise
                changed[column] = self._mark(column, value, exc)

        return {**dict(self._row), **changed} if changed else self._row

    async def _decode_column(self, column: str, value: Any) -> Any:
        if column in BLOB_COLUMNS:
            if isinstance(value, list):
                return await self._encryptor.gather(
                    self._decrypt_value(column, index, blob) for index, blob in enumerate(value)
                )
            return await self._decrypt_value(column, 0, value)

        document = load(value) if isinstance(value, str) else value
        if column == _EXTRACTED:
            return await self._decode_extracted(document)

        location = Location(identify_row(self._ids), column)
        plain, replacements = await decrypt_document(self._encryptor, document, location)
        if replacements and self._codec.replacements is not None:
            statements = build_document_statements(self._declared.replaceable, self._row, column, replacements)
            self._codec.replacements.offer(statements)

        return dump_api(plain).decode() if isinstance(value, str) else plain

    def _mark(self, column: str, value: Any, reason: CannotDecrypt) -> Any:
        """Log a column that cannot be decrypted, and return what is shown in its place."""
        ids = {key: str(self._row[key]) for key in _LOGGED_IDS if key in self._row.keys()}  # noqa: SIM118 - a Record iterates values
        log.error("a row cannot be decrypted", query=self._query.name, column=column, reason=reason.message, **ids)

        if column in BLOB_COLUMNS:
            return None

        mark = {UNDECRYPTABLE: reason.message}
        if self._declared.keeps_clear_parts and isinstance(value, dict):
            return {**value, **mark}

        return dump_api(mark).decode() if isinstance(value, str) else mark

    async def _decode_extracted(self, first_steps: dict[str, Any]) -> str:
        """Decrypt what SQL found at the first step of each path, and follow the rest of the path."""
        row = identify_row(self._ids)
        extracted = {}
        for path_text, stored in first_steps.items():
            alias, root, path = json.loads(path_text)
            document = Location(row, root)
            if path:
                value = await decrypt_part(self._encryptor, stored, document, path[0])
                extracted[alias] = value_at(value, path[1:])
            else:
                extracted[alias] = (await decrypt_document(self._encryptor, stored, document))[0]

        return dump_api(extracted).decode()

    async def _decrypt_pieces(self, index: int, stored: bytes) -> bytes:
        """Decrypt a value in pieces: its header and each piece by itself."""
        series_and_numbers = parse_ranges(self._row["value_pieces"][index])
        counts = list(PIECE_SIZE.iter_unpack(self._sizes[index] or b""))

        start = len(stored) - sum(size for size, _ in counts)
        plain = [await self._decrypt_blob("value_datas", index, stored[:start])]
        sizes: list[bytes] = []
        for (series, number), (size, leaves) in zip(series_and_numbers, counts, strict=True):
            piece = stored[start : start + size]
            start += size
            place = (CHECKPOINT_PIECE, piece_binding(self._ids["thread_id"], series, number))

            plain_piece, replacement = await self._encryptor.decrypt_blob(piece, *place)
            if replacement is not None and self._codec.replacements is not None:
                ids = {"thread_id": self._ids["thread_id"], "series": series, "number": number}
                statement = (sql.replace_checkpoint_piece, {**ids, "old": piece, "new": replacement})
                self._codec.replacements.offer([statement])

            plain.append(plain_piece)
            sizes.append(PIECE_SIZE.pack(len(plain_piece), leaves))

        self._sizes[index] = b"".join(sizes)
        return b"".join(plain)

    async def _decrypt_value(self, column: str, index: int, stored: bytes) -> bytes:
        if column == "value_datas" and self._sizes and self._sizes[index] is not None:
            return await self._decrypt_pieces(index, stored)
        return await self._decrypt_blob(column, index, stored)

    async def _decrypt_blob(self, column: str, index: int, stored: bytes) -> bytes:
        plain, replacement = await self._encryptor.decrypt_blob(stored, *self._locate_blob(column, index))
        if replacement is not None and self._codec.replacements is not None:
            statement = build_blob_statement(self._row, column, index, (stored, replacement))
            self._codec.replacements.offer([] if statement is None else [statement])

        return plain

    def _locate_blob(self, column: str, index: int) -> tuple[ModelField, bytes]:
        ids = self._ids
        if "checkpoint_ns" not in ids:
            return EVENTS, events_binding(ids["thread_id"])

        thread_id = ids["thread_id"]
        checkpoint_ns = ids["checkpoint_ns"]
        if column == "body":
            return CHECKPOINT_BODY, body_binding(thread_id, checkpoint_ns, ids["checkpoint_id"])
        if column == "value_datas":
            return CHECKPOINT_VALUE, value_binding(thread_id, checkpoint_ns, ids["value_channels"][index])

        checkpoint = (thread_id, checkpoint_ns, ids["checkpoint_id"])
        return CHECKPOINT_WRITE, write_binding(checkpoint, ids["write_tasks"][index], ids["write_channels"][index])


def _iterate_rows(declared: Declarations, values: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows that parallel lists of parameters identify."""
    for ids in zip(*(values[name] for name in declared.row.values()), strict=True):
        yield identify_row(dict(zip(declared.row, ids, strict=True)))


def _list_compared_keys(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of metadata that an access filter compares, each with a value that it may have."""
    keys = dict(rule.get("equal") or {})
    for condition in [*rule.get("rest", ()), *rule.get("of", ())]:
        if "key" in condition:
            keys[condition["key"]] = condition.get("value", condition.get("values"))
        keys |= _list_compared_keys(condition)

    return keys


def _may_hold_ciphertext(column: str, value: Any) -> bool:
    if column not in DOCUMENT_COLUMNS:
        return column == _EXTRACTED

    # JSON text without the mark has neither an envelope nor an escaped key, and need not be parsed.
    return _MARK_TEXT in value if isinstance(value, str) else isinstance(value, (dict, list))


def _keep_first_steps(paths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cut paths to their first steps, which are all that SQL can follow; the alias carries the whole path."""
    return [
        {
            **path,
            "alias": json.dumps([path["alias"], path["root"], path["path"]]),
            "path": [escape_key(step) for step in path["path"][:1]],
        }
        for path in paths
    ]


def value_at(value: Any, steps: list[str]) -> Any:
    """Return what a path leads to in a value; None if it leads nowhere."""
    for step in steps:
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (IndexError, KeyError, TypeError, ValueError):
            return None

    return value


def find_encryptor(session: Session) -> Encryptor | None:
    """Return the encryptor of a session; None where nothing is encrypted."""
    return session.codec.encryptor if isinstance(session.codec, EncryptionCodec) else None


def has_whole_rows(session: Session) -> bool:
    """Whether rows of threads hold their long lists too: handlers may encrypt values and checkpoints differently."""
    encryptor = find_encryptor(session)
    return encryptor is not None and encryptor.takes_context


async def refuse_encrypted_search(session: Session, condition: Any) -> None:
    """Refuse a filter of store items by an encrypted value. Raises Invalid that names the key."""
    if (encryptor := find_encryptor(session)) is not None:
        await encryptor.refuse_encrypted(condition, ModelField("store", "value"), ["body", "filter"])


def is_undecryptable(value: Any) -> bool:
    """Whether a value replaces one that could not be decrypted."""
    return isinstance(value, dict) and UNDECRYPTABLE in value


def raise_if_undecryptable(kwargs: Mapping[str, Any]) -> None:
    """Raise CannotDecrypt for the kwargs of a claimed run that could not be decrypted."""
    if (reason := kwargs.get(UNDECRYPTABLE)) is not None:
        raise CannotDecrypt(reason)


async def prepare_codec(db: Database) -> None:
    """Ask a database whether it may hold unbound envelopes, and write replacements to it from the running loop."""
    if isinstance(db.codec, EncryptionCodec):
        db.codec.encryptor.accepts_unbound = await db.fetchval(sql.may_hold_unbound)
        db.codec.replacements = ReplacementWriter(db.pool)


def with_encryption_context(guard: Guard[S], encryptor: Encryptor | None) -> Guard[S]:
    """Return a guard that also sets the encryption context of a request.

    Without handlers the header is refused: the client would believe that it has an effect.
    """

    async def guarded(ctx: Context[S], route: Route[Any]) -> Any:
        actor = await guard(ctx, route)
        header = get_header(ctx.scope, HEADER.lower().encode())
        if encryptor is None or not encryptor.takes_context:
            if header is not None:
                raise Invalid.field(["header", HEADER], "this server has no encryption handlers that could use it")
            return actor

        user = getattr(actor, "user", None) or UnauthenticatedUser()
        set_context(await encryptor.derive_context(user, read_header(header)))
        return actor

    return guarded
