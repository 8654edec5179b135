"""Which addresses may be called for a run, and what each call carries, by the configuration file.

An address is judged when a run is asked for, so that its client learns of it, and again when it is called: rules and
names change in between.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Protocol

import httpx2
import msgspec

from portside.agent.types.webhooks import PAYLOAD_FIELDS, WebhooksConfig, WebhookUrls
from portside.agent.webhooks.signing import read_secret
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.outbound import AddressNotAllowed, HostUnknown, OutboundRules, host_of, resolve

JUDGED_WITHIN_S = 3.0
SCHEMES = {"http": 80, "https": 443}
_TEMPLATE = re.compile(r"\$\{\{(.*?)\}\}")
_VARIABLE = re.compile(r"env\.([A-Za-z_][A-Za-z0-9_]*)")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_UNFIT = re.compile(r"[\x00-\x20\x7f\\]")
OURS = frozenset({
    "host", "content-length", "content-type", "transfer-encoding", "connection", "webhook-id", "webhook-timestamp",
    "webhook-signature",
})  # fmt: skip


class Webhooks:
    """What those who make runs, execute them and call webhooks share: the policy, and a sign that calls are owed."""

    def __init__(self) -> None:
        self.policy = WebhookPolicy()
        self.owed = asyncio.Event()


class UrlRefused(Exception):
    """A webhook's address may not be called; the message says why."""


class OwnRoutes(Protocol):
    """The routes of the project's own application, in this process."""

    def has(self, url: str) -> bool:
        """Whether there is one of this path that can be called."""
        ...

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        """Call one and return the status."""
        ...


class WebhookPolicy(msgspec.Struct, frozen=True):
    """The rules of one server: addresses, headers, secrets, and what is told."""

    urls: WebhookUrls = WebhookUrls(require_https=False)
    headers: dict[str, str] = {}
    secrets: list[bytes] = []
    told: frozenset[str] = frozenset(PAYLOAD_FIELDS)
    is_disabled: bool = False
    own: OwnRoutes | None = None

    @property
    def rules(self) -> OutboundRules:
        """Where calls may lead."""
        return OutboundRules(allow_private=not self.urls.disable_private, allow_loopback=not self.urls.disable_loopback)

    async def check(self, url: str | None) -> None:
        """Refuse an address that a request names and that may not be called. Raises Invalid.

        Where nobody can tell now what a name stands for, the run is not held up: the call will look again.
        """
        if url is None or self.is_disabled:
            return
        try:
            if not (host := self.judge(url)):
                return
            async with asyncio.timeout(JUDGED_WITHIN_S):
                await resolve(host, self.rules)
        except UrlRefused as exc:
            raise Invalid.field(["body", "webhook"], str(exc)) from exc
        except HostUnknown as exc:
            raise Invalid.field(["body", "webhook"], "Webhook host blocked: DNS resolution failed") from exc
        except AddressNotAllowed as exc:
            raise Invalid.field(["body", "webhook"], f"Webhook host blocked: {exc}") from exc
        except OSError:  # TimeoutError and what name servers fail with
            return

    def judge(self, url: str) -> str:
        """Return the host of an address that obeys the rules, short of what the host stands for.

        A path that is a route of the project's own has none, and is called inside. Raises UrlRefused.
        """
        if len(url) > self.urls.max_url_length:
            raise UrlRefused(f"Webhook URL is longer than {self.urls.max_url_length} characters")
        if url.startswith("/"):
            return self._judge_own(url)
        parts, host = _read(url)
        if self.urls.require_https and parts.scheme != "https":
            raise UrlRefused("Webhook must use https")
        if self.urls.disable_loopback and (host == "localhost" or host.endswith(".localhost")):
            raise UrlRefused("Webhook host blocked: localhost address")
        if self.urls.allowed_domains is not None and not any(_fits(host, one) for one in self.urls.allowed_domains):
            raise UrlRefused(f"Webhook host blocked: '{host}' is not one of the allowed domains")
        port = parts.port or SCHEMES[parts.scheme]
        if self.urls.allowed_ports is not None and port not in self.urls.allowed_ports:
            raise UrlRefused(f"Webhook port {port} not allowed")
        return host

    def _judge_own(self, url: str) -> str:
        _refuse_unfit(url)
        if self.urls.disable_loopback:
            raise UrlRefused("Webhook must be a whole address: a path is called where url.disable_loopback is false")
        if url.startswith("//") or self.own is None or not self.own.has(url):
            raise UrlRefused(
                "Webhook must be a whole address, or the path of a route of this project's own application"
            )
        return ""


