"""The routes of identity; `signin.py` and `oauth.py` have the pages and the routes with which people sign in."""

from portside.identity.http import callers, members, personal_keys, service_keys, sessions, workspaces
from portside.identity.services import Context
from portside.kernel.http.routes import Route

routes: list[Route[Context]] = [
    *callers.routes,
    *sessions.routes,
    *workspaces.routes,
    *members.routes,
    *service_keys.routes,
    *personal_keys.routes,
]
