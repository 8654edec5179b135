"""The route that git hosts call when something is pushed."""

from uuid import UUID

from portside.control.background import Services
from portside.control.push_events import MAX_PUSH_BYTES
from portside.control.pushes import PushNotSigned, receive_push
from portside.control.scope import DesiredChanges
from portside.control.types.integrations import PushAnswer
from portside.identity.keyring import Keyring
from portside.kernel.crypto import SecretBox
from portside.kernel.errors import BodyTooLarge, Invalid
from portside.kernel.http.routes import Context, Routes

routes = Routes("integrations")


@routes.post(
    "/v1/webhooks/{integration_id}",
    public=True,
    raises=(PushNotSigned, Invalid, BodyTooLarge),
    max_body_bytes=MAX_PUSH_BYTES,
)
async def push(ctx: Context, integration_id: UUID) -> PushAnswer:
    """Take in a push event of GitHub, GitLab or Gitea; its signature is the key."""
    services = Services(ctx.db, ctx.get(SecretBox), ctx.get(Keyring), ctx.get(DesiredChanges))
    return await receive_push(services, integration_id, ctx.request.headers, await ctx.request.body())
