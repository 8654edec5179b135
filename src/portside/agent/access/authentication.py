"""Authentication: by the project's handler (`@auth.authenticate`), by keys of the platform, or none.

The project's handler comes first (`auth.path`), then the platform's keys if the environment names a platform. A server
that is configured for authentication and cannot load it does not start. A server without any listens only to its own
machine, unless the configuration says explicitly that anybody may connect.

The platform alone decides about its keys, and what a deployment's `agent_access` allows. Its responses are cached for
seconds. While it does not respond, or is too busy to, recently accepted callers are still accepted, so that agents
outlive a restart of their platform; all others are refused. Any other response that is not an identity accepts nobody.
A token is accepted until it expires, a minute after it was issued.
"""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

import httpx
import msgspec
from cachetools import TTLCache
from starlette.requests import HTTPConnection

from portside.agent.config import AgentConfig
from portside.agent.settings import AgentSettings, Tier
from portside.agent.types.access import ANYONE, IN_PROCESS, AuthCache, AuthConfig, AuthOpenApi, Caller, Filter
from portside.executor.auth import load_auth
from portside.executor.user import Identity, StudioCaller, StudioUser, read_identity
from portside.kernel.errors import Forbidden, Unauthorized, Unavailable, UserMistake
from portside.kernel.http.headers import parse_bearer
from portside.kernel.local_addresses import is_loopback
from portside.kernel.logs import get_logger
from portside.kernel.outbound import get_ssl_context

T = TypeVar("T", bound=msgspec.Struct)
log = get_logger(__name__)
PLATFORM_TIMEOUT_S = 10.0
# How long a caller is accepted without asking again, accepted while the platform does not respond, and refused again.
ACCEPTED_TTL_S = 10.0
LAST_KNOWN_TTL_S = 600.0
REJECTED_TTL_S = 5.0
TOKEN_KEYS_TTL_S = 3600.0
# Anybody can invent the id of a key, so unknown ids must not make the server ask the platform each time.
ASK_FOR_TOKEN_KEYS_EVERY_S = 1.0
MAX_CACHED = 10_000
NOT_FOUND = 404
SERVER_ERROR = 500
# Responses before the platform looked at the key: request timeout, too early, too many requests.
UNDECIDED = frozenset({408, 425, 429})
NO_KEY = "No valid API key was sent; put one of the platform's in the X-Api-Key header."
CALL_REFUSED = "call_refused"
SCHEME_HEADER = "x-auth-scheme"
STUDIO_SCHEME = "langsmith"

PLATFORM_SECURITY = AuthOpenApi(
    {"api_key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"}}, security=[{"api_key": []}]
)


# By the project's handler.


def caller_from(returned: Any) -> Caller:
    """Return the caller that authentication returned. Raises NoUser and NotAuthenticated."""
    return Caller(*read_identity(returned))


def caller_from_user(user: Mapping[str, Any]) -> Caller:
    """Return the caller of a stored user. A user without identity stands for the server's own process."""
    if not user.get("identity"):
        return IN_PROCESS

    is_studio = user.get("kind") == "StudioUser"
    return caller_from(StudioUser(user["identity"], is_authenticated=True) if is_studio else dict(user))


class ProjectAuth(Protocol):
    """The decisions of a project's `Auth` object: who the caller is, and what the caller may do."""

    @property
    def authenticate(self) -> Callable[[HTTPConnection], Awaitable[Identity]]:
        """Return the sender of a request. Raises Unauthorized, HandlerRefused and HandlerFailed."""
        ...

    @property
    def handlers(self) -> "ProjectAuthorization":
        """The authorization handlers."""
        ...


