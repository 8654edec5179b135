"""Certificates over ACME: a second Caddy is the authority, and has a file of hosts with the names of the test."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from cryptography import x509

from portside.ingress.caddy import find_caddy
from tests.conftest import eventually
from tests.fronted import HEADERS, Fronted, start_fronted, web_ports
from tests.servers import free_port

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1800, func_only=True)]  # not counting `web_ports`
DOMAIN = "portside.test"
AGENT = f"fake.{DOMAIN}"
FOREIGN = (f"unknown.{DOMAIN}", "evil.test", f"a.{AGENT}")
NAMES = (DOMAIN, AGENT, *FOREIGN)


class Authority:
    """An ACME server: Caddy with an authority of its own."""

    def __init__(self, folder: Path) -> None:
        caddy = find_caddy(None)
        assert caddy is not None
        port = free_port()
        self.url = f"https://localhost:{port}/acme/local/directory"
        self.root = folder / "storage" / "pki" / "authorities" / "local" / "root.crt"
        handler = {"handler": "acme_server", "lifetime": "5m"}

        server = {
            "listen": [f"127.0.0.1:{port}"],
            "automatic_https": {"disable": True},
            "tls_connection_policies": [{}],
            "routes": [{"handle": [handler]}],
        }

        policy = {"subjects": ["localhost"], "issuers": [{"module": "internal"}]}
        config = {
            "admin": {"disabled": True},
            "storage": {"module": "file_system", "root": str(folder / "storage")},
            "apps": {
                "http": {"servers": {"acme": server}},
                "pki": {"certificate_authorities": {"local": {"install_trust": False}}},
                "tls": {"certificates": {"automate": ["localhost"]}, "automation": {"policies": [policy]}},
            },
        }

        (folder / "caddy.json").write_bytes(msgspec.json.encode(config))
        (folder / "hosts").write_text(f"127.0.0.1 localhost {' '.join(NAMES)}\n")

        self.log = folder / "log"
        start = 'mount --bind "$1/hosts" /etc/hosts && exec "$2" run --config "$1/caddy.json"'
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "sh", "-c", start, "sh", folder, caddy.program],
                stdout=output,
                stderr=output,
                env={**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
            )

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.TransportError, OSError):
                trust = ssl.create_default_context(cafile=str(self.root))
                if httpx2.get(self.url, verify=trust).is_success:
                    return

            time.sleep(0.05)

        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Authority]:
    if os.geteuid() != 0:
        pytest.skip("only root may open the ports that an authority connects to")

    opened = Authority(tmp_path_factory.mktemp("authority"))
    try:
        opened.wait_until_up()
        yield opened
    finally:
        opened.stop()


@pytest.fixture(scope="module")
def platform(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory, platform_database: str
) -> Iterator[Fronted]:
    environment = {
        "PORTSIDE_ACME_SERVER": authority.url,
        "PORTSIDE_ACME_ROOT": str(authority.root),
        "PORTSIDE_HTTP_PORT": "80",
        "PORTSIDE_HTTPS_PORT": "443",
    }

    home = tmp_path_factory.mktemp("acme") / "portside"
    with (
        web_ports(),
        start_fronted(home, platform_database, "--domain", DOMAIN, "--agents", "host", **environment) as opened,
    ):
        opened.deploy("fake")
        yield opened


def fetch_certificate(host: str, authority: Authority) -> x509.Certificate | None:
    """Shake hands for a host, and return its certificate; None while there is none that the authority has issued."""
    trust = ssl.create_default_context(cafile=str(authority.root))
    try:
        with (
            socket.create_connection(("127.0.0.1", 443), timeout=300) as plain,
            trust.wrap_socket(plain, server_hostname=host) as secured,
        ):
            return x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
    except (ssl.SSLError, OSError):
        return None


async def wait_for_certificate(host: str, authority: Authority) -> x509.Certificate:
    found: Any = await eventually(lambda: asyncio.to_thread(fetch_certificate, host, authority))
    assert isinstance(found, x509.Certificate)
    return found


async def test_names_of_the_platform_get_certificates(platform: Fronted, authority: Authority):
    assert platform.call("GET", "/v2/deployments")["resources"][0]["source_config"]["custom_url"] == f"https://{AGENT}"

    for host, path in ((DOMAIN, "/ok"), (AGENT, "/x")):
        await wait_for_certificate(host, authority)
        trust = ssl.create_default_context(cafile=str(authority.root))
        async with httpx2.AsyncClient(verify=trust, headers=HEADERS | {"Host": host}, timeout=300) as http:
            answer = await http.get(f"https://127.0.0.1{path}", extensions={"sni_hostname": host})
            assert answer.status_code == 200

    # The authority would issue these too: the front does not ask for them.
    for host in FOREIGN:
        assert await asyncio.to_thread(fetch_certificate, host, authority) is None

    assert "evil.test" not in authority.log.read_text()


async def test_certificate_of_the_domain_is_renewed_as_scheduled(platform: Fronted, authority: Authority):
    """Nobody asks for it meanwhile: Caddy looks every ten minutes, and renews what ends soon or has ended."""
    first = await wait_for_certificate(DOMAIN, authority)
    stored = platform.home / "ingress" / "storage" / "certificates"

    def issued() -> set[int]:
        files = stored.glob(f"*/{DOMAIN}/{DOMAIN}.crt")
        return {x509.load_pem_x509_certificate(file.read_bytes()).serial_number for file in files}

    async def is_renewed() -> bool:
        return bool(issued()) and first.serial_number not in issued()

    assert await eventually(is_renewed, 1200)
    found = await wait_for_certificate(DOMAIN, authority)
    assert found.serial_number in issued()


async def test_certificates_are_renewed(platform: Fronted, authority: Authority):
    first = await wait_for_certificate(AGENT, authority)

    async def is_renewed() -> bool:
        # Caddy renews a certificate that lives this short with every handshake.
        await asyncio.sleep(2)
        found = await asyncio.to_thread(fetch_certificate, AGENT, authority)
        return found is not None and found.serial_number != first.serial_number

    assert await eventually(is_renewed, 600)
    assert platform.http.get("/ok").json().get("problems") is None
