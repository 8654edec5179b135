"""The platform's own listener: a process beside it, started again when it dies."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from portside.kernel.logs import get_logger

log = get_logger(__name__)
RESTART_AFTER_S = 1.0
STOP_WITHIN_S = 30.0


class ListenerProcess:
    """Keeps one `portside listener` running."""

    def __init__(self, environment: Mapping[str, str], log_file: Path) -> None:
        self._environment = {**os.environ, **environment}
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the process and keep it running."""
        self._keeper = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        """Ask the process to stop its deployments and itself; kill it when it does not."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_WITHIN_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _keep(self) -> None:
        while True:
            self._log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._log_file.open("ab") as output:
                # A session of its own: Ctrl-C in the terminal must reach the platform alone, which stops in order.
                self._process = await asyncio.create_subprocess_exec(
                    sys.executable, "-m", "portside", "listener",
                    stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                    env=self._environment, start_new_session=True,
                )  # fmt: skip
            code = await self._process.wait()
            log.warning("the listener ended and is started again", exit_code=code, log=str(self._log_file))
            await asyncio.sleep(RESTART_AFTER_S)
