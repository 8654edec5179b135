"""The first agent of a new platform: deployed through the public API, asked something, and counted."""

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from portside.cli.client import DEFAULT_URL, Platform
from portside.cli.deploy import creation
from portside.cli.following import follow_revision
from portside.cli.usage import fetch_usage
from portside.kernel.errors import UserMistake
from portside.platform.example import NAME, make_repository
from portside.platform.home import Home
from portside.platform.settings import DEFAULT_HOME

QUESTION = "Hello! What is 6*7?"
TRACE_WITHIN_S = 30.0
SERVING_WITHIN_S = 120.0


class Greeting(msgspec.Struct):
    """What a person wants to know once the platform runs."""

    url: str
    key: str | None
    home: Path
    agent_url: str | None = None
    reply: str | None = None
    traces: int | None = None

    def show(self) -> None:
        """Print it."""
        rows = [("Platform", self.url), ("API key", f"{self.key or '(kept by you)'}   (in {self.home / 'api-key'})")]
        if self.agent_url:
            rows.append(("Agent", self.agent_url))
        if self.reply:
            rows += [("You", QUESTION), ("Agent's reply", self.reply)]
        if self.traces is not None:
            rows.append(("Traces billed", str(self.traces)))
        click.echo()
        for name, value in rows:
            click.echo(f"  {name:<14} {value}")
        click.echo("\n  Try next")
        for command in self._commands():
            click.echo(f"    {command}")
        click.echo("\n  Ctrl-C stops everything; what was deployed comes back with the next start.", nl=True)
        sys.stdout.flush()

    def _commands(self) -> list[str]:
        portside = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "portside" else "portside"
        where = "" if self.url == DEFAULT_URL else f" --url {self.url}"
        where += "" if self.home == Path(DEFAULT_HOME).expanduser() else f" --home {shlex.quote(str(self.home))}"
        key = f'"X-Api-Key: $(cat {shlex.quote(str(self.home / "api-key"))})"'
        ask = '\'{"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "Hi, I am Ada"}]}}\''
        return [
            f"curl -s {self.agent_url or 'AGENT_URL'}/runs/wait -H {key} -H 'Content-Type: application/json' -d {ask}",
            f"{portside} deployments show {NAME}{where}",
            f"{portside} usage{where}",
        ]


def deploy_example(platform: Platform, home: Home, greeting: Greeting, say: Callable[[str], None]) -> None:
    """Deploy the example once and let it answer once; later starts only look whether it is back."""
    deployment = _find(platform)
    if deployment is None:
        if home.example_done.exists():
            return
        home.example.parent.mkdir(parents=True, exist_ok=True)
        repository = make_repository(home.example)
        say(f"deploying {NAME} from {repository}")
        revision = {"repo_ref": "main", "graph_config_path": "langgraph.json"}
        body = creation(platform, NAME, str(repository), revision)
        deployment = platform.call("POST", "/v2/deployments", body=body)
    if not home.example_done.exists():
        follow_revision(platform, deployment["id"], deployment["latest_revision_id"], say=_without_packages(say))
    _look(platform, greeting, say)
    if home.example_done.exists():
        greeting.traces = _count(platform)
        return
    greeting.reply = _ask(greeting.agent_url or "", platform.headers)
    greeting.traces = _wait_for_trace(platform)
    home.example_done.touch()


def _without_packages(say: Callable[[str], None]) -> Callable[[str], None]:
    """Leave the list of installed packages to the build log."""
    return lambda line: None if line.startswith("   + ") else say(line)


def _find(platform: Platform) -> dict[str, Any] | None:
    found = platform.call("GET", "/v2/deployments", name=NAME)["resources"]
    return next((dict(deployment) for deployment in found if deployment["name"] == NAME), None)


def _look(platform: Platform, greeting: Greeting, say: Callable[[str], None]) -> None:
    """Wait until the agent answers on its address."""
    import httpx2

    say("waiting for the agent")
    deadline = time.monotonic() + SERVING_WITHIN_S
    while time.monotonic() < deadline:
        deployment = _find(platform) or {}
        greeting.agent_url = (deployment.get("source_config") or {}).get("custom_url")
        if greeting.agent_url and deployment.get("active_revision_id"):
            try:
                httpx2.get(f"{greeting.agent_url}/ok", timeout=SERVING_WITHIN_S).raise_for_status()
            except httpx2.HTTPError:
                pass
            else:
                return
        time.sleep(0.3)
    raise UserMistake(f"{NAME} does not answer; see 'portside deployments logs {NAME}'")


def _ask(url: str, headers: dict[str, str]) -> str:
    import httpx2

    with httpx2.Client(base_url=url, headers=headers, timeout=120) as agent:
        thread = agent.post("/threads", json={}).raise_for_status().json()
        body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": QUESTION}]}}
        answer = agent.post(f"/threads/{thread['thread_id']}/runs/wait", json=body)
    values = answer.raise_for_status().json()
    if "messages" not in values:
        raise UserMistake(f"{NAME} failed: {values}")
    return str(values["messages"][-1]["content"])


def _wait_for_trace(platform: Platform) -> int:
    """Wait until the trace of the answer has arrived, and return how many were counted."""
    deadline = time.monotonic() + TRACE_WITHIN_S
    while (count := _count(platform)) == 0 and time.monotonic() < deadline:
        time.sleep(0.3)
    return count


def _count(platform: Platform) -> int:
    found = fetch_usage(platform, days=365, by="project")["usage"]
    return sum(int(record["traces"]) for record in found if record["dimensions"].get("project_name") == NAME)
