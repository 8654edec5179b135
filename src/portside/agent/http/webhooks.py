"""What became of telling the end of a run."""

from uuid import UUID

from portside.agent.access.service import Access, caller_of
from portside.agent.threads.records import ThreadNotFound
from portside.agent.types.webhooks import WebhookDelivery
from portside.agent.webhooks.records import DeliveryNotFound, WebhookLog
from portside.kernel.http.routes import Context, Routes

routes = Routes("runs")


@routes.get("/threads/{thread_id}/runs/{run_id}/webhook", raises=(DeliveryNotFound, ThreadNotFound))
async def get_webhook_delivery(ctx: Context, thread_id: UUID, run_id: UUID) -> WebhookDelivery:
    """Tell what became of the webhook of a run that ended, attempt by attempt."""
    await ctx.get(Access).see_thread(caller_of(ctx), "read", thread_id)
    return await ctx.get(WebhookLog).get(thread_id, run_id)
