"""What every request passes before it comes to the routes: from outside, and from inside of this process."""

import asyncio
from typing import Any

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from portside.agent.config import HttpConfig
from portside.agent.settings import AgentSettings
from portside.kernel.http.bodies import LimitBody
from portside.kernel.http.cors import Cors, CorsRules
from portside.kernel.http.front import Front
from portside.kernel.http.header_rules import ForwardHeaders
from portside.kernel.http.hosts import ANY, KnownHosts
from portside.kernel.http.prefixes import MountBelow
from portside.kernel.http.refusals import ErrorForm

ALSO_AT_ROOT = frozenset({"/ok", "/metrics"})


def from_outside(app: Any, http: HttpConfig, settings: AgentSettings, draining: asyncio.Event) -> Any:
    """Put before an application what requests of clients pass, outermost last. The file goes before the environment."""
    app = _bounded(app, http, settings)
    names = [name.strip() for name in settings.allowed_hosts.split(",") if name.strip()]
    if ANY not in names:
        app = KnownHosts(app, names)
    if prefix := http.mount_prefix or settings.mount_prefix:
        app = MountBelow(app, prefix, ALSO_AT_ROOT)
    cors = Cors(http.cors or CorsRules.of(settings.cors_allow_origins))
    app = Front(app, ErrorForm.TEXT, draining=draining, cors=cors, logged_headers=http.logging_headers)
    return ProxyHeadersMiddleware(app, settings.trusted_proxies) if settings.trusted_proxies else app


def from_inside(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    """Put before an application what calls of this process to itself pass: they know no prefix and are no web page."""
    return Front(_bounded(app, http, settings), ErrorForm.TEXT, logged_headers=http.logging_headers)


def _bounded(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    rules = http.configurable_headers
    return LimitBody(app if rules is None else ForwardHeaders(app, rules), settings.http_max_request_body_bytes)
