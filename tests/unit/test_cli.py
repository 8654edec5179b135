"""The `portside` command: its help, and one line without a stack trace for every mistake."""

import contextlib
import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from portside import __version__
from portside.agent.config import AgentConfig, GraphSource, HttpConfig
from portside.agent.settings import AgentSettings
from portside.cli import backup as cli_backup
from portside.cli import main as cli
from portside.cli import service as cli_service
from portside.cli.backup import read_passphrase
from portside.cli.client import explain
from portside.cli.deploy import derive_name
from portside.cli.greeting import Greeting
from portside.cli.login import has_browser
from portside.cli.logins import Login, Logins, normalize_url
from portside.cli.serve import summarize
from portside.cli.service import read_environment
from portside.kernel.errors import DependencyUnavailable, TooManyRequests, UserMistake
from portside.kernel.version import full_version
from portside.operate.service import Service, find_running_service, parse_unit
from tests.commands import run_here
from tests.preloaded import run_command
from tests.servers import free_port

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
    return run_command(*arguments, environment=plain | environment, folder=home)


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
        [sys.executable, "-c", HELP_OF_ALL, json.dumps(ways)], capture_output=True, text=True, check=True, timeout=300
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
    for name, entry in cli.COMMANDS.items():
        assert entry.module in modules, name
        assert entry.help in shown, name


def test_version() -> None:
    assert run_here("--version").stdout == f"portside, version {full_version()}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fly",), "No such command 'fly'"),
        (("up", "--port", "99999"), "99999"),
        (("deployments", "list", "--limit", "0"), "--limit"),
        (("usage", "--by", "moon"), "'moon'"),
        (("rollback",), "DEPLOYMENT"),
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
        (("deployments", "list", "--url", "http://127.0.0.1:9"), "no platform responds at http://127.0.0.1:9"),
        (("keys", "list", "--url", "not an address"), "not an address"),
        (("keys", "list", "--url", "http://127.0.0.1:9", "--api-key", "sp ace\n"), "error: "),
        (("deploy", "///", "--url", "http://127.0.0.1:9"), "--name"),
        (
            ("deploy", "/", "--name", "x", "--url", "http://127.0.0.1:9"),
            "has no langgraph.json",
        ),
        (("deploy", "./not-there", "--url", "http://127.0.0.1:9"), "there is no folder"),
        (
            ("deploy", "team/agent", "--url", "http://127.0.0.1:9"),
            "there is no folder team/agent; did you mean https://github.com/team/agent?",
        ),
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


@pytest.mark.parametrize("command", ["serve", "dev"])
def test_a_port_that_is_taken_ends_a_server_at_once(tmp_path: Path, command: str) -> None:
    """Before the agent is imported, which here fails; reload waits for no change that could not mend it."""
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./missing.py:graph"}}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run(command, "--port", str(port), home=tmp_path, DATABASE_URI="postgresql://nobody@127.0.0.1:9/none")

    assert done.returncode == DependencyUnavailable.exit_code
    *before, error = done.stderr.splitlines()
    assert (done.stdout, error) == (
        "",
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port",
    )

    # Which Python runs is said first.
    assert [sys.executable in line for line in before] == ([True] if command == "dev" else [])


def test_a_database_that_is_away_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("graph = lambda: None\n")
    (tmp_path / "langgraph.json").write_text('{"graphs": {"agent": "./agent.py:graph"}}')
    done = run(
        "serve", "--port", str(free_port()), home=tmp_path, DATABASE_URI="postgresql://ann:secret@127.0.0.1:9/none"
    )
    assert done.returncode == DependencyUnavailable.exit_code
    assert done.stderr.startswith("error: the database does not answer: ")

    assert done.stderr.count("\n") == 1, done.stderr
    assert "secret" not in done.stderr


def build_config(graphs: int, **http: str) -> AgentConfig:
    sources = {f"g{number}": GraphSource("./agent.py:graph") for number in range(graphs)}
    return AgentConfig(file=Path("/a.json"), graphs=sources, dependencies=[], env={}, http=HttpConfig(**http))


def test_a_server_that_has_started_says_what_it_is() -> None:
    url = "postgresql://ann:secret@db.example:5432/agents?sslmode=require"
    settings = AgentSettings(host="::1", port=9, database_url=url, tier="queue", n_jobs_per_worker=3)
    assert summarize(build_config(2, mount_prefix="/mine"), settings, url) == [
        f"Portside {__version__}, agent server",
        "  address   http://[::1]:9/mine",
        "  graphs    g0, g1",
        "  database  db.example:5432/agents",
        "  tier      queue: executes up to 3 runs at once; answers only /ok, /metrics and /info",
    ]

    embedded = summarize(build_config(10), AgentSettings(), "postgresql://ann:secret@/agents?host=%2Ftmp%2Fa")
    assert embedded[2:4] == [
        "  graphs    g0, g1, g2, g3, g4, g5, g6, g7 and 2 more",
        "  database  /tmp/a/agents, embedded",
    ]


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


