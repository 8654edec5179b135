"""Between named queries and the database: what leaves is sealed, what comes back is opened."""

import asyncio
from collections.abc import Mapping
from typing import Any

from portside.agent.encryption import places
from portside.agent.encryption.envelopes import MARK
from portside.agent.encryption.errors import CannotDecrypt
from portside.agent.encryption.extracts import extracted, first_steps
from portside.agent.encryption.handlers import Place
from portside.agent.encryption.opening import open_document
from portside.agent.encryption.replacing import Replacer, blob_statement, document_statements
from portside.agent.encryption.vault import Vault
from portside.kernel.codec import dump_api, load
from portside.kernel.db import Record, Session
from portside.kernel.queries import Query

# What kwargs or a payload that this server cannot decrypt hold, beside what of them is in clear.
UNREADABLE = "__unreadable__"
_TAKES_RUNS = frozenset({"claim_runs", "delete_run", "end_runs", "claim_due_crons", "claim_webhooks"})
_MARK = f'"{MARK}"'
# It returns what it was given, and nobody looks at that where it is sealed.
_UNREAD = frozenset({"append_stream_chunks"})
_SEARCH = "search_threads"


def vault_of(session: Session) -> Vault | None:
    """Return the vault behind a session; None where nothing is encrypted."""
    return session.codec.vault if isinstance(session.codec, SealingCodec) else None


async def refuse_sealed_search(session: Session, wanted: Any) -> None:
    """Refuse a filter of store items by what is encrypted in them. Raises Invalid that names the key."""
    if (vault := vault_of(session)) is not None:
        await vault.refuse_sealed(wanted, Place("store", "value"), ["body", "filter"])


class SealingCodec:
    """Seals and opens for the sessions of one server."""

    def __init__(self, vault: Vault) -> None:
        self.vault = vault
        self.replacer: Replacer | None = None

    async def encode(self, query: Query, values: dict[str, Any]) -> dict[str, Any]:
        """Return the parameters with what is to be sealed sealed. Raises EncryptionFailed, and Invalid for searches."""
        name = query.name
        for parameter, place in places.SEARCHES.get(name, {}).items():
            wanted = values[parameter]
            await self.vault.refuse_sealed(
                load(wanted) if isinstance(wanted, str) else wanted, place, ["body", place.field]
            )
        await self._judge_access(name, values)
        sealed = dict(values)
        for parameter, place in places.DOCUMENTS.get(name, {}).items():
            sealed[parameter] = await self._document(values[parameter], place)
        for parameter, place in places.TEXTS.get(name, {}).items():
            sealed[parameter] = await self._text(values[parameter], place)
        for parameter, place in places.LISTS_OF_TEXTS.get(name, {}).items():
            sealed[parameter] = await asyncio.gather(*(self._text(one, place) for one in values[parameter]))
        for parameter, fields in places.LISTS_OF_RECORDS.get(name, {}).items():
            sealed[parameter] = await asyncio.gather(*(self._record(one, fields) for one in values[parameter]))
        if name == _SEARCH and values["extract"]:
            sealed["extract"] = first_steps(values["extract"])
        return sealed

    async def _judge_access(self, name: str, values: Mapping[str, Any]) -> None:
        """Refuse rules about metadata that is encrypted: they would hold for nothing. Raises Invalid."""
        rules = [values[parameter] for parameter in places.ACCESS & values.keys()]
        if (listed := places.LISTS_OF_ACCESS.get(name)) is not None:
            rules += [None if text is None else load(text) for text in values[listed]]
        for rule in rules:
            wanted = None if rule is None else _looked_at(rule)
            await self.vault.refuse_sealed(wanted, Place("thread", "metadata"), ["authorization filter"])

    async def _document(self, value: Any, place: Place) -> Any:
        return None if value is None else await self.vault.seal_document(value, place)

    async def _text(self, value: str | None, place: Place) -> str | None:
        return None if value is None else dump_api(await self.vault.seal_document(load(value), place)).decode()

    async def _record(self, record: Mapping[str, Any], fields: Mapping[str, Place]) -> dict[str, Any]:
        return {**record, **{name: await self._document(record[name], place) for name, place in fields.items()}}

    async def decode(self, query: Query, rows: list[Record]) -> list[Any]:
        """Return the rows opened. Raises CannotDecrypt; where a run is taken, its kwargs say so instead."""
        if query.name in _UNREAD:
            return rows
        opened = await asyncio.gather(*(self._row(query.name, row) for row in rows))
        return list(opened)

    async def _row(self, name: str, row: Record) -> Any:
        changed: dict[str, Any] = {}
        for column, value in row.items():
            if column in places.BLOB_COLUMNS and value is not None:
                changed[column] = await self._blobs(row, column, value)
            elif column == "extracted" and value is not None:
                found = (await open_document(self.vault, load(value)))[0]
                changed[column] = dump_api(extracted(found)).decode()
            elif column == "reason" and _may_be_sealed(value):
                changed[column] = await self._reason(value)
            elif column in places.DOCUMENT_COLUMNS and _may_be_sealed(value):
                changed[column] = await self._open(name, row, column)
        return {**dict(row), **changed} if changed else row

    async def _open(self, name: str, row: Record, column: str) -> Any:
        value = row[column]
        is_text = isinstance(value, str)
        try:
            opened, replaced = await open_document(self.vault, load(value) if is_text else value)
        except CannotDecrypt as exc:
            if name not in _TAKES_RUNS or not isinstance(value, dict):
                raise
            return {**value, UNREADABLE: exc.message}
        if replaced and self.replacer is not None:
            self.replacer.offer(document_statements(name, row, column, replaced))
        return dump_api(opened).decode() if is_text else opened

    async def _reason(self, text: str) -> str:
        """Open a text out of a document; what only looks like an envelope is a text."""
        try:
            opened = (await open_document(self.vault, load(text)))[0]
        except (CannotDecrypt, ValueError):
            return text
        return opened if isinstance(opened, str) else text

    async def _blobs(self, row: Record, column: str, value: Any) -> Any:
        if isinstance(value, list):
            return await asyncio.gather(*(self._blob(row, column, place, one) for place, one in enumerate(value)))
        return await self._blob(row, column, 0, value)

    async def _blob(self, row: Record, column: str, place: int, stored: bytes) -> bytes:
        plain, replacement = await self.vault.open_blob(stored)
        if replacement is not None and self.replacer is not None:
            statement = blob_statement(row, column, place, (stored, replacement))
            self.replacer.offer([] if statement is None else [statement])
        return plain


def refuse_unreadable(kwargs: Mapping[str, Any]) -> None:
    """Refuse a run whose kwargs were taken and could not be decrypted. Raises CannotDecrypt."""
    if (reason := kwargs.get(UNREADABLE)) is not None:
        raise CannotDecrypt(reason)


def _looked_at(rule: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an authorization filter looks at, each with a value that it might have."""
    found = dict(rule.get("equal") or {})
    for condition in [*rule.get("rest", ()), *rule.get("of", ())]:
        if "key" in condition:
            found[condition["key"]] = condition.get("value", condition.get("values"))
        found |= _looked_at(condition)
    return found


def _may_be_sealed(value: Any) -> bool:
    return isinstance(value, (dict, list)) or (isinstance(value, str) and _MARK in value)
