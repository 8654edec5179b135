"""The service of the system: a systemd unit that starts the platform with the machine, as a user of its own.

`Service.unit` is the text of the unit. `install` and `uninstall` change the system: the user, the home's owner, the
file of settings, the unit. What people may have changed, the home and the settings, is never overwritten and never
removed.
"""

import getpass
import grp
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from portside.kernel.errors import UserMistake
from portside.kernel.files import write_private

Say = Callable[[str], None]

UNITS = Path("etc/systemd/system")
SETTINGS = Path("etc/portside/portside.env")
# Settings that may name folders outside the home, in which the platform writes.
FOLDER_SETTINGS = ("BACKUP_TO", "UV_CACHE_DIR")
_TIMEOUT_S = 330.0
_SHOWN_PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "MainPID",
    "NRestarts",
    "ActiveEnterTimestamp",
)
_UNIT = """\
# Written by 'portside service install'. For changes of your own: systemctl edit {name}
[Unit]
Description=Portside: deploys and runs agents
After=network-online.target
Wants=network-online.target
# A machine that lacks something at first must not need a person later.
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
Group={user}
UMask=0077
EnvironmentFile=-{settings}
WorkingDirectory={working_directory}
ExecStart={command}
Restart=always
RestartSec=5
# The platform stops its listener. The listener stops the agents, which may finish their runs first.
KillMode=mixed
TimeoutStopSec=300
LimitNOFILE=1048576
TasksMax=infinity
# An agent that uses up the memory is replaced alone.
OOMPolicy=continue

# The domain's ports are below 1024.
AmbientCapabilities=CAP_NET_BIND_SERVICE
{privileges}
ProtectSystem=strict
# Not PrivateTmp: commands of operators find the socket of the embedded Postgres in /tmp.
ReadWritePaths={written}
ProtectHome={protect_home}
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
LockPersonality=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
RestrictRealtime=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""
# Not MemoryDenyWriteExecute: Node and others compile at run time. Not RestrictNamespaces with containers.
_HARDENED = """\
CapabilityBoundingSet=CAP_NET_BIND_SERVICE
NoNewPrivileges=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictSUIDSGID=yes
SystemCallErrorNumber=EPERM
SystemCallFilter=~@clock @cpu-emulation @module @mount @obsolete @raw-io @reboot @swap"""
# Rootless podman maps users with a program that has more privileges, and makes control groups.
_WITH_CONTAINERS = "Delegate=yes"
_FIRST_SETTINGS = """\
# Settings of the platform, one NAME=VALUE a line; all are in docs/reference/settings.md.
# After a change: systemctl restart {name}
"""


class RunningService(msgspec.Struct):
    """The systemd service that a process belongs to, its user, and whether the machine starts it."""

    unit: str
    user: str
    starts_with_machine: bool


def find_running_service(root: Path = Path("/")) -> RunningService | None:
    """Return the service that this process belongs to, or None."""
    try:
        unit = parse_unit((root / "proc/self/cgroup").read_text())
    except OSError:
        return None

    if unit is None:
        return None

    return RunningService(unit, getpass.getuser(), any((root / UNITS).glob(f"*.target.wants/{unit}")))


def parse_unit(cgroups: str) -> str | None:
    """Return the service of systemd that the content of a process's file `cgroup` names, which restarts the process.

    A terminal of a desktop is in a scope below the service `user@1000.service`, or in a service that is named app-….
    """
    for line in cgroups.splitlines():
        _number, controllers, path = line.split(":", 2)
        # systemd's own hierarchy: the only one of cgroup v2, or the named one of v1.
        if controllers in {"", "name=systemd"}:
            unit = path.rpartition("/")[2]
            if unit.endswith(".service") and not unit.startswith(("app-", "user@")):
                return unit

    return None


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service to install. `root` is where the system's files are: / or the folder of an image.

    `writable_folders` are folders outside the home in which it may write.
    """

    name: str = "portside"
    user: str = "portside"
    home: Path = Path("/var/lib/portside")
    python: Path = Path(sys.executable)
    has_containers: bool = False
    writable_folders: tuple[Path, ...] = ()
    root: Path = Path("/")

    @property
    def unit_file(self) -> Path:
        """The file of the unit."""
        return self.root / UNITS / f"{self.name}.service"

    @property
    def settings_file(self) -> Path:
        """The file of the settings, for root and the service's user alone: it may hold secrets."""
        return self.root / SETTINGS

    @property
    def unit(self) -> str:
        """The text of the unit."""
        parts = (str(self.python), "-P", "-m", "portside", "up", "--home", str(self.home), "--no-example")
        # An interpreter below /home or /root must stay readable, also one that a virtual environment links to.
        interpreters = (self.python, self.python.resolve())
        personal_folders = ("/home", "/root", "/run/user")
        is_hidden = not any(path.is_relative_to(folder) for path in interpreters for folder in personal_folders)

        optional_folders = [_quote(f"-{folder}") for folder in self.writable_folders]
        return _UNIT.format(
            name=self.name,
            user=self.user,
            # One path without quotes, but with specifiers.
            working_directory=str(self.home).replace("%", "%%"),
            settings=Path("/") / SETTINGS,
            # In commands, $ begins a variable.
            command=" ".join(_quote(part).replace("$", "$$") for part in parts),
            privileges=_WITH_CONTAINERS if self.has_containers else _HARDENED,
            protect_home="yes" if is_hidden else "read-only",
            # The service starts without a folder that is not there.
            written=" ".join([_quote(str(self.home)), "/tmp", "/var/tmp", *optional_folders]),  # noqa: S108
        )


