"""The identities of a request's sender for rate limits: API key, user and address.

A valid key is one identity. Unverified keys and users are identities too, but only a limited number per address at a
time; beyond that they share the address's budget, so inventing names gains nothing.
"""

import hashlib
import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import HTTPConnection

from portside.identity.authentication import Authenticator, PresentedCredential, is_key, read_credential
from portside.kernel.errors import Unauthorized
from portside.kernel.http.headers import parse_bearer
from portside.kernel.http.proxies import Network, client_address
from portside.limits.types import CallerIdentity

MAX_UNVERIFIED_PER_ADDRESS = 100
# Of all addresses together; they take 35 MB at most.
MAX_ADDRESSES = 20_000
MAX_UNVERIFIED = 200_000
_UNVERIFIED_FOR_S = 600.0


class Callers:
    """Identifies the callers of requests."""

    def __init__(self, authenticator: Authenticator, trusted: Sequence[Network] = ()) -> None:
        self._authenticator = authenticator
        self._trusted = trusted

        # The oldest address first, because each is remembered for the same time.
        self._unverified: dict[str, tuple[float, set[str]]] = {}
        self._unverified_count = 0

    async def names(self, scope: Any) -> dict[CallerIdentity, str]:
        """Return the identities of a request's sender, with a name for each."""
        request = HTTPConnection(scope)
        headers = request.headers
        address = self.address(scope)
        found = {CallerIdentity.IP: address}
        bearer = parse_bearer(headers.get("authorization"))
        key = headers.get("x-api-key") or (bearer if bearer is not None and is_key(bearer) else None)
        user = headers.get("x-user-id")

        if known := await self._session_name(request):
            found[CallerIdentity.USER] = f"{known} {address}"
            user = None

        if key:
            known = await self._key_name(key)
            digest = _digest(key)
            if known is not None or self._admits_unverified(address, digest):
                found[CallerIdentity.API_KEY] = known or digest

        if user and self._admits_unverified(address, name := _digest(user)):
            found[CallerIdentity.USER] = f"{name} {address}"

        return found

    def address(self, scope: Any) -> str:
        """Return the address of a request's sender."""
        return client_address(scope, self._trusted)

    async def has_key(self, scope: Any) -> bool:
        """Whether a request has a valid key or session."""
        try:
            await self._authenticator.authenticate_request(read_credential(HTTPConnection(scope)))
        except Unauthorized:
            return False

        return True

    async def _key_name(self, key: str) -> str | None:
        try:
            return str((await self._authenticator.authenticate(key)).key_id)
        except Unauthorized:
            return None

    async def _session_name(self, request: HTTPConnection) -> str | None:
        """Return the name of the user, or else the key, of the session that the request presents.

        Such a session counts even if the request presents an API key too.
        """
        token = parse_bearer(request.headers.get("authorization"))
        has_session = token is not None and not is_key(token)

        presented = PresentedCredential("bearer", token) if has_session else read_credential(request)
        if presented.kind == "key":
            return None

        try:
            actor = await self._authenticator.authenticate_request(presented)
        except Unauthorized:
            return None

        return str(actor.user_id or actor.key_id)

    def _admits_unverified(self, address: str, name: str) -> bool:
        """Whether an unverified name is within the limit of its address."""
        now = time.monotonic()
        until, names = self._unverified.get(address, (0.0, set()))
        if until <= now:
            self._forget(address)
            until = now + _UNVERIFIED_FOR_S
            names = set()
            self._unverified[address] = until, names

        if name in names:
            return True
        if len(names) >= MAX_UNVERIFIED_PER_ADDRESS:
            return False

        names.add(name)
        self._unverified_count += 1

        # The longest known address goes, so that a flood from many addresses takes no memory without end.
        while len(self._unverified) > MAX_ADDRESSES or self._unverified_count > MAX_UNVERIFIED:
            self._forget(next(iter(self._unverified)))

        return True

    def _forget(self, address: str) -> None:
        """Forget the unverified names of an address, if there are any."""
        _, names = self._unverified.pop(address, (0.0, set[str]()))
        self._unverified_count -= len(names)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
