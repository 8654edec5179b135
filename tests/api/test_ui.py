"""React components of a project (`ui` of the configuration file) reach the pages that show them.

They are bundled by builds and by `portside dev`, also for graphs in Python.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest

from portside.agent.config import load_config
from portside.agent.ui import Bundles, ComponentsNotFound
from tests.browser import NEEDS_CHROMIUM, open_chromium, open_page
from tests.conftest import eventually
from tests.node_packages import copy_of_project, javascript_runtime
from tests.servers import PROJECTS, ServerProcess, agent_server, free_port

SOURCE = PROJECTS / "ui"
SCRIPT = "/ui/agent/entrypoint.js"
pytestmark = pytest.mark.timeout(600)


def node(*arguments: str, cwd: Path) -> None:
    done = subprocess.run(["node", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def bundle(project: Path) -> None:
    node(str(javascript_runtime() / "ui.mjs"), str(project / "langgraph.json"), cwd=project)


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("ui")
    # The components need no package that the page does not offer.
    project = Path(shutil.copytree(SOURCE, folder / "project"))
    bundle(project)

    with agent_server(module_database, folder, project=str(project)) as running:
        yield running


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=server.url, timeout=300) as client:
        yield client


def test_page_gets_the_html_of_a_component(http: httpx2.Client, server: ServerProcess):
    response = http.post("/ui/agent", json={"name": "weather"})
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    call = '__LGUI_agent.render("weather", "{{shadowRootId}}")'

    assert response.text.splitlines() == [
        f'<link rel="stylesheet" href="{server.url}/ui/agent/entrypoint.css" />',
        f"<script src=\"{server.url}{SCRIPT}\" onload='{call}'></script>",
    ]


def test_html_has_the_address_that_the_page_knows(http: httpx2.Client):
    def script(**headers: str) -> str:
        return http.post("/ui/agent", json={"name": "a"}, headers=headers).text.splitlines()[1].split('"')[1]

    assert script(host="agents.example.com") == f"//agents.example.com{SCRIPT}"
    headers = {"host": "agents.example.com", "x-forwarded-proto": "https"}
    assert script(**headers) == f"https://agents.example.com{SCRIPT}"
    assert script(host="localhost:2024") == f"http://localhost:2024{SCRIPT}"


def test_name_of_a_component_is_no_html(http: httpx2.Client):
    hostile = """'><img src=x onerror="alert(1)">&quot;"""
    text = http.post("/ui/agent", json={"name": hostile}).text
    assert "<img" not in text
    assert text.count("'") == 2


def test_bundle_is_sent_once(http: httpx2.Client):
    script = http.get(SCRIPT)
    styles = http.get("/ui/agent/entrypoint.css")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert styles.headers["content-type"] == "text/css; charset=utf-8"
    assert script.headers["cache-control"] == "no-cache"
    assert script.headers["x-content-type-options"] == styles.headers["x-content-type-options"] == "nosniff"
    assert 'globalThis[Symbol.for("LGUI_REQUIRE")]("react")' in script.text
    assert "#010203" in styles.text

    again = http.get(SCRIPT, headers={"If-None-Match": f'W/{script.headers["etag"]}, "other"'})
    assert (again.status_code, again.content) == (304, b"")
    assert http.get(SCRIPT, headers={"If-None-Match": '"other"'}).status_code == 200


@pytest.mark.parametrize("path", ["/ui/other/entrypoint.js", "/ui/agent/other.js", "/ui/agent/..%2f..%2fschemas.json"])
def test_nothing_else_is_served(http: httpx2.Client, path: str):
    assert http.get(path).status_code == 404


async def test_bundle_that_the_configuration_names_no_more_is_not_served(tmp_path: Path):
    for folder in ("agent", "old", "."):
        place = tmp_path / ".langgraph_api" / "ui" / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "entrypoint.js").write_text("1")
        (place / "secrets.js").write_text("2")

    bundles = Bundles(tmp_path, ["agent"])
    assert (await bundles.file("agent", "entrypoint.js")).content == b"1"
    for name, file in (("old", "entrypoint.js"), (".", "entrypoint.js"), ("agent", "secrets.js"), ("agent", "gone.js")):
        with pytest.raises(ComponentsNotFound):
            await bundles.file(name, file)

    for name in ("old", "."):
        with pytest.raises(ComponentsNotFound):
            await bundles.page(name, "weather", "http://a")


def test_unknown_components_say_what_to_do(http: httpx2.Client):
    response = http.post("/ui/other", json={"name": "weather"})
    assert response.status_code == 404
    assert "add it to `ui` in the configuration file" in response.text


