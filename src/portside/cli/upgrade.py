"""`portside upgrade`: leads from the version that runs to the one of the command, while agents serve."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from portside.cli.client import Platform, PlatformUnavailable
from portside.cli.operate import InstallationOptions, installation_options, show_finding
from portside.cli.output import get_program, json_option, say, say_if_interrupted, show_json, show_table, show_text
from portside.cli.service import ROOT, read_installed_service
from portside.kernel import interruption
from portside.kernel.errors import UserMistake

if TYPE_CHECKING:
    from portside.operate.upgrade import RunningPlatform, UpgradePlan

_UPGRADE = "/system/upgrade"
_STARTS_WITHIN_S = 900.0
_POLL_S = 0.5
_SAY_AGAIN_S = 30.0


@click.command()
@installation_options
@click.option("--check", "only_checks", is_flag=True, help="Show what will happen, and change nothing.")
@click.option("--backup-to", help="File, folder or s3://BUCKET/PREFIX for the backup before. [default: BACKUP_TO]")
@click.option("--no-backup", is_flag=True, help="Upgrade without a backup.")
@click.option("--passphrase-file", help="File with the passphrase of the backup. [default: that of the settings]")
@click.option("--resume", is_flag=True, help="Continue with the agents after a halt; try the failed one again.")
@click.option(
    "--skip", multiple=True, metavar="NAME", help="With --resume: leave this agent as it is; may be repeated."
)
@json_option
def upgrade(
    *,
    target: InstallationOptions,
    resume: bool,
    skip: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> None:
    """Upgrade the running platform and its agents to the version of this command.

    Install the new version first, then run this as the platform's user. It takes a backup, replaces the platform while
    agents serve, and then replaces their servers one after the other. If a new server does not start, the upgrade
    halts, and that agent keeps its earlier server. The exit status is 1 if the upgrade is not possible, or halted.
    """
    platform = _connect(target)
    if resume:
        _roll_forward(platform, skip)
        return

    _check_user(target.settings.home_path)
    running = _examine_running(platform)

    plan = _plan_upgrade(target, running)
    if as_json:
        show_json(msgspec.to_builtins(plan))
    else:
        _show_plan(plan)

    if not plan.is_possible:
        raise UserMistake("the upgrade is not possible: see the faults above")
    if options["only_checks"]:
        return

    location = None
    if not options["no_backup"]:
        location = _back_up(target, options["backup_to"], options["passphrase_file"])

    _record_upgrade(target.settings.home_path, plan, location)
    if running is None:
        say(f"the platform does not run; start it with this version: {get_program()} up")
        return

    with say_if_interrupted(
        "interrupted: the platform goes on replacing itself, and then its agents; "
        f"{get_program()} upgrade --resume follows that"
    ):
        _replace_platform(target.settings.home_path, platform, running)

    _warn_of_old_unit(target.settings.home_path)
    if not _get_state(platform)["is_automatic"]:
        say("agents keep their servers (ROLL_FORWARD=on-request); replace them with --resume, or in the console")
        return

    _follow(platform)


def _warn_of_old_unit(home: Path) -> None:
    """Warn if the service's unit would start the version before at the next boot."""
    service = read_installed_service(ROOT)
    with contextlib.suppress(OSError):
        if service.home == home.absolute() and service.unit_file.read_text() != service.unit:
            command = shlex.join([sys.executable, "-m", "portside", "service", "install", "--no-start"])
            say(f"the service has the unit of the version before; before the next boot run as root: {command}")


def _connect(target: InstallationOptions) -> Platform:
    from portside.platform.home import Home, read_key

    key = os.environ.get("PORTSIDE_API_KEY") or read_key(Home(target.settings.home_path).api_key)
    return Platform(target.installation.url, key)


def _check_user(home: Path) -> None:
    try:
        owner = home.stat().st_uid
    except OSError as exc:
        raise UserMistake(f"cannot read {home}: {exc.strerror}; name the platform's folder with --home") from exc

    if owner != os.geteuid():
        raise UserMistake(f"{home} belongs to user {owner}: run this as that user, for example with sudo -u")


def _examine_running(platform: Platform) -> "RunningPlatform | None":
    """Return what the running platform says of itself; None if it does not answer."""
    from portside.operate.upgrade import RunningPlatform

    try:
        info = platform.call("GET", "/info")
    except PlatformUnavailable:
        return None

    version = str(info.get("portside_version") or info.get("version") or "unknown")
    try:
        names = frozenset(
            setting["name"] for setting in platform.call("GET", "/system")["settings"] if not setting["is_default"]
        )
        platform.call("GET", _UPGRADE)
    except UserMistake as mistake:
        if "not found" not in str(mistake).lower():
            raise
        return RunningPlatform(version, names)

    return RunningPlatform(version, names, can_hand_over=True)


