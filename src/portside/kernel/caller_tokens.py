"""Caller tokens: who calls one server, signed by the platform that knows the caller, for one minute.

A token is a JSON Web Token signed with Ed25519 (RFC 7519, 8037). The issuer derives a key for each audience and day
from its master key, so that keys change daily and nothing has to be stored. It publishes the keys of yesterday, today
and tomorrow as a key set (RFC 7517). A server verifies tokens without asking the issuer, and without any secret.
"""

import base64
import binascii
import hashlib
import time
from collections.abc import Mapping, Sequence
from typing import NewType

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LIFETIME_S = 60
CLOCK_SKEW_S = 5
MAX_LENGTH = 8192
# An explicit type, so that other tokens signed with the same kind of key are never taken for one of these (RFC 8725).
TYPE = "caller+jwt"
_ALGORITHM = "EdDSA"
_DAY_S = 86_400
KeyId = NewType("KeyId", str)
_FOR_ANOTHER = "it was issued for another deployment"


class InvalidToken(Exception):
    """The text is no valid token for this audience at this time; the message says why."""


class CallerClaims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token: the audience, the user and the times in seconds since 1970."""

    aud: str
    sub: str
    iat: int
    exp: int
    email: str | None = None
    roles: list[str] = []
    permissions: list[str] = []


class PublicKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that verifies tokens, as a JSON Web Key."""

    kid: str
    x: str
    kty: str = "OKP"
    crv: str = "Ed25519"
    alg: str = _ALGORITHM
    use: str = "sig"


class PublicKeys(msgspec.Struct, frozen=True):
    """The keys that verify the tokens of an audience, as a JSON Web Key Set."""

    keys: list[PublicKey]


class _Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str
    kid: str


class TokenIssuer:
    """Signs tokens. The first master key signs; tokens of the others are still valid."""

    def __init__(self, master_keys: Sequence[bytes]) -> None:
        self._master_keys = master_keys

    def sign(self, claims: CallerClaims) -> str:
        """Return the token of these claims."""
        key = _derive(self._master_keys[0], claims.aud, claims.iat // _DAY_S)
        header = _Header(alg=_ALGORITHM, typ=TYPE, kid=_to_public(key).kid)
        content = b".".join(_encode(msgspec.json.encode(part)) for part in (header, claims))
        signature = _encode(key.sign(content))
        return b".".join((content, signature)).decode()

    def public_keys(self, audience: str) -> PublicKeys:
        """Return the keys that verify the tokens of an audience."""
        today = int(time.time()) // _DAY_S
        days = (today - 1, today, today + 1)
        return PublicKeys([_to_public(_derive(key, audience, day)) for key in self._master_keys for day in days])


def _derive(master_key: bytes, audience: str, day: int) -> Ed25519PrivateKey:
    purpose = f"caller token {audience} {day}".encode()
    derivation = HKDF(SHA256(), length=32, salt=None, info=purpose)
    return Ed25519PrivateKey.from_private_bytes(derivation.derive(master_key))


def _to_public(key: Ed25519PrivateKey) -> PublicKey:
    raw = key.public_key().public_bytes_raw()
    return PublicKey(kid=hashlib.sha256(raw).hexdigest()[:16], x=_encode(raw).decode())


def parse_key_id(text: str) -> KeyId | None:
    """Return the id of the key that a token names; None if the text is not a token of this type."""
    if len(text) > MAX_LENGTH or text.count(".") != 2:
        return None

    try:
        header = msgspec.json.decode(_decode(text.partition(".")[0]), type=_Header)
    except (InvalidToken, msgspec.DecodeError):
        return None

    if header.typ != TYPE or header.alg != _ALGORITHM:
        return None

    return KeyId(header.kid)


def verify(token: str, keys: Mapping[str, PublicKey], audience: str) -> CallerClaims:
    """Return the claims of a token. Raises InvalidToken."""
    key = keys.get(parse_key_id(token) or "")
    if key is None:
        # Each audience has keys of its own. This claim is not verified, and only selects the text.
        is_for_another = _read_audience(token) not in {None, audience}
        raise InvalidToken(_FOR_ANOTHER if is_for_another else "it was not signed by this platform")

    content, _, signature = token.rpartition(".")
    try:
        public_key = Ed25519PublicKey.from_public_bytes(_decode(key.x))
        public_key.verify(_decode(signature), content.encode())
        claims = msgspec.json.decode(_decode(content.partition(".")[2]), type=CallerClaims)
    except (InvalidSignature, ValueError, msgspec.DecodeError) as exc:
        raise InvalidToken("its signature is wrong") from exc

    _check(claims, audience)
    return claims


def _read_audience(token: str) -> str | None:
    try:
        return msgspec.json.decode(_decode(token.split(".")[1]), type=CallerClaims).aud
    except (IndexError, ValueError, msgspec.DecodeError):
        return None


def _check(claims: CallerClaims, audience: str) -> None:
    now = time.time()
    if claims.aud != audience:
        raise InvalidToken(_FOR_ANOTHER)
    if now >= claims.exp:
        raise InvalidToken("it has expired")

    # A clock that is far behind the issuer's would otherwise accept tokens for longer than they should live.
    if claims.iat > now + CLOCK_SKEW_S or claims.exp > claims.iat + LIFETIME_S:
        raise InvalidToken("it is valid for more than a minute, or one of the two clocks is wrong")


def _encode(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


def _decode(text: str) -> bytes:
    """Decode a part of a token. Raises InvalidToken."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error) as exc:
        raise InvalidToken("it is malformed") from exc