@pytest.mark.parametrize("disabled", [{"GRAPH_HTTP": '{"disable_ui": true}'}, {"GRAPH_UI": "{}"}])
def test_components_may_be_left_out(module_databases: Callable[[], str], tmp_path: Path, disabled: dict[str, str]):
    with agent_server(module_databases(), tmp_path, project="ui", **disabled) as running:
        assert httpx2.get(f"{running.url}{SCRIPT}").status_code == 404
        assert "/ui/{name}" not in httpx2.get(f"{running.url}/openapi.json").json()["paths"]


async def test_components_of_a_configuration_file_in_a_folder(tmp_path: Path):
    """Both the path and those of imports count from its folder, else from one above; the dependency is above it."""
    shutil.copytree(SOURCE / "components", tmp_path / "app" / "components")
    shared = Path(shutil.copytree(SOURCE / "components", tmp_path / "shared"))
    script = (shared / "index.tsx").read_text()
    (shared / "index.tsx").write_text(script.replace('"components/words"', '"shared/words"'))
    config = tmp_path / "app" / "langgraph.json"
    content = {
        "dependencies": [".."],
        "graphs": {"agent": "./agent.py:graph"},
        "ui": {
            "beside": "./components/index.tsx",
            "undotted": "components/index.tsx",
            "above": "./shared/index.tsx",
        },
        "ui_config": {"shared": ["greetings"]},
    }
    config.write_text(json.dumps(content))

    await asyncio.to_thread(node, str(javascript_runtime() / "ui.mjs"), "app/langgraph.json", cwd=tmp_path)
    agent_config = load_config(config)
    bundles = Bundles(agent_config.folder, agent_config.ui)
    for name in ("beside", "undotted", "above"):
        assert b"sun in" in (await bundles.file(name, "entrypoint.js")).content
        assert b"mine" in (await bundles.file(name, "entrypoint.css")).content


def test_mistake_in_a_component_is_named(tmp_path: Path):
    project = Path(shutil.copytree(SOURCE, tmp_path / "project"))
    (project / "components" / "styles.css").unlink()
    done = subprocess.run(
        ["node", str(javascript_runtime() / "ui.mjs"), str(project / "langgraph.json")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert 'Could not resolve "./styles.css"' in done.stderr


@contextmanager
def serve_page(project: Path) -> Iterator[str]:
    """Build the page of the project as its users do, and serve it from an origin of its own."""
    page = project / "page"
    page.mkdir()
    (page / "index.html").write_text('<!doctype html><body><script src="page.js"></script>')
    esbuild = javascript_runtime() / "node_modules" / "esbuild" / "bin" / "esbuild"

    node(str(esbuild), "page.tsx", "--bundle", "--jsx=automatic", "--outfile=page/page.js", cwd=project)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(page)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.thorough
@NEEDS_CHROMIUM
async def test_browser_shows_components_and_their_changes(tmp_path: Path):
    project = copy_of_project(tmp_path / "project", SOURCE)
    port = free_port()
    url = f"http://127.0.0.1:{port}"

    environment = {
        **os.environ,
        "PORTSIDE_HOME": str(tmp_path / "home"),
        "DATABASE_URL": "",
        "DATABASE_URI": "",
        "CORS_ALLOW_ORIGINS": "*",
        "EXECUTOR_JAVASCRIPT": str(javascript_runtime()),
        "EXECUTOR_NODE": "node",
    }

    with (tmp_path / "log").open("wb") as log:
        dev = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "portside", "dev", "--port", str(port)],
            cwd=project,
            env=environment,
            stdout=log,
            stderr=log,
        )

    async def serves(text: str) -> bool:
        try:
            async with httpx2.AsyncClient() as client:
                return text in (await client.get(f"{url}{SCRIPT}")).text
        except httpx2.TransportError:
            return False

    try:
        await eventually(lambda: serves("sun in"), 300)
        with serve_page(project) as origin:
            async with open_chromium() as chromium, open_page(chromium) as page:
                await page.goto(f"{origin}?agent={url}")
                await page.click("#ask")
                button = page.get_by_text("Hello, sun in Lima, Lima again, 0 clicks")
                await button.click()

                style = "element => [getComputedStyle(element).padding, getComputedStyle(element).backgroundColor]"
                shown = page.get_by_text("1 clicks")
                assert await shown.evaluate(style) == ["17px", "rgb(1, 2, 3)"]
                file = project / "components" / "index.tsx"

                file.write_text(file.read_text().replace("sun in", "rain in"))
                await eventually(lambda: serves("rain in"), 300)
                await page.goto(f"{origin}?agent={url}")
                await page.click("#ask")
                await page.get_by_text("Hello, rain in Lima").wait_for()
    finally:
        dev.send_signal(signal.SIGINT)
        assert dev.wait(120) == 0
