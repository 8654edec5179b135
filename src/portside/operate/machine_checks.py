"""What the doctor examines on this machine without asking a server: the home, the disk, programs, limits, ports."""

import contextlib
import os
import re
import resource
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from portside.backup.history import get_last_backup
from portside.backup.listing import join_spans, list_restorable_backups
from portside.backup.stores import open_store
from portside.ingress.caddy import INSTALL_CADDY, find_caddy
from portside.kernel.crypto import SecretBox
from portside.kernel.disk import WATCHED_FOLDER, find_shortage, measure, megabytes, read_notice
from portside.kernel.embedded import EmbeddedPostgres, default_connections
from portside.kernel.errors import UserMistake
from portside.kernel.files import find_holder, get_user_name
from portside.kernel.worker_processes import count_usable_cores
from portside.limits.table import read_table
from portside.operate.capacity import Machine, compute_capacity, read_memory_bytes
from portside.operate.findings import Check, ExaminedInstallation, Finding, fault, fine, warning

# A file may be newer than the clock by this much: clocks of file servers differ.
_AHEAD_S = 120
_OLD_BACKUP_DAYS = 7
# The platform archives once a minute while it runs.
_OLD_WAL = timedelta(hours=1)
# The first of January 2025. A clock that shows an earlier time was never set.
_EARLIEST_TIME = 1_735_689_600
_FEW_DESCRIPTORS = 8192
_MIN_DESCRIPTORS = 1024
_LITTLE_MEMORY = 512_000_000
_MIN_MEMORY = 128_000_000
_PROGRAM_TIMEOUT_S = 30.0
_ANSWERS_WITHIN_S = 5.0
_BIND_SERVICE = 1 << 10
# A small package that builds need anyway.
_PROBED_PACKAGE = "packaging"