def _quote(word: str) -> str:
    """Quote a word of a list in a unit, where % begins a specifier."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if text != word or " " in word else word


def read_settings(file: Path) -> dict[str, str]:
    """Return the variables in a file of settings. Raises OSError and UnicodeDecodeError."""
    settings = {}
    for line in file.read_text("utf-8").splitlines():
        name, is_set, value = line.strip().partition("=")
        if is_set and not name.startswith(("#", ";")):
            settings[name.strip()] = value.strip().strip("\"'")

    return settings


def list_writable_folders(settings: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the folders that settings name and the platform writes in."""
    values = (settings.get(name, "") for name in FOLDER_SETTINGS)
    return tuple(Path(folder) for folder in values if folder.startswith("/"))


def install(service: Service, settings: Mapping[str, str], say: Say, *, starts: bool = True) -> None:
    """Install the service, or bring an installed one up to date; then start it. Raises UserMistake.

    `settings` are written if there is no file of settings yet.
    """
    if os.geteuid() != 0:
        raise UserMistake("only root can install a service; run this with sudo")

    for text in (str(service.home), str(service.python)):
        if any(character in text for character in "\n\r\0"):
            raise UserMistake(f"the path {text!r} has a line break, which a unit cannot hold; use another one")

    is_live = service.root == Path("/")
    if is_live:
        _make_user(service, say)
        _check_interpreter(service)
        _make_home(service)

    _write_settings(service, settings, say)
    service = msgspec.structs.replace(
        service, writable_folders=list_writable_folders(read_settings(service.settings_file))
    )
    if is_live:
        _make_writable_folders(service, say)

    service.unit_file.parent.mkdir(parents=True, exist_ok=True)
    service.unit_file.write_text(service.unit)
    service.unit_file.chmod(0o644)
    say(f"the unit is {service.unit_file}")
    _systemctl(service, "enable", service.name)

    if not is_live:
        return

    if not is_booted():
        say("systemd does not run here: the service starts with the next boot of a machine that has it")
        return

    _systemctl(service, "daemon-reload")
    if starts:
        _systemctl(service, "restart", service.name)
        say(f"started; its log: journalctl -u {service.name} -f")


def _write_settings(service: Service, settings: Mapping[str, str], say: Say) -> None:
    """Write the first settings.

    Raises UserMistake if there are settings to write and the file exists: somebody may have changed it since.
    """
    if service.settings_file.exists():
        if settings:
            raise UserMistake(f"{service.settings_file} exists; change it there, and restart the service")
    else:
        lines = [f"{name}={value}\n" for name, value in settings.items()]
        write_private(service.settings_file, _FIRST_SETTINGS.format(name=service.name) + "".join(lines))

        if service.root == Path("/"):
            # The service's user may read them, for the doctor.
            os.chown(service.settings_file, 0, pwd.getpwnam(service.user).pw_gid)
            service.settings_file.chmod(0o640)

        say(f"settings are in {service.settings_file}")