def fail_with(monkeypatch, error: BaseException) -> None:
    def callback() -> None:
        raise error

    command = click.Command("usage", callback=callback)
    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: command)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserMistake("too late"), "error: too late\n"),
        (RuntimeError("first\nsecond"), "error: RuntimeError: first (set PORTSIDE_TRACEBACK=1 for the stack trace)\n"),
        (KeyError("name"), "error: KeyError: 'name' (set PORTSIDE_TRACEBACK=1 for the stack trace)\n"),
        (AssertionError(), "error: AssertionError (set PORTSIDE_TRACEBACK=1 for the stack trace)\n"),
    ],
)
def test_an_unexpected_error_is_one_line(monkeypatch, capsys, error, line: str) -> None:
    monkeypatch.delenv("PORTSIDE_TRACEBACK", raising=False)
    fail_with(monkeypatch, error)
    with pytest.raises(SystemExit) as ended:
        cli.main(["usage"])

    assert ended.value.code == 1
    assert capsys.readouterr() == ("", line)


def test_portside_traceback_shows_the_stack_trace(monkeypatch) -> None:
    monkeypatch.setenv("PORTSIDE_TRACEBACK", "1")
    fail_with(monkeypatch, RuntimeError("here"))
    with pytest.raises(RuntimeError, match="here"):
        cli.main(["usage"])


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupted_command_says_nothing(monkeypatch, capsys, error) -> None:
    fail_with(monkeypatch, error)
    with pytest.raises(SystemExit) as ended:
        cli.main(["usage"])

    assert ended.value.code == 130
    assert capsys.readouterr().err.strip() == ""


def test_a_closed_pipe_is_not_an_error() -> None:
    """As in `portside … | head -1`."""
    program = "import sys; sys.argv = ['portside', '--help']; from portside.cli.main import main; main()"
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=300
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
    assert derive_name(source) == name


def test_error_details_of_the_platform_are_shown() -> None:
    import httpx2

    problem = {"loc": ["body", "source_config", "repo_url"], "msg": "not an address", "type": "value_error"}
    assert explain(httpx2.Response(422, json={"detail": [problem]})) == "source_config.repo_url: not an address"
    assert explain(httpx2.Response(409, json={"detail": "taken"})) == "taken"
    assert explain(httpx2.Response(502, text="<html>")) == "<html>"
    assert explain(httpx2.Response(502)) == "Bad Gateway"
    assert explain(httpx2.Response(500, json=["odd"])) == '["odd"]'


def test_a_response_says_in_words_when_to_try_again() -> None:
    import httpx2

    def said(detail: str, after: str) -> str:
        return explain(httpx2.Response(429, json={"detail": detail}, headers={"Retry-After": after}))

    default = TooManyRequests().message
    assert said(default, "7") == "Rate limit exceeded; retry after 7 s."
    assert said("Too many pending runs (setting MAX).", "7") == "Too many pending runs (setting MAX); try again in 7 s"
    assert said("Rate limit exceeded; try again in 7 s.", "7") == "Rate limit exceeded; try again in 7 s."
    assert said("Later", "Wed, 21 Oct 2026 07:28:00 GMT") == "Later"


def print_greeting(greeting: Greeting, capsys: pytest.CaptureFixture[str]) -> str:
    greeting.show()
    return capsys.readouterr().out


