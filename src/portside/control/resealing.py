"""Sealing everything anew after the master key was changed, in batches that can be stopped after any of them.

Every sealed column of this room is in `COLUMNS`; a test compares them with the schema.
"""

from portside.control.sql import sql
from portside.kernel.crypto import SecretBox
from portside.kernel.db import Database
from portside.kernel.queries import Query

BATCH = 200
COLUMNS: dict[tuple[str, str], tuple[Query, Query]] = {
    ("deployments", "service_key_sealed"): (sql.deployment_keys_to_reseal, sql.reseal_deployment_key),
    ("deployments", "secrets_sealed"): (sql.deployment_secrets_to_reseal, sql.reseal_deployment_secrets),
    ("revisions", "secrets_sealed"): (sql.revision_secrets_to_reseal, sql.reseal_revision_secrets),
    ("integrations", "token_sealed"): (sql.integration_tokens_to_reseal, sql.reseal_integration_token),
    ("integrations", "webhook_secret_sealed"): (sql.webhook_secrets_to_reseal, sql.reseal_webhook_secret),
}


async def reseal(db: Database, box: SecretBox) -> int:
    """Seal with the box's own key what was sealed with an older one; return how many values that were.

    Raises UserMistake for a value that none of its keys opens.
    """
    return sum([await _reseal_column(db, box, find, change) for find, change in COLUMNS.values()])


async def _reseal_column(db: Database, box: SecretBox, find: Query, change: Query) -> int:
    resealed = 0
    while True:
        async with db.transaction() as tx:
            rows = await tx.fetch(find, key_id=box.key_id, limit=BATCH)
            for row in rows:
                owner = str(row["id"])
                await tx.execute(change, id=row["id"], sealed=box.seal(box.open(row["sealed"], owner), owner))
        resealed += len(rows)
        if len(rows) < BATCH:
            return resealed
