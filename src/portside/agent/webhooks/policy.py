"""The policy for webhooks: the addresses that may be called, headers, signatures and payload.

It is read from the configuration file. An address is checked when a client names it, so that the client learns of a
refusal, and again when it is called: rules and DNS may change in between.
"""

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import httpx
import msgspec

from portside.agent.types.webhooks import PAYLOAD_FIELDS, WebhooksConfig, WebhookUrls
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, OutboundRules, get_dns_host, resolve
from portside.kernel.timeouts import timeout

# A request waits this long for the name server; an address that was not checked by then is checked when it is called.
CHECKED_WITHIN_S = 3.0
SCHEMES = {"http": 80, "https": 443}
_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
_TEMPLATE = re.compile(r"\$\{\{(.*?)\}\}")
_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
RESERVED_HEADERS = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "transfer-encoding",
        "connection",
        "webhook-id",
        "webhook-timestamp",
        "webhook-signature",
    }
)
_ENCODED = "whsec_"
MIN_SECRET_BYTES = 16


class _Variables(NamedTuple):
    """The environment variables that values of the configuration may name: those with a prefix."""

    prefix: str
    environ: Mapping[str, str]

    def fill_in(self, key: str, text: str) -> str:
        """Fill in the variables that a value names. Raises UserMistake if one may not be named, or is not set."""
        return _TEMPLATE.sub(lambda template: self._get_value(key, template), text)

    def _get_value(self, key: str, template: re.Match[str]) -> str:
        variable = _VARIABLE.fullmatch(template[1].strip())
        if variable is None or not variable[1].startswith(self.prefix):
            example = f"${{{{ env.{self.prefix}NAME }}}}"
            raise UserMistake(f"{key}: {template[0]} must name an environment variable as {example}")
        if variable[1] not in self.environ:
            raise UserMistake(
                f"{key}: the environment variable {variable[1]} is not set; set it, or remove the reference"
            )

        return self.environ[variable[1]]


class Webhooks:
    """Shared by admission, execution and delivery: the policy, and a signal that calls are due."""

    def __init__(self, policy: "WebhookPolicy") -> None:
        self.policy = policy
        self.due = asyncio.Event()


class UrlRefused(Exception):
    """A webhook's address may not be called. The message says why."""