def _plan_upgrade(target: InstallationOptions, running: "RunningPlatform | None") -> "UpgradePlan":
    from portside.kernel.settings import describe
    from portside.operate.upgrade import plan_upgrade
    from portside.platform.settings import PlatformSettings

    names = {name for setting in describe(PlatformSettings) for name in setting.names}
    return interruption.run(plan_upgrade(target.installation, running, names))


def _show_plan(plan: "UpgradePlan") -> None:
    show_text(f"from {plan.before or 'a platform that does not run'} to {plan.after}")
    show_text()

    if plan.databases:
        rows = [
            (
                change.database,
                change.deployment or "",
                ", ".join(change.pending),
                f"{change.rows:,}",
                f"{change.seconds:.0f} s",
            )
            for change in plan.databases
        ]

        show_table(("DATABASE", "AGENT", "CHANGES", "ROWS", "ABOUT"), rows)
    else:
        show_text("no database changes")

    show_text()

    if plan.agents:
        becomes = {"replaced": "is replaced", "kept": "stays until the next revision: it comes with the build or image"}
        agent_rows = [(agent.name, agent.server_version or "", becomes[agent.becomes]) for agent in plan.agents]
        show_table(("AGENT", "SERVER", ""), agent_rows)
        show_text()

    for finding in plan.findings:
        show_finding(finding)


def _back_up(target: InstallationOptions, backup_to: str | None, passphrase_file: str | None) -> str:
    """Take a backup, and return where it is. Raises UserMistake."""
    from portside.backup.stores import open_store, split_location
    from portside.cli.backup import read_passphrase
    from portside.platform.backups import take_backup

    destination = backup_to or target.settings.backup_to
    if destination is None:
        raise UserMistake("name where the backup goes with --backup-to, or leave it out with --no-backup")

    location, name = split_location(destination)
    passphrase = read_passphrase(passphrase_file, target.environ, is_new=True)
    store = open_store(location, target.environ)
    say(f"taking a backup to {destination}")

    with say_if_interrupted("interrupted before the upgrade: no backup is left, and nothing was changed"):
        _result, attempt = take_backup(
            target.settings, store, name=name, passphrase=passphrase, progress=lambda _size: None
        )

    return f"{attempt.location}/{attempt.name}"


def _record_upgrade(home: Path, plan: "UpgradePlan", backup: str | None) -> None:
    from portside.operate.upgrade import Upgrade, record_upgrade

    record_upgrade(home, Upgrade(at=datetime.now(UTC), before=plan.before, after=plan.after, backup=backup))


def _replace_platform(home: Path, platform: Platform, running: "RunningPlatform") -> None:
    """Replace the running program by this one, and wait until it answers. Raises UserMistake."""
    from portside.operate.machine_checks import find_lock_holder
    from portside.platform.hand_over import SIGNAL, name_next

    holder = find_lock_holder(home)
    if not holder:
        raise UserMistake(f"no process holds {home}/platform.lock; start the platform: {get_program()} up")

    before = _get_state(platform)["started_at"] if running.can_hand_over else None
    say("replacing the platform; requests to it wait meanwhile")

    # An interruption between two of these steps would leave a platform that is stopped, and agents without a listener.
    with interruption.deferred():
        name_next(home, sys.executable)

        if running.can_hand_over:
            os.kill(holder, SIGNAL)
        else:
            _start_instead(home, holder)

    deadline = time.monotonic() + _STARTS_WITHIN_S
    while time.monotonic() < deadline:
        try:
            if _get_state(platform)["started_at"] != before:
                return
        except UserMistake:
            # It does not answer yet.
            if find_lock_holder(home) is None and running.can_hand_over:
                raise UserMistake(
                    "the new version does not start; its output says why. Agents keep serving. Start the previous "
                    "version, or this one once the cause is removed"
                ) from None

        time.sleep(_POLL_S)

    raise UserMistake(f"the platform does not answer after {_STARTS_WITHIN_S:.0f} s; its output says why")