def _refuse_unfit(url: str) -> None:
    if _UNFIT.search(url):
        raise UrlRefused("Webhook must be an address without spaces, backslashes and control characters")


def _read(url: str) -> tuple[httpx2.URL, str]:
    """Return the parts and the host of an address that can mean only one thing. Raises UrlRefused."""
    _refuse_unfit(url)
    try:
        parts = httpx2.URL(url)
    except httpx2.InvalidURL as exc:
        raise UrlRefused(f"Invalid webhook URL: {exc}") from exc
    if parts.scheme and parts.scheme not in SCHEMES:
        raise UrlRefused(f"Webhook host blocked: scheme '{parts.scheme}' not allowed")
    host = host_of(parts)
    if not parts.scheme or not host or "%" in host:
        raise UrlRefused(f"Invalid webhook hostname '{host}'")
    if parts.userinfo or "@" in url.split("/", 3)[2]:
        raise UrlRefused("Webhook must be an address without user and password")
    if parts.port is not None and not 0 < parts.port <= 65_535:
        raise UrlRefused(f"Webhook port {parts.port} not allowed")
    return parts, host


def _fits(host: str, allowed: str) -> bool:
    domain = allowed.lower().removesuffix(".")
    return host.endswith(domain[1:]) if domain.startswith("*.") else host == domain


def read_policy(config: WebhooksConfig | None, environ: Mapping[str, str], *, is_disabled: bool) -> WebhookPolicy:
    """Return the rules that a configuration makes. Raises UserMistake that names the key.

    Without a section addresses need not be https; with one they do unless it says otherwise.
    """
    if config is None:
        return WebhookPolicy(is_disabled=is_disabled)
    given = config.signing_secret or []
    key = "webhooks.signing_secret"
    secrets = [
        _filled(key, each, config.env_prefix, environ) for each in ([given] if isinstance(given, str) else given)
    ]
    return WebhookPolicy(
        urls=config.url,
        headers=dict(_header(name, value, config.env_prefix, environ) for name, value in config.headers.items()),
        secrets=[read_secret(each, key) for each in secrets],
        told=_told(config),
        is_disabled=is_disabled,
    )


def _header(name: str, value: str, prefix: str, environ: Mapping[str, str]) -> tuple[str, str]:
    key = f"webhooks.headers.{name}"
    if not _TOKEN.fullmatch(name) or name.lower() in OURS:
        raise UserMistake(f"{key}: this is no name of a header that may be set")
    filled = _filled(key, value, prefix, environ)
    if not _VALUE.fullmatch(filled):
        raise UserMistake(f"{key}: the value has line breaks or other characters that a header cannot hold")
    return name, filled


def _filled(key: str, text: str, prefix: str, environ: Mapping[str, str]) -> str:
    """Fill in the variables that a value names. Raises UserMistake for one that may not be named, or is not set."""

    def value(template: re.Match[str]) -> str:
        named = _VARIABLE.fullmatch(template[1].strip())
        if named is None or not named[1].startswith(prefix):
            raise UserMistake(f"{key}: {template[0]} must name a variable as env.{prefix}…")
        if named[1] not in environ:
            raise UserMistake(f"{key}: the environment has no variable {named[1]}; set it, or leave that out")
        return environ[named[1]]

    return _TEMPLATE.sub(value, text)


def _told(config: WebhooksConfig) -> frozenset[str]:
    known, told = frozenset(PAYLOAD_FIELDS), config.payload
    for key, names in (("include", told.include), ("exclude", told.exclude)):
        if unknown := sorted(set(names or ()) - known):
            raise UserMistake(f"webhooks.payload.{key}: {', '.join(unknown)} is not told of a run")
    return (known if told.include is None else frozenset(told.include)) - frozenset(told.exclude)
