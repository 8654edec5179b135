"""A git host on a free port: repositories over smart HTTP behind a token, and its REST interface in three dialects."""

import asyncio
import base64
import os
import subprocess
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from portside.kernel.http.server import Server, listen

TOKEN = "ghp_a-token-of-the-test"


@dataclass
class GitHost:
    """The host; `folder` holds `owner/name.git`, each a repository or a link to one.

    `asked` are the paths that were asked for, `shown` the names and passwords that git came with; an open
    host asks for none.
    """

    folder: Path
    url: str = ""
    listed: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    status: int = 200
    is_open: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        self.asked.append(request.url.path)
        path = request.url.path
        answer = self._list(request) if path.startswith(("/api/", "/user")) else await self._git(request)

        await answer(scope, receive, send)

    def _list(self, request: Request) -> Response:
        dialect = request.url.path.split("/")[2]
        shown = request.headers.get("private-token") or request.headers.get("authorization", " ").split(" ", 1)[1]
        if shown != TOKEN:
            return JSONResponse({"message": "Bad credentials"}, 401)

        query = request.query_params
        size = int(query.get("per_page") or query["limit"])
        page = int(query["page"])
        names = list(enumerate(self.listed))[size * (page - 1) : size * page]
        show = self._project if dialect == "v4" else self._repository

        return JSONResponse([show(number, name) for number, name in names], self.status)

    def _repository(self, number: int, name: str) -> Any:
        owner, last = name.split("/")
        clone_url = f"{self.url}/{name}.git"
        return {"id": number, "name": last, "owner": {"login": owner}, "clone_url": clone_url, "default_branch": "main"}

    def _project(self, number: int, name: str) -> Any:
        owner, last = name.split("/")
        return {
            "id": number,
            "path": last,
            "namespace": {"full_path": owner},
            "http_url_to_repo": f"{self.url}/{name}.git",
            "default_branch": None,
        }

    async def _git(self, request: Request) -> Response:
        sent = base64.b64decode(request.headers.get("authorization", "Basic ").partition(" ")[2]).decode()
        self.shown += [sent] if sent else []
        if not self.is_open and sent.partition(":")[2] != TOKEN:
            return Response(status_code=401, headers={"WWW-Authenticate": 'Basic realm="git"'})

        return await asyncio.to_thread(self._backend, request, await request.body())

    def _backend(self, request: Request, body: bytes) -> Response:
        environment = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(self.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "PATH_INFO": urllib.parse.unquote(request.url.path),
            "QUERY_STRING": request.url.query,
            "REQUEST_METHOD": request.method,
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "HTTP_CONTENT_ENCODING": request.headers.get("content-encoding", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_GIT_PROTOCOL": request.headers.get("git-protocol", ""),
        }

        done = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))

        return Response(content, int(headers.pop("Status", "200").split(" ")[0]), headers)


@asynccontextmanager
async def git_host(folder: Path) -> AsyncIterator[GitHost]:
    """Serve the repositories in a folder."""
    host = GitHost(folder)
    stop = asyncio.Event()
    listening = listen("127.0.0.1", 0)
    host.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = Server(host, draining=asyncio.Event(), grace_s=1)

    await server.open([listening])
    serving = asyncio.create_task(server.serve_until(stop))
    try:
        yield host
    finally:
        stop.set()
        await serving
