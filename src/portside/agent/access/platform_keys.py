"""The platform's keys: who a key or a login stands for is asked of the platform, and remembered for a while.

The platform's answer decides and nothing else. Where it does not answer, those are let in for a while whom it knew when
it last did, so that agents outlive a restart of their platform; nobody else is.
"""

import asyncio
from typing import Any, NoReturn

import httpx2
import msgspec
from starlette.requests import HTTPConnection

from portside.agent.access.memory import Remembered, digest_of
from portside.agent.access.users import FromStudio, caller_from
from portside.agent.types.access import Caller
from portside.kernel.errors import Unauthorized, Unavailable
from portside.kernel.logs import get_logger

log = get_logger(__name__)
ANSWERED_WITHIN_S = 10.0
REMEMBERED_S = 60.0
KNOWN_S = 600.0
REFUSED_S = 5.0
REMEMBERED_AT_MOST = 10_000
SILENT = 500
NO_KEY = "No valid API key was sent; put one of the platform's in the X-Api-Key header."


class PlatformSilent(Unavailable):
    """The platform does not say whether this key is valid; try again shortly."""

    code = "platform_silent"


class Known(msgspec.Struct):
    """Whom a key stands for, as the platform says it."""

    tenant_id: str | None = None
    user_id: str | None = None
    user_email: str | None = None
    key_id: str | None = None
    short_key: str = ""
    permissions: list[str] = []


class PlatformKeys:
    """Accepts the keys and logins of one workspace of a platform."""

    def __init__(self, endpoint: str, tenant_id: str | None) -> None:
        self._url = f"{endpoint.rstrip('/')}/auth"
        self._tenant_id = tenant_id
        self._let_in = Remembered[Caller](ttl_s=REMEMBERED_S, most=REMEMBERED_AT_MOST)
        self._known = Remembered[Caller](ttl_s=KNOWN_S, most=REMEMBERED_AT_MOST)
        self._turned_away = Remembered[bool](ttl_s=REFUSED_S, most=REMEMBERED_AT_MOST)
        self._asked: dict[bytes, asyncio.Future[Caller]] = {}
        self._client: httpx2.AsyncClient | None = None

    async def __call__(self, connection: HTTPConnection) -> Caller:
        """Return who sends a request. Raises Unauthorized, and PlatformSilent where nobody can tell."""
        key, authorization = connection.headers.get("x-api-key"), connection.headers.get("authorization")
        if not (key or authorization):
            raise Unauthorized(NO_KEY)
        name = digest_of([key, authorization])
        if (caller := self._let_in.get(name)) is not None:
            return caller
        if self._turned_away.get(name):
            raise Unauthorized(NO_KEY)
        asking = self._asked.get(name)
        if asking is None:
            given = {"X-Api-Key": key} if key else {"Authorization": authorization or ""}
            asking = self._asked[name] = asyncio.ensure_future(self._ask(name, given))
            asking.add_done_callback(lambda _: self._asked.pop(name, None))
        return await asyncio.shield(asking)

    async def studio(self, connection: HTTPConnection) -> Caller:
        """Return the person who sends a request from the studio. Raises as a call does."""
        known = await self(connection)
        return caller_from(FromStudio(known.identity))

    async def close(self) -> None:
        """Let go of the connections to the platform."""
        if self._client is not None:
            await self._client.aclose()

    async def _ask(self, name: bytes, given: dict[str, str]) -> Caller:
        if self._tenant_id:
            given["X-Tenant-Id"] = self._tenant_id
        if self._client is None:
            self._client = httpx2.AsyncClient(timeout=ANSWERED_WITHIN_S)
        try:
            answer = await self._client.get(self._url, headers=given)
        except httpx2.HTTPError as exc:
            log.warning("the platform does not answer for keys", url=self._url, reason=str(exc) or type(exc).__name__)
            return self._known_before(name, exc)
        if answer.status_code >= SILENT:
            return self._known_before(name)
        if answer.status_code in {401, 403}:
            self._refuse(name)
        known = _read(answer)
        if self._tenant_id is not None and known.tenant_id != self._tenant_id:
            self._refuse(name)
        caller = _caller(known)
        self._let_in.put(name, caller)
        self._known.put(name, caller)
        return caller

    def _refuse(self, name: bytes) -> NoReturn:
        self._turned_away.put(name, True)
        self._known.drop(name)
        raise Unauthorized(NO_KEY)

    def _known_before(self, name: bytes, cause: Exception | None = None) -> Caller:
        """Return whom the platform knew when it last answered. Raises PlatformSilent."""
        caller = self._known.get(name)
        if caller is None:
            raise PlatformSilent from cause
        return caller


def _read(answer: Any) -> Known:
    try:
        if answer.status_code == 200:
            return msgspec.json.decode(answer.content, type=Known)
    except msgspec.DecodeError as exc:
        raise PlatformSilent from exc
    log.warning("the platform does not answer for keys", status=answer.status_code)
    raise PlatformSilent


def _caller(known: Known) -> Caller:
    # A key's short form may be that of another key as well.
    identity = known.user_id or known.key_id or known.short_key
    shown = {"identity": identity, "display_name": known.user_email or known.short_key}
    return caller_from({**shown, "permissions": known.permissions})
