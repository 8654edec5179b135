"""The front with a domain: HTTPS with certificates of Caddy's own authority, by path and by host name.

Only names of the platform and of deployments get a certificate or an answer, and plain HTTP is only redirected.
"""

import contextlib
import os
import shlex
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import eventually
from tests.fronted import HEADERS, Fronted, make_certificate, start_fronted
from tests.preloaded import run_command
from tests.servers import KEY

pytestmark = pytest.mark.timeout(600)
ROOT = "ingress/storage/pki/authorities/local/root.crt"
DOMAIN = "localhost"


class Secured:
    """A platform with a domain, one deployment, and the form of the deployments' addresses."""

    def __init__(self, platform: Fronted, form: str) -> None:
        self.platform = platform
        self.form = form
        self.agent = f"fake-{form}"
        self.port = platform.ports["https"]
        self.deployment = platform.deploy(self.agent)
        is_host = form == "host"
        self.agent_host, self.prefix = (f"{self.agent}.{DOMAIN}", "") if is_host else (DOMAIN, f"/agents/{self.agent}")

        self.trust = ssl.create_default_context(cafile=str(platform.home / ROOT))

    def get(self, path: str, host: str = DOMAIN, named: str | None = None, **headers: str) -> httpx2.Response:
        """GET with a verified certificate for `host`; the Host header may name another."""
        headers = {**HEADERS, "Host": f"{named or host}:{self.port}", **headers}
        with httpx2.Client(verify=self.trust, timeout=300) as client:
            url = f"https://127.0.0.1:{self.port}{path}"
            return client.get(url, headers=headers, extensions={"sni_hostname": host})

    def protocol(self, host: str) -> str | None:
        """Shake hands for a host, and return the protocol that the front selects."""
        context = ssl.create_default_context(cafile=str(self.platform.home / ROOT))
        context.set_alpn_protocols(["h2", "http/1.1"])
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=300) as plain,
            context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            return secured.selected_alpn_protocol()

    def wait_for_certificate(self) -> None:
        """Wait until the front has the certificate of the domain, which it issues after its ports are open."""
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                self.protocol(DOMAIN)
                return

            assert time.monotonic() < deadline, "the front has no certificate"
            time.sleep(0.05)


@pytest.fixture(scope="module", params=["path", "host"])
def platform_with_tls(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, platform_database: str
) -> Iterator[Secured]:
    """Both forms, one after the other, with one database and one home."""
    home = tmp_path_factory.getbasetemp() / "portside with a domain"
    arguments = ("--domain", DOMAIN, "--agents", request.param, "--tls", "internal")
    with start_fronted(home, platform_database, *arguments) as platform:
        opened = Secured(platform, request.param)
        opened.wait_for_certificate()
        yield opened


def plain(secured: Secured, port: int, path: str, host: str) -> httpx2.Response:
    return httpx2.get(f"http://127.0.0.1:{port}{path}", headers={"Host": host}, timeout=300)


def test_platform_and_agents_answer_with_https(platform_with_tls: Secured):
    assert platform_with_tls.get("/ok").json()["ok"]
    shown = platform_with_tls.deployment["source_config"]["custom_url"]
    assert shown == f"https://{platform_with_tls.agent_host}:{platform_with_tls.port}{platform_with_tls.prefix}"
    seen: Any = platform_with_tls.get(f"{platform_with_tls.prefix}/x?q=1", platform_with_tls.agent_host).json()
    assert (seen["path"], seen["headers"]["x-forwarded-proto"]) == ("/x", "https")
    assert seen["headers"].get("x-forwarded-prefix") == (platform_with_tls.prefix or None)
    assert platform_with_tls.protocol(DOMAIN) == platform_with_tls.protocol(platform_with_tls.agent_host) == "h2"


def test_plain_http_is_redirected_for_known_hosts_only(platform_with_tls: Secured):
    port = platform_with_tls.platform.ports["http"]
    response = plain(platform_with_tls, port, "/a/b?c=%2F", platform_with_tls.agent_host)
    assert response.status_code == 308
    assert response.headers["location"] == f"https://{platform_with_tls.agent_host}:{platform_with_tls.port}/a/b?c=%2F"
    foreign = plain(platform_with_tls, port, "/", "evil.example.com")
    assert (foreign.status_code, "location" in foreign.headers) == (421, False)


