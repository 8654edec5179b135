"""Who sends a request, as far as budgets go: the names that it has as a key, as a user and as an address.

A key that is good is one identity for ever. Keys and users that nobody vouches for are identities as well, but only so
many from one address at a time; beyond that they share the budget of the address, and made-up names gain nothing.
"""

import hashlib
import ipaddress
import time
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers

from portside.identity.guard import bearer_of
from portside.identity.keyring import Keyring
from portside.kernel.errors import Unauthorized, UserMistake
from portside.limits.types import Identity

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
STRANGERS_OF_ONE_ADDRESS = 100
_REMEMBER_STRANGERS_S = 600.0
_ADDRESSES_AT_MOST = 20_000
_UNKNOWN = "unknown"


def read_networks(text: str) -> list[Network]:
    """Read addresses and networks that are separated by commas. Raises UserMistake."""
    try:
        return [ipaddress.ip_network(part.strip(), strict=False) for part in text.split(",") if part.strip()]
    except ValueError as exc:
        raise UserMistake(f"setting TRUSTED_PROXIES: {exc}") from exc


def client_address(scope: Any, trusted: Sequence[Network]) -> str:
    """Return the address that a request comes from.

    `X-Forwarded-For` is believed as far as trusted proxies wrote it: the last address in it that is not one of them.
    IPv6 callers own a whole /64, so that is what they are known by.
    """
    peer = (scope.get("client") or (_UNKNOWN,))[0]
    forwarded = [part.strip() for value in Headers(scope=scope).getlist("x-forwarded-for") for part in value.split(",")]
    while forwarded and _is_in(peer, trusted):
        peer = forwarded.pop()
    return _canonical(peer)


def _is_in(address: str, networks: Sequence[Network]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)


def _canonical(address: str) -> str:
    try:
        parsed = ipaddress.ip_address(address.strip("[]"))
    except ValueError:
        return _UNKNOWN
    if parsed.version == 6:
        return str(ipaddress.ip_network((parsed, 64), strict=False)) if parsed.ipv4_mapped is None else _v4(parsed)
    return str(parsed)


def _v4(address: ipaddress.IPv6Address) -> str:
    return str(address.ipv4_mapped)


class Callers:
    """Names the callers of requests."""

    def __init__(self, keyring: Keyring, trusted: Sequence[Network] = ()) -> None:
        self._keyring, self._trusted = keyring, trusted
        self._strangers: dict[str, tuple[float, set[str]]] = {}

    async def names(self, scope: Any) -> dict[Identity, str]:
        """Return the identities of a request's sender, and the name of each."""
        headers = Headers(scope=scope)
        address = client_address(scope, self._trusted)
        found = {Identity.IP: address}
        key, user = headers.get("x-api-key"), headers.get("x-user-id")
        if (token := bearer_of(headers.get("authorization"))) and (known := await self._user_name(token)):
            found[Identity.USER] = f"{known} {address}"
            user = None
        if key:
            known, digest = await self._key_name(key), _digest(key)
            if known is not None or self._admits(address, digest):
                found[Identity.API_KEY] = known or digest
        if user and self._admits(address, name := _digest(user)):
            found[Identity.USER] = f"{name} {address}"
        return found

    async def _key_name(self, key: str) -> str | None:
        try:
            return str((await self._keyring.authenticate(key)).key_id)
        except Unauthorized:
            return None

    async def _user_name(self, token: str) -> str | None:
        try:
            return str((await self._keyring.authenticate_login(token)).user_id)
        except Unauthorized:
            return None

    def _admits(self, address: str, name: str) -> bool:
        """Whether a name that nobody vouches for is one of the few that its address may have."""
        now = time.monotonic()
        until, names = self._strangers.get(address, (0.0, set()))
        if until <= now:
            if len(self._strangers) >= _ADDRESSES_AT_MOST:
                self._strangers.clear()
            until, names = now + _REMEMBER_STRANGERS_S, set()
            self._strangers[address] = until, names
        if name not in names and len(names) >= STRANGERS_OF_ONE_ADDRESS:
            return False
        names.add(name)
        return True


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
