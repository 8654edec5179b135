"""The master key of the database's encrypted values: check it, read them all, and change to another key.

Columns of encrypted values end in `_sealed`. `secrets.py` encrypts and decrypts the secrets of one revision.
"""

from collections.abc import AsyncIterator

import msgspec

from portside.control.secrets import decode_secrets
from portside.control.sql import sql
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database, Query
from portside.kernel.ids import uuid7

BATCH = 200
_CHECK = b"the right master key"
_CHECK_COLUMN = ("master_key_check", "check_sealed")
# All of the database, also those of packages above this one: a value that is not in here is lost with an older key.
COLUMNS = (
    ("deployments", "service_key_sealed"),
    ("deployments", "secrets_sealed"),
    ("revisions", "secrets_sealed"),
    ("integrations", "token_sealed"),
    ("integrations", "webhook_secret_sealed"),
    ("alert_channels", "target_sealed"),
    _CHECK_COLUMN,
)


async def check_master_key(db: Database, box: SecretBox) -> None:
    """Raise UserMistake if the box cannot decrypt this database's values; store a check value for the next start."""
    check = await db.fetchrow(sql.read_master_key_check)
    if check is not None:
        box.decrypt(check["encrypted"], str(check["id"]))
        return

    # The database has no check value yet: try the key on one value of each column.
    for table, column in COLUMNS:
        for row in await db.fetch(_adapt_to_column(sql.sealed_values, table, column), key_id=b"", limit=1):
            box.decrypt(row["encrypted"], str(row["id"]))

    check_id = uuid7()
    await db.execute(sql.write_master_key_check, id=check_id, encrypted=box.encrypt(_CHECK, str(check_id)))


async def open_all(db: Database, box: SecretBox) -> int:
    """Decrypt every value of the database and return their number. Raises UserMistake for one that does not open."""
    return len([plain async for plain in _decrypt_all(db, box)])


async def read_all_values(db: Database, box: SecretBox) -> list[str]:
    """Return the values of all secrets, tokens and service keys in clear text, so that they can be masked elsewhere.

    Raises UserMistake for a value that the box does not decrypt.
    """
    values: list[str] = []
    async for plain in _decrypt_all(db, box):
        try:
            values += [secret.value for secret in decode_secrets(plain)]
        except msgspec.MsgspecError:
            values.append(plain.decode("utf-8", "replace"))

    return values


async def _decrypt_all(db: Database, box: SecretBox) -> AsyncIterator[bytes]:
    for table, column in COLUMNS:
        for row in await db.fetch(_adapt_to_column(sql.sealed_values, table, column), key_id=b"", limit=None):
            yield box.decrypt(row["encrypted"], str(row["id"]))


async def reencrypt(db: Database, box: SecretBox) -> int:
    """Encrypt all values of older keys with the box's current key; return how many there were.

    Raises UserMistake for a value that none of the box's keys decrypts.
    """
    return sum([await _reencrypt_column(db, box, table, column) for table, column in COLUMNS])


async def _reencrypt_column(db: Database, box: SecretBox, table: str, column: str) -> int:
    read = _adapt_to_column(sql.sealed_values, table, column)
    replace = _adapt_to_column(sql.replace_sealed_value, table, column)

    count = 0
    while True:
        async with db.transaction() as tx:
            rows = await tx.fetch(read, key_id=box.key_id, limit=BATCH)
            for row in rows:
                owner = str(row["id"])
                plain = box.decrypt(row["encrypted"], owner)
                await tx.execute(replace, id=row["id"], encrypted=box.encrypt(plain, owner))

        count += len(rows)
        if len(rows) < BATCH:
            return count


def _adapt_to_column(query: Query, table: str, column: str) -> Query:
    """Return a statement of `key_rotation.sql`, which is written for `_CHECK_COLUMN`, for another column."""
    check_table, check_column = _CHECK_COLUMN
    return query.with_identifiers({check_table: table, check_column: column})