class InProcessRoutes(Protocol):
    """The routes of the project's own application, in this process."""

    def has(self, url: str) -> bool:
        """Whether a route with this path can be called."""
        ...

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call a route and return the status."""
        ...


class WebhookPolicy(msgspec.Struct, frozen=True):
    """The rules of one server: addresses, headers, secrets, and the fields of the payload."""

    urls: WebhookUrls = WebhookUrls(require_https=False)
    headers: dict[str, str] = {}
    secrets: list[bytes] = []
    payload_fields: frozenset[str] = frozenset(PAYLOAD_FIELDS)
    is_disabled: bool = False
    own_routes: InProcessRoutes | None = None

    @property
    def rules(self) -> OutboundRules:
        """The addresses that calls may go to."""
        return OutboundRules(allow_private=not self.urls.disable_private, allow_loopback=not self.urls.disable_loopback)

    async def check(self, url: str) -> None:
        """Refuse an address that a request names and that may not be called. Raises Invalid.

        If the name cannot be resolved in time, the run is admitted: the call will check again.
        """
        if self.is_disabled:
            return

        try:
            host = self.check_syntax(url)
            if not host:
                return

            async with timeout(CHECKED_WITHIN_S):
                await resolve(host, self.rules)
        except UrlRefused as exc:
            raise Invalid.field(["body", "webhook"], str(exc)) from exc
        except HostUnknown as exc:
            raise Invalid.field(["body", "webhook"], "Webhook host blocked: DNS resolution failed") from exc
        except AddressNotAllowed as exc:
            raise Invalid.field(["body", "webhook"], f"Webhook host blocked: {exc}") from exc
        except OSError:  # TimeoutError and what name servers fail with
            return

    def check_syntax(self, url: str) -> str:
        """Check an address without resolving its host, and return the host. Raises UrlRefused.

        A path of the project's own routes has no host: it is called inside this process.
        """
        if len(url) > self.urls.max_url_length:
            raise UrlRefused(f"Webhook URL is longer than {self.urls.max_url_length} characters")
        if url.startswith("/"):
            return self._check_own_route(url)

        parts, host = _parse_url(url)
        if self.urls.require_https and parts.scheme != "https":
            raise UrlRefused("Webhook must use https")
        if self.urls.disable_loopback and (host == "localhost" or host.endswith(".localhost")):
            raise UrlRefused("Webhook host blocked: localhost address")
        if not self._is_domain_allowed(host):
            raise UrlRefused(f"Webhook host blocked: '{host}' is not one of the allowed domains")

        port = parts.port or SCHEMES[parts.scheme]
        if self.urls.allowed_ports is not None and port not in self.urls.allowed_ports:
            raise UrlRefused(f"Webhook port {port} not allowed")

        return host

    def _is_domain_allowed(self, host: str) -> bool:
        domains = self.urls.allowed_domains
        return domains is None or any(_is_in_domain(host, domain) for domain in domains)

    def _check_own_route(self, url: str) -> str:
        _refuse_forbidden_characters(url)
        if self.urls.disable_loopback:
            raise UrlRefused("Webhook must be an absolute URL: a path is allowed only if url.disable_loopback is false")
        if url.startswith("//") or self.own_routes is None or not self.own_routes.has(url):
            raise UrlRefused("Webhook must be an absolute URL, or the path of a route of the project's own application")

        return ""


def _refuse_forbidden_characters(url: str) -> None:
    if _FORBIDDEN_CHARACTERS.search(url):
        raise UrlRefused("Webhook must be a URL without spaces, backslashes and control characters")


def _parse_url(url: str) -> "tuple[httpx.URL, str]":
    """Return the parts and the host of an unambiguous address. Raises UrlRefused."""
    _refuse_forbidden_characters(url)
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as exc:
        raise UrlRefused(f"Invalid webhook URL: {exc}") from exc

    if parts.scheme and parts.scheme not in SCHEMES:
        raise UrlRefused(f"Webhook host blocked: scheme '{parts.scheme}' not allowed")

    host = get_dns_host(parts)
    if not parts.scheme or not host or "%" in host:
        raise UrlRefused(f"Invalid webhook hostname '{host}'")
    if parts.userinfo or "@" in url.split("/", 3)[2]:
        raise UrlRefused("Webhook must be a URL without user and password")
    if parts.port is not None and not 0 < parts.port <= 65_535:
        raise UrlRefused(f"Webhook port {parts.port} not allowed")

    return parts, host


def _is_in_domain(host: str, pattern: str) -> bool:
    domain = pattern.lower().removesuffix(".")
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def read_policy(
    config: WebhooksConfig | None,
    environ: Mapping[str, str],
    *,
    is_disabled: bool,
    own_routes: InProcessRoutes | None = None,
) -> WebhookPolicy:
    """Return the policy of a configuration. Raises UserMistake that names the key.

    Without a `webhooks` section addresses may be http; with one they must be https, unless it allows http.
    """
    if config is None:
        return WebhookPolicy(is_disabled=is_disabled, own_routes=own_routes)

    variables = _Variables(prefix=config.env_prefix, environ=environ)
    texts = config.signing_secret or []
    if isinstance(texts, str):
        texts = [texts]

    key = "webhooks.signing_secret"
    secret_texts = [variables.fill_in(key, text) for text in texts]

    return WebhookPolicy(
        urls=config.url,
        headers={name: _read_header(name, value, variables) for name, value in config.headers.items()},
        secrets=[read_secret(text, key) for text in secret_texts],
        payload_fields=_read_payload_fields(config),
        is_disabled=is_disabled,
        own_routes=own_routes,
    )


def _read_header(name: str, value: str, variables: "_Variables") -> str:
    key = f"webhooks.headers.{name}"
    if not _TOKEN.fullmatch(name) or name.lower() in RESERVED_HEADERS:
        raise UserMistake(
            f"{key}: this is not the name of a header that may be set; correct or remove it. The server itself sets "
            + ", ".join(sorted(RESERVED_HEADERS))
        )

    text = variables.fill_in(key, value)
    if not _VALUE.fullmatch(text):
        raise UserMistake(f"{key}: the value must be printable ASCII characters in one line, as in every HTTP header")

    return text


def _read_payload_fields(config: WebhooksConfig) -> frozenset[str]:
    all_fields = frozenset(PAYLOAD_FIELDS)
    payload = config.payload
    for key, names in (("include", payload.include), ("exclude", payload.exclude)):
        unknown = sorted(set(names or ()) - all_fields)
        if unknown:
            raise UserMistake(
                f"webhooks.payload.{key} names fields that the payload does not have: {', '.join(unknown)}; it has "
                f"{', '.join(PAYLOAD_FIELDS)}"
            )

    included = all_fields if payload.include is None else frozenset(payload.include)
    return included - frozenset(payload.exclude)


def read_secret(text: str, key: str) -> bytes:
    """Return the key of a secret: text, or `whsec_` and base64. Raises UserMistake if it is short or not base64."""
    encoded = text.removeprefix(_ENCODED)
    try:
        secret = text.encode() if encoded == text else base64.b64decode(encoded, validate=True)
    except binascii.Error as exc:
        raise UserMistake(f"{key}: the text after whsec_ is not base64") from exc

    if len(secret) < MIN_SECRET_BYTES:
        raise UserMistake(f"{key}: the secret is shorter than {MIN_SECRET_BYTES} bytes; use a longer one")

    return secret
