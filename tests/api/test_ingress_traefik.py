"""Traefik before the front, with the configuration that we print: the file as it is, the static part from its comments.

`scripts/thorough` unpacks Traefik into a cache folder. In the path form its certificate comes from an ACME server.
"""

import itertools
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml

from portside.cli.ingress import PRINTERS, OuterProxy
from tests.api.test_ingress_acme import DOMAIN, Authority, authority  # noqa: F401 - a fixture
from tests.api.test_ingress_outer import (  # noqa: F401 - they run here behind Traefik
    AGENTS,
    Site,
    test_everything_passes,
    test_websockets_pass,
)
from tests.fronted import HEADERS, make_certificate, start_fronted, web_ports

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600, func_only=True)]  # not counting `web_ports`
PROGRAM = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portside" / "traefik" / "bin" / "traefik"
# Longer than all limits of time that Traefik has by default.
LONG_S = 70


class Traefik:
    """A Traefik with the printed file. It has the ports 80 and 443 of this machine."""

    def __init__(self, folder: Path, outer: OuterProxy, issuer: Authority) -> None:
        if not PROGRAM.exists():
            pytest.skip(f"there is no {PROGRAM}; scripts/thorough unpacks it there")

        printed = PRINTERS["traefik"](outer)
        (folder / "dynamic").mkdir()
        (folder / "dynamic" / "portside.yml").write_text(printed)
        static = static_part(printed)
        static |= {"providers": {"file": {"directory": str(folder / "dynamic")}}, "log": {"level": "INFO"}}
        acme = static["certificatesResolvers"]["default"]["acme"]
        acme |= {"storage": str(folder / "acme.json"), "caServer": issuer.url}

        self._root = issuer.root
        if outer.is_by_host:
            # Nobody answers for the domain's DNS: the operator brings a certificate, and Traefik asks for none.
            acme |= {"dnsChallenge": None, "tlsChallenge": {}}
            self._root, key = make_certificate(folder, f"*.{DOMAIN}", DOMAIN)
            certificate = {"certFile": str(self._root), "keyFile": str(key)}
            (folder / "dynamic" / "certificates.yml").write_text(
                yaml.safe_dump({"tls": {"certificates": [certificate]}})
            )

        (folder / "traefik.yml").write_text(yaml.safe_dump(static))
        self.log = folder / "log"
        environment = {"HOME": str(folder), "LEGO_CA_CERTIFICATES": str(issuer.root)}
        with self.log.open("wb") as output:
            command = [PROGRAM, f"--configFile={folder}/traefik.yml"]
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)

    def wait_until_up(self, host: str) -> ssl.SSLContext:
        """Wait until a host has a certificate that clients trust, and return the context that trusts it."""
        trust = ssl.create_default_context(cafile=str(self._root))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with (
                    socket.create_connection(("127.0.0.1", 443), timeout=300) as plain,
                    trust.wrap_socket(plain, server_hostname=host),
                ):
                    return trust
            except OSError:
                time.sleep(0.05)

        raise AssertionError(self.log.read_text()[-3000:])

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)


def static_part(printed: str) -> dict[str, Any]:
    """Return the static configuration that the head of the printed file shows."""
    head = itertools.takewhile(lambda line: line.startswith("#"), printed.splitlines())
    shown = "\n".join(line.removeprefix("#   ") for line in head if line.startswith("#   "))
    return dict(yaml.safe_load(shown))


@pytest.fixture(scope="module", params=AGENTS)
def site(
    request: pytest.FixtureRequest,
    authority: Authority,  # noqa: F811 - the fixture
    tmp_path_factory: pytest.TempPathFactory,
    platform_database: str,
) -> Iterator[Site]:
    folder = tmp_path_factory.getbasetemp() / "behind-traefik"
    (folder / request.param).mkdir(parents=True)

    arguments = ("--domain", DOMAIN, "--tls", "off", "--agents", request.param)
    with (
        web_ports(),
        start_fronted(folder / "portside", platform_database, *arguments, TRUSTED_PROXIES="127.0.0.1") as platform,
    ):
        name = f"fake-{request.param}"
        platform.deploy(name)
        is_by_host = request.param == "host"
        outer = OuterProxy(DOMAIN, httpx2.URL(platform.url).netloc.decode(), is_by_host)

        traefik = Traefik(folder / request.param, outer, authority)
        try:
            host, path = (f"{name}.{DOMAIN}", "") if is_by_host else (DOMAIN, f"/agents/{name}")
            yield Site(platform, f"https://{host}{path}", 443, traefik.wait_until_up(host))
        finally:
            traefik.stop()


async def test_plain_http_is_redirected(site: Site):
    url = httpx2.URL(site.url)
    async with httpx2.AsyncClient(headers={"Host": url.host}, timeout=300) as client:
        response = await client.get(f"http://127.0.0.1{url.path}?b=c")

    assert (response.status_code, response.headers["location"]) == (301, f"https://{url.host}{url.path}?b=c")


async def test_silent_streams_stay_open(site: Site):
    url = httpx2.URL(site.url)
    options: Any = {"verify": site.trust, "headers": HEADERS | {"Host": url.host}, "timeout": LONG_S}
    async with httpx2.AsyncClient(**options) as client:
        address = f"https://127.0.0.1{url.path.rstrip('/')}/stream"
        async with client.stream("GET", address, extensions={"sni_hostname": url.host}) as response:
            lines = response.aiter_lines()
            assert await anext(lines) == "data: 1"
            with pytest.raises(httpx2.ReadTimeout):
                while True:
                    assert await anext(lines) == ""
