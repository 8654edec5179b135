"""`portside deploy` on a real platform: its output while a project fails, once it serves, and in tutorials."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.test_platform import wait_for
from tests.preloaded import run_command
from tests.repositories import AGENT, CONFIG
from tests.servers import KEY, ServerProcess, platform_server

pytestmark = pytest.mark.timeout(900)
DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with platform_server(tmp_path_factory.mktemp("deploy") / "home", DEPLOYMENT_START_TIMEOUT_S="120") as server:
        yield server


@pytest.fixture
def environment(platform: ServerProcess, tmp_path: Path) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "PORTSIDE_URL": platform.url,
        "PORTSIDE_API_KEY": KEY,
    }


def portside(environment: dict[str, str], *arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    return run_command(*arguments, environment=environment, stdin=typed)


def test_a_graph_that_hangs_at_its_import_is_named_while_it_hangs(environment: dict[str, str], tmp_path: Path):
    project = tmp_path / "hanging"
    project.mkdir()
    (project / "langgraph.json").write_text(json.dumps(CONFIG))
    (project / "requirements.txt").write_text("")
    (project / "agent.py").write_text("import time\n\n\ndef connect():\n    time.sleep(600)\n\n\nconnect()\n")

    command = [sys.executable, "-m", "portside", "deploy", str(project)]
    reported = ""
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as deploying:
        assert deploying.stderr is not None

        for line in deploying.stderr:
            # A process that was paused may be elsewhere at the first look, and is looked at again later.
            if "is still importing" in line and "time.sleep" in line:
                reported = line
                break

        deploying.kill()

    assert re.search(
        r"langgraph\.json: graph 'agent' \(\./agent\.py:graph\) is still importing after [0-9]+ s "
        r"\(agent\.py, line 5: time\.sleep\(600\)\)",
        reported,
    )

    stack = portside(environment, "logs", "hanging", "--limit", "50").stdout
    assert 'File "agent.py", line 8, in <module>' in stack
    assert "importlib" not in stack
    assert "deleted" in portside(environment, "deployments", "delete", "hanging", "--yes").stdout


@pytest.mark.thorough
def test_a_missing_variable_is_named_once_and_an_env_file_mends_it(environment: dict[str, str], tmp_path: Path):
    project = tmp_path / "project"
    (project / "app").mkdir(parents=True)
    (project / "app" / "langgraph.json").write_text(json.dumps(CONFIG))
    (project / "app" / "requirements.txt").write_text("")

    code = "import os\nprint('starting the agent')\nMODEL_KEY = os.environ['MODEL_KEY']\n"
    (project / "app" / "agent.py").write_text(code + AGENT.format(answer="one"))
    deploy = ("deploy", str(project), "--name", "needy", "--config", "app/langgraph.json")
    failed = portside(environment, *deploy)
    assert failed.returncode == 1
    lines = failed.stderr.splitlines()
    reported = [number for number, line in enumerate(lines) if "KeyError" in line]
    assert len(reported) == 1, failed.stderr

    assert lines[reported[0]] == (
        "error: the revision failed with DEPLOY_FAILED: "
        "app/langgraph.json: graph 'agent' (./agent.py:graph) does not load: "
        "KeyError: 'MODEL_KEY' (agent.py, line 3: MODEL_KEY = os.environ['MODEL_KEY']); MODEL_KEY is not set: "
        "deploy with --secret MODEL_KEY=…, use 'portside secrets set', or write it to the env file of the configuration"
    )

    assert "starting the agent" in "\n".join(lines[reported[0] :])
    assert "/revisions/" not in failed.stderr
    assert "==" not in failed.stderr
    log = wait_for(lambda: "exited with code 1" in (text := portside(environment, "logs", "needy").stdout) and text)
    assert (log.count("KeyError"), log.count("exited with code 1")) == (1, 1), log
    assert log.index("KeyError") < log.index("exited with code 1")
    assert "/revisions/" not in log

    env_file = tmp_path / "many.env"
    env_file.write_text("MODEL_KEY=a-secret-value\n")
    served = portside(environment, *deploy, "--env-file", str(env_file))
    assert served.returncode == 0, served.stderr
    assert "a-secret-value" not in served.stdout + served.stderr
    assert served.stdout.startswith("http://127.0.0.1:")
    example = served.stderr.splitlines()[-1]
    assert example.startswith(f"curl -s {served.stdout.strip()}/assistants/search ")

    result = subprocess.run(["sh", "-c", example], env=environment, capture_output=True, text=True, check=True)
    assert [one["graph_id"] for one in json.loads(result.stdout)] == ["agent"]

    # A user who has logged in needs no key for the example.
    changed = portside(environment, "account", "password", "--first", typed="a long password\n")
    assert changed.returncode == 0, changed.stderr
    del environment["PORTSIDE_API_KEY"]
    environment["PATH"] = f"{sysconfig.get_path('scripts')}{os.pathsep}{environment['PATH']}"
    login = portside(environment, "login", "--email", "admin@localhost", typed="a long password\n")
    assert login.returncode == 0, login.stderr
    again = portside(environment, *deploy)
    assert again.returncode == 0, again.stderr

    example = again.stderr.splitlines()[-1]
    assert "deployments token needy" in example
    result = subprocess.run(["sh", "-c", example], env=environment, capture_output=True, text=True, check=True)
    assert [one["graph_id"] for one in json.loads(result.stdout)] == ["agent"]


@pytest.mark.parametrize(
    ("page", "awaited", "printed"),
    [
        ("start-here", {"runs/query": '"success"', "$READER": "403"}, ["You said: Ahoy!", "401", "403"]),
        pytest.param(
            "tutorials/ask-a-person",
            {},
            ["The thread is interrupted", "Two tickets for the ferry", "It is paid."],
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            "tutorials/remember-users",
            {},
            ["Who am I? -> Hello Ada!", "Who am I? -> Hello stranger!", "Ben sees 1 thread"],
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_commands_of_a_page_do_what_it_says(
    platform: ServerProcess,
    environment: dict[str, str],
    tmp_path: Path,
    *,
    page: str,
    awaited: dict[str, str],
    printed: list[str],
):
    """The commands are run as a reader types them, in one shell; `awaited` ones until they print what they should."""
    (tmp_path / ".portside").mkdir()
    (tmp_path / ".portside" / "api-key").write_text(KEY)
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"

    commands = ["set -eu"]
    for block in re.findall(r"^```sh\n(.*?)^```$", (DOCS / f"{page}.md").read_text("utf-8"), re.DOTALL | re.MULTILINE):
        texts = [text for mark, text in awaited.items() if mark in block]
        repeat = (
            f"until output=$(step) && printf '%s' \"$output\" | grep -qF '{texts[0]}'; do sleep 0.2; done"
            if texts
            else ""
        )
        commands.append(f"step() {{\n{block}}}\n{repeat}\nprintf '%s\\n' \"$output\"" if texts else block)

    script = "\n".join(commands).replace("http://127.0.0.1:8700", platform.url)
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for text in printed:
        assert text in done.stdout, done.stdout
