"""Data folders of embedded Postgres servers, copied from one that initdb makes once in a run.

initdb takes half a CPU-second, a copy a tenth of that. The copies share a password, which is hashed once and not 4,096
times: tests connect thousands of times. A home that has a password already gets initdb itself.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from portside.kernel.embedded import EmbeddedPostgres
from tests import guard

_initialise: Any = EmbeddedPostgres._initialise
_run: Any = EmbeddedPostgres._run
_PLACES = ("-D", "--pwfile")
# No server lives long enough to gain from workers that read ahead. The doctor must find nothing wrong with the rest.
_SETTINGS = ("scram_iterations=1", "io_method=sync")


def copy_data_folders() -> None:
    """From now on, copy the data folders of new homes in this process and those that are forked from it."""
    # Outside a run nothing would remove the folder to copy.
    if guard.FOLDER not in os.environ:
        return

    root = guard.memory_folder() or os.environ[guard.FOLDER]
    new_homes: set[Path] = set()

    def initialise(self: EmbeddedPostgres) -> None:
        if not (self.folder / "password").exists():
            new_homes.add(self.folder)

        try:
            _initialise(self)
        finally:
            new_homes.discard(self.folder)

    def run(self: EmbeddedPostgres, program: str, *arguments: str, **options: Any) -> Any:
        if program != "initdb" or self.folder not in new_homes:
            return _run(self, program, *arguments, **options)

        return _copy(self, Path(root), arguments)

    changed: Any = EmbeddedPostgres
    changed._initialise = initialise
    changed._run = run


def _copy(server: EmbeddedPostgres, root: Path, arguments: tuple[str, ...]) -> "subprocess.CompletedProcess[bytes]":
    """Do what initdb would do with these arguments, and put the password of the copy into the file of the home."""
    target = arguments[arguments.index("-D") + 1]
    password = server.folder / "password"
    rest = [each for each in arguments if each != target and each.partition("=")[0] not in _PLACES]
    folder = root / f"data-{hashlib.sha256(' '.join(rest).encode()).hexdigest()[:12]}"
    folder.mkdir(mode=0o700, exist_ok=True)

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        if not (folder / "password").exists():
            made = folder / "data"
            # What an interrupted start left.
            shutil.rmtree(made, ignore_errors=True)
            settings = [option for setting in _SETTINGS for option in ("-c", setting)]
            _run(server, "initdb", "-D", str(made), f"--pwfile={password}", *rest, "--wal-segsize=1", *settings)
            (folder / "password").write_text(password.read_text())

    # The file keeps the mode that the server gave it.
    password.write_text((folder / "password").read_text())
    return subprocess.run(["cp", "-a", f"{folder}/data/.", target], check=True)
