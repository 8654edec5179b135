"""What commands send to a platform, and with whose credentials."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from portside.cli import client
from portside.cli.account import parse_expiry, revoke_key
from portside.cli.backup import parse_past_time, read_passphrase
from portside.cli.deploy import _must_upload
from portside.cli.deployments import _describe_span, delete, rollback
from portside.cli.login import _find_default_workspace
from portside.cli.logins import Login, Logins
from portside.cli.output import show_table
from portside.cli.transfer import _Incomplete, _read_headers
from portside.kernel.errors import UserMistake

KEY = "the-key-of-this-machine"
NOW = datetime.now(UTC)


class Platform:
    """Answers what a test says, and remembers what it was asked for."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    def call(self, method: str, path: str, **given: Any) -> Any:
        self.asked.append((method, path, {name: value for name, value in given.items() if value is not None}))
        return next((answer for end, answer in self.answers.items() if path.endswith(end)), {})

    def close(self) -> None:
        """Nothing is open."""


def deployment(**fields: Any) -> dict[str, Any]:
    return {"name": "agent", "id": "d", "source_config": {"custom_url": None}, **fields}


def run(command: click.Command, platform: Platform, *arguments: str, typed: str = "") -> Any:
    """Run a command at a platform."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "connect", lambda *_given: platform)
        return CliRunner().invoke(command, [*arguments], input=typed)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A platform's home with its key; this user has no login."""
    monkeypatch.setattr(client, "open_user_logins", lambda: Logins(tmp_path / "logins"))
    (tmp_path / "api-key").write_text(KEY)
    return tmp_path


def test_the_key_of_this_machine_goes_to_this_machine_alone(home: Path):
    sent = {}
    for url in ("http://127.0.0.1:8700", "http://localhost:8700", "https://portside.example.com", "http://192.0.2.1"):
        platform = client.connect(url, None, str(home))
        sent[url] = platform.headers["X-Api-Key"]
        platform.close()

    assert list(sent.values()) == [KEY, KEY, "", ""]


def test_a_named_key_comes_before_a_login_and_a_login_before_the_key_of_the_home(home: Path):
    Logins(home / "logins").keep("http://127.0.0.1:8700", Login("token", NOW + timedelta(hours=1)))
    for key, wanted in (("named", {"X-Api-Key": "named"}), (None, {"Authorization": "Bearer token"})):
        platform = client.connect("http://127.0.0.1:8700", key, str(home))
        platform.close()
        assert wanted.items() <= platform.headers.items()
        assert len({"X-Api-Key", "Authorization"} & platform.headers.keys()) == 1


