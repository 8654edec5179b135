"""The configuration of the front: Caddy accepts each form of it, and routes name nothing that belongs to others."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from portside.cli.ingress import PRINTERS, OuterProxy
from portside.control.addresses import DeploymentAddress
from portside.ingress.caddy import find_caddy
from portside.ingress.config import LOGGING, build_configuration
from portside.ingress.front import (
    FromFront,
    build_agents_pattern,
    build_custom_upstreams,
    build_upstreams,
    list_custom_addresses,
    list_hosts,
    parse_custom_host,
    write_upstreams,
)
from portside.ingress.options import FrontOptions

DOMAIN = FrontOptions(domain="portside.example.com", agents="host")


def valid(config: dict[str, Any], folder: Path) -> None:
    """Let Caddy read a configuration without opening ports."""
    found = find_caddy(None)
    assert found is not None
    (folder / "caddy.json").write_bytes(msgspec.json.encode(config))
    command = [found.program, "validate", "--config", "caddy.json"]
    environment = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "options",
    [
        FrontOptions(host="::1", trusted_proxies=("10.0.0.0/8", "127.0.0.1")),
        DOMAIN,
        FrontOptions(
            domain="x.example.com", acme_server="https://acme.example.com/directory", acme_email="a@example.com"
        ),
        FrontOptions(domain="x.example.com", tls="internal", https_port=8443),
        FrontOptions(domain="x.example.com", tls="off", agents="host"),
    ],
)
def test_caddy_accepts_the_configuration(options: FrontOptions, tmp_path: Path):
    valid(build_configuration(options), tmp_path)


def test_the_log_has_no_headers_and_no_queries():
    fields = LOGGING["logs"]["default"]["encoder"]["fields"]
    assert fields["request>headers"] == {"filter": "delete"}
    assert fields["request>uri"]["filter"] == "regexp"
    shown = re.sub(fields["request>uri"]["regexp"], fields["request>uri"]["value"], "/v2/uploads/1?token=secret")
    assert shown == "/v2/uploads/1"
    assert build_configuration(DOMAIN)["logging"] == LOGGING


def list_proxies(value: Any) -> Iterator[dict[str, Any]]:
    """Return the parts of a configuration that pass requests on."""
    if isinstance(value, dict):
        if value.get("handler") == "reverse_proxy":
            yield value

        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from list_proxies(item)


@pytest.mark.parametrize("options", [FrontOptions(), DOMAIN, FrontOptions(domain="x.org")])
def test_no_client_says_below_which_path_an_agent_is(options: FrontOptions):
    proxies = list(list_proxies(build_configuration(options)))
    to_agents = [proxy for proxy in proxies if proxy["upstreams"][0]["dial"].startswith("tcp")]
    assert to_agents
    for proxy in to_agents:
        request = proxy["headers"]["request"]
        assert {"Forwarded", "X-Real-Ip", "True-Client-Ip"} <= {*request["delete"]}
        assert "X-Forwarded-Prefix" in {*request["delete"], *request.get("set", {})}


def test_public_addresses_follow_the_domain():
    assert build_agents_pattern(FrontOptions()) is None
    assert build_agents_pattern(DOMAIN) == "https://*.portside.example.com"
    assert build_agents_pattern(FrontOptions(domain="x.org", https_port=8443)) == "https://x.org:8443/agents/*"
    assert build_agents_pattern(FrontOptions(domain="x.org", tls="off", https_port=8443)) == "https://x.org/agents/*"


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "https://portside.example.com",
        "https://a.portside.example.com/x",
        "http://127.0.0.1",
        "http://[::1]:1",
        "https://localhost",
        "https://PORTSIDE.example.com",
        "http://box",
        "https://*.example.org",
        "https://chat.example.org/{env.PATH}",
        "https://chat.example.org/a/*",
        "https://chat.example.org/a/b/c/d",
        f"https://chat.example.org/{'a' * 240}",
    ],
)
def test_names_of_the_platform_are_not_routed_to_a_deployment(url: str | None):
    assert parse_custom_host(url, DOMAIN) == (None, "")


def test_the_older_deployment_keeps_an_address():
    addresses = [
        DeploymentAddress("old", "http://127.0.0.1:1", "https://chat.example.org/"),
        DeploymentAddress("new", "http://[::1]:2", "https://Chat.example.org"),
        DeploymentAddress("glob", "http://*:2", None),
        DeploymentAddress("odd", "unix:/x", None),
        DeploymentAddress("long", f"http://{'a' * 201}", None),
    ]

    custom = list_custom_addresses(addresses, DOMAIN)
    assert custom == {("chat.example.org", ""): "127.0.0.1:1"}
    assert build_custom_upstreams(custom) == {"==chat.example.org": "taken", "=chat.example.org": "127.0.0.1:1"}
    assert build_upstreams(addresses) == {"old": "127.0.0.1:1", "new": "[::1]:2"}

    assert list_hosts(addresses, custom, DOMAIN) == {
        "portside.example.com",
        "old.portside.example.com",
        "new.portside.example.com",
        "chat.example.org",
    }


def test_upstreams_follow_moves_and_deletions(tmp_path: Path):
    folder = tmp_path / "upstreams"
    write_upstreams(folder, {"a": "127.0.0.1:1", "b": "[::1]:2"})
    write_upstreams(folder, {"a": "127.0.0.1:3", "c": "agents.example.org:80"})

    assert {str(file.relative_to(folder)) for file in folder.rglob("*")} == {
        "a",
        "a/127.0.0.1:3",
        "c",
        "c/agents.example.org:80",
    }


@pytest.mark.parametrize(
    ("client", "forwarded", "scheme", "seen"),
    [
        (None, "203.0.113.7", "https", (("203.0.113.7", 0), None, "https")),
        (None, "198.51.100.1, 203.0.113.7", "https", (("203.0.113.7", 0), "198.51.100.1", "https")),
        # What is last is of the front, and what comes before may be of anybody.
        (None, "203.0.113.7", "http, https", (("203.0.113.7", 0), None, "https")),
        # A connection that is not the front's keeps what it says, and nobody believes it.
        (("192.0.2.1", 5), "203.0.113.7", "https", (("192.0.2.1", 5), "203.0.113.7", "http")),
    ],
)
async def test_only_the_front_is_believed_about_the_client(client: Any, forwarded: str, scheme: str, seen: Any):
    scopes: list[Any] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        scopes.append(scope)

    headers = [(b"x-forwarded-for", forwarded.encode()), (b"x-forwarded-proto", scheme.encode())]
    await FromFront(app)({"type": "http", "client": client, "scheme": "http", "headers": headers}, None, None)
    left = dict(scopes[0]["headers"]).get(b"x-forwarded-for")
    assert (scopes[0]["client"], left and left.decode(), scopes[0]["scheme"]) == seen


@pytest.mark.parametrize("kind", list(PRINTERS))
def test_printed_configurations_name_the_domain_and_the_platform(kind: str):
    text = PRINTERS[kind](OuterProxy("portside.example.com", "127.0.0.1:8700", is_by_host=True))
    assert "127.0.0.1:8700" in text
    assert "portside.example.com" in text
    assert "--agents host --tls off" in text
    assert "*.portside.example.com" in text or "[a-z0-9-]+" in text


@pytest.mark.parametrize("kind", list(PRINTERS))
def test_printed_configurations_of_agents_by_path_serve_one_name(kind: str):
    text = PRINTERS[kind](OuterProxy("portside.example.com", "127.0.0.1:8700", is_by_host=False))
    assert "--domain portside.example.com --tls off" in text
    assert "*" not in text.replace("*.DOMAIN", "")
