"""The files for Prometheus and Grafana: queries name metrics and labels that a platform and an agent really have."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest
import pytest_asyncio
import yaml
from prometheus_client import REGISTRY

import portside.agent.app  # noqa: F401 - defines the metrics of agents
from portside.platform.app import open_platform
from portside.platform.home import Home
from portside.platform.settings import PlatformSettings
from tests.api.control_server import create_body
from tests.conftest import eventually
from tests.receiver import serve
from tests.servers import ServerProcess, agent_server, free_port

pytestmark = pytest.mark.asyncio(loop_scope="module")
FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
UNPACKED = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "portside" / "debian" / "usr" / "bin"
# Labels of Prometheus itself, and the one that prometheus.yml gives to agents.
ADDED = {"job", "instance", "deployment"}
# Queries of the dashboard without a result where nothing has failed, no backup is scheduled and no domain is served.
MAY_BE_EMPTY = re.compile("backup_old|certificate_expiring|portside_webhook_calls_total")


def rules() -> list[str]:
    groups = yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def panels() -> list[str]:
    board = json.loads((FOLDER / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


QUERIES = [*rules(), *panels()]


def metrics_in(query: str) -> set[str]:
    return set(re.findall(r"\b(?:up|lg_api_\w+|portside_\w+)\b", re.sub(r'"[^"]*"', "", query)))


def labels_in(query: str) -> set[str]:
    inside = re.findall(r"{([^}]*)}", query)
    matched = {name for each in inside for name in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", each)}
    grouped = {name.strip() for each in re.findall(r"by \(([^)]*)\)", query) for name in each.split(",")}
    return matched | grouped


def list_labels(metric: str) -> set[str]:
    collector: Any = REGISTRY._names_to_collectors[metric]
    return {*collector._labelnames, *({"le"} if metric.endswith("_bucket") else ())}


class Measured(NamedTuple):
    """A platform and an agent that have done something of everything that is measured."""

    platform: str
    agent: str

    async def text(self) -> str:
        """Return the metrics of both as Prometheus reads them."""
        async with httpx2.AsyncClient(timeout=300) as client:
            return "\n".join([(await client.get(f"{url}/metrics")).text for url in self])

    async def families(self) -> set[str]:
        """Return the names of all metrics that both show."""
        return set(re.findall(r"^([a-z_0-9]+)(?:{| )", await self.text(), re.MULTILINE))

    async def shows(self, series: str) -> bool:
        """Say whether a series has a value."""
        return series in await self.text()


@pytest.fixture(scope="module")
def agent(agent_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(agent_database, tmp_path_factory.mktemp("agent")) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def measurement(platform_database: str, agent: ServerProcess, tmp_path_factory: Any) -> AsyncIterator[Measured]:
    settings = PlatformSettings(rate_limits=False, alert_check_s=0.1)
    home = Home(tmp_path_factory.mktemp("home"))
    async with open_platform(home, settings, platform_database) as app, serve(app.asgi) as url:
        both = {"timeout": 60, "base_url": url}
        async with (
            httpx2.AsyncClient(headers={"x-api-key": app.new_key or ""}, **both) as client,
            httpx2.AsyncClient(headers={"x-api-key": app.listener_key}, **both) as listener,
            httpx2.AsyncClient(base_url=agent.url, timeout=300) as caller,
        ):
            made = (await client.post("/v2/deployments", json=create_body("measured"))).json()
            report = {"replicas": 1, "restarts": 0, "cpu": 0.1, "memory_mb": 90, "oldest_wait_s": 0, "pending_runs": 0}
            path = f"/internal/deployments/{made['id']}/metrics"
            assert (await listener.put(path, json=report)).status_code == 204
            assistants = (await caller.post("/assistants/search", json={})).json()
            body = {"assistant_id": assistants[0]["graph_id"], "input": {}}
            assert (await caller.post("/runs/wait", json=body)).status_code in {200, 422, 500}

        measured = Measured(url, agent.url)
        await eventually(lambda: measured.shows('portside_alert_measurement{rule="disk_used",subject="platform"}'))
        yield measured
        app.changes.close()


async def test_queries_name_metrics_and_labels_that_exist(measurement: Measured) -> None:
    families = await measurement.families()
    may_be_absent = {"lg_api_leases_expired_total", "portside_webhook_calls_total"}
    for query in QUERIES:
        named = metrics_in(query) - {"up"}
        # A metric with labels is shown once it has counted something.
        assert named - families <= may_be_absent, query

        if named:
            known = set.union(*(list_labels(metric) for metric in named))
            assert labels_in(query) <= known | ADDED, query


async def test_a_query_with_a_wrong_name_would_fail(measurement: Measured) -> None:
    assert metrics_in('rate(lg_api_no_such_total{status="up"}[5m])') == {"lg_api_no_such_total"}
    assert "lg_api_no_such_total" not in await measurement.families()
    assert labels_in('sum by (job, le) (x{status=~"5..", path!="/a"})') == {"job", "le", "status", "path"}
    assert len(QUERIES) > 30


async def test_rules_of_alerts_are_shown_to_prometheus(measurement: Measured) -> None:
    assert await measurement.shows('portside_alert_measurement{rule="disk_used",subject="platform"}')


def program(name: str) -> str:
    found = shutil.which(name) or str(UNPACKED / name)
    if not Path(found).exists():
        pytest.skip(f"{name} is not here: Debian's package prometheus has it")

    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", ["check rules rules.yml", "check config prometheus.yml", "test rules rules_test.yml"]
)
async def test_promtool_accepts_the_files_and_their_tests(arguments: str) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        program("promtool"), *arguments.split(), cwd=FOLDER, stdout=pipe, stderr=pipe
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, output.decode() + errors.decode()


@pytest.mark.thorough
async def test_a_real_prometheus_answers_every_query(measurement: Measured, tmp_path: Path) -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(FOLDER / "rules.yml")]

    for job, url in zip(config["scrape_configs"], measurement, strict=True):
        (entry,) = job["static_configs"]
        entry["targets"] = [url.removeprefix("http://")]
        entry.get("labels", {}).pop("__metrics_path__", None)

    file = tmp_path / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    port = free_port()

    process = await asyncio.create_subprocess_exec(
        program("prometheus"),
        "--config.file",
        str(file),
        "--storage.tsdb.path",
        str(tmp_path / "data"),
        "--web.listen-address",
        f"127.0.0.1:{port}",
        stderr=asyncio.subprocess.DEVNULL,
    )

    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=300) as client:
            await answer_every_query(client)
    finally:
        process.terminate()
        await process.wait()


async def answer_every_query(client: httpx2.AsyncClient) -> None:
    async def value(query: str) -> Any:
        try:
            response = await client.get("/query", params={"query": query})
        except httpx2.HTTPError:
            return None

        if response.status_code == 503:
            return None

        answer = response.json()
        assert answer["status"] == "success", (query, answer)
        return answer["data"]["result"]

    async def has_scraped() -> bool:
        # Two scrapes of each: a rate needs two samples.
        found = await value('count_over_time(up{job=~"portside-.*"}[5m]) >= 3 and up == 1')
        return bool(found) and len(found) == 2

    await eventually(has_scraped)

    for query in rules():
        await value(query)

    for query in panels():
        filled = query.replace("$__rate_interval", "5m").replace("$job", "portside-.*")
        result = await value(filled)
        assert result or MAY_BE_EMPTY.search(query), query

    groups = (await client.get("/rules")).json()["data"]["groups"]
    assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}
