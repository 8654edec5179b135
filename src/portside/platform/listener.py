"""The platform's own listener: its process, which is restarted when it dies, its log file and its API key."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from portside.identity import first_start
from portside.identity.keys import create_key, is_valid_key
from portside.identity.types import KeyRequest
from portside.kernel.db import Database
from portside.kernel.files import rotate_beyond
from portside.kernel.logs import get_logger
from portside.kernel.reconcile import Status, Task
from portside.kernel.supervision import Backoff, Supervision, describe_exit
from portside.kernel.tasks import cancel_and_wait
from portside.kernel.timeouts import wait_at_most
from portside.platform.home import Home, read_key

log = get_logger(__name__)
PERMISSION = "listeners:work"
USED_BY = "the platform's own listener"
RESTART_AFTER_S = 1.0
RESTART_LIMIT_S = 30.0
# A listener that has run for so long is not one that ends again and again.
HEALTHY_AFTER_S = 60.0
STOP_WITHIN_S = 30.0
# A listener that is asked again kills its deployments.
KILL_WITHIN_S = 5.0
MAX_LOG_BYTES = 10_000_000


async def ensure_listener_key(db: Database, home: Home) -> tuple[str, bool]:
    """Return the listener's key, and whether it is new because there was none or it was revoked."""
    key = read_key(home.listener_key)
    if key is not None and await is_valid_key(db, key):
        return key, False

    owner = await first_start.get_first_owner(db)
    request = KeyRequest("The platform's own listener", [PERMISSION])
    new_key = await create_key(db, owner, request, used_by=USED_BY)
    home.keep_key(home.listener_key, new_key.key)

    return new_key.key, True


class ListenerKey(Task):
    """Replaces the listener's key soon after it was revoked. The listener reads it from its file."""

    every_s = 10.0

    def __init__(self, db: Database, home: Home) -> None:
        super().__init__()
        self._db = db
        self._home = home

    async def activate(self) -> Status:
        """Replace the key if it is no longer valid."""
        _key, is_new = await ensure_listener_key(self._db, self._home)
        if is_new:
            log.warning("the listener's key was revoked and replaced", file=str(self._home.listener_key))

        return Status({"made": int(is_new)})


class ListenerLog(Task):
    """Limits the size of the listener's log file; one older copy is kept."""

    every_s = 10.0

    def __init__(self, file: Path, max_bytes: int = MAX_LOG_BYTES) -> None:
        super().__init__()
        self._file = file
        self._max_bytes = max_bytes

    async def activate(self) -> Status:
        """Rotate the file if it is too large."""
        return Status({"rotated": int(await asyncio.to_thread(rotate_beyond, self._file, self._max_bytes))})


class ListenerProcess:
    """Runs one `portside listener`, and restarts it with a back-off when it ends."""

    def __init__(self, environment: Mapping[str, str], log_file: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._start_problem: str | None = None
        self._end_problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the process cannot be started, or that it ends again and again; None while it runs."""
        return self._start_problem or self._end_problem

    def start(self) -> None:
        """Start the process and keep it running."""
        self._keeper = asyncio.create_task(Supervision("the listener", on_failure=self._cannot_start).run(self._keep))

    async def stop(self) -> None:
        """Ask the process to stop its deployments and itself. After `STOP_WITHIN_S` it kills them, or is killed."""
        process = await self._stop_restarting()
        if process is None:
            return

        for within_s in (STOP_WITHIN_S, KILL_WITHIN_S):
            # The process may end at any moment by itself.
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

            if await wait_at_most(within_s, process.wait()):
                return

        await _kill(process)

    async def leave_agents(self) -> None:
        """End the process and leave its agents to the next listener, as after a crash."""
        if (process := await self._stop_restarting()) is not None:
            await _kill(process)

    async def _stop_restarting(self) -> asyncio.subprocess.Process | None:
        """Restart the process no more; return it if it still runs."""
        await cancel_and_wait(self._keeper)

        return self._process if self._process is not None and self._process.returncode is None else None

    def _cannot_start(self, _failure: Exception, delay_s: float) -> None:
        self._start_problem = (
            "The listener cannot be started, so deployments do not change; "
            f"the next attempt is in {delay_s:g} seconds. The reason is in the log of this server."
        )

    async def _keep(self) -> None:
        backoff = Backoff(RESTART_AFTER_S, RESTART_LIMIT_S, reset_after_s=HEALTHY_AFTER_S)
        while True:
            start = time.monotonic()
            self._process = await self._start_process()
            self._start_problem = None

            code = await self._wait_for_end(self._process)
            delay_s = backoff.next(time.monotonic() - start)
            if delay_s > RESTART_AFTER_S:
                self._end_problem = (
                    f"The listener {describe_exit(code)} again, so deployments do not change; the next start is in "
                    f"{delay_s:g} seconds. The reason is in {self._log_file}."
                )

            log.warning(
                "the listener ended and is restarted", exit_code=code, again_in_s=delay_s, log=str(self._log_file)
            )
            await asyncio.sleep(delay_s)

    async def _start_process(self) -> asyncio.subprocess.Process:
        self._log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._log_file.open("ab") as output:
            # A session of its own, so that Ctrl-C in a terminal reaches only the platform, which stops the listener.
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "portside",
                "listener",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
            )

    async def _wait_for_end(self, process: asyncio.subprocess.Process) -> int:
        if not await wait_at_most(HEALTHY_AFTER_S, process.wait()):
            self._end_problem = None

        return await process.wait()


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
