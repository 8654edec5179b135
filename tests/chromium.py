"""A real Chromium without a window, driven over its DevTools protocol.

Pages get no rights that they lack for a person: clicks are clicks of the page's own elements, and cookies are read and
set only where a test says so.
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.conftest import eventually

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Page:
    """One tab."""

    def __init__(self, connection: ClientConnection, session: str) -> None:
        self._connection, self._session = connection, session
        self._last, self._waiting = 0, dict[int, asyncio.Future[dict[str, Any]]]()

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command of the protocol, and return its result."""
        self._last += 1
        answer = self._waiting[self._last] = asyncio.get_running_loop().create_future()
        message = {"id": self._last, "method": method, "params": params}
        await self._connection.send(json.dumps(message | ({"sessionId": self._session} if self._session else {})))
        async with asyncio.timeout(120):
            return await answer

    async def receive(self) -> None:
        """Hand out the results of commands."""
        async for text in self._connection:
            message = json.loads(text)
            if (answer := self._waiting.pop(message.get("id", 0), None)) is None:
                continue
            if "error" in message:
                answer.set_exception(RuntimeError(message["error"]["message"]))
            else:
                answer.set_result(message["result"])

    async def attach(self) -> None:
        """Use the commands for a new tab from now on."""
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        await self.call("Page.enable")

    async def evaluate(self, script: str) -> Any:
        """Run an expression in the page, and return its value, or that of its promise."""
        done = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if problem := done.get("exceptionDetails"):
            raise AssertionError(problem.get("exception", {}).get("description") or problem["text"])
        return done["result"].get("value")

    async def open(self, url: str) -> None:
        """Enter an address, and wait for its page."""
        await self._marked()
        went = await self.call("Page.navigate", url=url)
        assert "errorText" not in went, went
        await self._settled()

    async def click(self, selector: str) -> None:
        """Click an element that leads to another page, and wait for that."""
        await self._marked()
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).click()")
        await self._settled()

    async def fill(self, selector: str, text: str) -> None:
        """Type into a field."""
        await self.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")
        await self.call("Input.insertText", text=text)

    async def text(self) -> str:
        """Return what the page shows."""
        return str(await self.evaluate("document.body.innerText"))

    async def address(self) -> str:
        """Return where the tab is."""
        return str(await self.evaluate("location.href"))

    async def cookies(self, url: str) -> dict[str, str]:
        """Return the cookies that the browser would send with a request, also those that no script can read."""
        found = (await self.call("Network.getCookies", urls=[url]))["cookies"]
        return {each["name"]: each["value"] for each in found}

    async def _marked(self) -> None:
        await self.evaluate("window.isOld = true")

    async def _settled(self) -> None:
        async def is_loaded() -> bool:
            # While the tab changes pages there is nothing to run a script in.
            with contextlib.suppress(RuntimeError):
                return bool(await self.evaluate("!window.isOld && document.readyState === 'complete'"))
            return False

        await eventually(is_loaded)


@contextlib.asynccontextmanager
async def chromium(*arguments: str) -> AsyncIterator[Page]:
    """Start Chromium with a new profile, and yield a tab of it. Skips the test where no Chromium is installed."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("chromium is not installed")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Its own sandbox does not work for root, nor in most containers.
        process = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", *arguments, "about:blank",
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile},
        )  # fmt: skip
        try:
            address = await eventually(lambda: _debugger(Path(profile)))
            async with connect(address, max_size=None) as connection:
                page = Page(connection, "")
                receiving = asyncio.create_task(page.receive())
                try:
                    await page.attach()
                    yield page
                finally:
                    receiving.cancel()
                    await asyncio.gather(receiving, return_exceptions=True)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


async def _debugger(profile: Path) -> str | None:
    """Return where the browser listens; it writes the port and the path into its profile."""
    with contextlib.suppress(OSError):
        if found := re.fullmatch(r"(\d+)\n(/\S+)", (profile / "DevToolsActivePort").read_text()):
            return f"ws://127.0.0.1:{found[1]}{found[2]}"
    return None
