"""The doctor: each thing is broken on purpose and for real, and the doctor names it with what to do.

A fault gives exit status 1, a warning does not. What is well is not reported as anything else.
"""

import asyncio
import contextlib
import datetime as dt
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2
import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from portside.backup.history import Attempt, record_attempt
from portside.ingress.options import FrontOptions
from portside.kernel.crypto import SecretBox
from portside.kernel.disk import DATABASE_NOTICE, DiskReserve, make_watched_folder
from portside.kernel.embedded import EmbeddedPostgres
from portside.operate import machine_checks, service_checks
from portside.operate.doctor import _drop_repeated, examine
from portside.operate.findings import ExaminedInstallation, Finding, fault, warning
from portside.operate.machine_checks import CHECKS
from portside.operate.service_checks import SERVICE_CHECKS
from portside.platform.modules import PACKAGES
from tests.api.control_server import create_body
from tests.commands import run_here
from tests.conftest import eventually
from tests.servers import KEY, ServerProcess, free_port, platform_server
from tests.small_disk import needs_small_disk, small_disk

ALL = frozenset({*CHECKS, *SERVICE_CHECKS})
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")


def diagnose(installation: ExaminedInstallation, *checks: str) -> list[Finding]:
    """Run some checks, and return what they find."""
    return asyncio.run(examine(installation, skipped=ALL - set(checks))).findings


def problem(found: list[Finding], check: str, level: str = "fault") -> Finding:
    """Return the one problem of a check, which says what to do."""
    problems = [finding for finding in found if finding.check == check and finding.level == level]
    assert problems, found
    assert all(each.do for each in problems)
    return problems[0]


