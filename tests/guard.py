"""Ends what a run of the tests leaves behind, however that run ends: also where `kill -9` ends it.

`begin` makes the folder of a run, in which all of its temporary files are, and starts this file as a process of its
own. That process waits until the run is over. Then it kills the processes of the run, drops its databases where they
are on a server of somebody else, and removes the folder. A process belongs to the run if its environment names the
folder, if it works in the folder, or if it descends from one that does.
"""

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FOLDER = "PORTSIDE_TEST_FOLDER"
DATABASE_PREFIX = "PORTSIDE_TEST_DATABASE_PREFIX"
MEMORY = Path("/dev/shm")
ENOUGH_MEMORY_BYTES = 8 * 2**30


class Guard:
    """The process that waits for the end of this run."""

    def __init__(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        self.folder = folder
        self._process = process

    def end(self) -> str:
        """Let it clean up, and return what it had to say: nothing if the tests left no process."""
        output, _ = self._process.communicate()
        return output.strip()


def begin() -> Guard:
    """Start the guard of this process. From now on it and its children have their temporary files in the folder."""
    folder = Path(tempfile.mkdtemp(prefix="pt-"))
    # Programs of other users reach what a test gives them in it. They cannot list it.
    folder.chmod(0o711)
    prefix = f"test_{folder.name[3:]}_".lower()

    # The guard itself must not carry the mark of the run.
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(folder), prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )

    os.environ[FOLDER] = str(folder)
    os.environ[DATABASE_PREFIX] = prefix
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None

    return Guard(folder, process)


def memory_folder() -> str | None:
    """Return the folder of this run in memory, if there is plenty: each database is hundreds of small files."""
    folder = _in_memory(Path(os.environ[FOLDER])) if FOLDER in os.environ else MEMORY
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available_kb = next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
        space = os.statvfs(MEMORY)
        free_bytes = min(available_kb * 1024, space.f_bavail * space.f_frsize)

        if free_bytes >= ENOUGH_MEMORY_BYTES:
            folder.mkdir(exist_ok=True)
            return str(folder)

    return None


def _in_memory(folder: Path) -> Path:
    return MEMORY / folder.name


def main() -> None:
    folder = Path(sys.argv[1])
    prefix = sys.argv[2]

    # Ctrl-C and the end of a terminal reach the tests; the guard ends after them.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)

    _wait_for_the_end()

    _wait_for_processes(folder)
    killed = _kill_all(folder)
    _unmount(folder)

    for each in (folder, _in_memory(folder)):
        shutil.rmtree(each, ignore_errors=True)

    if url := os.environ.get("DATABASE_URL"):
        _drop_databases(url, prefix)

    if killed:
        with contextlib.suppress(OSError):
            sys.stdout.write("\n  ".join([f"Killed {len(killed)} processes that the tests left:", *killed]) + "\n")


def _wait_for_the_end() -> None:
    """Return when the tests have closed the pipe or are gone; a fork of theirs may keep the pipe open."""
    parent = os.getppid()
    while os.getppid() == parent:
        readable, _, _ = select.select([sys.stdin], [], [], 1)
        if readable and not os.read(sys.stdin.fileno(), 4096):
            return


def _wait_for_processes(folder: Path) -> None:
    """Give processes a moment to end by themselves: those that notice that their parent has gone."""
    for _ in range(20):
        if not _family(folder):
            return
        time.sleep(0.1)


def _kill_all(folder: Path) -> list[str]:
    """Kill the processes of the run until none is left, and return their commands."""
    killed: list[str] = []
    for _ in range(100):
        family = _family(folder)
        if not family:
            break

        for pid, command in family.items():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed.append(command)

        time.sleep(0.05)

    return killed


def _family(folder: Path) -> dict[int, str]:
    """Return the processes of the run, and their descendants, with their commands."""
    parents: dict[int, int] = {}
    members: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue

        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue

            parents[int(entry.name)] = int(parent)
            if _is_marked(entry, folder):
                members.add(int(entry.name))

    is_growing = True
    while is_growing:
        children = {pid for pid, parent in parents.items() if parent in members} - members - {os.getpid()}
        members |= children
        is_growing = bool(children)

    return {pid: _command(pid) for pid in members}


def _is_marked(entry: Path, folder: Path) -> bool:
    mark = f"{FOLDER}={folder}".encode() + b"\0"
    if mark in (entry / "environ").read_bytes() + b"\0":
        return True

    command = (entry / "cmdline").read_text(errors="replace")
    texts = [command, str((entry / "cwd").readlink()), str((entry / "exe").readlink())]
    return any(f"{place}/" in f"{text}/" for text in texts for place in (folder, _in_memory(folder)))


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
        return f"{pid} {command[:150]}"

    return str(pid)


def _unmount(folder: Path) -> None:
    """Unmount what tests mounted below the folder, the innermost first."""
    with contextlib.suppress(OSError):
        points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for point in reversed([point for point in points if point.startswith(f"{folder}/")]):
            subprocess.run(["umount", "-l", point], check=False, capture_output=True)


def _drop_databases(url: str, prefix: str) -> None:
    import asyncio

    import asyncpg

    async def drop() -> None:
        admin = await asyncpg.connect(url)
        for row in await admin.fetch("select datname from pg_database where starts_with(datname, $1)", prefix):
            await admin.execute(f'drop database if exists "{row["datname"]}" with (force)')

        await admin.close()

    with contextlib.suppress(OSError, asyncpg.PostgresError):
        asyncio.run(drop())


if __name__ == "__main__":
    main()
