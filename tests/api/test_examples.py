"""Each example answers as its README says, and its commands are those of the README.

The agent server is a real one in this process, for one example after the other.
"""

import asyncio
import hashlib
import json
import re
import runpy
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from langchain_mcp_adapters.client import MultiServerMCPClient
from mcp.shared.memory import create_connected_server_and_client_session

from portside.agent.app import open_app
from portside.agent.config import load_config
from portside.agent.custom.cache import SDK_CACHE
from portside.agent.custom.loopback import let_sdk_find_server
from portside.agent.settings import AgentSettings
from portside.executor.execute import Execution
from portside.executor.load import load_graphs
from portside.executor.requests import RunRequest
from portside.kernel.http.server import Server, listen
from tests.api.hosted import open_hosted
from tests.readmes import AGENT, EXAMPLES, PLATFORM, Reader, find_command, read_blocks
from tests.traced import forget_variables

pytestmark = pytest.mark.timeout(900)
SECRET = "0123456789abcdef"
IN_PYTHON = (
    "chat-page",
    "crons",
    "custom-auth",
    "http-app",
    "images",
    "mcp-tools",
    "questions",
    "research",
    "retrieval",
    "several-agents",
)
# Asked elsewhere: by tests/unit/test_graphs_example.py, tests/api/test_javascript_around.py, and here as a program.
OTHERS = ("alert-receiver", "hello-agent", "hello-agent-js", "tracing-from-outside")


@pytest.fixture(autouse=True)
def _forget_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let each example import its own `agent` and `model`, with a secret but without a key of a model."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("LG_WEBHOOK_SECRET", SECRET)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "LANGSMITH_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    # As `portside serve` does, so that `get_client()` without an address is a client of the server here.
    for name in ("langgraph_api", "langgraph_api.server", "langgraph_api.asgi_transport", "langgraph_api.cache"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    let_sdk_find_server(SDK_CACHE)

    yield
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(EXAMPLES)):
            del sys.modules[name]


@asynccontextmanager
async def serve_example(folder: Path, database_url: str) -> AsyncIterator[str]:
    """Serve an example as `portside serve` does, and yield the address."""
    config = load_config(folder / "langgraph.json")
    graphs = load_graphs(config.project)
    async with open_app(config, graphs, AgentSettings(database_url=database_url), database_url) as app:
        server = Server(app.asgi, draining=app.draining)
        stop = asyncio.Event()
        listening = listen("127.0.0.1", 0)
        await server.open([listening])
        serving = asyncio.create_task(server.serve_until(stop))
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            stop.set()
            await serving
            await app.worker.drain(0.0)


# That of MCP starts processes: tests/api/test_examples_deployed.py follows its README.
@pytest.mark.parametrize("name", [name for name in IN_PYTHON if name != "mcp-tools"])
async def test_example_answers_as_its_readme_says(name: str, module_database: str, monkeypatch: pytest.MonkeyPatch):
    async with serve_example(EXAMPLES / name, module_database) as url:
        await Reader(EXAMPLES / name, monkeypatch, {AGENT: url}).follow("Ask it")


async def test_mcp_example_answers_by_the_tools_of_its_server(monkeypatch: pytest.MonkeyPatch):
    # The same server without a process of its own.
    server = runpy.run_path(str(EXAMPLES / "mcp-tools" / "server.py"))["server"]
    connect = create_connected_server_and_client_session
    monkeypatch.setattr(MultiServerMCPClient, "session", lambda *_: connect(server._mcp_server))

    graphs = load_graphs(load_config(EXAMPLES / "mcp-tools" / "langgraph.json").project)
    question = {"messages": [{"role": "user", "content": "How many lamps are there?"}]}
    execution = Execution(graphs, RunRequest(graph_id="agent", input=question))
    async for _ in execution:
        pass

    assert json.loads(execution.outcome.values)["messages"][-1]["content"] == "The stock says: 12"


async def test_chat_page_is_served_and_built_from_its_sources(module_database: str):
    folder = EXAMPLES / "chat-page"
    sources = [folder / "page" / name for name in ("chat.tsx", "package.json")]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()

    async with serve_example(folder, module_database) as url, httpx2.AsyncClient(base_url=f"{url}/chat/") as client:
        page = (await client.get("")).raise_for_status().text
        assert re.findall(r'(?:src|href)="([^"]+)"', page) == ["data:,", "chat.css", "chat.js"]
        assert (await client.get("chat.css")).is_success
        script = (await client.get("chat.js")).raise_for_status()

    assert script.headers["content-type"].startswith("text/javascript")
    assert script.text.startswith(f"// sources: {digest}\n"), "run `npm install && npm run build` in chat-page/page"


async def test_traces_of_a_program_elsewhere(hosted_databases, monkeypatch: pytest.MonkeyPatch):
    folder = EXAMPLES / "tracing-from-outside"
    async with open_hosted(await hosted_databases()) as server:
        for name in ("LANGSMITH_TRACING", "LANGSMITH_ENDPOINT", "LANGSMITH_PROJECT"):
            monkeypatch.delenv(name, raising=False)

        # Otherwise the exporter drops spans that a busy machine has not taken after 10 s.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "100")
        forget_variables()
        try:
            reader = Reader(folder, monkeypatch, {PLATFORM: server.url}, KEY=server.key)
            await reader.follow("Run it")
            await reader.follow("See it")
        finally:
            forget_variables()


def test_examples_are_complete_and_alike():
    index = (EXAMPLES / "README.md").read_text("utf-8")
    folders = {file.name for file in EXAMPLES.iterdir() if file.is_dir()}
    assert set(re.findall(r"\]\(([\w-]+)\)", index)) == folders == {*IN_PYTHON, *OTHERS}

    models = {(EXAMPLES / name / "model.py").read_bytes() for name in IN_PYTHON if name != "custom-auth"}
    assert len(models) == 1

    for name in IN_PYTHON:
        requirements = (EXAMPLES / name / "requirements.txt").read_text("utf-8").splitlines()
        assert {"langchain-core>=1.0,<2", "langgraph>=1.0,<2"} <= set(requirements)
        assert find_command(EXAMPLES / name, "portside deploy")[:3] == ["portside", "deploy", "."]
        assert "portside dev\n" in "".join(block.text for block in read_blocks(EXAMPLES / name))
