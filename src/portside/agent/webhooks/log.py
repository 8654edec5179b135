"""The deliveries of webhooks, as clients see them."""

from uuid import UUID

import msgspec

from portside.agent.sql import sql
from portside.agent.types.webhooks import DeliveryAttempt, WebhookDelivery
from portside.kernel.clock import iso
from portside.kernel.db import Database
from portside.kernel.errors import NotFound


class DeliveryNotFound(NotFound):
    """The run has no webhook delivery: it names no webhook, has not ended, or ended too long ago."""

    code = "webhook_delivery_not_found"


class WebhookLog:
    """The deliveries of webhooks, as clients see them."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, thread_id: UUID, run_id: UUID) -> WebhookDelivery:
        """Return the delivery of the end of a run. Raises DeliveryNotFound."""
        row = await self._db.fetchrow(sql.get_webhook_delivery, run_id=run_id, thread_id=thread_id)
        if row is None:
            raise DeliveryNotFound

        next_at = row["next_attempt_at"]
        return WebhookDelivery(
            run_id=row["run_id"],
            url=row["url"],
            status=row["status"],
            attempts=msgspec.convert(row["log"], list[DeliveryAttempt]),
            next_attempt_at=None if next_at is None else iso(next_at),
        )
