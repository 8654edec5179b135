"""Parts of the data plane that need no other process: masking, log lines, environments, process identities, state."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from portside.agent.executors.start import executor_environment
from portside.agent.settings import AgentSettings
from portside.dataplane import logs
from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.sources import folder_size
from portside.dataplane.compute import server_metrics, server_output
from portside.dataplane.compute.containers.images import ImageStore
from portside.dataplane.compute.databases import build_scram_verifier, deployment_url
from portside.dataplane.compute.forwarding import PortForwards
from portside.dataplane.compute.server_environment import (
    RuntimeEnvironment,
    executor_memory,
    server_environment,
    split_environment,
)
from portside.dataplane.compute.server_output import output_since, parse_line, server_failure
from portside.dataplane.compute.sockets import open_private, to_url
from portside.dataplane.failures import (
    ControlPlaneRefused,
    ControlPlaneUnreachable,
    DeployFailed,
    describe_without_output,
)
from portside.dataplane.logs import RevisionLog
from portside.dataplane.masking import mask_credentials, shorten_paths
from portside.dataplane.processes import ProcessIdentity
from portside.dataplane.rollout import describe_failure
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder, ReplicaRecord, SleepRecord, list_stopped_deployments
from portside.kernel.settings import describe, load_settings
from portside.kernel.supervision import describe_exit
from portside.listener_api import NewLogEntry, Secret
from tests.conftest import eventually
from tests.desired import build_desired_deployment, build_desired_revision


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("fatal: https://user:secret@host/x.git not found", "fatal: https://***@host/x.git not found"),
        ("https://token@host/a https://b:c@host/d", "https://***@host/a https://***@host/d"),
        ("https://host/a@b", "https://host/a@b"),
        ("git@host:a/b", "git@host:a/b"),
    ],
)
def test_credentials_in_addresses_are_masked(text: str, masked: str):
    assert mask_credentials(text) == masked


def test_structured_line_keeps_level_time_and_values():
    line = '{"event": "run failed", "level": "error", "timestamp": "2026-01-02T03:04:05Z", "run": "r1"}'
    assert parse_line(line, 1) == NewLogEntry(1767323045000, "ERROR", "run failed run=r1")


def test_structured_line_keeps_stack_trace():
    assert parse_line('{"event": "broke", "exception": "Traceback"}', 7) == NewLogEntry(7, "INFO", "broke\nTraceback")


@pytest.mark.parametrize("line", ["plain", "{not json", '{"other": 1}', "[1]", '{"a":' * 3000])
def test_other_lines_are_plain_text(line: str):
    assert parse_line(line, 7) == NewLogEntry(7, "INFO", line)


def test_describe_exit_names_code_and_signal():
    assert [describe_exit(3), describe_exit(-9), describe_exit(-250)] == [
        "exited with code 3",
        "was killed by SIGKILL",
        "was killed by signal 250",
    ]


def test_url_of_formats_addresses():
    assert to_url("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert to_url("::1", 8000) == "http://[::1]:8000"
    assert "0.0.0.0" not in to_url("0.0.0.0", 8000)


def test_deployment_url_keeps_server_and_options():
    admin = "postgresql://boss:pw@/portside?host=/tmp/a%20b&user=boss&password=secret&dbname=portside"
    assert deployment_url(admin, "agent_1", "p/w") == "postgresql://agent_1:p/w@/agent_1?host=/tmp/a%20b"
    admin = "postgresql://boss@db.local:5433/x?sslmode=require"
    assert deployment_url(admin, "agent_1", "pw") == "postgresql://agent_1:pw@db.local:5433/agent_1?sslmode=require"


def test_scram_verifier_matches_rfc_example():
    # The example of RFC 7677: user "user", password "pencil".
    import base64

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = build_scram_verifier("pencil", salt)
    assert verifier.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert verifier.endswith(":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")


def test_minimal_environment_has_no_secrets():
    environ = {"PATH": "/bin", "HTTPS_PROXY": "http://p", "CONTROL_PLANE_API_KEY": "k", "PROVISION_DATABASE_URL": "u"}
    assert minimal_environment(environ, HOME="/h") == {
        "PATH": "/bin",
        "LANG": "C.UTF-8",
        "HTTPS_PROXY": "http://p",
        "HOME": "/h",
    }


def test_server_environment_precedence():
    revision = build_desired_revision(
        id=uuid4(),
        repo_url="https://u:p@host/r",
        repo_ref="main",
        secrets=[
            Secret("LANGSMITH_API_KEY", "mine"),
            Secret("PORT", "1"),
            Secret("TOKEN", "t"),
            Secret("DISK_FOLDER", "/"),
        ],
    )

    deployment = build_desired_deployment(
        id=uuid4(), name="a", environment={"LANGSMITH_API_KEY": "platform", "LANGSMITH_PROJECT": "a"}
    )
    disk = {"DISK_FOLDER": "/home"}
    runtime = RuntimeEnvironment("postgresql://x", 8000, Path("/home"), ["/venv/bin"], "abc", disk)
    found = server_environment(deployment, revision, runtime, {"PATH": "/bin", "SECRET_OF_LISTENER": "s"})
    assert found["LANGSMITH_API_KEY"] == "mine"

    assert found["PORT"] == "8000"
    assert found["DISK_FOLDER"] == "/home"
    assert found["PATH"] == f"/venv/bin{os.pathsep}/bin"
    assert found["DATABASE_URI"] == found["POSTGRES_URI"] == "postgresql://x"
    assert found["LANGSMITH_LANGGRAPH_GIT_REPO"] == "https://***@host/r"
    assert found["LANGSMITH_HOST_REVISION_ID"] == str(revision.id)
    assert "SECRET_OF_LISTENER" not in found

    given = [Secret("EXECUTOR_NODE", "/elsewhere")]
    binaries = ["/venv/bin", "/node/bin"]
    runtime = replace(runtime, binaries=binaries, settings={"EXECUTOR_NODE": "/node/bin/node"})
    found = server_environment(deployment, build_desired_revision(id=uuid4(), secrets=given), runtime, {"PATH": "/bin"})
    assert found["PATH"] == os.pathsep.join(["/venv/bin", "/node/bin", "/bin"])
    assert found["EXECUTOR_NODE"] == "/node/bin/node"


@pytest.mark.parametrize(
    ("limit_mb", "executors", "each"),
    [
        (None, None, None),
        (2048, None, "1879"),
        (2048, "2", "939"),
        (300, "1", "157"),
        (2048, "x", "1879"),
        (2, "4", "1"),
    ],
)
def test_executors_have_a_part_of_the_memory_of_their_server(limit_mb, executors, each):
    assert executor_memory(limit_mb, executors).get("EXECUTOR_MAX_MEMORY_MB") == each


def test_variables_for_interpreters_reach_executors_alone():
    given = {"PYTHONPATH": "src", "LD_PRELOAD": "x.so", "TOKEN": "t", "EXECUTORS": "3"}
    found = split_environment(
        {"PATH": "/bin", "PYTHONUNBUFFERED": "1", **given}, given, {"EXECUTOR_PYTHON": "/venv/bin/python"}
    )

    assert found == {
        "PATH": "/bin",
        "PYTHONUNBUFFERED": "1",
        "TOKEN": "t",
        "EXECUTORS": "3",
        "EXECUTOR_IDLE_SECS": "300",
        "EXECUTOR_PYTHON": "/venv/bin/python",
        "EXECUTOR_ENVIRONMENT_PYTHONPATH": "src",
        "EXECUTOR_ENVIRONMENT_LD_PRELOAD": "x.so",
    }

    assert executor_environment(found, AgentSettings())["PYTHONPATH"] == "src"
    kept = executor_environment(
        {**found, "DATABASE_URI": "u", "LANGGRAPH_AES_KEY": "k"}, AgentSettings(database_url="u")
    )
    assert {"DATABASE_URI", "LANGGRAPH_AES_KEY", "EXECUTOR_ENVIRONMENT_PYTHONPATH"}.isdisjoint(kept)


def test_secret_repr_hides_value():
    assert "hidden-value" not in repr(Secret("NAME", "hidden-value"))


def test_process_identity_includes_start_time():
    process = ProcessIdentity.find(os.getpid())
    assert process is not None
    assert process.is_alive
    assert not ProcessIdentity(process.pid, "another start").is_alive
    assert ProcessIdentity.find(2**22 + 1) is None


def test_state_survives_and_damaged_file_starts_empty(tmp_path: Path):
    deployment_id = uuid4()
    first = uuid4()
    second = uuid4()
    folder = DeploymentFolder(tmp_path, deployment_id)
    assert not folder.path.exists()
    process = ProcessIdentity(1, "then")

    folder.add_replica(ReplicaRecord(process, first))
    folder.activate(first)
    folder.activate(second)
    folder.activate(second)

    again = DeploymentFolder(tmp_path, deployment_id).state
    assert (again.active_revision_id, again.previous_revision_id) == (second, first)
    assert again.replicas == [ReplicaRecord(process, first)]
    folder.remove_replica(process)
    assert DeploymentFolder(tmp_path, deployment_id).state.replicas == []
    (folder.path / "state.json").write_text("{")

    damaged = DeploymentFolder(tmp_path, deployment_id).state
    assert (damaged.port, damaged.active_revision_id) == (None, second)

    # A backup has no more than that: the rest is of the machine where it was taken.
    (folder.path / "state.json").unlink()
    restored = DeploymentFolder(tmp_path, deployment_id).state
    assert (restored.active_revision_id, restored.previous_revision_id) == (second, first)
    assert restored.earlier == again.earlier and first in restored.earlier


def test_stopped_deployments_are_those_that_should_serve_without_a_server(tmp_path: Path):
    assert list_stopped_deployments(tmp_path) == set()
    stopped, serving, asleep, new = (DeploymentFolder(tmp_path, uuid4()) for _ in range(4))
    for folder in (stopped, serving, asleep):
        folder.activate(uuid4())

    this_process = ProcessIdentity.find(os.getpid())
    assert this_process is not None
    serving.add_replica(ReplicaRecord(this_process, uuid4()))
    stopped.add_replica(ReplicaRecord(ProcessIdentity(this_process.pid, "another start"), uuid4()))
    asleep.state.sleep = SleepRecord(due_at=None)
    asleep.save()
    new.save()

    (tmp_path / "deployments" / "notes").mkdir()
    assert [str(deployment_id) for deployment_id in list_stopped_deployments(tmp_path)] == [stopped.path.name]

    # As after the restore of a backup.
    (stopped.path / "state.json").unlink()
    assert [str(deployment_id) for deployment_id in list_stopped_deployments(tmp_path)] == [stopped.path.name]


def test_source_of_a_commit_is_kept_as_long_as_its_revision(tmp_path: Path):
    folder = DeploymentFolder(tmp_path, uuid4())
    kept = uuid4()
    old = uuid4()
    for revision_id, commit in ((kept, "a" * 40), (old, "b" * 40)):
        folder.source(revision_id).mkdir(parents=True)
        (folder.source(revision_id) / "HEAD").write_text(f"{commit}\n")

    assert folder.find_source("a" * 40) == folder.source(kept)
    assert folder.find_source("c" * 40) is None and folder.find_source(None) is None
    folder.remove_revisions_except({kept})
    assert folder.find_source("b" * 40) is None and folder.find_source("a" * 40) is not None


def test_damaged_file_of_one_deployment_or_of_ports_stops_no_listener(tmp_path: Path):
    for name in ("images.json", "passages.json"):
        (tmp_path / name).write_text("{")

    assert ImageStore(tmp_path, 1).is_empty
    assert PortForwards(tmp_path / "passages.json")._ports == {}


def test_old_revisions_are_removed_with_their_logs(tmp_path: Path):
    folder = DeploymentFolder(tmp_path, uuid4())
    kept = uuid4()
    old = uuid4()
    for revision in (kept, old):
        folder.revision(revision).mkdir(parents=True)
        folder.server_log(revision).write_text("line\n")
        folder.server_log(revision).with_suffix(".log.1").write_text("line\n")

    with capture_logs() as logged:
        folder.remove_revisions_except({kept})
        folder.remove_revisions_except({kept})

    assert [(each["event"], each["revisions"]) for each in logged] == [
        ("builds and logs of replaced revisions were removed", 1)
    ]
    assert [path.name for path in (folder.path / "revisions").iterdir()] == [str(kept)]
    assert {path.name for path in (folder.path / "logs").iterdir()} == {f"{kept}.log", f"{kept}.log.1"}


def test_graphs_are_known_to_one_version_of_what_described_them(tmp_path: Path):
    folder = DeploymentFolder(tmp_path, uuid4())
    revision = uuid4()
    other = uuid4()

    def files() -> set[str]:
        return {path.name for path in (folder.path / "logs").iterdir()}

    for known in (folder.known_graphs(other, "a"), folder.known_graphs(revision, "a")):
        known.with_name(f"{known.name}.python").write_text("facts")

    assert folder.known_graphs(revision, "a") != folder.known_graphs(other, "a")
    assert files() == {f"{revision}.graphs-a.python", f"{other}.graphs-a.python"}
    assert folder.known_graphs(revision, "b") != folder.known_graphs(revision, "a")
    assert files() == {f"{other}.graphs-a.python"}
    folder.forget_graphs(other)
    assert files() == set()


def test_output_begins_at_this_start_and_at_a_whole_line(tmp_path: Path):
    output = tmp_path / "log"
    output.write_text("before\n")
    began = output.stat().st_size

    with output.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(40))

    assert output_since(output, began).splitlines() == [f"line {number}" for number in range(40)]
    assert folder_size(tmp_path) == output.stat().st_size
    with output.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(40, 20_000))

    kept = output_since(output, began).splitlines()
    assert kept == [f"line {number}" for number in range(20_000 - len(kept), 20_000)]

    # A file that was truncated since is shorter than at the start.
    output.write_text("again\n")
    assert output_since(output, began + 1000) == "again\n"


def test_cause_is_found_among_lines_of_the_replaced_server(tmp_path: Path):
    """The server that is replaced goes on to write to the same file: its requests, and errors of its runs."""
    output = tmp_path / "log"
    request = '{"event": "request", "level": "info", "path": "/ok"}\n'
    failed_run = '{"event": "a run failed", "level": "error"}\n'
    output.write_text(request * 50 + "loading the graph\nerror: graph 'a' does not load\n" + failed_run + request * 200)

    reason = str(server_failure("the server ended", output_since(output, 0)))
    assert reason.startswith("graph 'a' does not load\nthe server ended; its output:\n")
    assert reason.splitlines()[-6:] == ["loading the graph", "a run failed", *["request path=/ok"] * 4]
    assert len(reason.splitlines()) == 31


FOLDER = Path("/home/platform/deployments/1/revisions/2")
HANG = (
    f'{{"event": "{FOLDER}/source/langgraph.json: graph \'a\' (./a.py:g) is still importing after 10 s (a.py, line 3)"'
    f', "level": "warning", "stack": "File \\"{FOLDER}/source/a.py\\", line 3"}}'
)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("", "the server ended, without any output"),
        ("words", "the server ended; its output:\nwords"),
        (
            f"words\nerror: {FOLDER}/source/sub/langgraph.json: graph 'a' does not load",
            "sub/langgraph.json: graph 'a' does not load\nthe server ended; its output:\nwords",
        ),
        ('{"event": "no database", "level": "error"}\nerror: no database', "no database\nthe server ended"),
        (
            '{"event": "traces were refused", "level": "error"}\n' + HANG,
            (
                "langgraph.json: graph 'a' (./a.py:g) is still importing after 10 s (a.py, line 3)\n"
                'the server ended; its output:\ntraces were refused\nFile "a.py", line 3'
            ),
        ),
        (
            f'Traceback (most recent call last):\n  File "{FOLDER}/venv/lib/x.py", line 3\nValueError: y',
            (
                "ValueError: y\nthe server ended; its output:\n"
                'Traceback (most recent call last):\n  File "venv/lib/x.py", line 3'
            ),
        ),
        (
            '{"event": "a key is ignored", "level": "warning"}\n' + HANG,
            (
                "langgraph.json: graph 'a' (./a.py:g) is still importing after 10 s (a.py, line 3)\n"
                'the server ended; its output:\na key is ignored\nFile "a.py", line 3'
            ),
        ),
    ],
    ids=["nothing", "words", "mistake", "once", "late", "traceback", "hang"],
)
def test_server_failure_begins_with_its_cause(said: str, reason: str):
    failure = server_failure("the server ended", said, FOLDER)
    assert (str(failure), describe_without_output(failure)) == (reason, "the server ended")


def test_build_paths_are_shortened():
    text = (
        f"{FOLDER}/source/a.py {FOLDER}/venv/bin file://{FOLDER}/source) {FOLDER}/source2/b {FOLDER}x/source {FOLDER}"
    )
    assert shorten_paths(text, FOLDER) == f"a.py venv/bin file://.) source2/b {FOLDER}x/source ."


def test_settings_are_documented_and_read():
    assert all(documented.description for documented in describe(ListenerSettings))
    settings = load_settings(
        ListenerSettings,
        {
            "CONTROL_PLANE_URL": "http://127.0.0.1:8700",
            "CONTROL_PLANE_API_KEY": "k",
            "PORTSIDE_HOME": "/tmp/h",
            "PROVISION_DATABASE_URL": "postgresql://x",
            "EXIT_WITH_PARENT": "true",
            "DEPLOYMENT_START_TIMEOUT_S": "3",
        },
    )

    assert settings.exit_with_parent
    assert settings.deployment_start_timeout_s == 3
    assert settings.folder == Path("/tmp/h/dataplane")


MODEL_KEY = "a-key-of-a-model"


def test_failure_reason_masks_secrets():
    revision = build_desired_revision(id=uuid4(), secrets=[Secret("KEY", MODEL_KEY)])
    failure = DeployFailed(f"the server exited with code 1; its output:\nRuntimeError: no such key {MODEL_KEY}")
    assert describe_failure(revision, failure).endswith("RuntimeError: no such key ***")

    # Values are masked before the reason is cut, so that no half of one remains.
    assert MODEL_KEY[:8] not in describe_failure(revision, DeployFailed("x" * 3990 + MODEL_KEY))


async def test_server_log_masks_secrets():
    arrived: list[NewLogEntry] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        arrived.extend(entries)

    log = RevisionLog(ship)
    log.hide([MODEL_KEY])
    log.add(f"calling with {MODEL_KEY}", "ERROR")
    await log.close()
    assert [(entry.level, entry.message) for entry in arrived] == [("ERROR", "calling with ***")]


async def test_no_part_of_a_secret_is_left_where_a_long_line_is_cut():
    arrived: list[NewLogEntry] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        arrived.extend(entries)

    log = RevisionLog(ship)
    log.hide([MODEL_KEY])
    for before in range(7_900, 8_000, 5):
        log.add("x" * before + MODEL_KEY + "y" * 100)

    await log.close()
    assert len(arrived) == 20
    assert not any(MODEL_KEY[:4] in entry.message for entry in arrived)


async def test_the_oldest_lines_are_dropped_when_the_control_plane_is_away_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logs, "_MAX_WAITING", 4)
    shipped: list[str] = []
    is_away = True

    async def ship(entries: list[NewLogEntry]) -> None:
        nonlocal is_away
        if is_away:
            is_away = False
            for number in (5, 6):
                log.add(str(number))
            raise ControlPlaneUnreachable("it is away")

        shipped.extend(entry.message for entry in entries)

    log = RevisionLog(ship)
    for number in (1, 2, 3, 4):
        log.add(str(number))

    await log.flush(within_s=300)
    await log.close()
    assert shipped == ["3", "4", "5", "6"]


async def test_printed_secrets_are_overwritten_wherever_the_file_is_cut_for_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_output, "_READ_BYTES", len(MODEL_KEY))
    path = tmp_path / "server.log"
    descriptor, _ = server_output.open_output(path)
    assert path.stat().st_mode & 0o777 == 0o600

    # What an earlier listener has not read yet, and what is written from now on.
    text = "".join(f"{'x' * before}{MODEL_KEY}\n" for before in range(len(MODEL_KEY)))
    os.write(descriptor, text.encode())
    lines: list[str] = []
    follower = server_output.OutputFollower(path, lines.append, [MODEL_KEY])
    os.write(descriptor, text.encode())
    os.close(descriptor)
    await eventually(lambda: asyncio.sleep(0, MODEL_KEY not in path.read_text()))
    await follower.close()

    assert path.read_text() == (text * 2).replace(MODEL_KEY, "*" * len(MODEL_KEY))
    assert lines == text.splitlines(), "the log masks them by itself"


def test_the_private_port_of_a_server_is_that_of_this_machine_alone():
    with open_private() as private:
        assert private.getsockname()[0] == "127.0.0.1"


async def test_log_lines_are_shipped_by_the_thousand():
    """The control plane takes no more at once."""
    sizes: list[int] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        sizes.append(len(entries))

    log = RevisionLog(ship)
    for number in range(2500):
        log.add(str(number))

    await log.close()
    assert sizes == [1000, 1000, 500]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([None, (200, b'{"idle_s": 5}')], 5.0),
        ([(503, b'{"idle_s": 4}'), (200, b'{"idle_s": 5}')], 5.0),
        ([(200, b"{"), (200, b'{"idle_s": 5}')], None),
        ([None], None),
    ],
)
async def test_metrics_are_those_of_the_first_server_that_answers(
    monkeypatch: pytest.MonkeyPatch, answers: list[tuple[int, bytes] | None], expected: float | None
) -> None:
    async def get(port: int, _path: str) -> tuple[int, bytes] | None:
        return answers[port]

    monkeypatch.setattr(server_metrics, "get", get)
    metrics = await server_metrics.read_metrics(range(len(answers)))
    assert (None if metrics is None else metrics.idle_s) == expected


def test_each_problem_of_servers_is_named_once():
    answers = [server_metrics.ServerMetrics(problems=problems) for problems in (["a.", "b."], [], ["b.", "c."])]
    assert server_metrics.join_problems(answers) == "a. b. c."
    assert server_metrics.join_problems([server_metrics.ServerMetrics()]) is None


async def test_log_lines_that_are_too_large_together_are_shipped_in_parts():
    """A platform may accept smaller bodies than usual (setting HTTP_MAX_REQUEST_BODY_BYTES)."""
    shipped: list[str] = []

    async def ship(entries: list[NewLogEntry]) -> None:
        if len(entries) > 3:
            raise ControlPlaneRefused(413, "too large")
        shipped.extend(entry.message for entry in entries)

    log = RevisionLog(ship)
    for number in range(20):
        log.add(str(number))

    await log.close()
    assert shipped == [str(number) for number in range(20)]
