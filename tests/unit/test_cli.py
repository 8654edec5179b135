import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

from portside import __version__
from portside.cli import main as cli
from portside.cli.client import explain
from portside.cli.deploy import normalise
from portside.kernel.errors import UserMistake

HEAVY = ("asyncpg", "langgraph", "langchain_core", "httpx2", "cryptography", "uvicorn", "starlette")


def commands(group: click.Group, way: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group, by the words that reach it."""
    found = [way]
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found += commands(command, (*way, name)) if isinstance(command, click.Group) else [(*way, name)]
    return found


def run(*arguments: str, home: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user does, without the settings of whoever runs the tests."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PORTSIDE_", "DATABASE_"))}
    return subprocess.run(
        [sys.executable, "-m", "portside", *arguments], env=plain | environment, cwd=home, capture_output=True,
        text=True, check=False, timeout=60, stdin=subprocess.DEVNULL,
    )  # fmt: skip


class Done(NamedTuple):
    """What a command left behind, as a shell sees it."""

    returncode: int
    stdout: str
    stderr: str


def run_here(*arguments: str) -> Done:
    """Run a command that starts no server in this process, which is quicker."""
    code = 0
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            cli.main(list(arguments))
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
    return Done(code, out.getvalue(), err.getvalue())


HELP_OF_ALL = f"""
import contextlib, io, json, sys
from portside.cli.main import main
shown = {{}}
for way in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        main([*way, "--help"])
    shown[" ".join(way)] = [text.getvalue(), [name for name in {HEAVY} if name in sys.modules]]
print(json.dumps(shown))
"""


def test_every_command_explains_itself_and_imports_nothing_heavy() -> None:
    ways = commands(cli.portside)
    assert ("deployments", "logs") in ways
    done = subprocess.run(
        [sys.executable, "-c", HELP_OF_ALL, json.dumps(ways)], capture_output=True, text=True, check=True, timeout=60
    )
    shown = json.loads(done.stdout)
    for way in ways:
        text, heavy = shown[" ".join(way)]
        assert text.startswith(f"Usage: {' '.join(('portside', *way))} "), way
        assert heavy == [], way
        assert text.split("\n\n")[1].strip().endswith("."), f"{way} says what it does"


def test_the_list_of_commands_says_what_each_does_and_knows_them_all() -> None:
    shown = run_here("--help").stdout
    modules = {file.stem for file in Path(cli.__file__).parent.glob("*.py")}
    for name, what in cli.COMMANDS.items():
        assert name in modules
        assert what in shown


def test_version() -> None:
    assert run_here("--version").stdout == f"portside, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fly",), "No such command 'fly'"),
        (("up", "--port", "99999"), "99999"),
        (("deployments", "list", "--limit", "0"), "--limit"),
        (("usage", "--by", "moon"), "'moon'"),
        (("deploy",), "REPOSITORY"),
        (("keys", "list", "--nope"), "--nope"),
    ],
)
def test_a_wrong_command_line_is_explained(arguments, says: str) -> None:
    done = run_here(*arguments)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("deployments", "list", "--url", "http://127.0.0.1:9"), "no platform answers at http://127.0.0.1:9"),
        (("keys", "list", "--url", "not an address"), "not an address"),
        (("keys", "list", "--url", "http://127.0.0.1:9", "--api-key", "sp ace\n"), "error: "),
        (("deploy", "///", "--url", "http://127.0.0.1:9"), "--name"),
    ],
)
def test_a_mistake_is_one_line_and_exit_1(tmp_path, arguments, says: str) -> None:
    check_mistake(run_here(*arguments, "--home", str(tmp_path)), says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(("dev",), "langgraph.json"), (("listener",), "CONTROL_PLANE_URL"), (("serve", "--config", "no.json"), "no.json")],
)
def test_a_mistake_at_the_start_of_a_server_is_one_line_and_exit_1(tmp_path, arguments, says: str) -> None:
    check_mistake(run(*arguments, home=tmp_path), says)


def check_mistake(done: Any, says: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, done.stderr
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [(("up",), {"PORTSIDE_PORT": "ninety"}), (("up", "--home", "/dev/null/x"), {})],
)
def test_a_bad_setting_is_one_line(tmp_path, arguments, environment) -> None:
    done = run(*arguments, home=tmp_path, **environment)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("error: ")


def failing(monkeypatch, error: BaseException) -> None:
    def callback() -> None:
        raise error

    command = click.Command("usage", callback=callback)
    monkeypatch.setattr(cli.Lazy, "get_command", lambda *_: command)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserMistake("too late"), "error: too late\n"),
        (RuntimeError("first\nsecond"), "error: RuntimeError: first (PORTSIDE_TRACEBACK=1 shows where)\n"),
        (KeyError("name"), "error: KeyError: 'name' (PORTSIDE_TRACEBACK=1 shows where)\n"),
        (AssertionError(), "error: AssertionError (PORTSIDE_TRACEBACK=1 shows where)\n"),
    ],
)
def test_what_nobody_expected_is_one_line_too(monkeypatch, capsys, error, line: str) -> None:
    monkeypatch.delenv("PORTSIDE_TRACEBACK", raising=False)
    failing(monkeypatch, error)
    with pytest.raises(SystemExit) as ended:
        cli.main(["usage"])
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", line)


def test_the_traceback_is_shown_to_who_asks_for_it(monkeypatch) -> None:
    monkeypatch.setenv("PORTSIDE_TRACEBACK", "1")
    failing(monkeypatch, RuntimeError("here"))
    with pytest.raises(RuntimeError, match="here"):
        cli.main(["usage"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_nothing(monkeypatch, capsys, error) -> None:
    failing(monkeypatch, error)
    with pytest.raises(SystemExit) as ended:
        cli.main(["usage"])
    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_reader_that_goes_is_no_error() -> None:
    """As in `portside … | head -1`."""
    program = "import sys; sys.argv = ['portside', '--help']; from portside.cli.main import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60
    )
    os.close(writing)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("https://git.example.com/Team/My_Agent.git", "my-agent"),
        ("/srv/agents/hello-agent/", "hello-agent"),
        ("git@example.com:agent.git", "git-example-com-agent"),
        ("https://x/" + "a" * 100, "a" * 63),
    ],
)
def test_a_deployment_is_named_after_its_repository(source: str, name: str) -> None:
    assert normalise(source) == name


def test_the_platforms_own_words_reach_the_user() -> None:
    import httpx2

    problem = {"loc": ["body", "source_config", "repo_url"], "msg": "not an address", "type": "value_error"}
    assert explain(httpx2.Response(422, json={"detail": [problem]})) == "source_config.repo_url: not an address"
    assert explain(httpx2.Response(409, json={"detail": "taken"})) == "taken"
    assert explain(httpx2.Response(502, text="<html>")) == "<html>"
    assert explain(httpx2.Response(502)) == "Bad Gateway"
    assert explain(httpx2.Response(500, json=["odd"])) == '["odd"]'
