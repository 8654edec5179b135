"""A platform with its front, and an agent that the test itself serves: it shows what reaches an agent."""

import asyncio
import contextlib
import fcntl
import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx2

from portside.kernel.http.server import Server, listen
from tests.servers import KEY, ServerProcess, agent_server, free_port, platform_server

HEADERS = {"X-Api-Key": KEY}
# A test kills the front, perhaps while another client of its module has an idle connection.
NO_IDLE_CONNECTIONS = httpx2.Limits(max_keepalive_connections=0)
COOKIES = ("mine=1; Path=/", "portside_session=evil; Path=/", "wide=1; Domain=localhost; Path=/")


class FakeAgent:
    """An agent's server. `left` is set when the client of a stream has left."""

    def __init__(self) -> None:
        self.left = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._listening = listen("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))

        self._thread.start()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()

    async def _serve(self) -> None:
        server = Server(self, draining=asyncio.Event(), grace_s=1, speaks_websocket=True)
        await server.open([self._listening])
        await server.serve_until(self._stop)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._echo(receive, send)
        elif scope["path"] == "/stream":
            await self._stream(receive, send)
        elif scope["path"] == "/redirect":
            await self._redirect(scope, receive, send)
        else:
            await self._show(scope, receive, send)

    async def _show(self, scope: Any, receive: Any, send: Any) -> None:
        size = 0
        is_more = True
        while is_more:
            message = await receive()
            size = size + len(message.get("body", b""))
            is_more = message.get("more_body", False)

        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers[name.decode()] = ", ".join(filter(None, (headers.get(name.decode()), value.decode())))

        seen = {"path": scope["raw_path"].decode(), "size": size, "headers": headers}
        answer = [(b"set-cookie", cookie.encode()) for cookie in COOKIES]
        answer += [(b"content-type", b"text/html"), (b"clear-site-data", b'"*"'), (b"service-worker-allowed", b"/")]
        await send({"type": "http.response.start", "status": 200, "headers": answer})
        await send({"type": "http.response.body", "body": json.dumps(seen).encode()})

    async def _redirect(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer with the status and the Location of the query."""
        await receive()
        ((status, location),) = parse_qsl(scope["query_string"].decode(), keep_blank_values=True)
        headers = [(b"location", location.encode()), (b"content-location", b"/here")]
        await send({"type": "http.response.start", "status": int(status), "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, receive: Any, send: Any) -> None:
        """Send one event, and nothing more until the client has left."""
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        await receive()
        self.left.set()

    async def _echo(self, receive: Any, send: Any) -> None:
        await receive()
        cookies = [(b"set-cookie", cookie.encode()) for cookie in COOKIES]
        await send({"type": "websocket.accept", "headers": cookies})

        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"].upper()})


class Fronted:
    """A platform and its front. The test plays the listener."""

    def __init__(self, server: ServerProcess, home: Path, agent: FakeAgent, ports: dict[str, int]) -> None:
        self.server = server
        self.home = home
        self.agent = agent
        self.ports = ports
        self.url = server.url
        self.http = httpx2.Client(base_url=server.url, headers=HEADERS, timeout=300, limits=NO_IDLE_CONNECTIONS)
        listener = self.call("POST", "/internal/listeners/connect", compute_type="process", compute_id="test")
        self.listener = listener["listener_id"]

    def call(self, method: str, path: str, **body: Any) -> Any:
        response = self.http.request(method, path, json=body or None)
        assert response.is_success, response.text
        return response.json() if response.content else None

    def deploy(self, name: str, url: str | None = None, **config: Any) -> dict[str, Any]:
        """Create an image deployment that answers at the fake agent, and return it."""
        made = self.call(
            "POST",
            "/v2/deployments",
            name=name,
            source="external_image",
            source_config={"resource_spec": {}, **config},
            source_revision_config={"image_uri": "example/agent:1"},
            secrets=[],
        )

        self.http.get(f"/internal/listeners/{self.listener}/desired")
        self.report(made["id"], url or self.agent.url)
        return self.get(made["id"])

    @contextlib.contextmanager
    def real_agent(
        self, name: str, database_url: str, *, project: str = "guarded", **environment: str
    ) -> Iterator[dict[str, Any]]:
        """Create a deployment that a real agent server answers for, as a listener would start it."""
        made = self.deploy(name)
        desired = self.call("GET", f"/internal/listeners/{self.listener}/desired")["deployments"]
        (given,) = [each["environment"] for each in desired if each["id"] == made["id"]]
        folder = self.home / f"agent-{name}"

        folder.mkdir()
        settings = {**given, "LANGSMITH_TRACING": "false", **environment}
        with agent_server(database_url, folder, project=project, **settings) as server:
            self.report(made["id"], server.url)
            yield self.get(made["id"])

    def report(self, deployment_id: str, url: str) -> None:
        self.call("PUT", f"/internal/deployments/{deployment_id}/status", status="READY", custom_url=url)

    def get(self, deployment_id: str) -> dict[str, Any]:
        return dict(self.call("GET", f"/v2/deployments/{deployment_id}"))

    def caddy(self) -> int:
        """Return the process id of the front."""
        folder = str(self.home / "ingress")
        (found,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and (entry / "comm").exists() and _runs_in(entry, folder)
        ]

        return found

    def is_caddy(self, process_id: int) -> bool:
        """Whether this process is a front of this platform; one that has ended is none, even before it is reaped."""
        return _runs_in(Path(f"/proc/{process_id}"), str(self.home / "ingress"))


def _runs_in(entry: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):
        return str((entry / "cwd").readlink()) == folder
    return False


@contextlib.contextmanager
def start_fronted(home: Path, database_url: str, *arguments: str, **environment: str) -> Iterator[Fronted]:
    ports = {"http": free_port(), "https": free_port()}
    settings = {
        "DATABASE_URL": database_url,
        "PORTSIDE_OWN_LISTENER": "false",
        "PORTSIDE_HTTP_PORT": str(ports["http"]),
        "PORTSIDE_HTTPS_PORT": str(ports["https"]),
        **environment,
    }

    agent = FakeAgent()
    try:
        with platform_server(home, "--no-example", *arguments, **settings) as server:
            opened = Fronted(server, home, agent, ports)
            yield opened
            opened.http.close()
    finally:
        agent.close()


@contextlib.contextmanager
def web_ports() -> Iterator[None]:
    """Have the ports 80 and 443 of this machine to oneself, among all processes of tests.

    Another module may hold them for longer than a test may take, so a module that waits here counts its limit with
    `func_only`, without its fixtures.
    """
    with (Path(tempfile.gettempdir()) / "portside-web-ports.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make_certificate(folder: Path, *hosts: str) -> tuple[Path, Path]:
    """Make a certificate that signs itself, and return its file and that of its key, which the first host names."""
    host = hosts[0]
    names = ",".join(f"DNS:{name}" for name in hosts)
    certificate = folder / f"{host}.pem"
    key = folder / f"{host}.key"

    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN={host}",
            "-addext",
            f"subjectAltName={names}",
            "-keyout",
            key,
            "-out",
            certificate,
        ],
        check=True,
        capture_output=True,
    )

    return certificate, key
