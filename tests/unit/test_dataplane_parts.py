"""The parts of the data plane that need nothing outside: back-off, texts, environments, marks, state."""

import os
from pathlib import Path
from uuid import uuid4

import pytest

from portside.dataplane.backoff import Backoff
from portside.dataplane.builds.commands import minimal_environment
from portside.dataplane.builds.output import mask_credentials
from portside.dataplane.builds.source import folder_size
from portside.dataplane.compute.output import last_lines, parse_line
from portside.dataplane.compute.sockets import url_of
from portside.dataplane.compute.variables import Fixtures, server_environment
from portside.dataplane.databases import deployment_url, scram_verifier
from portside.dataplane.processes import ProcessMark, ending
from portside.dataplane.settings import ListenerSettings
from portside.dataplane.state import DeploymentFolder, ReplicaRecord
from portside.dataplane.types import DesiredDeployment, DesiredRevision, LogEntry, Secret
from portside.kernel.settings import describe, load_settings


def test_backoff_doubles_to_its_limit_and_begins_again_after_health():
    backoff = Backoff(first_s=0.2, limit_s=1, reset_after_s=60)
    assert [backoff.next() for _ in range(4)] == [0.2, 0.4, 0.8, 1]
    assert backoff.next(healthy_for_s=59) == 1
    assert backoff.next(healthy_for_s=60) == 0.2


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


def test_a_structured_line_keeps_its_level_time_and_values():
    line = '{"event": "run failed", "level": "error", "timestamp": "2026-01-02T03:04:05Z", "run": "r1"}'
    assert parse_line(line, 1) == LogEntry(1767323045000, "ERROR", "run failed run=r1")


def test_a_structured_line_keeps_its_stack_trace():
    assert parse_line('{"event": "broke", "exception": "Traceback"}', 7) == LogEntry(7, "INFO", "broke\nTraceback")


@pytest.mark.parametrize("line", ["plain", "{not json", '{"other": 1}', "[1]", '{"a":' * 3000])
def test_any_other_line_is_plain_text(line: str):
    assert parse_line(line, 7) == LogEntry(7, "INFO", line)


def test_ends_of_processes_in_words():
    assert [ending(3), ending(-9), ending(-250)] == [
        "exited with code 3", "was killed by SIGKILL", "was killed by signal 250",
    ]  # fmt: skip


def test_addresses():
    assert url_of("127.0.0.1", 8000) == "http://127.0.0.1:8000"
    assert url_of("::1", 8000) == "http://[::1]:8000"
    assert "0.0.0.0" not in url_of("0.0.0.0", 8000)


def test_a_deployment_url_keeps_server_and_options_only():
    admin = "postgresql://boss:pw@/portside?host=/tmp/a%20b&user=boss"
    assert deployment_url(admin, "agent_1", "p/w") == "postgresql://agent_1:p/w@/agent_1?host=/tmp/a%20b"
    admin = "postgresql://boss@db.local:5433/x?sslmode=require"
    assert deployment_url(admin, "agent_1", "pw") == "postgresql://agent_1:pw@db.local:5433/agent_1?sslmode=require"


def test_the_verifier_is_the_one_of_the_standard():
    # The example of RFC 7677: user "user", password "pencil".
    import base64

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = scram_verifier("pencil", salt)
    assert verifier.startswith("SCRAM-SHA-256$4096:W22ZaJ0SNY7soEsUEjb6gQ==$")
    assert verifier.endswith(":wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=")


def test_programs_get_nothing_secret():
    environ = {"PATH": "/bin", "HTTPS_PROXY": "http://p", "CONTROL_PLANE_API_KEY": "k", "PROVISION_DATABASE_URL": "u"}
    assert minimal_environment(environ, HOME="/h") == {
        "PATH": "/bin", "LANG": "C.UTF-8", "HTTPS_PROXY": "http://p", "HOME": "/h",
    }  # fmt: skip


