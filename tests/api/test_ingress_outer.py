"""A Caddy of the operator before the front, with the configuration that we print, and certificates of its own."""

import asyncio
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
from websockets.asyncio.client import connect

from portside.cli.ingress import PRINTERS, OuterProxy
from portside.ingress.caddy import find_caddy
from tests.fronted import HEADERS, Fronted, start_fronted
from tests.servers import free_port

pytestmark = pytest.mark.timeout(600)
DOMAIN = "portside.localhost"
AGENTS = ["path", "host"]


class Site(NamedTuple):
    """A platform behind another Caddy, the address of its agent there, and the certificates to trust."""

    platform: Fronted
    url: str
    port: int
    trust: ssl.SSLContext


class OuterCaddy:
    """A Caddy with the printed file, below global options that need neither an authority on the internet nor root."""

    def __init__(self, folder: Path, platform_url: str, *, is_by_host: bool) -> None:
        found = find_caddy(None)
        assert found is not None
        self.port = free_port()
        self.root = folder / "caddy/pki/authorities/local/root.crt"
        ports = f"https_port {self.port}\n http_port {free_port()}"
        address = httpx2.URL(platform_url).netloc.decode()
        printed = PRINTERS["caddy"](OuterProxy(DOMAIN, address, is_by_host=is_by_host))

        file = folder / "Caddyfile"
        self.log = folder / "caddy.log"
        file.write_text(f"{{\n admin off\n local_certs\n skip_install_trust\n {ports}\n}}\n{printed}")

        environment = {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        with self.log.open("wb") as output:
            command = [found.program, "run", "--config", file, "--adapter", "caddyfile"]
            self._process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)

    def wait_until_up(self, host: str) -> ssl.SSLContext:
        """Wait until a host has a certificate, and return the context that trusts it."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                trust = ssl.create_default_context(cafile=str(self.root))
                plain = socket.create_connection(("127.0.0.1", self.port), timeout=300)
                with plain, trust.wrap_socket(plain, server_hostname=host):
                    return trust
            except OSError:
                time.sleep(0.05)

        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


@pytest.fixture(scope="module", params=AGENTS)
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, platform_database: str
) -> Iterator[Site]:
    folder = tmp_path_factory.getbasetemp() / "outer"
    folder.mkdir(exist_ok=True)

    arguments = ("--domain", DOMAIN, "--tls", "off", "--agents", request.param)
    with start_fronted(folder / "portside", platform_database, *arguments, TRUSTED_PROXIES="127.0.0.1") as platform:
        name = f"fake-{request.param}"
        platform.deploy(name)

        outer = OuterCaddy(folder, platform.url, is_by_host=request.param == "host")
        try:
            host, path = (f"{name}.{DOMAIN}", "") if request.param == "host" else (DOMAIN, f"/agents/{name}")
            yield Site(platform, f"https://{host}:{outer.port}{path}", outer.port, outer.wait_until_up(host))
        finally:
            outer.stop()


async def test_everything_passes(site: Site):
    host = httpx2.URL(site.url).netloc.decode()
    prefix = httpx2.URL(site.url).path.removesuffix("/")

    options: Any = {"extensions": {"sni_hostname": host.partition(":")[0]}}
    base = f"https://127.0.0.1:{site.port}{prefix}"
    headers = HEADERS | {"Host": host}
    async with httpx2.AsyncClient(base_url=base, verify=site.trust, headers=headers, timeout=300) as client:
        forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Prefix": "/evil", "X-Forwarded-Host": "evil.example"}
        seen = (await client.get("/a%20b?q=1", headers=forged, **options)).json()
        got = seen["headers"]
        assert (seen["path"], got["host"], got["x-forwarded-host"]) == ("/a%20b", host, host)
        assert (got.get("x-forwarded-prefix", ""), got["x-forwarded-proto"]) == (prefix, "https")
        assert "203.0.113.9" not in got["x-forwarded-for"]
        body = os.urandom(25_000_000)
        assert (await client.post("/x", content=body, **options)).json()["size"] == len(body)

        located = await client.get("/redirect", params={"307": f"https://{host}/slash/"}, **options)
        assert located.headers["location"] == f"{site.url}/slash/"
        site.platform.agent.left.clear()

        async with client.stream("GET", "/stream", **options) as answer:
            async for line in answer.aiter_lines():
                assert line == "data: 1"
                break

    assert await asyncio.to_thread(site.platform.agent.left.wait, 120)


async def test_websockets_pass(site: Site):
    url = httpx2.URL(site.url)
    address = f"wss://{url.host}:{site.port}{url.path.removesuffix('/')}/socket"
    async with connect(address, ssl=site.trust, host="127.0.0.1", port=site.port) as opened:
        await opened.send("hello")
        assert await opened.recv() == "HELLO"
