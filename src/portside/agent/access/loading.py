"""Which authentication a server has, by its configuration and its environment.

The project's own comes first (`auth.path`), then the platform's keys where the environment says where to ask for them,
then none. A server that should have one and cannot have it does not start; one that has none is not open to other
machines unless it is told so in so many words.
"""

import ipaddress
from typing import NamedTuple

from langgraph_sdk.auth import Auth
from starlette.requests import HTTPConnection

from portside.agent.access.custom import CustomAuthentication
from portside.agent.access.handlers import Handlers
from portside.agent.access.platform_keys import PlatformKeys
from portside.agent.config import AgentConfig
from portside.agent.graphs.imports import add_to_path, import_named
from portside.agent.settings import AgentSettings
from portside.agent.types.access import ANYONE, AuthConfig, AuthOpenApi, Caller
from portside.kernel.errors import UserMistake

LABEL = "auth"
SCHEME_HEADER, STUDIO_SCHEME = "x-auth-scheme", "langsmith"

PLATFORM_SECURITY = AuthOpenApi(
    {"api_key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}}, security=[{"api_key": []}]
)


class Protection(NamedTuple):
    """Who is let in, and what they may do. Neither: everybody, and everything."""

    custom: CustomAuthentication | None = None
    platform: PlatformKeys | None = None
    handlers: Handlers | None = None
    config: AuthConfig = AuthConfig()
    judges_inside: bool = False
    """Whether what a run asks of its own server is judged as if its user asked."""

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked who they are."""
        return self.custom is None and self.platform is None

    @property
    def security(self) -> AuthOpenApi | None:
        """What the description of the API says of authentication; of their own the project says it itself."""
        is_platforms = self.custom is None and self.platform is not None
        return PLATFORM_SECURITY if is_platforms else self.config.openapi

    async def identify(self, connection: HTTPConnection) -> Caller:
        """Return who sends a request. Raises Unauthorized, PlatformSilent, and what the project's handler wants."""
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
        """Let go of what it holds."""
        if self.platform is not None:
            await self.platform.close()


OPEN = Protection()


def load_protection(config: AgentConfig, settings: AgentSettings) -> Protection:
    """Load the project's authentication, or the platform's. Raises UserMistake where one is wanted and not there."""
    section, kind = config.auth, settings.auth_type
    _refuse_contradictions(config, settings)
    platform = None
    if settings.auth_endpoint and kind != "noop" and not section.disable:
        platform = PlatformKeys(settings.auth_endpoint, settings.tenant_id)
    if section.path is None:
        return Protection(platform=platform, config=section)
    auth = _load(config, section.path)
    authenticate = auth._authenticate_handler  # noqa: SLF001 - the SDK keeps these names stable for servers
    if authenticate is None:
        raise UserMistake(f"{config.file}: auth ({section.path}) has no @authenticate handler: nobody could be let in")
    custom = CustomAuthentication(authenticate, section.cache)
    return Protection(custom, platform, Handlers(auth), section, settings.inside_calls_as_user)


def refuse_open_address(config: AgentConfig, settings: AgentSettings) -> None:
    """Refuse to listen to other machines without any authentication. Raises UserMistake that says how to have it."""
    is_told = settings.auth_type != "auto" or config.auth.disable or config.auth.path or settings.auth_endpoint
    if is_told or settings.tier == "queue" or is_loopback(settings.host):
        return
    raise UserMistake(
        f"{settings.host} is an address that other machines can reach, and this server asks nobody who they are. "
        "Configure auth.path, or set LANGSMITH_AUTH_ENDPOINT to a platform that knows your keys; or say that everybody "
        'may do everything: GRAPH_AUTH_TYPE=noop, or "auth": {"disable": true} in the configuration file'
    )


def _refuse_contradictions(config: AgentConfig, settings: AgentSettings) -> None:
    section, kind = config.auth, settings.auth_type
    if section.path is not None and (section.disable or kind in {"noop", "langsmith"}):
        what = "auth.disable" if section.disable else f"GRAPH_AUTH_TYPE={kind}"
        raise UserMistake(f"{config.file}: auth.path says how to authenticate, and {what} that it is not to be used")
    if section.path is None and kind == "custom":
        raise UserMistake(f"GRAPH_AUTH_TYPE=custom wants auth.path in {config.file}")
    if kind == "langsmith" and (section.disable or not settings.auth_endpoint):
        raise UserMistake("GRAPH_AUTH_TYPE=langsmith wants LANGSMITH_AUTH_ENDPOINT, and no auth.disable")


def _load(config: AgentConfig, path: str) -> Auth:
    auth = import_named(config, LABEL, path, add_to_path(config))
    if not isinstance(auth, Auth):
        raise UserMistake(f"{config.file}: auth ({path}) is of type {type(auth).__name__}, no langgraph_sdk.Auth")
    return auth


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's own, which no other one reaches."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