class ProjectAuthorization(Protocol):
    """The authorization handlers of the project."""

    async def decide(self, caller: Caller, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Call the handler of an action, which may change the value, and return its filter; None is no condition.

        Raises Forbidden, HandlerRefused and HandlerFailed.
        """
        ...


class CustomAuthentication:
    """Authentication by the project's handler, whose callers may be cached."""

    def __init__(
        self, identify: Callable[[HTTPConnection], Awaitable[Identity]], cache: AuthCache | None = None
    ) -> None:
        self._identify = identify
        self._keys = cache.cache_keys if cache else []
        self._cached: TTLCache[bytes, Caller] | None = None

        if cache and cache.max_size > 0:
            self._cached = TTLCache(cache.max_size, cache.ttl_seconds)

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request. Raises Unauthorized, HandlerRefused and HandlerFailed."""
        if self._cached is None:
            return Caller(*await self._identify(connection))

        credentials = [connection.headers.get(name) for name in self._keys]
        if not any(credentials):
            return Caller(*await self._identify(connection))

        key = digest_credentials(credentials)
        caller = self._cached.get(key)
        if caller is None:
            caller = self._cached[key] = Caller(*await self._identify(connection))

        return caller


# By the platform.


class PlatformSilent(Unavailable):
    """The platform did not say whether this key is valid; try again shortly."""

    code = "platform_silent"


class CallRefused(Forbidden):
    """The deployment's `agent_access` does not let this key, login or token call the agent."""

    code = CALL_REFUSED


class PlatformIdentity(msgspec.Struct):
    """The owner of a key, as the platform describes it."""

    tenant_id: str | None = None
    user_id: str | None = None
    user_email: str | None = None
    key_id: str | None = None
    short_key: str = ""
    permissions: list[str] = []
    roles: list[str] = []


class _Refusal(msgspec.Struct):
    """A refusal of the platform. Only that of a valid key has the text under `error`."""

    detail: Any = None
    error: str | None = None


class PlatformAuthentication:
    """Accepts the keys and logins of one workspace of a platform, and the tokens for one deployment."""

    def __init__(self, endpoint: str, tenant_id: str | None, deployment_id: str | None = None) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._tenant_id = tenant_id
        self._accepted: TTLCache[bytes, Caller] = TTLCache(MAX_CACHED, ACCEPTED_TTL_S)
        self._last_known: TTLCache[bytes, Caller] = TTLCache(MAX_CACHED, LAST_KNOWN_TTL_S)
        self._rejected: TTLCache[bytes, str] = TTLCache(MAX_CACHED, REJECTED_TTL_S)
        self._requests: dict[bytes, asyncio.Future[Caller]] = {}
        self._client: httpx.AsyncClient | None = None

        self._tokens = _TokenVerifier(self, deployment_id)

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return the caller of a request.

        Raises Unauthorized, CallRefused, and PlatformSilent if the platform does not respond.
        """
        key = connection.headers.get("x-api-key")
        authorization = connection.headers.get("authorization")
        if not (key or authorization):
            raise Unauthorized(NO_KEY)

        caller = await self._tokens.find_caller(key or parse_bearer(authorization))
        if caller is not None:
            return caller

        name = digest_credentials([key, authorization])
        caller = self._accepted.get(name)
        if caller is not None:
            return caller

        reason = self._rejected.get(name)
        if reason is not None:
            _refuse(reason)

        pending = self._requests.get(name)
        if pending is None:
            headers = {"X-Api-Key": key} if key else {"Authorization": authorization or ""}
            pending = self._requests[name] = asyncio.ensure_future(self._request_identity(name, headers))
            pending.add_done_callback(lambda _: self._requests.pop(name, None))

        return await asyncio.shield(pending)

    async def studio(self, connection: HTTPConnection) -> Caller:
        """Return the user of a request from the studio. Raises what a call raises."""
        caller = await self(connection)
        return caller_from(StudioCaller(caller.identity))

    async def close(self) -> None:
        """Close the connections to the platform."""
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, path: str, headers: Mapping[str, str] | None = None) -> "httpx.Response":
        """Return the platform's response. Raises PlatformSilent without one, and for one that decides nothing."""
        if self._client is None:
            self._client = httpx.AsyncClient(verify=get_ssl_context(), timeout=PLATFORM_TIMEOUT_S)

        try:
            response = await self._client.get(self._endpoint + path, headers=headers)
        except httpx.HTTPError as exc:
            reason = str(exc) or type(exc).__name__
            log.warning(
                "cannot verify a caller: the platform does not answer", url=self._endpoint + path, reason=reason
            )

            raise PlatformSilent from exc

        if response.status_code >= SERVER_ERROR or response.status_code in UNDECIDED:
            log.warning("cannot verify a caller: the platform answered with an error", status=response.status_code)
            raise PlatformSilent

        return response

    async def _request_identity(self, name: bytes, headers: dict[str, str]) -> Caller:
        if self._tenant_id:
            headers["X-Tenant-Id"] = self._tenant_id

        try:
            response = await self.ask("/auth", headers)
        except PlatformSilent:
            # Accept whom the platform accepted when it last responded.
            caller = self._last_known.get(name)
            if caller is None:
                raise
            return caller

        if response.status_code == NOT_FOUND and response.headers.get("content-type") == "application/json":
            # The platform's own: the deployment is deleted, or the key's workspace does not have it. A proxy's page
            # says nothing of the key.
            log.warning("a caller is refused: the platform has no such deployment", url=self._endpoint)
            self._reject(name, "")

        if response.status_code in {401, 403}:
            self._reject(name, _read_refusal(response))

        identity = _read_response(response, PlatformIdentity)
        if self._tenant_id is not None and identity.tenant_id != self._tenant_id:
            self._reject(name, "")

        caller = _to_caller(identity)
        self._accepted[name] = caller
        self._last_known[name] = caller

        return caller

    def _reject(self, name: bytes, reason: str) -> NoReturn:
        self._rejected[name] = reason
        self._last_known.pop(name, None)
        _refuse(reason)


def _refuse(reason: str) -> NoReturn:
    """Refuse a caller; with a reason it has a valid key, which may not call this agent."""
    if reason:
        raise CallRefused(reason)
    raise Unauthorized(NO_KEY)


def _read_refusal(response: "httpx.Response") -> str:
    try:
        refusal = msgspec.json.decode(response.content, type=_Refusal)
    except msgspec.DecodeError:
        return ""

    return str(refusal.detail) if refusal.error == CALL_REFUSED else ""


def _read_response(response: "httpx.Response", kind: type[T]) -> T:
    """Return the body of a response of the platform. Raises PlatformSilent for any other response."""
    try:
        if response.status_code == 200:
            return msgspec.json.decode(response.content, type=kind)
    except msgspec.DecodeError as exc:
        raise PlatformSilent from exc

    log.warning("cannot verify a caller: the platform answered with an error", status=response.status_code)
    raise PlatformSilent


def _to_caller(owner: PlatformIdentity) -> Caller:
    user: dict[str, Any] = {
        # Two keys may have the same short form, so it comes last.
        "identity": owner.user_id or owner.key_id or owner.short_key,
        "display_name": owner.user_email or owner.short_key,
    }
    if owner.user_id:
        user["email"] = owner.user_email
        user["roles"] = owner.roles

    user["permissions"] = owner.permissions
    return caller_from(user)


class _TokenVerifier:
    """Verifies the platform's tokens for one deployment, with the platform's public keys."""

    def __init__(self, platform: PlatformAuthentication, deployment_id: str | None) -> None:
        self._platform = platform
        # The platform issues tokens for deployments only: a server that is none accepts no token.
        self._audience = deployment_id or ""
        self._keys: Mapping[str, Any] = {}
        self._keys_until = 0.0
        self._ask_after = 0.0
        self._asking = asyncio.Lock()

    async def find_caller(self, credential: str | None) -> Caller | None:
        """Return the caller of a token; None for a credential that is not a token for agents.

        Raises Unauthorized for an invalid token, and PlatformSilent if there are no keys to verify it with.
        """
        if credential is None or credential.count(".") != 2:
            return None

        # Loading `cryptography` takes time that servers without tokens need not spend.
        from portside.kernel import caller_tokens

        key_id = caller_tokens.parse_key_id(credential)
        if key_id is None:
            return None

        try:
            claims = caller_tokens.verify(credential, await self._keys_with(key_id), self._audience)
        except caller_tokens.InvalidToken as exc:
            raise Unauthorized(f"The token is not valid: {exc}. Get a new one from the platform.") from exc

        owner = PlatformIdentity(
            user_id=claims.sub, user_email=claims.email, permissions=claims.permissions, roles=claims.roles
        )

        return _to_caller(owner)

    async def _keys_with(self, key_id: str) -> Mapping[str, Any]:
        """Return the current keys, after asking the platform for an unknown one. Raises PlatformSilent."""
        if not self._has(key_id):
            async with self._asking:
                if not self._has(key_id) and time.monotonic() >= self._ask_after:
                    await self._fetch()

        if time.monotonic() >= self._keys_until:
            raise PlatformSilent

        return self._keys

    def _has(self, key_id: str) -> bool:
        return key_id in self._keys and time.monotonic() < self._keys_until

    async def _fetch(self) -> None:
        from portside.kernel.caller_tokens import PublicKeys

        self._ask_after = time.monotonic() + ASK_FOR_TOKEN_KEYS_EVERY_S
        response = await self._platform.ask("/jwks.json")
        self._keys = {key.kid: key for key in _read_response(response, PublicKeys).keys}
        self._keys_until = time.monotonic() + TOKEN_KEYS_TTL_S


def digest_credentials(parts: Iterable[str | None]) -> bytes:
    """Return a digest of credentials, as a cache key that does not keep them; the position of each counts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = b"" if part is None else part.encode("latin-1", "replace")
        digest.update(b"-" if part is None else b"+%d:" % len(raw))
        digest.update(raw)

    return digest.digest()


# By the configuration.


class AccessPolicy(NamedTuple):
    """The authentication and the authorization of a server. Without both, anybody may do everything."""

    custom: CustomAuthentication | None = None
    platform: PlatformAuthentication | None = None
    handlers: ProjectAuthorization | None = None
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


def load_access_policy(config: AgentConfig, settings: AgentSettings, auth: ProjectAuth | None = None) -> AccessPolicy:
    """Return the authentication that is configured; `auth` is the project's, which is imported here if it is not given.

    Raises UserMistake if it cannot be loaded.
    """
    refuse_contradictions(config, settings)

    section = config.auth
    platform = None
    if settings.auth_endpoint and settings.auth_type != "noop" and not section.disable:
        platform = PlatformAuthentication(settings.auth_endpoint, settings.tenant_id, settings.deployment_id)

    if section.path is None:
        return AccessPolicy(platform=platform, config=section)

    auth = auth or load_auth(config.project, section.path)
    return AccessPolicy(
        custom=CustomAuthentication(auth.authenticate, section.cache),
        platform=platform,
        handlers=auth.handlers,
        config=section,
        calls_as_user=settings.inside_calls_as_user,
    )


def refuse_open_address(config: AgentConfig, settings: AgentSettings) -> None:
    """Refuse to listen to other machines without authentication. Raises UserMistake that says how to configure it."""
    is_decided = settings.auth_type != "auto" or config.auth.disable or config.auth.path or settings.auth_endpoint
    if is_decided or settings.tier == Tier.QUEUE or is_loopback(settings.host):
        return

    raise UserMistake(
        f"{settings.host} is an address that other machines can reach, and this server has no authentication. "
        "Configure auth.path, or set LANGSMITH_AUTH_ENDPOINT to a platform that knows your keys; or allow "
        'everybody to do everything: GRAPH_AUTH_TYPE=noop, or "auth": {"disable": true} in the configuration file'
    )


def refuse_contradictions(config: AgentConfig, settings: AgentSettings) -> None:
    """Refuse a configuration that both asks for authentication and turns it off. Raises UserMistake."""
    section = config.auth
    kind = settings.auth_type
    if section.path is not None and (section.disable or kind in {"noop", "langsmith"}):
        what = "auth.disable" if section.disable else f"GRAPH_AUTH_TYPE={kind}"
        raise UserMistake(
            f"{config.file}: auth.path names an authentication handler, and {what} turns it off; remove one of them"
        )

    if section.path is None and kind == "custom":
        raise UserMistake(f"GRAPH_AUTH_TYPE=custom requires auth.path in {config.file}")

    if kind == "langsmith" and (section.disable or not settings.auth_endpoint):
        raise UserMistake(
            "GRAPH_AUTH_TYPE=langsmith requires LANGSMITH_AUTH_ENDPOINT and excludes auth.disable; set the endpoint, "
            f"and remove auth.disable from {config.file}"
        )
