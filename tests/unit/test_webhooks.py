"""Allowed webhook addresses, and the contents of a call."""

import base64
import hashlib
import hmac
import json
import socket
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from portside.agent.types.webhooks import WebhooksConfig, WebhookUrls
from portside.agent.webhooks import policy as webhook_policy
from portside.agent.webhooks.deliveries import RetryPolicy
from portside.agent.webhooks.policy import UrlRefused, WebhookPolicy, read_policy, read_secret
from portside.kernel.errors import Invalid, UserMistake
from portside.kernel.outbound import OutboundRules, build_signature_headers

SECRET = "a secret of enough bytes"


def policy(environ: dict[str, str] | None = None, **section: Any) -> WebhookPolicy:
    return read_policy(msgspec.convert(section, WebhooksConfig), environ or {}, is_disabled=False)


def mistake(environ: dict[str, str] | None = None, **section: Any) -> str:
    with pytest.raises(UserMistake) as caught:
        policy(environ, **section)
    return str(caught.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "hostname"),
        ("not a url", "without spaces"),
        ("x", "hostname"),
        ("//example.com/x", "absolute URL"),
        ("/hook", "absolute URL"),
        ("http:///x", "hostname"),
        ("http://", "hostname"),
        ("ftp://example.com", "scheme 'ftp'"),
        ("file:///etc/passwd", "scheme 'file'"),
        ("gopher://a/", "scheme"),
        ("javascript:alert(1)", "scheme"),
        ("http://user@example.com/", "user and password"),
        ("http://user:pass@example.com/", "user and password"),
        ("http://@example.com/", "user and password"),
        ("http://127.0.0.1\\@example.com/", "backslashes"),
        ("http://example.com/\r\nX-A: 1", "control characters"),
        ("http://example.com/ x", "spaces"),
        ("http://exa\tmple.com/", "spaces"),
        ("http://exa\x00mple.com/", "spaces"),
        ("http://[fe80::1%25eth0]/", "hostname"),
        ("http://a%2eb/", "hostname"),
        ("http://example.com:0/", "port"),
        ("http://example.com:99999/", "port"),
        ("http://example.com:x/", "Invalid webhook URL"),
        ("http://localhost/", "localhost address"),
        ("http://LOCALHOST./", "localhost address"),
        ("http://a.localhost/", "localhost address"),
        ("http://[::1/", "Invalid webhook URL"),
    ],
)
def test_ambiguous_addresses_are_refused(url: str, reason: str) -> None:
    with pytest.raises(UrlRefused, match=reason):
        WebhookPolicy().check_syntax(url)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "127。0。0。1",
        "127.0.0.1.",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "10.1.2.3",
        "192.168.0.1",
        "[fd00::1]",
        "169.254.169.254",
        "[::ffff:169.254.169.254]",
        "0.0.0.0",
        "0",
        "224.0.0.1",
        "192.0.2.1",
    ],
)
async def test_addresses_inside_are_refused_however_they_are_spelled(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_policy, "CHECKED_WITHIN_S", 3600.0)
    with pytest.raises(Invalid, match=r"Webhook host blocked|Invalid IPv4"):
        await WebhookPolicy().check(f"http://{host}:8000/x")


async def test_networks_are_opened_one_by_one_and_reserved_ones_never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_policy, "CHECKED_WITHIN_S", 3600.0)
    loopback = policy(url={"disable_loopback": False})
    private = policy(url={"disable_private": False})
    await loopback.check("https://127.0.0.1/")
    await private.check("https://10.0.0.1/")

    for open_policy, url in ((loopback, "https://10.0.0.1/"), (private, "https://127.0.0.1/")):
        with pytest.raises(Invalid, match="blocked"):
            await open_policy.check(url)

    both = policy(url={"disable_loopback": False, "disable_private": False, "require_https": False})
    for metadata in ("169.254.169.254", "[fd00:ec2::254]", "100.100.100.200"):
        with pytest.raises(Invalid, match="blocked"):
            await both.check(f"http://{metadata}/latest/meta-data")


async def test_rules_of_addresses() -> None:
    urls = {"allowed_domains": ["*.example.com", "Example.org"], "allowed_ports": [443, 8443], "max_url_length": 60}
    strict = policy(url=urls)
    for fine in ("https://a.example.com/x", "https://a.b.example.com:8443/", "https://EXAMPLE.org./"):
        assert strict.check_syntax(fine)

    for refused, reason in (
        ("https://example.com/", "allowed domains"),
        ("https://notexample.com/", "allowed domains"),
        ("https://example.org.evil.test/", "allowed domains"),
        ("https://example.org:444/", "port 444"),
        ("http://example.org:8443/", "must use https"),
        ("http://example.org/", "must use https"),
        ("https://example.org/" + "x" * 41, "longer than 60"),
    ):
        with pytest.raises(UrlRefused, match=reason):
            strict.check_syntax(refused)

    only_8443 = policy(url={"allowed_ports": [8443]})
    assert only_8443.check_syntax("https://example.com:8443/")
    with pytest.raises(UrlRefused, match="port 443"):
        only_8443.check_syntax("https://example.com/")

    assert strict.check_syntax("https://example.org/" + "x" * 40)
    assert WebhookPolicy().check_syntax("http://example.com/") == "example.com"
    assert policy(url={"require_https": False}).check_syntax("http://example.com/")

    # Nothing is checked that will not be called.
    await read_policy(None, {}, is_disabled=True).check("ftp://nowhere")


