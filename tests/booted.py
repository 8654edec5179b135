"""A machine of its own that systemd boots: namespaces of this kernel, over a copy-on-write view of this system's files.

It shares the network of this system, so that tests speak to its services. What its services write stays in a folder,
over reboots; `/tmp` and `/run` are new at each boot. None of this system's own services start in it.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import eventually

_BOOT = r"""
set -e
machine=$1; shift
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=/,upperdir=$machine/files,workdir=$machine/work" "$machine/root"
cd "$machine/root"
mount -t proc proc proc
mount --bind -o ro proc/sys proc/sys
mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for device in null zero full random urandom tty; do
    touch "dev/$device"
    mount --bind "/dev/$device" "dev/$device"
done
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 sys/fs/cgroup
else
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/systemd
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
fi
for shared; do
    mkdir -p ".$shared"
    mount --bind "$shared" ".$shared"
done
mkdir -p run/before
pivot_root . run/before
umount -l run/before
exec env -i container=portside-test PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 /lib/systemd/systemd --system
"""
_NAMESPACES = ("--mount", "--pid", "--uts", "--ipc", "--cgroup")


class Machine:
    """A machine that can be booted, and shut down as an operator does it. `files` is what differs on its disk.

    The folders of `shared` are the same in it and here.
    """

    def __init__(self, folder: Path, shared: tuple[Path, ...] = ()) -> None:
        self._folder = folder
        self._shared = shared
        self.files = folder / "files"
        self._process: subprocess.Popen[bytes] | None = None

        for name in ("files", "work", "root"):
            (folder / name).mkdir(parents=True)

        # Units that people enabled on this system are not those of the machine.
        units = self.files / "etc/systemd/system"
        units.mkdir(parents=True)
        os.setxattr(units, "trusted.overlay.opaque", b"y")

        for unit in ("getty.target", "systemd-logind.service", "systemd-udevd.service"):
            (units / unit).symlink_to("/dev/null")

    async def boot(self) -> None:
        """Boot it, and wait until systemd has started what starts with the machine."""
        await asyncio.to_thread(self._start)

        async def is_up() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, self.console
            if self._init() is None:
                return False

            state = self.run("systemctl", "is-system-running", check=False).stdout.strip()
            return state in ("running", "degraded")

        await eventually(is_up)

    def _start(self) -> None:
        with (self._folder / "console.log").open("ab") as console:
            self._process = subprocess.Popen(
                [
                    "unshare",
                    *_NAMESPACES,
                    "--fork",
                    "--kill-child",
                    "sh",
                    "-c",
                    _BOOT,
                    "sh",
                    str(self._folder),
                    *map(str, self._shared),
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                preexec_fn=self._enter_group,  # noqa: PLW1509 - writes one file
            )

    async def shut_down(self) -> None:
        """Shut it down in order, as a reboot does."""
        self.run("systemctl", "poweroff", "--no-block")
        assert self._process is not None
        process = self._process

        async def is_off() -> bool:
            return process.poll() is not None

        await eventually(is_off, 330)

    async def cut_off(self) -> None:
        """Cut its power."""
        await asyncio.to_thread(self.kill)

    def kill(self) -> None:
        """End all of its processes."""
        if self._process is not None and self._process.poll() is None:
            # Its init, if there is one, dies with it.
            self._process.kill()
            self._process.wait(60)

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root."""
        entered = ["nsenter", f"--target={self._init()}", *_NAMESPACES, "--root", "--wd", "--"]
        clean = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "HOME=/root"]
        assigned = [f"{name}={value}" for name, value in environment.items()]

        done = subprocess.run(
            [*entered, *clean, *assigned, *command],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
            stdin=subprocess.DEVNULL,
        )

        assert not check or done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-2000:])
        return done

    @property
    def console(self) -> str:
        """What systemd wrote to its console."""
        return (self._folder / "console.log").read_text()[-3000:]

    def _init(self) -> int | None:
        """The process id of its systemd, as this system sees it."""
        assert self._process is not None
        pid = self._process.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None

        return int(children[0]) if children else None

    def _enter_group(self) -> None:
        (self.group / "cgroup.procs").write_text("0")

    @property
    def group(self) -> Path:
        """The control group that holds all of its processes."""
        group = _groups() / f"portside-test-{self._folder.stat().st_ino}"
        group.mkdir(exist_ok=True)
        return group

    def remove_group(self) -> None:
        """Remove its control groups, as soon as its last process has ended."""
        groups = [self.group, *(each for each in self.group.rglob("*") if each.is_dir())]
        deadline = time.monotonic() + 60
        for group in sorted(groups, reverse=True):
            while group.exists():
                try:
                    group.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)


def _groups() -> Path:
    """The folder of the control groups that systemd uses: version 2, or the named one of version 1."""
    groups = Path("/sys/fs/cgroup")
    return groups if (groups / "cgroup.controllers").exists() else groups / "systemd"


@contextlib.contextmanager
def machine(folder: Path, *shared: Path) -> Iterator[Machine]:
    """A machine that is not booted yet; at the end its power is cut. Skips where this system cannot have one."""
    if os.geteuid() != 0 or shutil.which("/lib/systemd/systemd") is None:
        pytest.skip("only root can boot a machine, and only with systemd")

    try:
        made = Machine(folder, shared)
        made.group.stat()
    except OSError as exc:
        pytest.skip(f"no machine can be booted here: {exc}")

    try:
        yield made
    finally:
        made.kill()
        made.remove_group()