def is_well(found: list[Finding]) -> bool:
    return {finding.level for finding in found} == {"ok"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The files of a home without a database."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    SecretBox.from_file(folder / "master-key")
    (folder / "api-key").touch(mode=0o600)
    (folder / "api-key").write_text(KEY)

    return folder


def of(home: Path, **more: Any) -> ExaminedInstallation:
    return ExaminedInstallation(home=home, packages=tuple(PACKAGES), port=free_port(), **more)


# The home


def test_home_is_well(home: Path):
    assert is_well(diagnose(of(home), "home", "keys", "lock", "disk", "clock", "limits", "port", "socket-folder"))


def test_home_that_is_missing_or_a_file(tmp_path: Path):
    assert "does not exist" in problem(diagnose(of(tmp_path / "none"), "home"), "home", "warning").message
    (tmp_path / "file").touch()
    assert "not a folder" in problem(diagnose(of(tmp_path / "file"), "home"), "home").message


def test_home_that_others_can_enter(home: Path):
    home.chmod(0o755)
    found = diagnose(of(home), "home", "keys")
    assert "chmod 700" in problem(found, "home").do

    assert [(each.check, each.level) for each in found] == [
        ("home", "fault"),
        ("master-key", "ok"),
        ("key-files", "ok"),
    ], "what is wrong is not well, too"


@needs_root
def test_home_of_another_user(home: Path):
    os.chown(home / "api-key", 65534, 65534)
    assert "another user" in problem(diagnose(of(home), "home"), "home").message
    os.chown(home, 65534, 65534)
    assert "belongs to the user" in problem(diagnose(of(home), "home"), "home").message


@needs_root
def test_home_in_the_root_of_a_volume(home: Path):
    """It may belong to somebody else, and others may enter it: only a warning, as everything in it is private."""
    (home / "platform.lock").touch()
    (home / "lost+found").mkdir()
    os.chown(home, 65534, 65534)
    home.chmod(0o2775)
    [found] = [each for each in diagnose(of(home), "home") if each.level != "ok"]
    assert found.level == "warning"
    assert "cannot keep it private" in found.message
    assert found.do.endswith(f"--home {home}/portside")


@needs_small_disk
def test_home_on_a_read_only_disk(tmp_path: Path):
    with small_disk(tmp_path / "disk", 4) as disk:
        disk.path.chmod(0o700)
        subprocess.run(["mount", "-o", "remount,ro", str(disk.path)], check=True)
        assert "read-only" in problem(diagnose(of(disk.path), "home"), "home").message


@needs_small_disk
def test_disk_that_fills_up_and_is_full(tmp_path: Path):
    with small_disk(tmp_path / "disk", 20) as disk:
        installation = of(disk.path, reserve=DiskReserve(percent=25))
        assert is_well(diagnose(installation, "disk"))
        disk.fill_up_to(7_000_000)
        assert "filling up" in problem(diagnose(installation, "disk"), "disk", "warning").message
        disk.fill_up_to(1_000_000)
        assert "portside disk" in problem(diagnose(installation, "disk"), "disk").do


def test_database_that_is_nearly_as_large_as_it_may_be(home: Path):
    (make_watched_folder(home) / DATABASE_NOTICE).write_text("its databases take 99 GB of 100 GB")
    assert "DATABASE_MAX_BYTES" in problem(diagnose(of(home), "disk"), "database-size").do


def test_missing_old_and_failed_backups_are_named(home: Path):
    def attempted(days_ago: float, **result: Any) -> None:
        at = dt.datetime.now(dt.UTC) - dt.timedelta(days=days_ago)
        given: dict[str, Any] = {"started_at": at, "ended_at": at, "location": "/mnt", "name": "one.backup"}
        record_attempt(home, Attempt(**given, is_scheduled=False, **result))

    installation = of(home)
    assert "portside backup create" in problem(diagnose(installation, "backup"), "backup", "warning").do
    attempted(8, size_bytes=1)
    assert "8 days old: /mnt/one.backup" in problem(diagnose(installation, "backup"), "backup", "warning").message
    attempted(1, size_bytes=1)
    assert is_well(diagnose(installation, "backup"))
    attempted(0, error="no room")

    assert "no room" in problem(diagnose(installation, "backup"), "backup", "warning").message


def test_master_key_that_is_missing_or_damaged(home: Path):
    (home / "master-key").write_text("not a key\n")
    assert "backup" in problem(diagnose(of(home), "keys"), "master-key").do
    (home / "master-key").unlink()
    assert "missing" in problem(diagnose(of(home), "keys"), "master-key").message
    assert not (home / "master-key").exists()


def test_key_that_others_can_read(home: Path):
    (home / "api-key").chmod(0o644)
    assert "chmod 600" in problem(diagnose(of(home), "keys"), "key-files").do


def test_lock_of_a_platform_that_does_not_answer(home: Path):
    with (home / "platform.lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"kill {os.getpid()}" in problem(diagnose(of(home), "lock"), "lock").do
        lock.truncate(0)
        assert "kill 0" not in problem(diagnose(of(home), "lock"), "lock").do, "it would kill the operator's shell"

    assert is_well(diagnose(of(home), "lock"))


def test_lock_of_postgres_that_names_another_program(home: Path):
    """After a reboot the process id in the file may be that of any program, and Postgres refuses to start."""
    data = home / "postgres" / "data"
    data.mkdir(parents=True)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as other:
        assert other.stdin and other.stdout
        # A process has its program's name once the program answers, and not yet when it is started.
        other.stdin.write("\n")
        other.stdout.readline()
        (data / "postmaster.pid").write_text(f"{other.pid}\n{data}\n")

        found = problem(diagnose(of(home), "lock"), "lock")
        other.kill()

    assert "postmaster.pid" in found.do
    assert "which is cat and not Postgres" in found.message
    assert is_well(diagnose(of(home), "lock"))


def test_data_folder_that_is_incomplete_or_of_another_version(home: Path):
    data = home / "postgres" / "data"
    data.mkdir(parents=True)
    (data / "base").mkdir()
    assert "PG_VERSION" in problem(diagnose(of(home), "data"), "data").message
    (data / "PG_VERSION").write_text("9\n")
    assert "Postgres 9" in problem(diagnose(of(home), "data"), "data").message


def test_socket_folder_that_others_can_enter(home: Path):
    (home / "postgres").mkdir()
    folder = EmbeddedPostgres(home).socket_folder
    folder.mkdir(mode=0o700)

    try:
        folder.chmod(0o777)
        assert "rm -r" in problem(diagnose(of(home), "socket-folder"), "socket-folder").do
    finally:
        folder.rmdir()


def test_clock_that_was_set_back(home: Path):
    later = time.time() + 7200
    os.utime(home / "api-key", (later, later))
    assert "2.0 hours" in problem(diagnose(of(home), "clock"), "clock").message


# Programs, limits, ports, settings


def run_doctor(*arguments: str, starter: tuple[str, ...] = (), **environment: str) -> tuple[int, list[dict[str, Any]]]:
    """Run the command in a process of its own, whose environment is broken."""
    command = [*starter, sys.executable, "-P", "-m", "portside", "doctor", "--json", *arguments]
    given = {**os.environ, "PYTHONWARNINGS": "ignore", **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)["findings"]


def has(findings: list[dict[str, Any]], check: str, level: str) -> bool:
    return any(each["check"] == check and each["level"] == level and each["do"] for each in findings)


@pytest.fixture(scope="module")
def failing_findings(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The findings of a machine without programs, with few descriptors, a wrong setting and a dead package index."""
    folder = tmp_path_factory.mktemp("crippled")
    (folder / "bin").mkdir()
    (folder / "bin" / "caddy").write_text("#!/bin/sh\nexit 3\n")
    (folder / "bin" / "caddy").chmod(0o755)
    (folder / "limits.txt").write_text("nonsense\n")

    code, found = run_doctor(
        "--home",
        str(folder / "home"),
        "--port",
        str(free_port()),
        starter=(shutil.which("sh") or "sh", "-c", 'ulimit -S -n 200; ulimit -H -n 500; exec "$@"', "sh"),
        PATH=str(folder / "bin"),
        UV_DEFAULT_INDEX=f"http://127.0.0.1:{free_port()}/simple",
        PORTSIDE_CADDY="caddy",
        RATE_LIMITS_FILE=str(folder / "limits.txt"),
        MODEL_PRICES_FILE=str(folder / "none.csv"),
        DATABASE_URL="",
    )

    assert code == 1
    return found


@pytest.mark.parametrize(
    ("check", "level"),
    [
        ("git", "fault"),
        ("node", "warning"),
        ("caddy", "fault"),
        ("registry", "fault"),
        ("descriptors", "fault"),
        ("rate-limits", "fault"),
        ("prices", "fault"),
        ("home", "warning"),
    ],
)
def test_machine_that_lacks_something(failing_findings: list[dict[str, Any]], check: str, level: str):
    assert has(failing_findings, check, level), failing_findings


def test_uv_that_is_missing(tmp_path: Path):
    """An environment with all packages of this one, in which only the program of uv is missing."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    import uv

    packages = Path(uv.__file__).parents[1]
    overlay = tmp_path / "overlay"
    shutil.copytree(Path(uv.__file__).parent, overlay / "uv")
    source = Path(__file__).parents[2] / "src"
    code = "from portside.operate.machine_checks import _check_uv; print(_check_uv().level, _check_uv().check)"

    done = subprocess.run(
        [tmp_path / "venv" / "bin" / "python", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/nowhere", "HOME": str(tmp_path), "PYTHONPATH": f"{overlay}:{source}:{packages}"},
    )

    assert done.stdout.split() == ["fault", "uv"], done.stderr


def test_port_of_another_program(home: Path):
    installation = of(home)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", installation.port))
        other.listen(1)
        assert "ss -ltnp" in problem(diagnose(installation, "port"), "port").do

    assert is_well(diagnose(installation, "port"))


@needs_root
def test_low_port_that_an_ordinary_user_may_not_open(tmp_path: Path):
    """The system reserves the ports below 1024 for root here, or else the test gives no answer."""
    limit = int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    if limit <= 80 or shutil.which("setpriv") is None:
        pytest.skip("any user may open every port of this machine")

    tmp_path.chmod(0o755)
    code = (
        "import sys; from pathlib import Path; from portside.ingress.options import FrontOptions\n"
        "from portside.operate.findings import ExaminedInstallation\n"
        "from portside.operate.machine_checks import check_port\n"
        "i = ExaminedInstallation(home=Path('/nowhere'), front=FrontOptions(domain='a.example'))\n"
        "print([f.check for f in check_port(i) if f.level == 'fault'])"
    )

    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--clear-groups", "--inh-caps=-all", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in done.stderr:
        pytest.skip("an ordinary user cannot read this installation")

    assert "'ports'" in done.stdout, done.stderr


def test_wrong_setting_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACE_TIER", "for ever")
    done = run_here("doctor", "--home", str(tmp_path / "none"), "--json", *skip_all_but("home"))
    assert done.returncode == 1
    assert has(json.loads(done.stdout)["findings"], "settings", "fault")


def skip_all_but(*checks: str) -> list[str]:
    return [part for name in sorted(ALL - set(checks)) for part in ("--skip", name)]


def test_warnings_alone_give_status_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    home = tmp_path / "none"
    done = run_here("doctor", "--home", str(home), *skip_all_but("home"))
    assert done.returncode == 0, done.stdout
    assert "warning" in done.stdout
    assert "→" in done.stdout
    home.mkdir(mode=0o755)

    done = run_here("doctor", "--home", str(home), *skip_all_but("home"))
    assert done.returncode == 1
    assert "fault" in done.stdout


# The database


@pytest.fixture(scope="module")
def platform_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "home"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module")
def server(platform_home: Path) -> Iterator[ServerProcess]:
    with platform_server(platform_home, PORTSIDE_OWN_LISTENER="false", POSTGRES_MAX_CONNECTIONS="40") as running:
        yield running


@pytest.fixture
def installation(server: ServerProcess, platform_home: Path) -> ExaminedInstallation:
    port = int(server.url.rpartition(":")[2])
    return ExaminedInstallation(home=platform_home, packages=tuple(PACKAGES), port=port, has_listener=False)


@contextlib.contextmanager
def change_database(home: Path, change: str, undo: str, database: str = "portside") -> Iterator[None]:
    """Run a statement on the platform's database, and another one at the end."""

    async def execute(statement: str) -> None:
        connection = await asyncpg.connect(EmbeddedPostgres(home).url(database))
        for part in statement.split(";"):
            await connection.execute(part)

        await connection.close()
        # Postgres tells its processes of changed settings before it takes another connection.
        await (await asyncpg.connect(EmbeddedPostgres(home).url(database))).close()

    asyncio.run(execute(change))
    try:
        yield
    finally:
        asyncio.run(execute(undo))


def test_running_platform_is_well(installation: ExaminedInstallation, monkeypatch: pytest.MonkeyPatch):
    # A busy machine is no fault.
    monkeypatch.setattr(machine_checks, "_ANSWERS_WITHIN_S", 300.0)
    monkeypatch.setattr(service_checks, "_TIMEOUT_S", 300.0)
    found = diagnose(installation, *ALL - {"registry", "proxy"})
    assert [each for each in found if each.level == "fault"] == []


def test_route_has_the_same_findings(server: ServerProcess, installation: ExaminedInstallation):
    headers = {"X-Api-Key": KEY}
    with change_database(installation.home, "alter system set autovacuum = off;select pg_reload_conf()", RESET):
        found = httpx2.get(f"{server.url}/system/doctor", headers=headers, timeout=300).raise_for_status().json()
        assert has(found["findings"], "postgres-settings", "fault")
        assert found["faults"] >= 1

    assert httpx2.get(f"{server.url}/system/doctor", timeout=300).status_code == 401


RESET = "alter system reset all;select pg_reload_conf()"


@pytest.mark.parametrize(
    ("setting", "check", "level"),
    [
        ("fsync = off", "postgres-settings", "fault"),
        ("full_page_writes = off", "postgres-settings", "fault"),
        ("autovacuum = off", "postgres-settings", "fault"),
        ("synchronous_commit = off", "postgres-settings", "warning"),
        ("default_transaction_read_only = on", "read-only", "fault"),
    ],
)
def test_settings_of_postgres(installation: ExaminedInstallation, setting: str, check: str, level: str):
    undo = f"set default_transaction_read_only = off;{RESET}"
    with change_database(installation.home, f"alter system set {setting};select pg_reload_conf()", undo):
        assert setting.partition(" ")[0] in problem(diagnose(installation, "database"), check, level).message


def test_postgres_that_does_not_answer(home: Path):
    installation = of(home, database_url=f"postgresql://a:b@127.0.0.1:{free_port()}/portside")
    assert "start it" in problem(diagnose(installation, "database"), "postgres").do


def test_wrong_password_and_missing_database(installation: ExaminedInstallation):
    engine = EmbeddedPostgres(installation.home)
    wrong = msgspec.structs.replace(installation, database_url=engine.url("portside", password="wrong"))
    assert "password" in problem(diagnose(wrong, "database"), "postgres").do
    missing = msgspec.structs.replace(installation, database_url=engine.url("nowhere"))
    assert "create the database" in problem(diagnose(missing, "database"), "postgres").do


def test_role_that_may_not_create_databases(installation: ExaminedInstallation):
    engine = EmbeddedPostgres(installation.home)
    url = engine.url("portside", user="limited", password="limited")

    limited = msgspec.structs.replace(installation, database_url=url, has_listener=True)
    grant = "create role limited login password 'limited';grant connect on database portside to limited"
    with change_database(
        installation.home, grant, "revoke connect on database portside from limited;drop role limited"
    ):
        assert "createdb createrole" in problem(diagnose(limited, "database"), "role").do


async def test_pool_that_is_full(installation: ExaminedInstallation):
    taken: list[Any] = []
    url = EmbeddedPostgres(installation.home).url("portside")
    only = ALL - {"database"}
    try:
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await asyncpg.connect(url))

        full = (await examine(installation, skipped=only)).findings
        assert "max_connections" in problem(full, "connections").do
        await taken.pop().close()
        await taken.pop().close()

        async def is_nearly_full() -> bool:
            found = (await examine(installation, skipped=only)).findings
            return any(each.level == "fault" and "are taken" in each.message for each in found)

        await eventually(is_nearly_full)
    finally:
        for connection in taken:
            await connection.close()


def test_part_that_is_down_is_named_once():
    """The platform names it in its health twice, and the check of the database notices it, too."""
    reported = [fault("postgres", "it cannot be kept running", "see its log"), warning("deployments", "a", "b")]
    noticed = [
        fault("postgres", "postgres does not answer", "see its log"),
        fault("postgres", "it is gone", "start it"),
    ]

    limits = [fault("connections", "a", "b"), fault("connections", "c", "d")]
    assert _drop_repeated([*reported, *noticed, *limits]) == [*reported, *limits]


def test_master_key_of_another_platform(installation: ExaminedInstallation, home: Path):
    other = msgspec.structs.replace(
        installation, home=home, database_url=EmbeddedPostgres(installation.home).url("portside")
    )
    assert "another platform" in problem(diagnose(other, "database"), "master-key").message


def test_migrations_that_are_pending_or_from_the_future(installation: ExaminedInstallation):
    name = "select * into held from applied_migrations where package = 'usage'"
    undo = "insert into applied_migrations select * from held;drop table held"
    with change_database(installation.home, f"{name};delete from applied_migrations where package = 'usage'", undo):
        found = problem(diagnose(installation, "database"), "migrations", "warning")
        assert "usage/0001_baseline.sql" in found.message

    future = "insert into applied_migrations (package, number, name, checksum) values ('usage', 9999, 'later', 'x')"
    with change_database(installation.home, future, "delete from applied_migrations where number = 9999"):
        assert "newer" in problem(diagnose(installation, "database"), "migrations").message


def test_revoked_keys_are_warnings(installation: ExaminedInstallation):
    file = installation.home / "api-key"
    kept = file.read_text()
    file.write_text("lsv2_pt_00000000000000000000000000000000_0000000000\n")

    try:
        assert "revoked" in problem(diagnose(installation, "database"), "api-key", "warning").message
    finally:
        file.write_text(kept)


def test_empty_database_of_a_used_home(installation: ExaminedInstallation, home: Path):
    url = EmbeddedPostgres(installation.home).create_database("empty")
    other = msgspec.structs.replace(installation, home=home, database_url=url)
    assert "empty" in problem(diagnose(other, "database"), "database").message


def test_deployment_that_failed_is_a_warning(server: ServerProcess, installation: ExaminedInstallation):
    made = (
        httpx2.post(
            f"{server.url}/v2/deployments", json=create_body("failing"), headers={"X-Api-Key": KEY}, timeout=300
        )
        .raise_for_status()
        .json()
    )

    change = "update revisions set status = 'BUILD_FAILED', status_message = 'no module'"
    fail = f"{change} where deployment_id = '{made['id']}'"
    with change_database(installation.home, fail, fail.replace("BUILD_FAILED", "INTERRUPTED")):
        found = problem(diagnose(installation, "database"), "deployments", "warning")

    assert found.message == "failing: its newest revision is BUILD_FAILED: no module"
    assert "portside logs failing" in found.do


def test_problem_of_a_deployment_that_serves_is_a_warning(server: ServerProcess, installation: ExaminedInstallation):
    """Such as an object that a cluster refuses, or a right that the listener lost."""
    httpx2.post(
        f"{server.url}/v2/deployments", json=create_body("refused"), headers={"X-Api-Key": KEY}, timeout=300
    ).raise_for_status()

    change = "update deployments set status = 'READY', status_message = {} where name = 'refused'"
    with change_database(installation.home, change.format("'the cluster refuses'"), change.format("null")):
        found = problem(diagnose(installation, "database"), "deployments", "warning")

    assert found.message == "refused: READY: the cluster refuses"


def test_silent_listener(installation: ExaminedInstallation):
    insert = (
        "insert into listeners (id, workspace_id, compute_type, compute_id, last_seen_at) select gen_random_uuid(), id,"
        " 'process', 'silent', now() - interval '1 hour' from workspaces limit 1"
    )

    with_listener = msgspec.structs.replace(installation, has_listener=True)
    with change_database(installation.home, insert, "delete from listeners where compute_id = 'silent'"):
        assert "listener.log" in problem(diagnose(with_listener, "database"), "listener").do


@pytest.mark.thorough
def test_stopped_platform_is_examined_with_its_postgres(tmp_path: Path):
    """The doctor starts the embedded Postgres for the checks, and stops it again."""
    with platform_server(tmp_path / "home", PORTSIDE_OWN_LISTENER="false") as server:
        port = int(server.url.rpartition(":")[2])

    stopped = ExaminedInstallation(home=tmp_path / "home", packages=tuple(PACKAGES), port=port)
    found = diagnose(stopped, "database", "platform")
    assert problem(found, "platform", "warning")
    assert any(each.check == "postgres" and each.level == "ok" for each in found)
    assert not EmbeddedPostgres(tmp_path / "home")._responds()
    (tmp_path / "home" / "postgres" / "data" / "global" / "pg_control").unlink()
    assert "does not start" in problem(diagnose(stopped, "database"), "postgres").message


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_listener_that_cannot_be_started(tmp_path: Path):
    with platform_server(tmp_path / "home") as server:
        home = tmp_path / "home"

        # The platform answers before it starts its listener.
        pid = asyncio.run(eventually(lambda: asyncio.to_thread(find_listener, home)))
        (home / "logs").rename(home / "logs-away")
        (home / "logs").touch()

        os.kill(pid, signal.SIGKILL)
        installation = ExaminedInstallation(home=home, port=int(server.url.rpartition(":")[2]))

        async def is_reported() -> bool:
            found = (await examine(installation, skipped=ALL - {"platform"})).findings
            return any(each.check == "listener" and each.level == "fault" and each.do for each in found)

        asyncio.run(eventually(is_reported))
        (home / "logs").unlink()


def find_listener(home: Path) -> int:
    """Return the process id of the listener of a home, or 0."""
    return next((int(process.name) for process in Path("/proc").glob("[0-9]*") if is_listener(process, home)), 0)


def is_listener(process: Path, home: Path) -> bool:
    with contextlib.suppress(OSError):
        is_command = b"portside\0listener" in (process / "cmdline").read_bytes()
        return is_command and f"PORTSIDE_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0")

    return False


# Certificates, names, proxies, sign-in


def make_certificate(folder: Path, name: str, until: dt.datetime) -> FrontOptions:
    """Write a certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(until - dt.timedelta(days=90))
        .not_valid_after(until)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )

    (folder / "chain.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    key_file = folder / "key.pem"
    key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    key_file.chmod(0o600)

    return FrontOptions(
        domain=name,
        tls="files",
        certificate=str(folder / "chain.pem"),
        key=str(key_file),
        http_port=free_port(),
        https_port=free_port(),
    )


def test_certificates(home: Path, tmp_path: Path):
    now = dt.datetime.now(dt.UTC)
    good = of(home, front=make_certificate(tmp_path, "portside.example.com", now + dt.timedelta(days=60)))
    assert is_well(diagnose(good, "certificates"))
    other_domain = msgspec.structs.replace(good.front, domain="other.example.com")
    other = msgspec.structs.replace(good, front=other_domain)
    assert "not for other.example.com" in problem(diagnose(other, "certificates"), "certificate").message
    (tmp_path / "key.pem").chmod(0o644)

    assert "chmod 600" in problem(diagnose(good, "certificates"), "certificate", "warning").do
    soon = of(home, front=make_certificate(tmp_path, "portside.example.com", now + dt.timedelta(days=5)))
    assert "expires" in problem(diagnose(soon, "certificates"), "certificate", "warning").message
    expired = of(home, front=make_certificate(tmp_path, "portside.example.com", now - dt.timedelta(days=1)))
    assert "expired" in problem(diagnose(expired, "certificates"), "certificate").message
    chain = (tmp_path / "chain.pem").read_bytes()
    foreign = of(home, front=make_certificate(tmp_path, "portside.example.com", now + dt.timedelta(days=60)))

    (tmp_path / "chain.pem").write_bytes(chain)
    assert "not the key" in [each.message for each in diagnose(foreign, "certificates")][-1]
    (tmp_path / "chain.pem").write_text("nonsense")
    assert "cannot be read" in problem(diagnose(foreign, "certificates"), "certificate").message


def test_domain_without_an_address_or_elsewhere(home: Path):
    nowhere = of(home, front=FrontOptions(domain="nowhere.invalid"))
    assert "DNS" in problem(diagnose(nowhere, "domain"), "domain").do
    here = of(home, front=FrontOptions(domain="localhost"))
    assert is_well(diagnose(here, "domain"))


def test_provider_of_sign_in_that_does_not_answer(home: Path):
    installation = of(home, oidc_issuer=f"http://127.0.0.1:{free_port()}")
    assert "OIDC_ISSUER" in problem(diagnose(installation, "sign-in"), "sign-in").do


PROXY = """
{
    admin off
    auto_https off
}
http://127.0.0.1:%(port)d {
    bind 127.0.0.1
    reverse_proxy %(platform)s {
        %(rules)s
    }
}
"""


@contextlib.contextmanager
def start_proxy(folder: Path, platform: str, *rules: str) -> Iterator[str]:
    """A proxy before the platform with these rules."""
    caddy = shutil.which("caddy", path=str(Path(sys.executable).parent)) or "caddy"
    port = free_port()
    file = folder / f"Caddyfile-{port}"
    file.write_text(PROXY % {"port": port, "platform": platform, "rules": "\n        ".join(rules)})

    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    process = subprocess.Popen(
        [caddy, "run", "--config", str(file), "--adapter", "caddyfile"], env=environment, stderr=subprocess.DEVNULL
    )

    try:

        async def answers() -> bool:
            with contextlib.suppress(httpx2.HTTPError):
                async with httpx2.AsyncClient() as client:
                    return (await client.get(f"http://127.0.0.1:{port}/ok")).status_code == 200

            return False

        asyncio.run(eventually(answers))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


@pytest.mark.thorough
def test_proxies_with_wrong_headers(tmp_path: Path):
    with platform_server(
        tmp_path / "home",
        "--no-example",
        "--domain",
        "portside.example.com",
        "--tls",
        "off",
        PORTSIDE_OWN_LISTENER="false",
        TRUSTED_PROXIES="127.0.0.1",
    ) as server:
        installation = ExaminedInstallation(
            home=tmp_path / "home",
            port=int(server.url.rpartition(":")[2]),
            front=FrontOptions(domain="portside.example.com", tls="off"),
            trusted_proxies="127.0.0.1",
        )

        good = "header_up X-Forwarded-Proto https"
        with start_proxy(tmp_path, server.url, good) as url:
            assert is_well(diagnose(msgspec.structs.replace(installation, public_url=url), "proxy"))

        for rules, message in (
            ((), "X-Forwarded-Proto"),
            ((good, "header_up X-Forwarded-For {http.request.header.X-Forwarded-For}"), "claim any address"),
            ((good, "header_up Host {upstream_hostport}"), "Host header"),
        ):
            with start_proxy(tmp_path, server.url, *rules) as url:
                found = problem(diagnose(msgspec.structs.replace(installation, public_url=url), "proxy"), "proxy")
                assert message in found.message

        untrusting = msgspec.structs.replace(installation, public_url=server.url, trusted_proxies="")
        assert "TRUSTED_PROXIES" in problem(diagnose(untrusting, "proxy"), "proxy").message
