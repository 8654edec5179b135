"""From a request to the scope that domain calls take."""

from portside.control.scope import DesiredChanges, Scope
from portside.identity.keys import Keyring
from portside.kernel.crypto import SecretBox
from portside.kernel.http.routes import Context


def scope_of(ctx: Context) -> Scope:
    """Put together the services and the caller of a request."""
    return Scope(ctx.db, ctx.get(SecretBox), ctx.get(Keyring), ctx.get(DesiredChanges), ctx.actor)