class OwnRoutes:
    """The routes of an application: one of them takes a POST, under any prefix."""

    def has(self, url: str) -> bool:
        return url.endswith("/hook")

    async def post(self, url: str, headers: Mapping[str, str], body: bytes, within_s: float) -> int:
        raise AssertionError("only the address is checked")


def test_a_path_is_allowed_only_where_this_machine_is() -> None:
    open_to_itself = WebhookUrls(require_https=True, disable_loopback=False)
    assert WebhookPolicy(open_to_itself, own_routes=OwnRoutes()).check_syntax("/hook") == ""
    for policy_of_paths, url in (
        (WebhookPolicy(own_routes=OwnRoutes()), "/hook"),
        (WebhookPolicy(open_to_itself, own_routes=OwnRoutes()), "/threads"),
        (WebhookPolicy(open_to_itself, own_routes=OwnRoutes()), "//hook"),
        (WebhookPolicy(open_to_itself), "/hook"),
    ):
        with pytest.raises(UrlRefused, match="must be an absolute URL"):
            policy_of_paths.check_syntax(url)


@pytest.mark.parametrize("failure", [TimeoutError(), socket.gaierror(socket.EAI_AGAIN, "try again")])
async def test_a_name_server_that_fails_for_a_while_refuses_nothing(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_host: str, _rules: OutboundRules) -> list[str]:
        raise failure

    monkeypatch.setattr(webhook_policy, "resolve", fail)
    await WebhookPolicy().check("https://example.com/")


def test_headers_take_variables_of_the_environment_that_are_meant_for_them() -> None:
    environ = {"LG_WEBHOOK_TOKEN": "t0k", "OTHER": "secret", "LG_WEBHOOK_LINES": "a\r\nX-Evil: 1", "MY_A": "b"}
    made = policy(environ, headers={"Authorization": "Bearer ${{ env.LG_WEBHOOK_TOKEN }}", "X-Plain": "${not}"})
    assert made.headers == {"Authorization": "Bearer t0k", "X-Plain": "${not}"}
    assert policy(environ, env_prefix="MY_", headers={"X-A": "${{env.MY_A}}"}).headers == {"X-A": "b"}
    assert "LG_WEBHOOK_GONE" in mistake(environ, headers={"X-A": "${{ env.LG_WEBHOOK_GONE }}"})
    assert "env.LG_WEBHOOK_" in mistake(environ, headers={"X-A": "${{ env.OTHER }}"})
    assert "env.LG_WEBHOOK_" in mistake(environ, headers={"X-A": "${{ OTHER }}"})

    assert "in one line" in mistake(environ, headers={"X-A": "${{ env.LG_WEBHOOK_LINES }}"})

    for name in ("Host", "content-length", "Webhook-Signature", "X A", "X:A", "X\r\nY", ""):
        assert "not the name of a header" in mistake(headers={name: "x"})


def test_payload_fields_are_configured() -> None:
    assert policy(payload={"exclude": ["kwargs", "values"]}).payload_fields.isdisjoint({"kwargs", "values"})
    assert policy(payload={"include": ["run_id", "status"]}).payload_fields == {"run_id", "status"}
    assert policy(payload={"include": ["run_id", "kwargs"], "exclude": ["kwargs"]}).payload_fields == {"run_id"}
    assert "does not have: nonsense; it has run_id" in mistake(payload={"exclude": ["nonsense"]})


def test_secrets_are_read_from_the_environment_and_refused_when_short() -> None:
    made = policy({"LG_WEBHOOK_SECRET": SECRET}, signing_secret=["${{ env.LG_WEBHOOK_SECRET }}", "another " + SECRET])
    assert made.secrets == [SECRET.encode(), f"another {SECRET}".encode()]
    raw = bytes(range(32))
    assert read_secret("whsec_" + base64.b64encode(raw).decode(), "key") == raw
    assert "shorter than 16 bytes" in mistake(signing_secret="short")
    assert "shorter than 16 bytes" in mistake(signing_secret="whsec_" + base64.b64encode(raw[:15]).decode())
    assert read_secret("whsec_" + base64.b64encode(raw[:16]).decode(), "key") == raw[:16]
    assert "not base64" in mistake(signing_secret="whsec_***")


def test_the_published_example_of_a_signature() -> None:
    """The test vector of Standard Webhooks."""
    secret = read_secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "key")
    headers = build_signature_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    several = build_signature_headers([secret, b"x" * 16], "a", 1, json.dumps({}).encode())["webhook-signature"].split()
    assert several[1] == "v1," + base64.b64encode(hmac.digest(b"x" * 16, b"a.1.{}", hashlib.sha256)).decode()
    assert "webhook-signature" not in build_signature_headers([], "a", 1, b"")


def test_pauses_grow_up_to_a_bound() -> None:
    retries = RetryPolicy(8, 5)
    pauses = [retries.pause_s(attempt) for attempt in range(1, 9)]
    assert all(5 * 4**place * 0.8 <= pause for place, pause in enumerate(pauses[:5]))
    assert max(pauses) <= 3 * 3600 * 1.2
