"""Encrypts the rows of checkpoints before they are buffered."""

from collections.abc import Callable

from portside.agent.encryption.encryptor import Encryptor
from portside.agent.encryption.locations import (
    CHECKPOINT_BODY,
    CHECKPOINT_PIECE,
    CHECKPOINT_VALUE,
    CHECKPOINT_WRITE,
    body_binding,
    identify_row,
    piece_binding,
    value_binding,
    write_binding,
)
from portside.agent.sql.declarations import ModelField
from portside.executor.checkpoints.backend import (
    CHECKPOINT_COLUMNS,
    PIECE_COLUMNS,
    VALUE_COLUMNS,
    WRITE_COLUMNS,
    Row,
    Rows,
    complete_row,
)
from portside.kernel.codec import dump_api, load

_METADATA = (CHECKPOINT_COLUMNS.index("c_metadata"), ModelField("checkpoint", "metadata"))
_BODY = CHECKPOINT_COLUMNS.index("c_body")
_VALUE = VALUE_COLUMNS.index("v_data")
_WRITE = WRITE_COLUMNS.index("w_data")
_WRITE_CHANNEL = WRITE_COLUMNS.index("w_channel")
# The column to encrypt, the field it belongs to, and what binds the ciphertext to its row.
_Encryption = tuple[int, ModelField, Callable[[Row], bytes]]
# The first columns of each kind of row are its key.
_BODIES: _Encryption = (_BODY, CHECKPOINT_BODY, lambda row: body_binding(*row[:3]))
_VALUES: _Encryption = (_VALUE, CHECKPOINT_VALUE, lambda row: value_binding(*row[:3]))
_PIECES: _Encryption = (PIECE_COLUMNS.index("p_data"), CHECKPOINT_PIECE, lambda row: piece_binding(*row[:3]))
_WRITES: _Encryption = (_WRITE, CHECKPOINT_WRITE, lambda row: write_binding(row[:3], row[3], row[_WRITE_CHANNEL]))


async def encrypt_rows(encryptor: Encryptor, rows: Rows) -> Rows:
    """Return rows with their blobs and their metadata encrypted; the codec of the database decrypts them.

    Called before rows are buffered, in the encryption context of their run. Raises EncryptionFailed.
    """
    checkpoints = {key: complete_row(row) for key, row in rows.checkpoints.items()}
    kinds = ((checkpoints, _BODIES), (rows.values, _VALUES), (rows.pieces, _PIECES), (rows.writes, _WRITES))
    columns = (_encrypt_column(encryptor, table, encryption) for table, encryption in kinds)

    encrypted = Rows(is_encrypted=True)
    encrypted.checkpoints, encrypted.values, encrypted.pieces, encrypted.writes = await encryptor.gather(columns)

    column, field = _METADATA
    for key, row in encrypted.checkpoints.items():
        binding = identify_row({"thread_id": row[0], "checkpoint_ns": row[1]})
        document = await encryptor.encrypt_document(load(row[column]), field, binding)
        encrypted.checkpoints[key] = _replace_column(row, column, dump_api(document).decode())

    encrypted.size = rows.size
    return encrypted


async def _encrypt_column(encryptor: Encryptor, rows: dict[Row, Row], encryption: _Encryption) -> dict[Row, Row]:
    column, field, binding = encryption
    blobs = await encryptor.gather(encryptor.encrypt_blob(row[column], field, binding(row)) for row in rows.values())
    return {key: _replace_column(row, column, blob) for (key, row), blob in zip(rows.items(), blobs, strict=True)}


def _replace_column(row: Row, column: int, value: object) -> Row:
    return (*row[:column], value, *row[column + 1 :])