@contextlib.contextmanager
def hold_lock(home: Path) -> Iterator[None]:
    """Hold the lock of a home, as a platform does."""
    with (home / "platform.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_commands_find_the_platform_of_a_home_folder_at_its_port(tmp_path: Path) -> None:
    port = free_port()
    listing = ("deployments", "list", "--home", str(tmp_path))
    unused = f"http://127.0.0.1:{free_port()}"
    assert f"{unused} " in run(*listing, PORTSIDE_URL=unused).stderr
    (tmp_path / "address").write_text(f"http://127.0.0.1:{port}\n")
    assert f"no platform responds at http://127.0.0.1:{port} " in run(*listing).stderr
    other = free_port()
    assert f":{other} " in run(*listing, "--url", f"http://127.0.0.1:{other}").stderr

    assert f":{port} " in run("login", "--device", PORTSIDE_HOME=str(tmp_path)).stderr
    with hold_lock(tmp_path):
        assert f"nothing answers at http://127.0.0.1:{port}\n" in run("doctor", "--home", str(tmp_path)).stdout


def test_a_backup_without_a_passphrase_or_a_terminal_says_how_to_give_one(tmp_path: Path) -> None:
    done = run("backup", "create", "--to", str(tmp_path / "backup"), "--home", str(tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "--passphrase-file FILE" in done.stderr


class Terminal(io.StringIO):
    """A standard input at which a user sits."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_new", [True, False])
def test_the_passphrase_of_a_new_backup_is_asked_for_twice(monkeypatch: pytest.MonkeyPatch, *, is_new: bool) -> None:
    asked: list[dict[str, Any]] = []

    def prompt(_text: str, **how: Any) -> str:
        asked.append(how)
        return "correct horse battery"

    monkeypatch.setattr(click, "prompt", prompt)
    monkeypatch.setattr(sys, "stdin", Terminal())

    passphrase = read_passphrase(None, {}, is_new=is_new)

    assert passphrase._text == b"correct horse battery"
    assert [how["confirmation_prompt"] for how in asked] == [is_new]
    assert [how["hide_input"] for how in asked] == [True]


@pytest.mark.parametrize(
    ("words", "is_new"),
    [
        (("create", "--to", "{home}/a.backup"), True),
        (("verify", "{home}/a.backup"), False),
        (("restore", "{home}/a.backup"), False),
    ],
    ids=["create", "verify", "restore"],
)
def test_only_the_passphrase_of_a_backup_that_is_taken_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], *, is_new: bool
) -> None:
    asked: list[bool] = []

    def read(_file: str | None, _environ: Mapping[str, str], *, is_new: bool) -> Any:
        asked.append(is_new)
        raise UserMistake("no passphrase")

    monkeypatch.setattr(cli_backup, "read_passphrase", read)
    arguments = [word.format(home=tmp_path) for word in (*words, "--home", "{home}")]
    result = CliRunner().invoke(cli_backup.backup, arguments)
    assert isinstance(result.exception, UserMistake)
    assert asked == [is_new]


@pytest.mark.parametrize(
    "words",
    [("create", "--to", "a"), ("run",), ("status",), ("list", "a"), ("verify", "a"), ("restore", "a")],
    ids=lambda words: words[0],
)
def test_commands_of_backups_have_the_settings_of_their_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    read: list[str | None] = []

    def note_home(_url: str | None, home: str | None) -> Any:
        read.append(home)
        raise UserMistake("no settings")

    monkeypatch.setattr(cli_backup, "read_environment", note_home)
    result = CliRunner().invoke(cli_backup.backup, [*words, "--home", str(tmp_path)])
    assert isinstance(result.exception, UserMistake)
    assert read == [str(tmp_path)]


@pytest.mark.parametrize(("new_key", "shown"), [("lsv2_pt_first", True), (None, False)])
def test_the_first_key_is_shown_only_at_the_first_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], new_key: str | None, *, shown: bool
) -> None:
    (tmp_path / "api-key").write_text("lsv2_pt_first\n")
    text = print_greeting(Greeting("http://127.0.0.1:8700", new_key, tmp_path), capsys)
    assert ("lsv2_pt_first" in text) == shown
    assert f"in {tmp_path / 'api-key'}" in text


def test_next_steps_without_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = print_greeting(Greeting("http://127.0.0.1:8700", "key", tmp_path), capsys)
    assert "hello-agent" not in text
    assert "AGENT_URL" not in text
    assert "portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY" in text
    assert "deployments show hello-agent" in print_greeting(
        Greeting("http://127.0.0.1:8700", "key", tmp_path, "http://127.0.0.1:1"), capsys
    )


@pytest.mark.parametrize(
    ("environment", "system", "expected"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_TTY": "/dev/pts/0"}, "linux", False),
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "x"}, "darwin", False),
        ({"BROWSER": "w3m", "SSH_TTY": "/dev/pts/0"}, "linux", True),
    ],
)
def test_a_browser_is_where_the_user_sits(environment: dict[str, str], system: str, *, expected: bool) -> None:
    assert has_browser(environment, system) is expected


def test_login_counts_at_its_platform_until_it_expires(tmp_path: Path) -> None:
    logins = Logins(tmp_path / "portside")
    valid = Login("valid", datetime.now(UTC) + timedelta(hours=1))
    logins.keep("https://One.example/", valid)
    logins.keep("https://two.example", Login("expired", datetime.now(UTC) - timedelta(seconds=1)))
    assert logins.find("https://one.example") == valid
    assert logins.find("https://two.example") is None
    assert logins.find("https://three.example") is None
    (file,) = (tmp_path / "portside").iterdir()
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)

    logins.keep("https://one.example", None)
    assert logins.find("https://one.example") is None


def test_addresses_of_platforms_have_one_form() -> None:
    assert normalize_url("HTTPS://Portside.Example.com/x/") == "https://portside.example.com/x"


@pytest.mark.parametrize(
    ("cgroups", "is_service"),
    [
        ("0::/system.slice/portside.service\n", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/portside.service\n", True),
        ("2:pids:/system.slice/portside.service\n1:name=systemd:/system.slice/portside.service\n", True),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-org.gnome.Terminal.slice/vte.scope\n", False),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-konsole@1f.service\n", False),
        ("2:pids:/user.slice/user-1000.slice/user@1000.service\n1:name=systemd:/user.slice/session-2.scope\n", False),
        ("0::/\n", False),
        ("", False),
    ],
)
def test_only_services_of_systemd_count_as_services(cgroups: str, *, is_service: bool) -> None:
    assert (parse_unit(cgroups) is not None) is is_service


def test_a_process_knows_its_service_and_whether_the_machine_starts_it(tmp_path: Path) -> None:
    assert find_running_service(tmp_path) is None
    cgroup = tmp_path / "proc" / "self" / "cgroup"
    cgroup.parent.mkdir(parents=True)
    cgroup.write_text("0::/\n")
    assert find_running_service(tmp_path) is None
    cgroup.write_text("0::/system.slice/portside.service\n")

    found = find_running_service(tmp_path)
    assert found is not None
    assert (found.unit, found.starts_with_machine) == ("portside.service", False)
    wanted = tmp_path / "etc/systemd/system/multi-user.target.wants/portside.service"

    wanted.parent.mkdir(parents=True)
    (wanted.parents[1] / "portside.service").touch()
    wanted.symlink_to("../portside.service")
    found = find_running_service(tmp_path)
    assert found is not None
    assert found.starts_with_machine


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("deployments", "show", "\udcff", "--api-key", "x"), "an argument is not UTF-8 text"),
        (("alerts", "set", "disk", "--threshold", "nan", "--api-key", "x"), "or not a finite number"),
        (("deployments", "list", "--url", "http://[::1", "--api-key", "x"), "http://[::1 is not the address"),
        (("deployments", "list", "--url", "http://[::1"), "http://[::1 is not the address"),
        (("deployments", "list", "--api-key", "kлюч"), "the API key holds a character"),
        (("deployments", "list", "--api-key", "two\nlines"), "the API key holds a character"),
    ],
)
def test_odd_arguments_are_mistakes_of_the_user(
    arguments: tuple[str, ...], error: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTSIDE_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))

    said = capsys.readouterr().err
    assert ended.value.code == 1
    assert error in said
    assert "TRACEBACK" not in said


def test_settings_file_that_is_not_text_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "portside.env"
    file.write_bytes(b"PORT=1\n\xff\xfe")
    with pytest.raises(SystemExit):
        cli.main(["doctor", "--env-file", str(file)])

    assert capsys.readouterr().err == f"error: {file} is not UTF-8 text: invalid start byte in byte 7\n"


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_output_escapes_what_the_terminal_cannot_show(encoding: str) -> None:
    program = "from portside.cli.output import show_text; show_text('caf\\u00e9 \\udcff')"
    environ = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, check=True)
    assert done.stdout.decode(encoding) == {"ascii": "caf\\xe9", "utf-8": "café"}[encoding] + " \\udcff\n"


def test_commands_have_the_settings_of_the_service_of_their_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BACKUP_TO", "PORTSIDE_HOME"):
        monkeypatch.delenv(name, raising=False)

    monkeypatch.setattr(cli_service, "ROOT", tmp_path)
    service = Service(root=tmp_path, home=tmp_path / "home")
    service.unit_file.parent.mkdir(parents=True)
    service.unit_file.write_text(service.unit)
    service.settings_file.parent.mkdir(parents=True)
    service.settings_file.write_text("BACKUP_TO=/stored\n")

    assert read_environment(None, str(service.home))["BACKUP_TO"] == "/stored"
    assert "BACKUP_TO" not in read_environment(None, str(tmp_path / "other"))
    monkeypatch.setenv("PORTSIDE_HOME", str(service.home))
    assert read_environment(None, None)["BACKUP_TO"] == "/stored"
    monkeypatch.setenv("BACKUP_TO", "/elsewhere")
    assert read_environment(None, None)["BACKUP_TO"] == "/elsewhere"
