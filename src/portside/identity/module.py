"""The manifest of identity."""

from portside.identity import http, oauth, signin
from portside.identity.services import IdentityServices
from portside.kernel.modules import Module

module = Module[IdentityServices](
    package="portside.identity",
    routes=[*http.routes, *signin.routes, *oauth.routes],
    has_migrations=True,
)
