"""Sign-in with OpenID Connect: the authorization code flow with PKCE, at one provider that the operator configured.

`begin` sends the browser to the provider; a short-lived encrypted cookie binds state and nonce to this browser.
`finish` exchanges the code and checks the ID token. `provisioning.py` turns its claims into a member.
"""

import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec

from portside.kernel.crypto import SecretBox
from portside.kernel.errors import Forbidden, Unauthorized, Unavailable, UserMistake
from portside.kernel.local_addresses import is_loopback
from portside.kernel.outbound import HostUnknown, OutboundResponse, OutboundRules, exchange

T = TypeVar("T", bound=msgspec.Struct)
FLOW_S = 600
LEEWAY_S = 60
# How long metadata and keys of the provider are used, and how often an unknown key may have them read again.
CACHE_S = 3600.0
RENEW_S = 30.0
# Only signatures that the provider alone can make: with HS256, its public key would be the secret.
ALGORITHMS = (
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
)
RULES = OutboundRules(allow_private=True, allow_loopback=True, timeout_s=10, max_bytes=512 * 1024)
_OWNER = "a sign-in with OpenID Connect"
_SCOPE = "openid email profile"


class OidcRefused(Unauthorized):
    """The sign-in at the provider did not succeed; try again."""

    code = "oidc_refused"


class OidcNotAllowed(Forbidden):
    """The provider knows you, but you may not use this platform; ask an administrator of it."""

    code = "oidc_not_allowed"


class OidcUnavailable(Unavailable):
    """The sign-in provider does not respond as it should; try again later."""

    code = "oidc_unavailable"


class OidcClient(msgspec.Struct, frozen=True):
    """The registration of this platform at a provider."""

    issuer: str
    client_id: str
    client_secret: str | None = None

    def __repr__(self) -> str:
        return f"OidcClient({self.issuer!r}, {self.client_id!r})"


class PendingSignIn(msgspec.Struct, frozen=True):
    """The content of the browser's cookie while the user signs in at the provider."""

    state: str
    nonce: str
    verifier: str
    redirect_uri: str
    next: str
    began_at: float


