"""The middleware in front of the routes: for requests of clients, and for calls of this process to itself."""

import asyncio
from typing import Any

from portside.agent.config import HttpConfig
from portside.agent.http.services import Traffic
from portside.agent.settings import AgentSettings
from portside.kernel.http.body_size import LimitBody
from portside.kernel.http.cors import Cors, CorsRules
from portside.kernel.http.error_responses import ErrorFormat
from portside.kernel.http.forwarded_headers import ForwardHeaders
from portside.kernel.http.hosts import ANY, AllowedHosts
from portside.kernel.http.middleware import RequestMiddleware
from portside.kernel.http.prefixes import MountBelow
from portside.kernel.http.proxies import ForwardedHeaders
from portside.kernel.settings import split_names

ALSO_AT_ROOT = frozenset({"/ok", "/metrics"})


def wrap_for_clients(
    app: Any, http: HttpConfig, settings: AgentSettings, *, draining: asyncio.Event, traffic: Traffic
) -> Any:
    """Wrap an application for requests of clients, outermost last. The configuration file wins over the environment."""
    app = _limit_requests(app, http, settings)
    names = split_names(settings.allowed_hosts)
    if ANY not in names:
        app = AllowedHosts(app, names)

    prefix = http.mount_prefix or settings.mount_prefix
    if prefix:
        app = MountBelow(app, prefix, ALSO_AT_ROOT)

    cors = Cors(http.cors or CorsRules.of(settings.cors_allow_origins))
    app = RequestMiddleware(
        app,
        ErrorFormat.TEXT,
        draining=draining,
        cors=cors,
        logged_headers=http.logging_headers,
        activity=traffic,
    )

    if settings.trusted_proxies:
        app = ForwardedHeaders(app, settings.trusted_proxies)

    return app


def wrap_for_own_calls(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    """Wrap an application for calls of this process to itself, which need neither a prefix nor CORS."""
    return RequestMiddleware(
        _limit_requests(app, http, settings), ErrorFormat.TEXT, logged_headers=http.logging_headers
    )


def _limit_requests(app: Any, http: HttpConfig, settings: AgentSettings) -> Any:
    if http.configurable_headers is not None:
        app = ForwardHeaders(app, http.configurable_headers)

    return LimitBody(
        app,
        settings.http_max_request_body_bytes,
        max_values=settings.http_max_request_body_values,
    )