def uninstall(service: Service, say: Say) -> None:
    """Stop and remove the service. The home, the settings and the user stay. Raises UserMistake."""
    if os.geteuid() != 0:
        raise UserMistake("only root can remove a service; run this with sudo")
    if not service.unit_file.exists():
        raise UserMistake(f"there is no {service.unit_file}; 'portside service install' installs the service")

    is_running = service.root == Path("/") and is_booted()
    if is_running:
        _systemctl(service, "stop", service.name)

    _systemctl(service, "disable", service.name)
    service.unit_file.unlink()

    if is_running:
        _systemctl(service, "daemon-reload")

    say(f"removed; {service.home}, {service.settings_file} and the user {service.user} stay")


def get_status(service: Service) -> dict[str, str]:
    """Return how the service is: whether it is installed, starts with the machine, and runs. Raises UserMistake."""
    if not service.unit_file.exists():
        return {"LoadState": "not-found", "ActiveState": "inactive"}

    is_current = service.unit_file.read_text() == service.unit
    state = {"unit": str(service.unit_file), "is_current": "yes" if is_current else "no"}
    if service.root == Path("/") and is_booted():
        output = _systemctl(service, "show", service.name, f"--property={','.join(_SHOWN_PROPERTIES)}")
        return state | dict(line.split("=", 1) for line in output.splitlines() if "=" in line)

    enabled = _systemctl(service, "is-enabled", service.name, check=False).strip()
    return state | {
        "LoadState": "loaded",
        "UnitFileState": enabled,
        "ActiveState": "unknown: systemd does not run here",
    }


def is_booted() -> bool:
    """Whether systemd runs this system (sd_booted)."""
    return Path("/run/systemd/system").is_dir()


def _make_user(service: Service, say: Say) -> None:
    try:
        pwd.getpwnam(service.user)
    except KeyError:
        _run(
            "useradd",
            "--system",
            "--user-group",
            "--home-dir",
            str(service.home),
            "--no-create-home",
            "--shell",
            "/usr/sbin/nologin",
            service.user,
        )

        say(f"created the user {service.user}")


def _make_home(service: Service) -> None:
    """Create the home, for the service's user alone. Raises UserMistake if it exists and belongs to another user."""
    user = pwd.getpwnam(service.user)
    home = service.home
    if not home.exists():
        home.mkdir(mode=0o700, parents=True)
        os.chown(home, user.pw_uid, grp.getgrgid(user.pw_gid).gr_gid)
    elif home.stat().st_uid != user.pw_uid:
        raise UserMistake(
            f"{home} belongs to another user. If its platform is to become the service: stop it, and give the home to "
            f"the service's user: chown -R {service.user}: {shlex.quote(str(home))}"
        )


def _make_writable_folders(service: Service, say: Say) -> None:
    """Make the folders outside the home that are missing, for the service's user alone."""
    user = pwd.getpwnam(service.user)
    for folder in service.writable_folders:
        if not folder.exists():
            folder.mkdir(mode=0o700, parents=True)
            os.chown(folder, user.pw_uid, user.pw_gid)
            say(f"created {folder} for the user {service.user}")


def _check_interpreter(service: Service) -> None:
    """Raise UserMistake if the service's user cannot run Portside."""
    command = ["setpriv", f"--reuid={service.user}", f"--regid={service.user}", "--clear-groups"]
    probe = [*command, str(service.python), "-P", "-c", "import portside.platform"]
    try:
        process = subprocess.run(probe, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, cwd="/")
    except OSError as exc:
        raise UserMistake(f"{probe[0]} does not run: {exc}; install util-linux") from exc

    if process.returncode != 0:
        raise UserMistake(
            f"the user {service.user} cannot run {service.python}: {process.stderr.strip()[-300:]}. Install Portside "
            "where every user can read it, for example: python3 -m venv /opt/portside, and run its portside command"
        )


def _systemctl(service: Service, *arguments: str, check: bool = True) -> str:
    # Works on the files alone where systemd does not run.
    offline = [] if service.root == Path("/") and is_booted() else [f"--root={service.root}"]
    return _run("systemctl", *offline, *arguments, check=check)


def _run(program: str, *arguments: str, check: bool = True) -> str:
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        raise UserMistake(f"there is no {program}; a service needs a Linux with systemd")

    try:
        process = subprocess.run(
            [path, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise UserMistake(f"{program} {arguments[0]} failed: {exc}") from exc

    if check and process.returncode != 0:
        raise UserMistake(
            f"{program} {' '.join(arguments)} failed: {(process.stderr or process.stdout).strip()[-600:]}"
        )

    return process.stdout