class ProviderReturn(msgspec.Struct, frozen=True):
    """The query with which the provider redirects the browser back."""

    state: str = ""
    code: str = ""
    error: str = ""
    iss: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """The parts of the provider's discovery document that are used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class Tokens(msgspec.Struct, frozen=True):
    """The response of the token endpoint."""

    id_token: str
    access_token: str | None = None


class Claims(msgspec.Struct, frozen=True):
    """The claims of an ID token that must be there, beside those that providers may add."""

    iss: str
    sub: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    aud: str | list[str]
    exp: float
    iat: float
    nonce: str | None = None
    azp: str | None = None
    nbf: float | None = None


class SignInStart(NamedTuple):
    """The address at the provider, and the value of the cookie."""

    url: str
    cookie: str


class CompletedSignIn(NamedTuple):
    """The verified claims, and the path to which the browser goes."""

    claims: dict[str, Any]
    next: str


class OidcProvider:
    """One provider. Its metadata and keys are read when they are first needed, and kept for an hour."""

    def __init__(self, client: OidcClient, box: SecretBox) -> None:
        check_url(client.issuer, "setting OIDC_ISSUER")
        self.client = client
        self._box = box
        self._metadata: tuple[float, Metadata] | None = None
        self._keys: tuple[float, Any] | None = None

    @property
    def name(self) -> str:
        """The provider's name on the button: its host."""
        return urlsplit(self.client.issuer).hostname or self.client.issuer

    async def begin(self, redirect_uri: str, target: str) -> SignInStart:
        """Begin a sign-in. Raises OidcUnavailable."""
        metadata = await self._get_metadata()
        flow = PendingSignIn(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            redirect_uri=redirect_uri,
            next=target,
            began_at=time.time(),
        )

        query = {
            "response_type": "code",
            "client_id": self.client.client_id,
            "redirect_uri": redirect_uri,
            "scope": _SCOPE,
            "state": flow.state,
            "nonce": flow.nonce,
            "code_challenge": to_challenge(flow.verifier),
            "code_challenge_method": "S256",
        }

        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        encrypted = self._box.encrypt(msgspec.json.encode(flow), _OWNER)
        return SignInStart(
            url=f"{metadata.authorization_endpoint}{separator}{urlencode(query)}",
            cookie=base64.urlsafe_b64encode(encrypted).decode().rstrip("="),
        )

    async def finish(self, cookie: str | None, returned: ProviderReturn) -> CompletedSignIn:
        """Finish a sign-in. Raises OidcRefused and OidcUnavailable."""
        flow = self._open_cookie(cookie)
        if not hmac.compare_digest(flow.state.encode(), returned.state.encode()):
            raise OidcRefused("This sign-in did not begin in this browser; try again.")
        if returned.error or not returned.code:
            raise OidcRefused("The provider did not sign you in; try again.")

        metadata = await self._get_metadata()
        if returned.iss and returned.iss != metadata.issuer:
            raise OidcRefused("The response came from another provider; try again.")

        tokens = await self._redeem_code(metadata, returned.code, flow)
        claims = await self.verify(tokens.id_token, flow.nonce)
        if metadata.userinfo_endpoint and tokens.access_token and "email" not in claims:
            user_info = await self._fetch_user_info(metadata.userinfo_endpoint, tokens.access_token, claims)
            claims = {**user_info, **claims}

        return CompletedSignIn(claims, flow.next)

    def _open_cookie(self, cookie: str | None) -> PendingSignIn:
        try:
            padded = (cookie or "") + "=" * (-len(cookie or "") % 4)
            plain = self._box.decrypt(base64.urlsafe_b64decode(padded), _OWNER)
            flow = msgspec.json.decode(plain, type=PendingSignIn)
        except (ValueError, UserMistake, msgspec.MsgspecError) as exc:
            raise OidcRefused("This sign-in did not begin in this browser; try again.") from exc

        if not 0 <= time.time() - flow.began_at <= FLOW_S:
            raise OidcRefused("This sign-in took too long; try again.")

        return flow

    async def _redeem_code(self, metadata: Metadata, code: str, flow: PendingSignIn) -> Tokens:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": flow.redirect_uri,
            "code_verifier": flow.verifier,
        }

        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        client = self.client
        if client.client_secret is None:
            form["client_id"] = client.client_id
        elif "client_secret_basic" in metadata.token_endpoint_auth_methods_supported:
            pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": client.client_id, "client_secret": client.client_secret}

        response = await _send("POST", metadata.token_endpoint, headers, urlencode(form).encode())
        if response.status in {400, 401}:
            raise OidcRefused("The provider did not accept the code; try again.")

        return _decode(response.body, response.status, Tokens)

    async def verify(self, id_token: str, nonce: str) -> dict[str, Any]:
        """Return the claims of a valid ID token. Raises OidcRefused and OidcUnavailable."""
        claims = await self._read_signed_claims(id_token)
        try:
            standard_claims = msgspec.convert(claims, Claims)
        except msgspec.ValidationError as exc:
            raise OidcRefused(f"The ID token lacks a claim, or has an invalid one: {exc}.") from exc

        metadata = await self._get_metadata()
        client_id = self.client.client_id
        now = time.time()
        audience = [standard_claims.aud] if isinstance(standard_claims.aud, str) else standard_claims.aud
        is_only_audience = standard_claims.azp is None and len(audience) == 1
        is_for_us = client_id in audience and (standard_claims.azp == client_id or is_only_audience)

        problems = {
            "is of another issuer": standard_claims.iss != metadata.issuer,
            "is for another client": not is_for_us,
            "has expired": standard_claims.exp <= now - LEEWAY_S,
            "is not valid yet": max(standard_claims.iat, standard_claims.nbf or 0) > now + LEEWAY_S,
            "belongs to another sign-in": not hmac.compare_digest(
                (standard_claims.nonce or "").encode(), nonce.encode()
            ),
        }
        for problem, is_present in problems.items():
            if is_present:
                raise OidcRefused(f"The ID token {problem}; begin the sign-in again.")

        return claims

    async def _read_signed_claims(self, id_token: str) -> dict[str, Any]:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        for is_last in (False, True):
            keys = await self._get_keys(renew=is_last)
            try:
                return dict(jwt.decode(id_token, keys, list(ALGORITHMS)).claims)
            except InvalidKeyIdError as exc:
                # The provider may have changed its keys since they were read.
                if is_last:
                    raise OidcRefused("The ID token is signed with an unknown key.") from exc
            except (JoseError, ValueError, TypeError) as exc:
                raise OidcRefused("The signature of the ID token is not valid.") from exc

        raise AssertionError("the second attempt returns or raises")

    async def _get_keys(self, *, renew: bool) -> Any:
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet

        max_age_s = RENEW_S if renew else CACHE_S
        if self._keys is None or time.monotonic() - self._keys[0] > max_age_s:
            metadata = await self._get_metadata()
            body = await self._fetch(metadata.jwks_uri)
            try:
                keys = KeySet.import_key_set(msgspec.json.decode(body))
            except (JoseError, ValueError, KeyError, TypeError) as exc:
                raise OidcUnavailable from exc

            self._keys = (time.monotonic(), keys)

        return self._keys[1]

    async def _get_metadata(self) -> Metadata:
        if self._metadata is not None and time.monotonic() - self._metadata[0] < CACHE_S:
            return self._metadata[1]

        issuer = self.client.issuer.rstrip("/")
        body = await self._fetch(f"{issuer}/.well-known/openid-configuration")
        metadata = _decode(body, 200, Metadata)
        if metadata.issuer.rstrip("/") != issuer:
            raise OidcUnavailable("The provider's metadata name another issuer than the setting OIDC_ISSUER.")

        urls = (
            metadata.authorization_endpoint,
            metadata.token_endpoint,
            metadata.jwks_uri,
            metadata.userinfo_endpoint,
        )
        for url in urls:
            if url is not None:
                try:
                    check_url(url, "the provider's metadata")
                except UserMistake as exc:
                    raise OidcUnavailable(str(exc)) from exc

        self._metadata = (time.monotonic(), metadata)
        return metadata

    async def _fetch_user_info(self, url: str, token: str, claims: Mapping[str, Any]) -> dict[str, Any]:
        body = await self._fetch(url, {"Authorization": f"Bearer {token}"})
        user_info = _decode_object(body)
        if user_info.get("sub") != claims["sub"]:
            raise OidcRefused("The ID token and the user info of the provider are of different users; try again.")

        return user_info

    async def _fetch(self, url: str, headers: Mapping[str, str] | None = None) -> bytes:
        response = await _send("GET", url, {"Accept": "application/json", **(headers or {})}, None)
        if response.status != 200:
            raise OidcUnavailable

        return response.body


async def _send(method: str, url: str, headers: Mapping[str, str], body: bytes | None) -> OutboundResponse:
    """Send a request to the provider. Raises OidcUnavailable for an unknown host: users did not give its name."""
    try:
        return await exchange(method, url, headers=headers, body=body, rules=RULES)
    except HostUnknown as exc:
        raise OidcUnavailable(exc.message) from exc


def check_url(url: str, where: str) -> None:
    """Raise UserMistake for an address without TLS, except on this machine."""
    parts = urlsplit(url)
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname))
    if not is_safe or not parts.hostname or "@" in parts.netloc or parts.fragment:
        # The message has neither the user nor the password, which may be secret.
        safe_url = url.rpartition("@")[2]
        raise UserMistake(f"{where}: {safe_url} must be an https address without user, password and fragment")


def to_challenge(verifier: str) -> str:
    """Return the PKCE challenge (S256) of a verifier."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).decode().rstrip("=")


def _decode(body: bytes, status: int, kind: type[T]) -> T:
    try:
        if status == 200:
            return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as exc:
        raise OidcUnavailable from exc

    raise OidcUnavailable


def _decode_object(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as exc:
        raise OidcUnavailable from exc
