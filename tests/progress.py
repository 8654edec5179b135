"""Shows how far a run of the tests by several processes is: counts, the time so far and the tests that run now.

On a terminal it is one line that is written again; elsewhere a line every fifteen seconds, also while no test ends. A
failure is named at once.
"""

import threading
import time

import pytest

EVERY_S = 15.0
SHOWN = 4


class Progress:
    """Replaces the dots of pytest."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reporter: pytest.TerminalReporter | None = None
        self._session: pytest.Session | None = None
        self._began_at = time.monotonic()
        self._running: dict[str, float] = {}
        self._done = 0
        self._failed = 0

        # A thread shows the line: the process of pytest does nothing while it waits for the end of a test.
        self._over = threading.Event()
        self._showing = threading.Thread(target=self._keep_showing, name="progress", daemon=True)
        self._writing = threading.Lock()

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session
        # It is made after this object.
        self._reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        self._showing.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Stop showing the line before pytest writes its summary."""
        self._over.set()
        self._showing.join()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Count a report as pytest would, without a letter for it."""
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            return "passed", "", ""
        if report.skipped and not hasattr(report, "wasxfail"):
            return "skipped", "", ""

        return None

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed += 1
            self._write(f"FAILED {report.nodeid} ({report.when})")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._done += 1

    def _is_terminal(self) -> bool:
        return self._reporter is not None and self._reporter.isatty

    def _keep_showing(self) -> None:
        while not self._over.wait(1.0 if self._is_terminal() else EVERY_S):
            self._show()

    def _show(self) -> None:
        now = time.monotonic()
        total = getattr(self._session, "testscollected", 0) or "?"
        elapsed = f"{int(now - self._began_at) // 60}:{int(now - self._began_at) % 60:02}"
        longest = sorted(self._running.copy().items(), key=lambda item: item[1])[:SHOWN]
        names = ", ".join(f"{nodeid.removeprefix('tests/')} ({now - began:.0f} s)" for nodeid, began in longest)
        line = f"{elapsed}  {self._done} of {total} tests, {self._failed} failed; now {names}"

        if self._reporter is not None and self._is_terminal():
            width = self._reporter.screen_width if hasattr(self._reporter, "screen_width") else 100
            with self._writing:
                self._reporter.rewrite(line[: width - 1], erase=True)
        else:
            self._write(line)

    def _write(self, line: str) -> None:
        if self._reporter is None:
            return

        with self._writing:
            self._reporter.ensure_newline()
            self._reporter.write_line(line)

            # Into a file, lines would otherwise wait for each other.
            self._reporter.flush()
