"""Debian's Caddy 2.6.2 as the front, and Debian's nginx before the front with the configuration that we print.

`scripts/thorough` unpacks both packages into a cache folder; they are not installed, so that no service starts.
"""

import asyncio
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from portside.cli.ingress import PRINTERS, OuterProxy
from tests.api.test_ingress import (  # noqa: F401 - they run here with another front
    http,
    test_addresses_of_one_host_are_told_apart_by_their_paths,
    test_agents_do_not_see_or_set_cookies_of_the_platform,
    test_bodies_with_two_lengths_cannot_smuggle_requests,
    test_changes_of_deployments_leave_connections_open,
    test_clients_cannot_forge_their_address,
    test_custom_url_stays_when_the_deployment_moves,
    test_host_names_reach_no_other_folder,
    test_large_bodies_pass,
    test_other_spellings_do_not_reach_agents,
    test_pages_of_agents_lose_the_origin,
    test_paths_with_two_readings_are_refused,
    test_platform_and_agents_share_one_address,
    test_redirects_of_agents_keep_the_prefix,
    test_request_that_an_agent_may_have_begun_is_not_refused_like_one_that_it_never_got,
    test_requests_are_not_smuggled,
    test_rules_hold_at_every_host_and_path,
    test_sockets_are_private,
    test_streams_are_not_buffered_and_a_client_that_leaves_is_noticed,
)
from tests.conftest import build_shared_database_fixture
from tests.databases import PLATFORM
from tests.fronted import HEADERS, Fronted, make_certificate, start_fronted, web_ports

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600, func_only=True)]  # not counting `web_ports`
UNPACKED = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "portside" / "debian"
DOMAIN = "portside.localhost"


def program(name: str) -> str:
    """Return a program of an unpacked package."""
    found = next((path for path in (UNPACKED / "usr/bin" / name, UNPACKED / "usr/sbin" / name) if path.exists()), None)
    if found is None:
        pytest.skip(f"the Debian package of {name} is not in {UNPACKED}; scripts/thorough unpacks it there")

    return str(found)


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory, platform_database: str) -> Iterator[Fronted]:
    home = tmp_path_factory.mktemp("debian") / "portside"
    with start_fronted(home, platform_database, PORTSIDE_CADDY=program("caddy")) as opened:
        opened.deploy("fake")
        yield opened


async def test_websockets_are_refused_by_the_old_caddy(platform: Fronted):
    # It would pass on the cookies that an agent sets in the response.
    with pytest.raises(InvalidStatus) as refused:
        async with connect(f"{platform.url.replace('http', 'ws', 1)}/agents/fake/socket"):
            pass

    assert refused.value.response.status_code == 501


class Nginx:
    """An nginx with the printed file, unedited. It has its own /etc/ssl, and the ports 80 and 443 of this machine."""

    def __init__(self, folder: Path, platform_url: str) -> None:
        if os.geteuid() != 0 or not shutil.which("unshare"):
            pytest.skip("only root may open the ports of the printed configuration")

        certificates = folder / "ssl"
        certificates.mkdir()
        self.certificate, _ = make_certificate(certificates, DOMAIN)
        address = httpx2.URL(platform_url).netloc.decode()

        (folder / "portside.conf").write_text(PRINTERS["nginx"](OuterProxy(DOMAIN, address, is_by_host=False)))
        (folder / "nginx.conf").write_text(
            f"daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}\n"
            f"http {{ access_log off; {self._temporary(folder)} include {folder}/portside.conf; }}\n"
        )

        start = 'mount --bind "$1" /etc/ssl && exec "$2" -p "$3" -c "$3/nginx.conf"'
        command = ["unshare", "--mount", "sh", "-c", start, "sh", certificates, program("nginx"), folder]
        self.process = subprocess.Popen(command)
        self.log = folder / "error.log"

    @staticmethod
    def _temporary(folder: Path) -> str:
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)

    def wait_until_up(self) -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                httpx2.get("http://127.0.0.1/", headers={"Host": DOMAIN})
            except httpx2.TransportError:
                time.sleep(0.05)
            else:
                return

        raise AssertionError(f"nginx does not answer: {self.log.read_text() if self.log.exists() else ''}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


# Of a platform beside that of the other tests.
nginx_database = build_shared_database_fixture(PLATFORM)


@pytest.fixture(scope="module")
def behind_nginx(
    tmp_path_factory: pytest.TempPathFactory, nginx_database: str
) -> Iterator[tuple[Fronted, ssl.SSLContext]]:
    folder = tmp_path_factory.mktemp("nginx")
    arguments = ("--domain", DOMAIN, "--tls", "off")
    with start_fronted(folder / "portside", nginx_database, *arguments, TRUSTED_PROXIES="127.0.0.1") as opened:
        opened.deploy("fake")
        with web_ports():
            nginx = Nginx(folder, opened.url)
            try:
                nginx.wait_until_up()
                yield opened, ssl.create_default_context(cafile=str(nginx.certificate))
            finally:
                nginx.stop()


async def test_nginx_before_the_front_passes_everything(behind_nginx: tuple[Fronted, ssl.SSLContext]):
    platform, trust = behind_nginx
    base = f"https://{DOMAIN}/agents/fake"
    assert platform.call("GET", "/v2/deployments")["resources"][0]["source_config"]["custom_url"] == base
    transport = httpx2.AsyncHTTPTransport(verify=trust, local_address="127.0.0.2")

    options: Any = {"headers": HEADERS | {"Host": DOMAIN}, "transport": transport, "timeout": 60}
    named = {"sni_hostname": DOMAIN}
    async with httpx2.AsyncClient(base_url="https://127.0.0.1", **options) as client:
        forged = {"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Prefix": "/evil"}
        seen = (await client.get("/agents/fake/a%20b?q=1", headers=forged, extensions=named)).json()
        assert (seen["path"], seen["headers"]["x-forwarded-prefix"]) == ("/a%20b", "/agents/fake")
        assert (seen["headers"]["host"], seen["headers"]["x-forwarded-proto"]) == (DOMAIN, "https")
        assert seen["headers"]["x-forwarded-for"].split(", ") == ["127.0.0.2", "127.0.0.1"]
        assert (await client.get("/agents/fake/%2e%2e/x", extensions=named)).status_code == 400
        body = os.urandom(25_000_000)
        assert (await client.post("/agents/fake/x", content=body, extensions=named)).json()["size"] == len(body)

        platform.agent.left.clear()
        async with client.stream("GET", "/agents/fake/stream", extensions=named) as response:
            async for line in response.aiter_lines():
                assert line == "data: 1"
                break

        assert await asyncio.to_thread(platform.agent.left.wait, 120)

    url = f"wss://{DOMAIN}/agents/fake/socket"
    async with connect(url, ssl=trust, host="127.0.0.1", port=443) as opened:
        await opened.send("hello")
        assert await opened.recv() == "HELLO"


def test_nginx_redirects_plain_http(behind_nginx: tuple[Fronted, ssl.SSLContext]):
    assert behind_nginx[0].http is not None
    response = httpx2.get("http://127.0.0.1/a?b=c", headers={"Host": DOMAIN})
    assert (response.status_code, response.headers["location"]) == (308, f"https://{DOMAIN}/a?b=c")
