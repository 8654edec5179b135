"""The log of an agent server told to another address: what a report holds, and what becomes of lines not taken."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from portside.agent import log_reports
from portside.agent.log_reports import LogReports, secrets_of, told_logs
from portside.agent.settings import AgentSettings
from portside.kernel.errors import UserMistake
from portside.kernel.logs import overheard

WAIT_S = 60


class Collector:
    """An address that takes reports, with the status that it is told to answer."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.refused = 0
        self.status = 202
        self.came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()
                with collector.came:
                    if collector.status == 202:
                        collector.reports.append(body)
                    else:
                        collector.refused += 1
                    collector.came.notify_all()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def lines(self) -> list[dict[str, Any]]:
        return [line for report in self.reports for line in report["logs"]]

    def wait_for(self, lines: int) -> list[dict[str, Any]]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.lines()) >= lines, WAIT_S)
        return self.lines()


@pytest.fixture
def collector() -> Iterator[Collector]:
    running = Collector()
    yield running
    running.server.shutdown()
    running.server.server_close()


def said(message: str, **fields: Any) -> dict[str, Any]:
    return {"event": message, "level": "info", "timestamp": "2030-01-01T00:00:00Z", **fields}


def test_a_report_holds_lines_without_secrets(collector: Collector) -> None:
    environ = {
        "OPENAI_API_KEY": "sk-very-secret", "DATABASE_URI": "postgres://me:p%40ssw0rd@db/x", "PLAIN": "plainly",
        "GRAPH_AES_KEY": "first-of-them,second-one",
    }  # fmt: skip
    reports = LogReports(collector.url, {"kind": "agent_server"}, secrets_of(environ))
    reports.start()
    try:
        int("sk-very-secret")
    except ValueError as exc:
        reports.hear(said("failed with sk-very-secret", exc_info=exc, url="redis://u:x@host/1", path="plainly"))
    reports.hear(said("p@ssw0rd second-one", many={"a": "first-of-them"}, _record=logging.LogRecord))
    (failed, other) = collector.wait_for(2)
    reports.close()
    assert failed["message"] == "failed with [hidden]"
    assert failed["fields"] == {"url": "redis://[hidden]@host/1", "path": "plainly"}
    assert failed["exception"]["type"] == "ValueError"
    assert "test_log_reports.py" in failed["exception"]["frames"][0]
    assert (other["message"], other["fields"]) == ("[hidden] [hidden]", {"many": "{'a': '[hidden]'}"})
    assert collector.reports[0]["source"] == {"kind": "agent_server"}


def test_lines_are_dropped_with_a_count_while_nobody_takes_them(collector: Collector) -> None:
    collector.status = 503
    reports = LogReports(collector.url, {}, [])
    for number in range(log_reports.KEPT_LINES + 7):
        reports.hear(said(str(number)))
    reports.start()
    with collector.came:
        assert collector.came.wait_for(lambda: collector.refused, WAIT_S)
    collector.status = 202
    collector.wait_for(log_reports.KEPT_LINES - 2 * log_reports.LINES_OF_REPORT)
    reports.close()
    dropped = collector.reports[0]["dropped"]
    assert dropped >= 7 + log_reports.LINES_OF_REPORT
    assert dropped + len(collector.lines()) >= log_reports.KEPT_LINES + 7
    assert collector.reports[-1]["dropped"] == 0
    assert max(len(report["logs"]) for report in collector.reports) == log_reports.LINES_OF_REPORT


def test_what_is_logged_last_is_told_at_the_end_and_large_lines_are_cut(collector: Collector) -> None:
    reports = LogReports(collector.url, {}, [])
    reports.start()
    with overheard(reports.hear):
        for _ in range(60):
            reports.hear(said("y" * 100_000, **{f"f{n}": "x" * 1000 for n in range(40)}))
    reports.close()
    assert len(collector.wait_for(60)) == 60
    assert all(len(json.dumps(report)) < 256 * 1024 for report in collector.reports)
    assert len(collector.lines()[0]["message"]) == log_reports.MAX_MESSAGE


@pytest.mark.parametrize("address", [None, "", "platform.example.com", "ftp://host/x"])
def test_logs_are_told_only_to_an_address_of_the_web(address: str | None) -> None:
    settings = AgentSettings(self_hosted_logs_enabled=True, self_hosted_logs_endpoint=address)
    with pytest.raises(UserMistake, match="SELF_HOSTED_LOGS_ENDPOINT"), told_logs(settings):
        pass
