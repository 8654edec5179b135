"""Authentication: by the project's handler (`@auth.authenticate`), by keys of the platform, or none.

The project's handler comes first (`auth.path`), then the platform's keys if the environment names a platform. A server
that is configured for authentication and cannot load it does not start. A server without any listens only to its own
machine, unless the configuration says explicitly that anybody may connect. `platform.py` asks the platform.
"""

import asyncio
import inspect
import ipaddress
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from cachetools import TTLCache
from langgraph_sdk.auth import Auth
from starlette.requests import HTTPConnection, Request

from portside.agent.access.authorization import AuthorizationHandlers, HandlerFailed, refusal_of
from portside.agent.access.platform import PlatformAuthentication, digest_of
from portside.agent.access.users import NotAuthenticated, NoUser, caller_from
from portside.agent.config import AgentConfig
from portside.agent.graphs.imports import add_to_path, import_named
from portside.agent.settings import AgentSettings
from portside.agent.types.access import ANYONE, AuthCache, AuthConfig, AuthOpenApi, Caller
from portside.kernel.errors import Unauthorized, UserMistake
from portside.kernel.logs import get_logger

log = get_logger(__name__)
HANDLER_TIMEOUT_S = 30.0
UNAUTHORIZED = "Unauthorized"


async def _body(connection: HTTPConnection) -> Any:
    if not isinstance(connection, Request):
        return {}
    try:
        return json.loads(await connection.body() or b"{}")
    except ValueError:
        return {}


class _Headers(dict[bytes, bytes]):
    """The headers of a request as handlers get them: bytes for a name in bytes, and a string for a string."""

    @classmethod
    def of(cls, connection: HTTPConnection) -> "_Headers":
        """Return the headers of a request; of several with one name, the last."""
        return cls(connection.scope["headers"])

    def __missing__(self, name: Any) -> Any:
        return self[_header_name(name)].decode("latin-1")

    def __contains__(self, name: object) -> bool:
        return super().__contains__(_header_name(name) if isinstance(name, str) else name)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a header, or the default."""
        return self[name] if name in self else default  # noqa: SIM401 - this is what that would call


def _header_name(name: Any) -> bytes:
    if not isinstance(name, str):
        raise KeyError(name)
    return name.lower().encode("latin-1", "replace")


_ARGUMENTS: dict[str, Callable[[HTTPConnection], Any]] = {
    "request": lambda connection: connection,
    "body": _body,
    "path": lambda connection: connection.scope["path"],
    "method": lambda connection: connection.scope.get("method", "GET"),
    "path_params": lambda connection: dict(connection.scope.get("path_params") or {}),
    "query_params": lambda connection: dict(connection.query_params),
    "headers": _Headers.of,
    "authorization": lambda connection: connection.headers.get("authorization"),
}


class CustomAuthentication:
    """Calls the project's handler. Raises UserMistake for a handler with unknown parameters."""

    def __init__(self, handler: Callable[..., Any], cache: AuthCache | None = None) -> None:
        self._handler = handler
        self._parameters = _parameters_of(handler)
        self._keys = cache.cache_keys if cache else []
        self._cached: TTLCache[bytes, Caller] | None = None
        if cache and cache.max_size > 0:
            self._cached = TTLCache(cache.max_size, cache.ttl_seconds)

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request. Raises Unauthorized, HandlerRefused and HandlerFailed."""
        if self._cached is None:
            return await self._authenticate(connection)
        given = [connection.headers.get(name) for name in self._keys]
        if not any(given):
            return await self._authenticate(connection)
        key = digest_of(given)
        caller = self._cached.get(key)
        if caller is None:
            caller = await self._authenticate(connection)
            self._cached[key] = caller
        return caller

    async def _authenticate(self, connection: HTTPConnection) -> Caller:
        try:
            async with asyncio.timeout(HANDLER_TIMEOUT_S):
                return caller_from(await self._call(connection))
        except (AssertionError, NotAuthenticated) as exc:
            raise Unauthorized(UNAUTHORIZED) from exc
        except NoUser as exc:
            log.error("authentication returned no user", reason=str(exc))  # noqa: TRY400 - there is nothing to trace
            raise HandlerFailed from exc
        except Exception as exc:
            if refusal := refusal_of(exc):
                raise refusal from exc
            log.exception("authentication failed")
            raise HandlerFailed from exc

    async def _call(self, connection: HTTPConnection) -> Any:
        arguments: Mapping[str, Any] = {name: _ARGUMENTS[name](connection) for name in self._parameters}
        arguments = {name: await value if inspect.isawaitable(value) else value for name, value in arguments.items()}
        if not inspect.iscoroutinefunction(inspect.unwrap(self._handler)):
            # A handler that is not async may block, and would block the event loop.
            answer = await asyncio.to_thread(self._handler, **arguments)
            return await answer if isinstance(answer, Awaitable) else answer
        return await self._handler(**arguments)


def _parameters_of(handler: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments that a handler takes."""
    parameters = inspect.signature(handler).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return [name for name in _ARGUMENTS if name != "body"]
    unknown = [
        parameter.name
        for parameter in parameters
        if parameter.name not in _ARGUMENTS
        and parameter.default is parameter.empty
        and parameter.kind is not parameter.VAR_POSITIONAL
    ]
    if unknown:
        raise UserMistake(
            f"the authenticate handler has unknown parameters: {', '.join(unknown)}; "
            f"it may take {', '.join(_ARGUMENTS)}"
        )
    return [parameter.name for parameter in parameters if parameter.name in _ARGUMENTS]


