"""Log forwarding of an agent server: the content of reports, and lines that the address does not accept."""

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from portside.agent import log_reports
from portside.agent.log_reports import LogReports, forwarded_logs, list_secrets
from portside.agent.settings import AgentSettings
from portside.kernel.errors import UserMistake
from portside.kernel.logs import listen_to_logs

WAIT_S = 60


class Collector:
    """An address that refuses a chosen number of reports and accepts later ones."""

    def __init__(self) -> None:
        self.reports: list[dict[str, Any]] = []
        self.to_refuse = 0
        self.came = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                is_refused = collector.to_refuse > 0
                collector.to_refuse -= is_refused

                with collector.came:
                    # Before the response: the sender's next report comes after it, in another thread.
                    if not is_refused:
                        collector.reports.append(body)
                    collector.came.notify_all()

                self.send_response(503 if is_refused else 202)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def lines(self) -> list[dict[str, Any]]:
        return [line for report in self.reports for line in report["logs"]]

    def accounted(self) -> int:
        """Lines that arrived, and lines that the reports count as dropped."""
        return len(self.lines()) + sum(report["dropped"] for report in self.reports)

    def wait_for(self, lines: int) -> list[dict[str, Any]]:
        with self.came:
            assert self.came.wait_for(lambda: len(self.lines()) >= lines, WAIT_S)
        return self.lines()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    # A report whose response is late counts as dropped, although it arrived.
    monkeypatch.setattr(log_reports, "REPORT_TIMEOUT_S", 60.0)
    running = Collector()
    yield running
    running.server.shutdown()
    running.server.server_close()


def said(message: str, **fields: Any) -> dict[str, Any]:
    return {"event": message, "level": "info", "timestamp": "2030-01-01T00:00:00Z", **fields}


def test_report_contains_no_secrets(collector: Collector) -> None:
    environ = {
        "OPENAI_API_KEY": "sk-very-secret",
        "DATABASE_URI": "postgres://me:p%40ssw0rd@db/x",
        "PLAIN": "plainly",
        "GRAPH_AES_KEY": "first-of-them,second-one",
    }

    reports = LogReports(collector.url, {"kind": "agent_server"}, list_secrets(environ))
    reports.start()
    try:
        int("sk-very-secret")
    except ValueError as exc:
        reports.collect(said("failed with sk-very-secret", exc_info=exc, url="redis://u:x@host/1", path="plainly"))

    reports.collect(said("p@ssw0rd second-one", many={"a": "first-of-them"}, _record=logging.LogRecord))
    # A secret that begins with another one, the password of an address as it is written there, and one at the cut.
    reports.collect(said("first-of-them,second-one p%40ssw0rd"))
    reports.collect(said("x" * (log_reports.MAX_MESSAGE_CHARS - 5) + "sk-very-secret"))
    (failed, other, whole, cut) = collector.wait_for(4)
    reports.close()
    assert failed["message"] == "failed with [hidden]"
    assert failed["fields"] == {"url": "redis://[hidden]@host/1", "path": "plainly"}
    assert failed["exception"]["type"] == "ValueError"
    assert "test_log_reports.py" in failed["exception"]["frames"][0]

    assert (other["message"], other["fields"]) == ("[hidden] [hidden]", {"many": "{'a': '[hidden]'}"})
    assert whole["message"] == "[hidden] [hidden]"
    assert cut["message"].strip("x") == "[hidd"
    assert collector.reports[0]["source"] == {"kind": "agent_server"}


def test_lines_are_dropped_and_counted_while_address_fails(collector: Collector) -> None:
    collector.to_refuse = 1
    reports = LogReports(collector.url, {}, [])
    for number in range(log_reports.KEPT_LINES + 7):
        reports.collect(said(str(number)))

    reports.start()
    with collector.came:
        assert collector.came.wait_for(lambda: collector.accounted() == log_reports.KEPT_LINES + 7, WAIT_S)

    reports.close()
    assert collector.reports[0]["dropped"] >= 7 + log_reports.LINES_OF_REPORT
    assert collector.reports[-1]["dropped"] == 0
    assert max(len(report["logs"]) for report in collector.reports) == log_reports.LINES_OF_REPORT


def test_last_lines_are_sent_at_close_and_large_lines_are_cut(collector: Collector) -> None:
    reports = LogReports(collector.url, {}, [])
    reports.start()
    with listen_to_logs(reports.collect):
        for _ in range(60):
            reports.collect(said("y" * 100_000, **{f"f{n}": "x" * 1000 for n in range(40)}))

    reports.close()
    assert len(collector.wait_for(60)) == 60
    assert all(len(json.dumps(report)) < 256 * 1024 for report in collector.reports)
    assert len(collector.lines()[0]["message"]) == log_reports.MAX_MESSAGE_CHARS


@pytest.mark.parametrize("address", [None, "", "platform.example.com", "ftp://host/x", "http://["])
def test_logs_are_sent_to_http_urls_only(address: str | None) -> None:
    settings = AgentSettings(self_hosted_logs_enabled=True, self_hosted_logs_endpoint=address)
    with pytest.raises(UserMistake, match="SELF_HOSTED_LOGS_ENDPOINT"), forwarded_logs(settings):
        pass
