"""The service of the system: its unit passes systemd's verifier, is hardened, and starts what a user would start.

Where systemd runs and the test is root on a machine that it may change, the service is installed for real
(`PORTSIDE_TEST_SYSTEMD=1`); elsewhere systemd's tools work on the files of another root.
"""

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx2
import msgspec
import pytest

from portside.cli.service import read_installed_service
from portside.kernel.disk import WATCHED_FOLDER
from portside.operate.service import Service, is_booted
from tests.commands import run_here
from tests.conftest import eventually
from tests.servers import KEY, ServerProcess, free_port

needs_systemd_tools = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None or shutil.which("systemctl") is None, reason="systemd is not installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can install a service")


def verify(unit: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run systemd's verifier."""
    file = folder / "portside.service"
    file.write_text(unit)
    return subprocess.run(["systemd-analyze", "verify", str(file)], capture_output=True, text=True, check=False)


@needs_systemd_tools
@pytest.mark.parametrize("has_containers", [False, True])
def test_unit_passes_the_verifier(tmp_path: Path, has_containers: bool):  # noqa: FBT001 - a parameter
    written = (Path("/mnt/100% my backups"), Path("/mnt/cache"))
    home = Path('/srv/50% "off" $HOME')
    for service in (Service(user="root"), Service(user="root", home=home, writable_folders=written)):
        done = verify(msgspec.structs.replace(service, has_containers=has_containers).unit, tmp_path)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")

    # The verifier sees mistakes.
    wrong = Service(user="root").unit.replace("ProtectSystem=strict", "ProtectSystem=stricter")
    assert "stricter" in verify(wrong, tmp_path).stderr


@needs_systemd_tools
def test_unit_is_hardened(tmp_path: Path):
    (tmp_path / "portside.service").write_text(Service().unit)
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(tmp_path / "portside.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    score = re.search(r"Overall exposure level for portside.service: ([0-9.]+)", done.stdout)
    assert score is not None, done.stdout + done.stderr
    assert float(score[1]) < 4.0, done.stdout


def test_paths_are_quoted_for_units(tmp_path: Path):
    unit = Service(home=Path("/srv/50% off $HOME"), python=Path("/opt/my python/bin/python")).unit
    assert 'ExecStart="/opt/my python/bin/python" -P -m portside up --home "/srv/50%% off $$HOME"' in unit
    assert "WorkingDirectory=/srv/50%% off $HOME\n" in unit
    assert '\nReadWritePaths="/srv/50%% off $HOME" /tmp /var/tmp\n' in unit
    written = tmp_path / "etc/systemd/system/portside.service"

    written.parent.mkdir(parents=True)
    written.write_text(unit)
    assert read_installed_service(tmp_path).home == Path("/srv/50% off $HOME")
    assert "ProtectHome=yes" in unit
    assert "ProtectHome=read-only" in Service(python=Path("/home/me/venv/bin/python")).unit

    # As environments that uv or pyenv made.
    linked = tmp_path / "python"
    linked.symlink_to("/home/me/.local/share/uv/python/bin/python3.11")
    assert "ProtectHome=read-only" in Service(python=linked).unit


@needs_root
@needs_systemd_tools
def test_install_status_and_uninstall_in_another_root(tmp_path: Path):
    root = ("--root", str(tmp_path))
    missing = run_here("service", "status", *root)
    assert missing.returncode == 3
    assert "The service is not installed" in missing.stdout
    given = ("--set", "PORTSIDE_DOMAIN=a.example", "--set", "BACKUP_TO=/mnt/my backups")
    done = run_here("service", "install", *root, "--home", "/srv/50% off", *given)
    assert done.returncode == 0, done.stderr

    settings = tmp_path / "etc/portside/portside.env"
    assert settings.stat().st_mode & 0o777 == 0o600
    assert "PORTSIDE_DOMAIN=a.example" in settings.read_text()
    unit = tmp_path / "etc/systemd/system/portside.service"
    assert '--home "/srv/50%% off"' in unit.read_text()
    assert '\nReadWritePaths="/srv/50%% off" /tmp /var/tmp "-/mnt/my backups"\n' in unit.read_text()

    # Started with the machine: this link is what a boot follows.
    wanted = tmp_path / "etc/systemd/system/multi-user.target.wants/portside.service"
    assert wanted.is_symlink()
    shown = run_here("service", "status", *root)
    assert shown.returncode == 3
    assert re.search(r"UnitFileState +enabled", shown.stdout)
    assert re.search(r"is_current +yes", shown.stdout)

    # Settings of people are kept; the unit is brought up to date.
    unit.write_text(unit.read_text() + "# of an older version\n")
    assert "writes it again" in run_here("service", "status", *root).stdout
    refused = run_here("service", "install", *root, "--set", "PORTSIDE_DOMAIN=b.example")
    assert refused.returncode == 1
    assert "change it there" in refused.stderr
    assert run_here("service", "install", *root).returncode == 0
    assert "older version" not in unit.read_text()

    assert '--home "/srv/50%% off"' in unit.read_text()
    # Who may not read the settings knows the folders by the unit.
    settings.rename(settings.with_name("away"))
    assert re.search(r"is_current +yes", run_here("service", "status", *root).stdout)
    settings.with_name("away").rename(settings)
    settings.write_text("BACKUP_TO=/mnt/others\nUV_CACHE_DIR=/mnt/cache\n")
    assert "writes it again" in run_here("service", "status", *root).stdout
    assert run_here("service", "install", *root).returncode == 0

    assert "/var/tmp -/mnt/others -/mnt/cache\n" in unit.read_text()
    assert run_here("service", "uninstall", *root).returncode == 0
    assert not unit.exists()
    assert not wanted.is_symlink()
    assert settings.exists()
    assert run_here("service", "uninstall", *root).returncode == 1


@needs_root
def test_wrong_settings_are_refused(tmp_path: Path):
    for wrong in ("no-value", "A B=1", "A=1\nB=2"):
        done = run_here("service", "install", "--root", str(tmp_path), "--set", wrong)
        assert done.returncode == 1

    assert not list(tmp_path.iterdir())


@needs_root
def test_command_of_the_unit_serves_as_an_ordinary_user():
    """The command of the unit, with its user, mask and environment, gives a platform whose files are that user's."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        temporary = Path(folder) / "tmp"
        Path(folder).chmod(0o755)

        for each in (home, temporary):
            each.mkdir(mode=0o700)
            os.chown(each, 65534, 65534)

        unit = Service(home=home, user="nobody").unit
        command = re.search(r"^ExecStart=(.+)$", unit, re.MULTILINE)
        assert command is not None
        arguments = shlex.split(command[1])
        as_user = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs", "sh", "-c"]
        as_user += ['umask 0077; exec "$@"', "sh"]

        probe = subprocess.run([*as_user, sys.executable, "-P", "-c", "import portside"], check=False, cwd="/")
        if probe.returncode != 0:
            pytest.skip("an ordinary user cannot read this installation")

        port = free_port()
        environment = {"PORTSIDE_PORT": str(port), "PORTSIDE_API_KEY": KEY, "DATABASE_URL": "", "HOME": str(home)}
        environment |= {"PORTSIDE_OWN_LISTENER": "false", "TMPDIR": str(temporary)}
        server = ServerProcess(arguments[4:], f"http://127.0.0.1:{port}", environment, Path(folder) / "log")
        server.starter = as_user

        server.start()
        try:
            assert httpx2.get(f"{server.url}/info", timeout=300).status_code == 200
            assert {path.stat().st_uid for path in home.iterdir()} == {65534}
            private = [path for path in home.rglob("*") if not path.is_symlink() and path != home / WATCHED_FOLDER]
            assert not [path for path in private if path.stat().st_mode & 0o077]
        finally:
            assert server.stop() == 0


@needs_root
@pytest.mark.skipif(
    not is_booted() or os.environ.get("PORTSIDE_TEST_SYSTEMD") != "1",
    reason="systemd does not run here, or PORTSIDE_TEST_SYSTEMD is not 1",
)
def test_service_runs_and_is_restarted():
    done = run_here("service", "install", "--home", "/var/lib/portside-test", "--set", f"PORTSIDE_PORT={free_port()}")
    try:
        assert done.returncode == 0, done.stderr
        assert run_here("service", "status").returncode == 0
        before = json.loads(run_here("service", "status", "--json").stdout)
        subprocess.run(["systemctl", "kill", "--signal=KILL", "portside"], check=True)

        async def is_restarted() -> bool:
            now = json.loads(run_here("service", "status", "--json").stdout)
            return bool(now["ActiveState"] == "active" and now["MainPID"] != before["MainPID"])

        asyncio.run(eventually(is_restarted))
        assert before["UnitFileState"] == "enabled"
    finally:
        run_here("service", "uninstall")