AUTH_LABEL = "auth"
SCHEME_HEADER, STUDIO_SCHEME = "x-auth-scheme", "langsmith"

PLATFORM_SECURITY = AuthOpenApi(
    {"api_key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}}, security=[{"api_key": []}]
)


class AccessPolicy(NamedTuple):
    """The authentication and the authorization of a server. Without both, anybody may do everything."""

    custom: CustomAuthentication | None = None
    platform: PlatformAuthentication | None = None
    handlers: AuthorizationHandlers | None = None
    config: AuthConfig = AuthConfig()
    calls_as_user: bool = False
    """Whether a run's calls to its own server are authorized as those of its user."""

    @property
    def is_open(self) -> bool:
        """Whether there is no authentication."""
        return self.custom is None and self.platform is None

    @property
    def security(self) -> AuthOpenApi | None:
        """The authentication in the OpenAPI document; a project describes its own in `auth.openapi`."""
        uses_platform = self.custom is None and self.platform is not None
        return PLATFORM_SECURITY if uses_platform else self.config.openapi

    async def identify(self, connection: HTTPConnection) -> Caller:
        """Return the caller. Raises what the platform's authentication and the project's handler raise."""
        if self.custom is None:
            return ANYONE if self.platform is None else await self.platform(connection)
        if self.platform is None:
            return await self.custom(connection)
        is_studio = connection.headers.get(SCHEME_HEADER) == STUDIO_SCHEME
        if is_studio and not self.config.disable_studio_auth:
            return await self.platform.studio(connection)
        if self.config.allow_langsmith_api_keys and connection.headers.get("x-api-key"):
            return await self.platform(connection)
        return await self.custom(connection)

    async def close(self) -> None:
        """Close the connections to the platform."""
        if self.platform is not None:
            await self.platform.close()


OPEN = AccessPolicy()


def load_access_policy(config: AgentConfig, settings: AgentSettings) -> AccessPolicy:
    """Load the authentication that is configured. Raises UserMistake if it cannot be loaded."""
    section, kind = config.auth, settings.auth_type
    _refuse_contradictions(config, settings)
    platform = None
    if settings.auth_endpoint and kind != "noop" and not section.disable:
        platform = PlatformAuthentication(settings.auth_endpoint, settings.tenant_id, settings.deployment_id)
    if section.path is None:
        return AccessPolicy(platform=platform, config=section)
    auth = _load_auth(config, section.path)
    authenticate = auth._authenticate_handler  # noqa: SLF001 - the SDK keeps these names stable for servers
    if authenticate is None:
        raise UserMistake(
            f"{config.file}: auth ({section.path}) has no @authenticate handler, so every request would be refused"
        )
    custom = CustomAuthentication(authenticate, section.cache)
    return AccessPolicy(custom, platform, AuthorizationHandlers(auth), section, settings.inside_calls_as_user)


def refuse_open_address(config: AgentConfig, settings: AgentSettings) -> None:
    """Refuse to listen to other machines without authentication. Raises UserMistake that says how to configure it."""
    is_decided = settings.auth_type != "auto" or config.auth.disable or config.auth.path or settings.auth_endpoint
    if is_decided or settings.tier == "queue" or is_loopback(settings.host):
        return
    raise UserMistake(
        f"{settings.host} is an address that other machines can reach, and this server has no authentication. "
        "Configure auth.path, or set LANGSMITH_AUTH_ENDPOINT to a platform that knows your keys; or allow "
        'everybody to do everything: GRAPH_AUTH_TYPE=noop, or "auth": {"disable": true} in the configuration file'
    )


def _refuse_contradictions(config: AgentConfig, settings: AgentSettings) -> None:
    section, kind = config.auth, settings.auth_type
    if section.path is not None and (section.disable or kind in {"noop", "langsmith"}):
        what = "auth.disable" if section.disable else f"GRAPH_AUTH_TYPE={kind}"
        raise UserMistake(
            f"{config.file}: auth.path names an authentication, and {what} turns it off; remove one of them"
        )
    if section.path is None and kind == "custom":
        raise UserMistake(f"GRAPH_AUTH_TYPE=custom requires auth.path in {config.file}")
    if kind == "langsmith" and (section.disable or not settings.auth_endpoint):
        raise UserMistake("GRAPH_AUTH_TYPE=langsmith requires LANGSMITH_AUTH_ENDPOINT, and excludes auth.disable")


def _load_auth(config: AgentConfig, path: str) -> Auth:
    auth = import_named(config, AUTH_LABEL, path, add_to_path(config))
    if not isinstance(auth, Auth):
        raise UserMistake(f"{config.file}: auth ({path}) is of type {type(auth).__name__}; export a langgraph_sdk.Auth")
    return auth


def is_loopback(host: str) -> bool:
    """Whether an address can be reached only from the same machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
