"""From a request to the scope that domain calls take."""

from portside.control.scope import DesiredChanges, Scope
from portside.identity.keyring import Keyring
from portside.kernel.crypto import SecretBox
from portside.kernel.http.routes import Context


def scope_of(ctx: Context) -> Scope:
    """Put together the services and the caller of a request."""
    return Scope(ctx.db, ctx.get(SecretBox), ctx.get(Keyring), ctx.get(DesiredChanges), ctx.actor)


def reached_at(ctx: Context) -> str:
    """Return the platform's address as this client wrote it, so that it finds back through the same proxies."""
    request = ctx.request
    told = request.headers.get("x-forwarded-proto", "").split(",")[0].strip()
    scheme = told if told in {"http", "https"} else request.url.scheme
    written = request.scope["raw_path"].decode("latin-1").split("?")[0]
    return f"{scheme}://{request.url.netloc}{written.removesuffix(request.scope['path'])}"
