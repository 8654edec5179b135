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
from portside.kernel.http.proxies import Network, get_client_address
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
        names = {CallerIdentity.IP: address}

        key = headers.get("x-api-key")
        bearer = parse_bearer(headers.get("authorization"))
        if not key and bearer is not None and is_key(bearer):
            key = bearer

        if key:
            key_name = await self._find_key_name(key)
            digest = _digest(key)
            if key_name is not None or self._admits_unverified(address, digest):
                names[CallerIdentity.API_KEY] = key_name or digest

        user = headers.get("x-user-id")
        session_name = await self._find_session_name(request)
        if session_name is not None:
            names[CallerIdentity.USER] = f"{session_name} {address}"
        elif user:
            digest = _digest(user)
            if self._admits_unverified(address, digest):
                names[CallerIdentity.USER] = f"{digest} {address}"

        return names

    def address(self, scope: Any) -> str:
        """Return the address of a request's sender."""
        return get_client_address(scope, self._trusted)

    async def has_key(self, scope: Any) -> bool:
        """Whether a request has a valid key or session."""
        try:
            await self._authenticator.authenticate_request(read_credential(HTTPConnection(scope)))
        except Unauthorized:
            return False

        return True

    async def _find_key_name(self, key: str) -> str | None:
        try:
            actor = await self._authenticator.authenticate(key)
        except Unauthorized:
            return None

        return str(actor.key_id)

    async def _find_session_name(self, request: HTTPConnection) -> str | None:
        """Return the name of the user, or else the key, of the session that the request presents.

        Such a session counts even if the request presents an API key too.
        """
        token = parse_bearer(request.headers.get("authorization"))
        if token is not None and not is_key(token):
            credential = PresentedCredential("bearer", token)
        else:
            credential = read_credential(request)

        if credential.kind == "key":
            return None

        try:
            actor = await self._authenticator.authenticate_request(credential)
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

        # The address that is known for longest goes, so that a flood from many addresses takes no memory without end.
        while len(self._unverified) > MAX_ADDRESSES or self._unverified_count > MAX_UNVERIFIED:
            self._forget(next(iter(self._unverified)))

        return True

    def _forget(self, address: str) -> None:
        """Forget the unverified names of an address, if there are any."""
        _, names = self._unverified.pop(address, (0.0, set[str]()))
        self._unverified_count -= len(names)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