def _start_instead(home: Path, holder: int) -> None:
    """Kill a platform that cannot be replaced in place, and start this version with its arguments and output.

    Its agents would stop with it. So its listener is held first, and killed after it.
    """
    from portside.operate.service import parse_unit

    process = Path("/proc") / str(holder)
    if parse_unit((process / "cgroup").read_text()) is not None:
        raise UserMistake(
            "the version that runs is a service, and cannot be replaced in place: run 'portside service install' as "
            "root, which stops agents for the time of a restart"
        )

    arguments = (process / "cmdline").read_bytes().decode().split("\0")[:-1]
    read_environment = dict(
        line.split("=", 1) for line in (process / "environ").read_bytes().decode().split("\0") if "=" in line
    )
    folder = (process / "cwd").readlink()

    log = home / "logs" / "platform.log"
    try:
        output = os.open(process / "fd" / "1", os.O_WRONLY | os.O_APPEND)
    except OSError:
        output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    children = _list_children(holder)
    listeners = [pid for pid in children if b"\0listener\0" in Path("/proc", str(pid), "cmdline").read_bytes()]
    for pid in listeners:
        os.kill(pid, signal.SIGSTOP)

    for pid in (holder, *listeners):
        os.kill(pid, signal.SIGKILL)

    _wait_for_lock(home)
    command = [sys.executable, "-P", "-m", "portside", *arguments[arguments.index("up") :]]
    server = subprocess.Popen(
        command,
        env=read_environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,
    )

    os.close(output)
    say(f"the platform continues in the background as process {server.pid}")


def _list_children(parent: int) -> list[int]:
    tasks = Path("/proc") / str(parent) / "task"
    return [int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()]


def _wait_for_lock(home: Path) -> None:
    from portside.operate.machine_checks import find_lock_holder

    deadline = time.monotonic() + _STARTS_WITHIN_S
    while find_lock_holder(home) is not None:
        if time.monotonic() > deadline:
            raise UserMistake("the earlier platform does not stop; see its log")
        time.sleep(_POLL_S)


def _get_state(platform: Platform) -> dict[str, Any]:
    return dict(platform.call("GET", _UPGRADE))


def _roll_forward(platform: Platform, skip: tuple[str, ...]) -> None:
    """Begin or continue with the agents, and follow them. Raises UserMistake at a halt."""
    ids = {agent["name"]: agent["id"] for agent in _get_state(platform)["agents"]}
    unknown = [name for name in skip if name not in ids]
    if unknown:
        raise UserMistake(f"--skip: there is no agent {unknown[0]} that serves")

    platform.call("POST", f"{_UPGRADE}/roll-forward", body={"skip": [ids[name] for name in skip]})
    _follow(platform)


def _follow(platform: Platform) -> None:
    """Say how agents get this version until none waits. Raises UserMistake at a halt."""
    with say_if_interrupted(
        "interrupted: the platform goes on replacing the servers of agents; "
        f"{get_program()} upgrade --resume follows that"
    ):
        _say_progress(platform)


def _skips_all(rollout: dict[str, Any] | None, agents: list[dict[str, Any]]) -> bool:
    """Whether the rollout has ended and was asked to leave out these agents."""
    return (
        rollout is not None
        and rollout["status"] == "done"
        and {agent["id"] for agent in agents} <= {*rollout["skipped"]}
    )


def _say_progress(platform: Platform) -> None:
    states: dict[str, str] = {}
    said_at = time.monotonic()
    while True:
        state = _get_state(platform)
        rollout = state["rollout"]

        agents = state["agents"]
        for agent in agents:
            if states.get(agent["name"]) != agent["state"] and agent["state"] != "unknown":
                states[agent["name"]] = agent["state"]
                say(f"{agent['name']}: {agent['state']} ({agent['version'] or 'no server'})")
                said_at = time.monotonic()

        if rollout is not None and rollout["status"] == "halted":
            culprit = next((agent["name"] for agent in agents if agent["state"] == "failed"), "an agent")
            raise UserMistake(
                f"halted: the new server of {culprit} does not start: {rollout['reason']}\nIt keeps serving with its "
                f"earlier server. Repair it and run '{get_program()} upgrade --resume'; --skip {culprit} leaves it out"
            )

        waits = [agent["name"] for agent in agents if agent["state"] in {"behind", "replacing", "unknown"}]
        if not waits or _skips_all(rollout, [agent for agent in agents if agent["name"] in waits]):
            say(f"the platform and its agents run {state['version']}")
            return

        if time.monotonic() - said_at > _SAY_AGAIN_S:
            said_at = time.monotonic()
            say(f"waiting for {', '.join(waits[:5])}{' …' if len(waits) > 5 else ''}")

        time.sleep(_POLL_S)
