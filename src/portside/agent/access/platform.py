"""Authentication by the platform: asks it about keys and logins, and verifies its tokens.

The platform alone decides about its keys, and what a deployment's `agent_access` allows. Its answers are kept for
seconds. While it does not answer, recently accepted callers are still accepted, so that agents outlive a restart of
their platform; all others are refused. A token is accepted until it expires, a minute after it was issued.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, TypeVar

import httpx
import msgspec
from cachetools import TTLCache
from starlette.requests import HTTPConnection

from portside.agent.access.users import StudioCaller, caller_from
from portside.agent.types.access import Caller
from portside.kernel.errors import Forbidden, Unauthorized, Unavailable
from portside.kernel.http.headers import bearer_of
from portside.kernel.logs import get_logger
from portside.kernel.outbound import ssl_context

T = TypeVar("T", bound=msgspec.Struct)
log = get_logger(__name__)
TIMEOUT_S = 10.0
ACCEPTED_TTL_S = 10.0
LAST_KNOWN_TTL_S = 600.0
REJECTED_TTL_S = 5.0
TOKEN_KEYS_TTL_S = 3600.0
# Anybody can invent the id of a key, so unknown ids must not make the server ask the platform each time.
ASK_FOR_TOKEN_KEYS_EVERY_S = 1.0
MAX_CACHED = 10_000
SERVER_ERROR = 500
NO_KEY = "No valid API key was sent; put one of the platform's in the X-Api-Key header."
CALL_REFUSED = "call_refused"


class PlatformSilent(Unavailable):
    """The platform did not answer whether this key is valid; try again shortly."""

    code = "platform_silent"


class CallRefused(Forbidden):
    """The deployment's `agent_access` does not let this key, login or token call the agent."""

    code = CALL_REFUSED


class PlatformIdentity(msgspec.Struct):
    """The owner of a key, as the platform answers."""

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

        Raises Unauthorized, CallRefused, and PlatformSilent if the platform does not answer.
        """
        key, authorization = connection.headers.get("x-api-key"), connection.headers.get("authorization")
        if not (key or authorization):
            raise Unauthorized(NO_KEY)
        if (caller := await self._tokens.caller_of(key or bearer_of(authorization))) is not None:
            return caller
        name = digest_of([key, authorization])
        if (caller := self._accepted.get(name)) is not None:
            return caller
        if (reason := self._rejected.get(name)) is not None:
            _refuse(reason)
        pending = self._requests.get(name)
        if pending is None:
            given = {"X-Api-Key": key} if key else {"Authorization": authorization or ""}
            pending = self._requests[name] = asyncio.ensure_future(self._request_identity(name, given))
            pending.add_done_callback(lambda _: self._requests.pop(name, None))
        return await asyncio.shield(pending)

    async def studio(self, connection: HTTPConnection) -> Caller:
        """Return the user of a request from the studio. Raises what a call raises."""
        known = await self(connection)
        return caller_from(StudioCaller(known.identity))

    async def close(self) -> None:
        """Close the connections to the platform."""
        if self._client is not None:
            await self._client.aclose()

    async def ask(self, path: str, headers: Mapping[str, str] | None = None) -> httpx.Response:
        """Return the platform's response. Raises PlatformSilent without one, and for its own errors."""
        if self._client is None:
            self._client = httpx.AsyncClient(verify=ssl_context(), timeout=TIMEOUT_S)
        try:
            answer = await self._client.get(self._endpoint + path, headers=headers)
        except httpx.HTTPError as exc:
            reason = str(exc) or type(exc).__name__
            log.warning("the platform cannot be asked about a caller", url=self._endpoint + path, reason=reason)
            raise PlatformSilent from exc
        if answer.status_code >= SERVER_ERROR:
            raise PlatformSilent
        return answer

    async def _request_identity(self, name: bytes, given: dict[str, str]) -> Caller:
        if self._tenant_id:
            given["X-Tenant-Id"] = self._tenant_id
        try:
            answer = await self.ask("/auth", given)
        except PlatformSilent:
            # The caller that the platform accepted while it last answered.
            if (caller := self._last_known.get(name)) is None:
                raise
            return caller
        if answer.status_code in {401, 403}:
            self._reject(name, _refusal_of(answer))
        identity = _read_answer(answer, PlatformIdentity)
        if self._tenant_id is not None and identity.tenant_id != self._tenant_id:
            self._reject(name, "")
        caller = _platform_caller(identity)
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


def _refusal_of(answer: httpx.Response) -> str:
    try:
        refusal = msgspec.json.decode(answer.content, type=_Refusal)
    except msgspec.DecodeError:
        return ""
    return str(refusal.detail) if refusal.error == CALL_REFUSED else ""


def _read_answer(answer: httpx.Response, kind: type[T]) -> T:
    """Return the body of a response of the platform. Raises PlatformSilent for any other response."""
    try:
        if answer.status_code == 200:
            return msgspec.json.decode(answer.content, type=kind)
    except msgspec.DecodeError as exc:
        raise PlatformSilent from exc
    log.warning("the platform cannot be asked about a caller", status=answer.status_code)
    raise PlatformSilent


def _platform_caller(known: PlatformIdentity) -> Caller:
    # Two keys may have the same short form, so it comes last.
    identity = known.user_id or known.key_id or known.short_key
    shown: dict[str, Any] = {"identity": identity, "display_name": known.user_email or known.short_key}
    if known.user_id:
        shown |= {"email": known.user_email, "roles": known.roles}
    return caller_from({**shown, "permissions": known.permissions})


class _TokenVerifier:
    """Verifies the platform's tokens for one deployment, with the platform's public keys."""

    def __init__(self, platform: PlatformAuthentication, deployment_id: str | None) -> None:
        self._platform = platform
        # No token is for a server that is not a deployment.
        self._audience = deployment_id or ""
        self._keys: Mapping[str, Any] = {}
        self._keys_until = self._ask_after = 0.0
        self._asking = asyncio.Lock()

    async def caller_of(self, credential: str | None) -> Caller | None:
        """Return the caller of a token; None for a credential that is not a token for agents.

        Raises Unauthorized for an invalid token, and PlatformSilent if there are no keys to verify it with.
        """
        if credential is None or credential.count(".") != 2:
            return None
        # Loading `cryptography` takes time that servers without tokens need not spend.
        from portside.kernel import caller_tokens

        key_id = caller_tokens.key_id_of(credential)
        if key_id is None:
            return None
        try:
            claims = caller_tokens.verify(credential, await self._keys_with(key_id), self._audience)
        except caller_tokens.InvalidToken as exc:
            raise Unauthorized(f"The token is not valid: {exc}. Get a new one from the platform.") from exc
        known = PlatformIdentity(
            user_id=claims.sub, user_email=claims.email, permissions=claims.permissions, roles=claims.roles
        )
        return _platform_caller(known)

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
        answer = await self._platform.ask("/jwks.json")
        self._keys = {key.kid: key for key in _read_answer(answer, PublicKeys).keys}
        self._keys_until = time.monotonic() + TOKEN_KEYS_TTL_S


def digest_of(parts: Iterable[str | None]) -> bytes:
    """Return a digest of credentials, as a cache key that does not keep them; the position of each counts."""
    digest = hashlib.sha256()
    for part in parts:
        raw = b"" if part is None else part.encode("latin-1", "replace")
        digest.update(b"-" if part is None else b"+%d:" % len(raw))
        digest.update(raw)
    return digest.digest()