def check_home(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the home folder exists, belongs to this user and is writable."""
    name = "home"
    home = installation.home
    if not home.exists():
        yield warning(name, f"{home} does not exist", "start 'portside up' once, or name the folder with --home")
        return

    if not home.is_dir():
        yield fault(name, f"{home} is not a folder", "move it away, or choose another folder with --home")
        return

    status = home.stat()
    user = status.st_uid
    if user != os.geteuid():
        owner = get_user_name(user)
        if _has_lock_of_this_user(home):
            user = os.geteuid()
            message = f"{home} belongs to the user {owner}, so Portside cannot keep it private"
            yield warning(name, message, f"move its files into a folder in it: --home {home / 'portside'}")
        else:
            yield fault(name, f"{home} belongs to the user {owner}", f"run Portside and this command as {owner}")

    if os.statvfs(home).f_flag & os.ST_RDONLY:
        yield fault(name, f"the file system of {home} is mounted read-only", "see dmesg for the reason, and remount it")
    elif not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        yield fault(name, f"{home} cannot be written", f"chmod u+rwx {home}")

    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        yield fault(name, f"other users of this machine can enter {home}", f"chmod 700 {home}")

    path = find_foreign_file(home, user)
    if path is not None:
        yield fault(
            name,
            f"{path} belongs to another user than {home}: Portside was started as several users",
            f"chown -R {get_user_name(user)} {home}",
        )

    yield fine(name, f"{home} is the home")


def _has_lock_of_this_user(home: Path) -> bool:
    """Whether this user runs a platform in a folder of somebody else, such as the root of a mounted volume."""
    try:
        return (home / "platform.lock").lstat().st_uid == os.geteuid()
    except OSError:
        return False


def find_foreign_file(home: Path, owner: int) -> Path | None:
    """Return a file near the top of the home that belongs to somebody else, or None."""
    for folder in (home, home / "postgres", home / "dataplane", home / "logs"):
        with contextlib.suppress(OSError):
            for entry in folder.iterdir():
                if entry.name != "lost+found" and entry.lstat().st_uid != owner:
                    return entry

    return None


def check_keys(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the master key exists and is well formed, and that other users cannot read any key."""
    master = installation.home / "master-key"
    if master.exists():
        try:
            SecretBox.from_file(master)
            yield fine("master-key", f"{master} has the right form")
        except UserMistake as exc:
            yield fault("master-key", str(exc), "restore the file from a backup")
        except OSError as exc:
            yield fault("master-key", f"{master} cannot be read: {exc.strerror}", "run this as the user of the home")
    elif (installation.home / "api-key").exists():
        yield fault(
            "master-key",
            f"{master} is missing, and the secrets in the database cannot be decrypted without it",
            "restore the file from a backup; it was saved with the database",
        )

    for file in installation.key_files:
        path = installation.home / file
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield fault("key-files", f"other users can read {path}", f"chmod 600 {path}; then replace the key")

    yield fine("key-files", "key files were examined")


def check_lock(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the process that holds the home serves, and that no lock prevents the start of Postgres."""
    holder = find_lock_holder(installation.home)
    lock = installation.home / "platform.lock"
    if holder is not None and not _answers(installation):
        who = f"process {holder}" if holder else "a process that does not name itself"
        # `kill 0` would kill the shell's own processes.
        kill = f"kill {holder}" if holder else f"find it with 'fuser {lock}' and kill it"
        yield fault(
            "lock",
            f"{who} holds {lock}, and nothing answers at {installation.url}",
            f"it may be starting or stopping; if not, {kill}. If it serves at another port, name it: --port",
        )

    pid_file = installation.home / "postgres" / "data" / "postmaster.pid"
    with contextlib.suppress(OSError, ValueError, IndexError):
        pid = int(pid_file.read_text().splitlines()[0])
        program = _read_program_name(pid)
        if program is not None and not program.startswith("postgres"):
            yield fault(
                "lock",
                f"{pid_file} names process {pid}, which is {program} and not Postgres: Postgres will not start",
                f"rm {pid_file}",
            )

    if holder is None:
        yield fine("lock", "no platform is running on this home")
    else:
        yield fine("lock", "the platform runs" + (f" as process {holder}" if holder else ""))


def find_lock_holder(home: Path) -> int | None:
    """Return the process that holds the home's lock; 0 if it is unknown, None if nobody does."""
    return find_holder(home / "platform.lock")


def check_data(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the data folder of the embedded Postgres is complete, and that this version can read it."""
    if installation.database_url is not None:
        return

    data = installation.home / "postgres" / "data"
    engine = EmbeddedPostgres(installation.home)
    if data.exists():
        try:
            engine.check_data()
            yield fine("data", f"{data} can be read by the embedded Postgres")
        except UserMistake as exc:
            yield fault("data", str(exc), "follow the message; nothing was changed")

    try:
        engine.check_program()
        yield fine("embedded-postgres", "the embedded Postgres can run here")
    except UserMistake as exc:
        yield fault("embedded-postgres", str(exc), "follow the message")


def check_disk(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check the free space for the home and for temporary files, and the limit of the external database."""
    folder = installation.home if installation.home.exists() else installation.home.parent
    if not folder.exists():
        return

    do = "make room: 'portside disk' shows what takes the space"
    space = measure(folder)
    shortage = find_shortage(folder, installation.reserve)
    coming_shortage = find_shortage(folder, installation.reserve, 2.0)

    if shortage is not None:
        yield fault("disk", f"the disk of {folder} is nearly full, and new data is refused: {shortage}", do)
    elif coming_shortage is not None:
        yield warning("disk", f"the disk of {folder} is filling up: {coming_shortage}", do)

    notice = read_notice(installation.home / WATCHED_FOLDER) if installation.home.exists() else None
    if notice is not None:
        yield fault("database-size", f"new data is refused: {notice}", "delete data, or raise DATABASE_MAX_BYTES")

    temporary = Path(tempfile.gettempdir())
    if measure(temporary).free < 50_000_000:
        yield fault("temporary-files", f"{temporary} is full", "make room there, or set TMPDIR to another folder")

    yield fine("disk", f"{megabytes(space.free)} free of {megabytes(space.total)}")


def check_socket_folder(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the folder of the embedded server's socket is private."""
    if installation.database_url is not None or not (installation.home / "postgres").exists():
        return

    folder = EmbeddedPostgres(installation.home).socket_folder
    if folder.is_symlink() or (folder.exists() and (_is_foreign(folder) or folder.stat().st_mode & 0o077)):
        yield fault(
            "socket-folder",
            f"{folder} is not a private folder of this user, and Postgres will not start",
            f"rm -r {folder} while the platform is stopped",
        )

    yield fine("socket-folder", f"{folder} is free or private")


def check_clock(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the clock was not set back."""
    now = time.time()
    if now < _EARLIEST_TIME:
        yield fault("clock", f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime(now))}", "set it, by NTP")

    newest = None
    latest = now + _AHEAD_S
    names = (*installation.key_files, "postgres/log", "postgres/data", "logs")
    for path in (installation.home, *(installation.home / name for name in names)):
        with contextlib.suppress(OSError):
            modified_at = path.lstat().st_mtime
            if modified_at > latest:
                newest = path
                latest = modified_at

    if newest is not None:
        hours = (latest - now) / 3600
        yield fault(
            "clock",
            f"{newest} was changed {hours:.1f} hours in the future: the clock was set back, or is wrong",
            "set the clock by NTP; certificates, leases and crons depend on it",
        )

    yield fine("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now)))


def check_limits(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the process has enough descriptors, and the machine enough memory."""
    holder = find_lock_holder(installation.home) or None
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    open_files = 0

    if holder is not None:
        with contextlib.suppress(OSError):
            hard = resource.prlimit(holder, resource.RLIMIT_NOFILE)[1]
            open_files = len(os.listdir(f"/proc/{holder}/fd"))  # noqa: PTH208 - counts only

    if hard != resource.RLIM_INFINITY:
        do = "raise the hard limit: LimitNOFILE= of systemd, --ulimit nofile= of containers, or limits.conf"
        if hard < _MIN_DESCRIPTORS or open_files > hard * 0.9:
            yield fault("descriptors", f"the limit of open files is {hard}, and {open_files} are open", do)
        elif hard < _FEW_DESCRIPTORS:
            yield warning("descriptors", f"the limit of open files is {hard}; each connection takes one", do)

    free = _read_available_memory()
    if free is not None and free < _LITTLE_MEMORY:
        do = "stop something, lower scales of deployments, or add memory; the kernel kills processes when none is left"
        level = fault if free < _MIN_MEMORY else warning
        yield level("memory", f"{megabytes(free)} of memory are available", do)

    yield fine("limits", "open files and memory were examined")


def check_capacity(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Say how many deployments and runs this machine holds, as computed from measured figures."""
    name = "capacity"
    folder = installation.home if installation.home.exists() else installation.home.parent
    if not installation.has_listener or not folder.exists():
        return

    space = measure(folder)
    machine = Machine(
        cores=count_usable_cores(),
        memory_bytes=read_memory_bytes(),
        disk_bytes=space.free - installation.reserve.of(space.total),
        connections=installation.max_connections or default_connections(),
    )
    yield describe_capacity(name, machine)


def describe_capacity(name: str, machine: Machine) -> Finding:
    """Return the finding about what a machine holds; it is a warning if that is not one deployment."""
    capacity = compute_capacity(machine)
    memory = megabytes(machine.memory_bytes)
    disk = megabytes(max(0, machine.disk_bytes))
    has = f"{machine.cores} cores, {memory} of memory and {disk} of free disk"

    if not capacity.executing:
        return warning(
            name, f"{has} are too little for a deployment", "add memory or disk, or use another machine for deployments"
        )

    return fine(
        name,
        f"{has} hold about {capacity.executing} small deployments that all execute, or {capacity.idle} that are "
        f"awake and idle, and {capacity.streams} runs that stream at once",
    )


def check_programs(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the programs that builds and the front need are installed and run."""
    if installation.has_listener:
        yield _check_program("git", shutil.which("git"), fault, "install git: builds fetch repositories with it")
        yield _check_uv()
        yield _check_program(
            "node",
            shutil.which("node"),
            warning,
            "install Node and npm, or name node_version in langgraph.json; then builds fetch Node themselves",
        )

        if not (shutil.which("podman") or shutil.which("docker")):
            yield fine("containers", "neither podman nor docker is installed, so images cannot be deployed")

    if installation.is_fronted:
        do = f"install Caddy: {INSTALL_CADDY}"
        try:
            caddy = find_caddy(installation.caddy)
        except UserMistake as exc:
            yield fault("caddy", str(exc), do)
            return

        if caddy is None:
            level = fault if installation.front.domain else warning
            reason = "there is no Caddy"
            if installation.caddy:
                reason = f"PORTSIDE_CADDY names {installation.caddy}, which is no program"

            yield level("caddy", f"{reason}, so agents have no addresses at the platform's port", do)
        else:
            yield fine("caddy", caddy.program)


def _check_program(name: str, path: str | None, level: Callable[[str, str, str], Finding], do: str) -> Finding:
    if path is None:
        return level(name, f"{name} is not on the PATH", do)

    try:
        process = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True, timeout=_PROGRAM_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError) as exc:
        return level(name, f"{path} does not run: {exc}", do)

    lines = process.stdout.strip().splitlines()
    return fine(name, lines[0] if lines else path)


def _check_uv() -> Finding:
    from uv import find_uv_bin

    do = "install Portside again: its package uv holds the program"
    try:
        path = find_uv_bin()
    except FileNotFoundError:
        return fault("uv", "uv is missing, with which builds install packages", do)

    return _check_program("uv", path, fault, do)


def check_registry(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that uv reaches its package index, with the proxies and certificates of this environment."""
    from uv import find_uv_bin

    if not installation.has_listener:
        return

    with contextlib.suppress(FileNotFoundError):
        process = subprocess.run(
            [find_uv_bin(), "pip", "compile", "-", "--no-cache", "--no-deps", "--quiet", "--no-header"],
            input=_PROBED_PACKAGE,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PROGRAM_TIMEOUT_S,
            env={**os.environ, "UV_HTTP_TIMEOUT": "10", "UV_HTTP_RETRIES": "0"},
            cwd=tempfile.gettempdir(),
        )
        if process.returncode == 0:
            yield fine("registry", "the package index answers")
            return

        reason = re.sub(r"(?<=://)[^/@\s]+@", "***@", " ".join(process.stderr.split()))[-400:]
        yield fault(
            "registry",
            f"uv cannot get packages, so builds fail: {reason}",
            "check the network, HTTPS_PROXY, SSL_CERT_FILE and UV_DEFAULT_INDEX; without a network: --skip registry",
        )


def check_port(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the ports are free or the platform's, and that this user may open them."""
    if find_lock_holder(installation.home) is None:
        yield from _check_port_is_free(installation.host, installation.port)
        if installation.front.is_public:
            yield from _check_port_is_free("0.0.0.0", installation.front.https_port)  # noqa: S104 - as the front does

    if installation.front.is_public:
        lowest = min(installation.front.http_port, installation.front.https_port)
        if os.geteuid() != 0 and lowest < _read_first_free_port() and not _may_bind_low_ports():
            yield fault(
                "ports",
                f"this user may not open port {lowest}",
                "install the service ('portside service install'), or: sysctl net.ipv4.ip_unprivileged_port_start=80",
            )


def _check_port_is_free(host: str, port: int) -> Iterator[Finding]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError:
            return
        except OSError as exc:
            yield fault(
                "port",
                f"port {port} of {host} cannot be opened: {exc.strerror}",
                f"see which program has it (ss -ltnp 'sport = :{port}') and stop it, or choose another port",
            )

            return

    yield fine("port", f"port {port} is free")


def check_files(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that the files that settings name can be read."""
    if installation.rate_limits_file is not None:
        try:
            read_table(Path(installation.rate_limits_file))
        except UserMistake as exc:
            yield fault("rate-limits", str(exc), "correct the file, or unset RATE_LIMITS_FILE")

    if installation.model_prices_file is not None and not os.access(installation.model_prices_file, os.R_OK):
        yield fault(
            "prices", f"{installation.model_prices_file} cannot be read", "correct MODEL_PRICES_FILE, or unset it"
        )


def check_backup(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that somebody took a backup of this platform within the last days, and that the last one succeeded."""
    name = "backup"
    history = get_last_backup(installation.home)
    how = "set BACKUP_TO and PORTSIDE_BACKUP_PASSPHRASE_FILE, or run 'portside backup create' now and then"

    if history.failed is not None:
        yield warning(name, f"the last backup failed: {history.failed.error}", "remove the cause, and take another")

    if history.succeeded is not None:
        days = (datetime.now(UTC) - history.succeeded.ended_at).days
        place = f"{history.succeeded.location}/{history.succeeded.name}"
        if days > _OLD_BACKUP_DAYS:
            yield warning(name, f"the last backup is {days} days old: {place}", how)
        else:
            yield fine(name, f"the last one is {place}")
    elif (installation.home / "master-key").exists():
        yield warning(name, "there is no backup of this platform", how)


def check_point_in_time(installation: ExaminedInstallation) -> Iterator[Finding]:
    """Check that any time can be restored up to now, if the platform archives its WAL."""
    name = "point-in-time"
    location = installation.backup_to
    if not installation.keeps_wal or location is None:
        return

    how = "the log of the platform says why; 'portside backup status' shows the times"
    try:
        spans = join_spans(list_restorable_backups(open_store(location, installation.store_environment)))
    except UserMistake as exc:
        yield warning(name, f"the archived WAL cannot be read: {exc}", "make the location of BACKUP_TO readable")
        return

    if not spans:
        yield warning(name, "no time but those of backups can be restored: no backup precedes the archived WAL", how)
        return

    text = f"any time can be restored {' and '.join(map(str, spans))}"
    if datetime.now(UTC) - spans[-1].until > _OLD_WAL:
        yield warning(name, f"{text}, and none after that", how)
    else:
        yield fine(name, text)


def _answers(installation: ExaminedInstallation) -> bool:
    host = installation.url.removeprefix("http://").rpartition(":")[0].strip("[]")
    try:
        with socket.create_connection((host, installation.port), timeout=_ANSWERS_WITHIN_S) as probe:
            probe.sendall(b"GET /ok HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return probe.recv(4) == b"HTTP"
    except OSError:
        return False


def _is_foreign(path: Path) -> bool:
    return path.stat().st_uid != os.geteuid()


def _read_program_name(pid: int) -> str | None:
    """Return the name of a running program, or None."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return None


def _read_available_memory() -> int | None:
    with contextlib.suppress(OSError):
        match = re.search(r"^MemAvailable: +(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
        return int(match[1]) * 1024 if match else None

    return None


def _read_first_free_port() -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text())
    return 1024


def _may_bind_low_ports() -> bool:
    with contextlib.suppress(OSError):
        match = re.search(r"^CapEff:\s*([0-9a-f]+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return match is not None and bool(int(match[1], 16) & _BIND_SERVICE)

    return False


CHECKS: dict[str, Check] = {
    "home": check_home,
    "keys": check_keys,
    "lock": check_lock,
    "data": check_data,
    "disk": check_disk,
    "socket-folder": check_socket_folder,
    "clock": check_clock,
    "limits": check_limits,
    "capacity": check_capacity,
    "programs": check_programs,
    "registry": check_registry,
    "port": check_port,
    "files": check_files,
    "backup": check_backup,
    "point-in-time": check_point_in_time,
}
