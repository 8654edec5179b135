"""Sealing what a graph remembers before it is staged, while it is known whose run it is of.

Reading it back is left to the database session, whose codec opens what it finds sealed.
"""

import asyncio
from typing import Any

from portside.agent.checkpoints.rows import CHECKPOINT_COLUMNS, VALUE_COLUMNS, WRITE_COLUMNS, Row, Rows
from portside.agent.encryption.handlers import Place
from portside.agent.encryption.vault import Vault
from portside.kernel.codec import dump_api, load

_METADATA = (CHECKPOINT_COLUMNS.index("c_metadata"), Place("checkpoint", "metadata"))
_BODY = (CHECKPOINT_COLUMNS.index("c_body"), Place("checkpoint", "checkpoint"))
_VALUE = (VALUE_COLUMNS.index("v_data"), Place("checkpoint", "channel_values"))
_WRITE = (WRITE_COLUMNS.index("w_data"), Place("checkpoint", "writes"))


async def sealed_rows(vault: Vault, rows: Rows) -> Rows:
    """Return rows with their blobs and their metadata sealed. Raises EncryptionFailed."""
    sealed = Rows()
    sealed.checkpoints, sealed.values, sealed.writes = await asyncio.gather(
        _each(vault, rows.checkpoints, _BODY), _each(vault, rows.values, _VALUE), _each(vault, rows.writes, _WRITE)
    )
    column, place = _METADATA
    for key, row in sealed.checkpoints.items():
        document = await vault.seal_document(load(row[column].text()), place)
        sealed.checkpoints[key] = _with(row, column, dump_api(document).decode())
    sealed.size = rows.size
    return sealed


async def _each(vault: Vault, rows: dict[Row, Row], sealing: tuple[int, Place]) -> dict[Row, Row]:
    column, place = sealing
    blobs = await asyncio.gather(*(vault.seal_blob(row[column], place) for row in rows.values()))
    return {key: _with(row, column, blob) for (key, row), blob in zip(rows.items(), blobs, strict=True)}


def _with(row: Row, column: int, value: Any) -> Row:
    return (*row[:column], value, *row[column + 1 :])