def test_a_login_is_for_its_owner_alone_and_ends(tmp_path: Path):
    logins = Logins(tmp_path / "folder")
    logins.keep("https://one.example.com", Login("token", NOW + timedelta(hours=1)))
    logins.keep("https://two.example.com", Login("token", NOW - timedelta(seconds=1)))

    assert logins.find("https://one.example.com") is not None
    assert logins.find("https://two.example.com") is None
    assert (tmp_path / "folder" / "logins.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o700


def test_a_local_repository_is_uploaded_where_it_cannot_be_fetched_and_where_it_was_uploaded_before():
    """A platform elsewhere has no such folder, and a deployment of uploads takes no repository."""
    sources = [None, {"source": "git_hosting"}, {"source": "internal_source"}]

    with closing(client.Platform("http://127.0.0.1:8700", KEY)) as here:
        assert [_must_upload(here, existing) for existing in sources] == [False, False, True]

    with closing(client.Platform("https://platform.example.com", KEY)) as elsewhere:
        assert [_must_upload(elsewhere, existing) for existing in sources] == [True, True, True]


def test_a_deletion_is_asked_for_and_leaves_traces_that_it_does_not_name():
    listed = {"/v2/deployments": {"resources": [deployment()]}}
    for arguments, typed, deleted in (
        ((), "n\n", []),
        ((), "y\n", [{}]),
        (("--yes",), "", [{}]),
        (("--yes", "--delete-tracing-project"), "", [{"delete_tracing_project": "true"}]),
    ):
        platform = Platform(**listed)
        result = run(delete, platform, "agent", *arguments, typed=typed)
        assert (result.exit_code == 0) == bool(deleted)
        assert [query for method, _path, query in platform.asked if method == "DELETE"] == deleted


def test_a_rollback_is_to_the_last_revision_that_was_deployed_before_the_active_one():
    statuses = [
        ("newest", "BUILD_FAILED"),
        ("active", "DEPLOYED"),
        ("broken", "DEPLOY_FAILED"),
        ("earlier", "DEPLOYED"),
    ]
    revisions = [{"id": name, "status": status} for name, status in statuses]
    for active, wanted in (("active", "earlier"), (None, "active")):
        platform = Platform(
            **{
                "/v2/deployments": {"resources": [deployment(active_revision_id=active)]},
                "/revisions": {"resources": revisions},
                "/redeploy": deployment(latest_revision_id="new"),
            }
        )
        assert run(rollback, platform, "agent", "--no-wait").exit_code == 0
        assert platform.asked[-1][1] == f"/v2/deployments/d/revisions/{wanted}/redeploy"


def test_a_key_that_the_platform_uses_is_revoked_only_by_force():
    for arguments, wanted in (((), {}), (("--force",), {"force": "true"})):
        platform = Platform(**{"/api-key": [{"id": "k"}]})
        assert run(revoke_key, platform, "k", *arguments).exit_code == 0
        assert platform.asked[-1] == ("DELETE", "/api-key/k", wanted)

    platform = Platform(**{"/api-key": []})
    run(revoke_key, platform, "k")
    assert platform.asked[-1] == ("DELETE", "/api-key/current/k", {})


def test_times_are_in_utc_and_restores_are_of_the_past():
    assert parse_expiry("2w", NOW) == NOW + timedelta(days=14)
    assert parse_expiry("2030-01-31T12:00:00", NOW) == datetime(2030, 1, 31, 12, tzinfo=UTC)
    assert parse_past_time("2020-01-31T12:00:00") == datetime(2020, 1, 31, 12, tzinfo=UTC)
    with pytest.raises(UserMistake, match="in the future"):
        parse_past_time((NOW + timedelta(days=1)).isoformat())


def test_a_named_file_has_the_passphrase_before_the_variables(tmp_path: Path):
    missing = {"PORTSIDE_BACKUP_PASSPHRASE_FILE": str(tmp_path / "variable"), "PORTSIDE_BACKUP_PASSPHRASE": "text"}
    for named, source in ((str(tmp_path / "named"), "--passphrase-file"), (None, "PORTSIDE_BACKUP_PASSPHRASE_FILE")):
        with pytest.raises(UserMistake, match=f"^{source}: cannot read"):
            read_passphrase(named, missing, is_new=False)


def test_spans_are_in_their_largest_unit():
    spans = {None: "never", 0: "never", 90: "after 90s", 900: "after 15m", 7200: "after 2h", 86_400: "after 1d"}
    assert {seconds: _describe_span(seconds) for seconds in spans} == spans


def test_cells_of_tables_hold_no_controls_and_no_lines(capsys: pytest.CaptureFixture[str]):
    show_table(("NAME",), [("a\nb\x1b[2Jc\x1b[31md",)])
    output = capsys.readouterr().out
    assert output.count("\n") == 2
    assert "\x1b" not in output


def test_one_workspace_is_the_default_and_several_are_not():
    for count in (0, 1, 2):
        platform: Any = Platform(**{"/workspaces": [{"id": str(number)} for number in range(count)]})
        assert _find_default_workspace(platform, None) == ({"id": "0"} if count == 1 else None)


def test_an_empty_key_of_an_import_is_none(monkeypatch: pytest.MonkeyPatch):
    for key, wanted in ((" k ", {"X-Api-Key": "k"}), (" ", {}), ("", {})):
        monkeypatch.setenv("IMPORT_SOURCE_API_KEY", key)
        assert _read_headers("source", "IMPORT_SOURCE_API_KEY", "IMPORT_SOURCE_AUTHORIZATION") == wanted

    assert _Incomplete("x").exit_code == 3