@pytest.mark.parametrize("named", ["evil.example.com", "localhost.evil.example.com", "a.b.localhost", "127.0.0.1"])
def test_foreign_hosts_are_refused(platform_with_tls: Secured, named: str):
    assert platform_with_tls.get("/ok", named=named).status_code == 421


@pytest.mark.parametrize("host", ["evil.example.com", "unknown.localhost", "a.fake-host.localhost"])
def test_foreign_names_get_no_certificate(platform_with_tls: Secured, host: str):
    with pytest.raises(ssl.SSLError):
        platform_with_tls.protocol(host)


def test_names_are_checked_on_this_machine_only(platform_with_tls: Secured):
    path = f"/internal/front/names?domain={DOMAIN}"
    assert platform_with_tls.get(path).status_code == 404
    assert platform_with_tls.platform.http.get(path).status_code == 204
    assert platform_with_tls.platform.http.get("/internal/front/names?domain=evil.example.com").status_code == 404


def test_the_port_of_this_machine_knows_no_foreign_names(platform_with_tls: Secured):
    port = httpx2.URL(platform_with_tls.platform.url).port
    assert port is not None
    assert plain(platform_with_tls, port, "/ok", "localhost:1").json()["ok"]

    # A page that points its own name at this machine.
    assert plain(platform_with_tls, port, "/ok", "rebound.example.com").status_code == 421


def test_an_agent_with_a_host_of_its_own_has_an_origin_of_its_own(platform_with_tls: Secured):
    response = platform_with_tls.get(
        f"{platform_with_tls.prefix}/x", platform_with_tls.agent_host, Cookie="a=1; portside_session=secret"
    )
    assert response.json()["headers"]["cookie"] == "a=1"
    assert "clear-site-data" not in response.headers

    if platform_with_tls.form == "host":
        assert "content-security-policy" not in response.headers
        assert response.headers.get_list("set-cookie") == ["mine=1; Path=/", "", "wide=1; Path=/"]
    else:
        assert response.headers["content-security-policy"] == "sandbox allow-scripts allow-forms"
        assert "set-cookie" not in response.headers


def list_deployments(url: str, folder: Path, **environment: str) -> tuple[int, str]:
    """Run a command of a user on another machine, and return its exit code and what it prints."""
    inherited = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**inherited, "HOME": str(folder), **environment}
    done = run_command("deployments", "list", "--url", url, "--api-key", KEY, environment=environment)
    return done.returncode, done.stdout + done.stderr


async def test_the_start_names_the_root_certificate_and_commands_take_it(platform_with_tls: Secured, tmp_path: Path):
    root = str(platform_with_tls.platform.home / ROOT)
    server = platform_with_tls.platform.server
    # A platform greets after it has begun to answer.
    for line in (f"curl --cacert {shlex.quote(root)}", "PORTSIDE_CA_FILE=", "SSL_CERT_FILE=", "NODE_EXTRA_CA_CERTS="):
        await eventually(lambda text=line: server.has_logged(text))

    url = f"https://{DOMAIN}:{platform_with_tls.port}"
    code, text = list_deployments(url, tmp_path)
    assert (code, "set PORTSIDE_CA_FILE to the file" in text) == (1, True), text

    for variable in ("PORTSIDE_CA_FILE", "SSL_CERT_FILE"):
        code, text = list_deployments(url, tmp_path, **{variable: root})
        assert (code, platform_with_tls.agent in text) == (0, True), text

    code, text = list_deployments(url, tmp_path, PORTSIDE_CA_FILE=str(tmp_path / "missing"))
    assert (code, "is not a readable PEM file" in text) == (1, True), text


async def test_certificates_of_files_are_used(tmp_path: Path, platform_databases: Any):
    certificate, key = make_certificate(tmp_path, DOMAIN)
    arguments = ("--domain", DOMAIN, "--tls", "files", "--tls-certificate", str(certificate), "--tls-key", str(key))
    with start_fronted(tmp_path / "portside", await platform_databases(), *arguments) as platform:
        platform.deploy("fake")
        trust = ssl.create_default_context(cafile=str(certificate))
        url = f"https://{DOMAIN}:{platform.ports['https']}"
        async with httpx2.AsyncClient(verify=trust, headers=HEADERS, timeout=300) as http:
            assert (await http.get(f"{url}/ok")).json()["ok"]
            assert (await http.get(f"{url}/agents/fake/x")).json()["path"] == "/x"
