"""The addresses that owners may request for deployments on a cluster."""

import pytest

from portside.control.custom_hosts import CustomHosts, parse_custom_hosts, read_host
from portside.kernel.errors import UserMistake
from portside.kernel.settings import load_settings
from portside.platform.settings import PlatformSettings

HOSTS = parse_custom_hosts(" chat.example.com, *.Agents.example.com", ["portside.agents.example.com"])


@pytest.mark.parametrize(
    "url",
    [
        "https://chat.example.com",
        "https://CHAT.example.com:8443/",
        "https://a.agents.example.com/v1/some.name",
        "http://a.b.agents.example.com/a/b/c/",
    ],
)
def test_allowed_addresses_may_be_requested(url: str) -> None:
    assert HOSTS.find_objection(url) is None


@pytest.mark.parametrize(
    ("url", "objection"),
    [
        ("https://other.example.com", "CUSTOM_HOSTS"),
        ("https://agents.example.com", "CUSTOM_HOSTS"),
        ("https://badagents.example.com", "CUSTOM_HOSTS"),
        ("https://chat.example.com.evil.org", "CUSTOM_HOSTS"),
        ("https://portside.agents.example.com/x", "the platform"),
        ("https://10.0.0.1", "IP address"),
        ("https://localhost", "host name"),
        ("https://a..agents.example.com", "host name"),
        ("https://chat.example.com/a/b/c/d", "path"),
        ("https://chat.example.com/a//b", "path"),
        ("https://chat.example.com/../x", "path"),
        ("https://chat.example.com/(.*)", "path"),
        ("https://chat.example.com/$1", "path"),
        ("https://chat.example.com/a;b", "path"),
        ("https://chat.example.com/%2e%2e", "path"),
        ("https://chat.example.com/\u00e4", "path"),
    ],
)
def test_other_addresses_are_refused_with_the_reason(url: str, objection: str) -> None:
    assert objection in (HOSTS.find_objection(url) or "")


def test_no_host_is_allowed_by_default() -> None:
    assert "CUSTOM_HOSTS" in (CustomHosts().find_objection("https://chat.example.com") or "")


def test_the_setting_refuses_what_would_allow_every_host() -> None:
    for value in ("*", "*.", "*.com,", "https://chat.example.com", "chat.example.com/x", "a b.example.com"):
        with pytest.raises(UserMistake, match="CUSTOM_HOSTS"):
            load_settings(PlatformSettings, {"CUSTOM_HOSTS": value})

    value = "chat.example.com, *.agents.example.com"
    assert load_settings(PlatformSettings, {"CUSTOM_HOSTS": value}).custom_hosts == value


def test_an_address_that_cannot_be_read_has_no_host() -> None:
    assert [read_host(url) for url in ("http://[::1", "http://a]b", "http://[x]/", "")] == ["", "", "", ""]
