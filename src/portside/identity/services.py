"""The services that the routes and the guard of identity use."""

from collections.abc import Sequence
from dataclasses import dataclass

from portside.identity.authentication import Authenticator
from portside.identity.oidc import OidcProvider
from portside.identity.provisioning import AdmissionRules
from portside.identity.sessions import Origin
from portside.identity.workspaces import WorkspaceDeletionChecks
from portside.kernel.http import routes
from portside.kernel.http.proxies import Network, get_client_address

_MAX_CLIENT = 200


@dataclass(frozen=True)
class OidcSignIn:
    """The provider of OpenID Connect at which people sign in, and who of them may enter."""

    provider: OidcProvider
    rules: AdmissionRules


@dataclass(frozen=True, kw_only=True)
class IdentityServices(routes.BaseServices):
    """The services of identity."""

    authenticator: Authenticator
    deletion_checks: WorkspaceDeletionChecks
    trusted_proxies: Sequence[Network] = ()
    oidc: OidcSignIn | None = None


Context = routes.Context[IdentityServices]
Routes = routes.Routes[Context]


def read_origin(ctx: Context) -> Origin:
    """Return where a sign-in comes from: the address, and the name that the client gives itself."""
    client = ctx.request.headers.get("user-agent", "")[:_MAX_CLIENT]
    return Origin(get_client_address(ctx.scope, ctx.services.trusted_proxies), client or None)
