"""The routes that say whom a key or a session belongs to."""

from portside.identity.services import Context, Routes
from portside.identity.types import Actor, Identity, PublicIdentity

routes = Routes("identity", works_on_full_disk=True)


@routes.get("/auth")
async def get_identity(ctx: Context) -> Identity:
    """Return the identity of the key or session."""
    return Identity.of(ctx.actor)


@routes.get("/auth/public")
async def get_public_identity(ctx: Context) -> PublicIdentity:
    """Return the identity of the key or session in a short form."""
    actor: Actor = ctx.actor
    return PublicIdentity(
        organization_id=actor.organization_id,
        tenant_id=actor.workspace,
        user_id=actor.user_id,
        user_email=actor.user_email,
        ls_user_id=actor.user_id,
    )