def test_the_environment_of_a_server_has_an_order():
    revision = DesiredRevision(
        id=uuid4(), number=1, status="DEPLOYING", repo_url="https://u:p@host/r", repo_ref="main",
        secrets=[Secret("LANGSMITH_API_KEY", "mine"), Secret("PORT", "1"), Secret("TOKEN", "t")],
    )  # fmt: skip
    deployment = DesiredDeployment(
        id=uuid4(), name="a", status="READY", environment={"LANGSMITH_API_KEY": "platform", "LANGSMITH_PROJECT": "a"}
    )
    fixtures = Fixtures("postgresql://x", 8000, Path("/home"), Path("/venv/bin"), "abc")
    found = server_environment(deployment, revision, fixtures, {"PATH": "/bin", "SECRET_OF_LISTENER": "s"})
    assert found["LANGSMITH_API_KEY"] == "mine"
    assert found["PORT"] == "8000"
    assert found["PATH"] == f"/venv/bin{os.pathsep}/bin"
    assert found["DATABASE_URI"] == found["POSTGRES_URI"] == "postgresql://x"
    assert found["LANGSMITH_LANGGRAPH_GIT_REPO"] == "https://***@host/r"
    assert found["LANGSMITH_HOST_REVISION_ID"] == str(revision.id)
    assert "SECRET_OF_LISTENER" not in found


def test_a_secret_does_not_show_its_value():
    assert "hidden-value" not in repr(Secret("NAME", "hidden-value"))


def test_a_mark_is_of_one_process_only():
    mark = ProcessMark.of(os.getpid())
    assert mark is not None
    assert mark.is_alive
    assert not ProcessMark(mark.pid, "another start").is_alive
    assert ProcessMark.of(2**22 + 1) is None


def test_state_survives_and_a_damaged_file_begins_anew(tmp_path: Path):
    deployment_id, first, second = uuid4(), uuid4(), uuid4()
    folder = DeploymentFolder(tmp_path, deployment_id)
    assert not folder.path.exists()
    mark = ProcessMark(1, "then")
    folder.add_replica(ReplicaRecord(mark, first))
    folder.activate(first)
    folder.activate(second)
    folder.activate(second)
    again = DeploymentFolder(tmp_path, deployment_id).state
    assert (again.active_revision_id, again.previous_revision_id) == (second, first)
    assert again.replicas == [ReplicaRecord(mark, first)]
    folder.drop_replica(mark)
    assert DeploymentFolder(tmp_path, deployment_id).state.replicas == []
    (folder.path / "state.json").write_text("{")
    assert DeploymentFolder(tmp_path, deployment_id).state.port is None


def test_old_revisions_are_removed_with_their_logs(tmp_path: Path):
    folder, kept, old = DeploymentFolder(tmp_path, uuid4()), uuid4(), uuid4()
    for revision in (kept, old):
        folder.revision(revision).mkdir(parents=True)
        folder.server_log(revision).write_text("line\n")
        folder.server_log(revision).with_suffix(".log.1").write_text("line\n")
    folder.remove_revisions_except({kept})
    assert [path.name for path in (folder.path / "revisions").iterdir()] == [str(kept)]
    assert {path.name for path in (folder.path / "logs").iterdir()} == {f"{kept}.log", f"{kept}.log.1"}


def test_the_last_lines_are_those_of_this_start(tmp_path: Path):
    output = tmp_path / "log"
    output.write_text("before\n")
    began = output.stat().st_size
    with output.open("a") as file:
        file.writelines(f"line {number}\n" for number in range(40))
    assert last_lines(output, began).splitlines() == [f"line {number}" for number in range(10, 40)]
    assert folder_size(tmp_path) == output.stat().st_size


def test_settings_are_documented_and_read():
    assert all(documented.description for documented in describe(ListenerSettings))
    settings = load_settings(
        ListenerSettings,
        {
            "CONTROL_PLANE_URL": "http://127.0.0.1:8700", "CONTROL_PLANE_API_KEY": "k", "PORTSIDE_HOME": "/tmp/h",
            "PROVISION_DATABASE_URL": "postgresql://x", "EXIT_WITH_PARENT": "true", "DEPLOYMENT_START_TIMEOUT_S": "3",
        },
    )  # fmt: skip
    assert settings.exit_with_parent
    assert settings.deployment_start_timeout_s == 3
    assert settings.folder == Path("/tmp/h/dataplane")
