"""What a transfer does about servers: it waits as they ask, reads bounded answers, sends keys to one address alone."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from portside.kernel.errors import UserMistake
from portside.transfer import datasets, threads
from portside.transfer import server as servers
from portside.transfer.assistants import carry_assistants
from portside.transfer.crons import carry_crons
from portside.transfer.kinds import AGENT_KINDS, carry, select_kinds
from portside.transfer.prompts import carry_prompts
from portside.transfer.report import Report
from portside.transfer.runs import KIND, RunCarrier
from portside.transfer.server import MultipartField, RemoteServer, RequestRefused, UnexpectedAnswer, to_id
from portside.transfer.threads import build_changes, carry_threads, compare_histories

IDS = [f"1f1e5503-cdc0-6000-8000-{number:012d}" for number in range(3)]


class Scripted(ThreadingHTTPServer):
    """A server that gives the answers of a script, one after the other, and keeps what it was sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.requests: list[tuple[str, dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Scripted

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.path, headers, body))
        status, headers, content = self.server.answers.pop(0)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_DELETE = do_GET = do_POST = answer  # noqa: N815 - names of the base class

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def peer() -> Iterator[Scripted]:
    with Scripted() as scripted:
        thread = threading.Thread(target=scripted.serve_forever, args=(0.01,))
        thread.start()
        yield scripted
        scripted.shutdown()
        thread.join()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def client(peer: Scripted, lines: list[str]) -> Iterator[RemoteServer]:
    opened = RemoteServer("source", peer.url, {"X-Api-Key": "secret"}, say=lines.append)
    yield opened
    opened.close()


def test_it_waits_as_the_server_asks(peer: Scripted, client: RemoteServer, lines: list[str]) -> None:
    peer.answers = [(429, {"Retry-After": "0"}, b""), (503, {"Retry-After": "0"}, b""), (200, {}, b'{"a":1}')]
    assert client.call("POST", "/x", body={"b": 2}) == {"a": 1}
    assert [request[2] for request in peer.requests] == [b'{"b":2}'] * 3
    assert lines == [f"the source is busy ({status}); trying again in 0 s" for status in (429, 503)]


def test_it_gives_up_with_the_way_on(peer: Scripted, client: RemoteServer) -> None:
    peer.answers = [(429, {"Retry-After": "0"}, b"")] * 10
    with pytest.raises(UserMistake, match="start the import again"):
        client.call("GET", "/x")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3", 3), ("1.5", 1.5), ("-4", 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0), ("soon", None), (None, None)],
)
def test_retry_after(text: str | None, seconds: float | None) -> None:
    assert servers._parse_retry_after(text) == seconds


def test_an_answer_is_bounded(peer: Scripted, client: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "MAX_ANSWER_BYTES", 10)
    peer.answers = [(200, {}, b'"12345678"'), (200, {}, b'"123456789"')]
    assert client.call("GET", "/x") == "12345678"
    with pytest.raises(UnexpectedAnswer, match="larger than 10 bytes"):
        client.call("GET", "/x")


def test_a_redirect_is_not_followed(peer: Scripted, client: RemoteServer) -> None:
    peer.answers = [(302, {"Location": "http://127.0.0.1:9/"}, b"")]
    with pytest.raises(UserMistake, match="redirects"):
        client.call("GET", "/x")


def test_answers_that_are_no_json_and_refusals(peer: Scripted, client: RemoteServer) -> None:
    peer.answers = [(200, {}, b"<html>"), (422, {}, b'{"detail":"no"}'), (404, {}, b"gone")]
    with pytest.raises(UnexpectedAnswer):
        client.call("GET", "/x")
    with pytest.raises(RequestRefused, match="422: no"):
        client.call("GET", "/x")
    assert client.find("/x") is None


@pytest.mark.parametrize(
    "address",
    [
        "http://127.0.0.1:9/x",
        "http://localhost/x",
        "http://10.0.0.1/x",
        "http://[::1]/x",
        "http://metadata.internal/x",
        "http://intranet/x",
        "file:///etc/passwd",
        "http://169.254.169.254/latest",
    ],
)
def test_files_inside_of_networks_are_not_read(client: RemoteServer, address: str) -> None:
    with pytest.raises(UnexpectedAnswer, match="leads into a network"):
        client.download(address)


def test_files_of_the_server_itself_are_read(peer: Scripted, client: RemoteServer) -> None:
    peer.answers = [(200, {}, b"data")] * 2
    assert client.download("/file?token=1") == client.download(f"{peer.url}/file") == b"data"
    assert [request[1]["x-api-key"] for request in peer.requests] == ["secret", "secret"]


def test_files_of_other_hosts_are_read_without_keys(
    peer: Scripted, client: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "_is_public", lambda _host: True)
    peer.answers = [(200, {}, b"data")] * 2
    elsewhere = peer.url.replace("127.0.0.1", "localhost")
    assert client.download(f"{elsewhere}/file") == client.download(f"{peer.url}/file") == b"data"
    assert [request[1].get("x-api-key") for request in peer.requests] == [None, "secret"]


def test_server_that_asks_for_a_long_wait_is_asked_again_within_a_quarter_of_an_hour(
    peer: Scripted, client: RemoteServer, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(servers.time, "sleep", waits.append)
    peer.answers = [(503, {"Retry-After": "86400"}, b""), (502, {}, b""), (504, {}, b""), (200, {}, b"{}")]
    assert client.call("GET", "/x") == {}
    assert waits == [900, 2, 4]
    assert len(lines) == 3


def test_pages_are_read_to_the_end_without_a_gap(peer: Scripted, client: RemoteServer) -> None:
    items = [{"n": number} for number in range(5)]
    replies = [items[0:2], items[2:4], items[4:5]]
    peer.answers = [(200, {}, json.dumps(reply).encode()) for reply in (*replies, *replies, [])]
    assert list(client.search("/search", {"sort_by": "created_at"}, limit=2)) == items
    assert [json.loads(request[2])["offset"] for request in peer.requests] == [0, 2, 4]
    assert list(client.pages("/list", {"of": "x"}, limit=2)) == items
    assert [request[0].rpartition("=")[2] for request in peer.requests[3:]] == ["0", "2", "4"]


def test_one_failure_among_others_is_a_failure_of_the_import() -> None:
    report = Report(lambda _line: None)
    report.carry("threads", 9)
    assert not report.has_failures
    report.fail("threads", "the tenth", "too large")
    report.carry("store")
    assert report.has_failures
    assert report.of("threads").describe() == "9 carried, 1 not carried"


def test_runs_of_a_refused_batch_are_stored_one_by_one(peer: Scripted, client: RemoteServer) -> None:
    report = Report(lambda _line: None)
    carrier = RunCarrier(client, client, report, source_id=IDS[0], target_id=IDS[1])
    parts = [
        MultipartField(f"{kind}.{run_id}{field}", "application/json", b"{}")
        for run_id in IDS[:2]
        for kind, field in (("post", ""), ("post", ".inputs"), ("attachment", ".file"))
    ]
    peer.answers = [(422, {}, b'{"detail":"one is bad"}'), (202, {}, b""), (422, {}, b'{"detail":"bad"}')]
    carrier._send(IDS[:2], parts)
    assert (report.of(KIND).carried, report.of(KIND).failed) == (1, 1)
    assert [(failure["item"], failure["reason"]) for failure in report.failures] == [(IDS[1], "422: bad")]
    stored = [{run_id for run_id in IDS if run_id.encode() in body} for _, _, body in peer.requests]
    assert stored == [set(IDS[:2]), {IDS[0]}, {IDS[1]}]
    assert all(path == "/runs/multipart?imported=true" for path, *_ in peer.requests), "imported traces are not billed"

    # A key that may not import is not the fault of a run.
    peer.answers = [(403, {}, b'{"detail":"no"}')]
    with pytest.raises(RequestRefused):
        carrier._send(IDS[:2], parts)


def test_each_run_of_a_page_is_carried_with_its_own_feedback_and_files(peer: Scripted, client: RemoteServer) -> None:
    report = Report(lambda _line: None)
    runs: list[dict[str, Any]] = [{"id": run_id, "name": "r", "inputs": {"a": 1}} for run_id in IDS]
    runs[1]["inputs"] = None
    runs[1]["inputs_s3_urls"] = {"ROOT": {"presigned_url": "/large-inputs"}}
    runs[1]["s3_urls"] = {"extra": {"presigned_url": "/large-extra"}, "attachment.photo": {"presigned_url": "/photo"}}
    feedback = [{"id": IDS[number], "run_id": IDS[number], "key": f"of-{number}"} for number in (1, 2)]
    replies: list[tuple[int, Any]] = [
        # The first one is there already.
        (200, {"runs": [{"id": IDS[0]}]}),
        (200, feedback),
        (200, {"large": "inputs"}),
        (200, {"large": "extra"}),
        (200, "photo"),
        (202, {}),
    ]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]
    carrier = RunCarrier(client, client, report, source_id=IDS[0], target_id=IDS[1])
    carrier._carry_page(runs)

    stored = peer.requests[-1][2].decode()
    names = [line.partition('name="')[2].rstrip('"') for line in stored.split("\r\n") if 'name="' in line]
    assert names == [
        f"post.{IDS[1]}",
        f"post.{IDS[1]}.inputs",
        f"post.{IDS[1]}.extra",
        f"feedback.{IDS[1]}",
        f"attachment.{IDS[1]}.photo",
        f"post.{IDS[2]}",
        f"post.{IDS[2]}.inputs",
        f"feedback.{IDS[2]}",
    ]
    assert '{"large": "inputs"}' in stored and '{"large": "extra"}' in stored
    assert (report.of(KIND).carried, report.of(KIND).present) == (2, 1)
    assert report.of("feedback").carried == 2


def test_history_is_read_page_by_page(peer: Scripted, client: RemoteServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PAGE", 2)
    states = [state(number, {}) for number in (2, 1, 0)]
    peer.answers = [(200, {}, json.dumps(page).encode()) for page in (states[:2], states[2:], states[:2], states[2:])]
    assert threads._read_history(client, IDS[0], 10) == states
    bodies = [json.loads(body) for _, _, body in peer.requests]
    assert bodies == [{"limit": 2}, {"limit": 2, "before": {"configurable": {"checkpoint_id": IDS[1]}}}]
    assert threads._read_history(client, IDS[0], 3) == states


def test_a_thread_that_does_not_name_its_graph_gets_that_of_its_last_state() -> None:
    states = [{"metadata": {"graph_id": "last", "step": 2}}, {"metadata": {"graph_id": "first"}}]
    thread = {"metadata": {"user": "ann"}}
    assert threads._build_metadata(thread, states) == {"user": "ann", "graph_id": "last"}
    assert threads._build_metadata({"metadata": {"graph_id": "its own"}}, states) == {"graph_id": "its own"}
    assert threads._build_metadata(thread, []) == {"user": "ann"}


def test_lifetime_of_a_thread_is_carried(peer: Scripted, client: RemoteServer) -> None:
    lifetimes: list[tuple[Any, dict[str, Any]]] = [
        ({"ttl_minutes": 5, "strategy": "keep_latest"}, {"ttl": {"ttl": 5, "strategy": "keep_latest"}}),
        ({"ttl_minutes": 5}, {"ttl": {"ttl": 5, "strategy": "delete"}}),
        (None, {}),
    ]
    peer.answers = [(200, {}, json.dumps({"ttl": ttl}).encode()) for ttl, _ in lifetimes]
    assert [threads._read_lifetime(client, IDS[0]) for _ in lifetimes] == [carried for _, carried in lifetimes]


@pytest.mark.parametrize(("starts", "enabled"), [(False, [False, False]), (True, [True, False])])
def test_only_crons_that_ran_at_the_source_are_started(
    peer: Scripted, client: RemoteServer, enabled: list[bool], *, starts: bool
) -> None:
    crons = [
        {"cron_id": IDS[number], "assistant_id": IDS[2], "schedule": "@daily", "enabled": was_enabled}
        for number, was_enabled in enumerate((True, False))
    ]
    replies: list[tuple[int, Any]] = [(200, crons), (404, None), (200, {}), (404, None), (200, {})]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]

    report = Report(lambda _line: None)
    carry_crons(client, client, report, starts=starts)

    created = [json.loads(body) for path, _, body in peer.requests if path == "/runs/crons"]
    assert [cron["is_enabled"] for cron in created] == enabled
    assert [note["item"] for note in report.notes] == ([] if starts else IDS[:1]), "it is paused here alone"


def test_a_version_in_several_requests_is_complete_at_its_own_time(
    peer: Scripted, client: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads a dataset as of the version gets all of its changes, and as of the one before none of them."""
    monkeypatch.setattr(datasets, "MAX_BYTES", 1)
    examples = [{"id": example_id, "inputs": {"n": 1}} for example_id in IDS[:2]]
    difference = {"examples_added": IDS[:1], "examples_modified": IDS[1:2], "examples_removed": IDS[2:]}
    replies: list[tuple[int, Any]] = [(200, difference), (200, examples), (200, {}), (200, {}), (200, {})]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]

    report = Report(lambda _line: None)
    before, at = "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00.000002+00:00"
    datasets._carry_version(client, client, report, IDS[0], as_of=at, previous=before)

    written = [urlsplit(path) for path, *_ in peer.requests[2:]]
    assert [address.path for address in written] == ["/examples", *["/platform/examples/multipart"] * 2]

    moments = [parse_qs(address.query)["as_of"][0] for address in written]
    assert moments == ["2026-01-02T00:00:00+00:00", "2026-01-02T00:00:00.000001+00:00", at]


def test_a_second_import_leaves_the_version_of_an_assistant_that_is_active_at_the_target(
    peer: Scripted, client: RemoteServer
) -> None:
    versions = [{"assistant_id": IDS[0], "version": number} for number in (1, 2)]
    replies: list[Any] = [versions[:1], versions, versions[1], versions]
    # The last answer is for a request that must not come.
    peer.answers = [(200, {}, json.dumps(reply).encode()) for reply in (*replies, {})]

    report = Report(lambda _line: None)
    carry_assistants(client, client, report)

    assert [path for path, *_ in peer.requests if path.endswith("/latest")] == []
    assert report.of("assistants").describe() == "0 carried, 1 there already"


def test_names_of_the_source_end_no_header(peer: Scripted, client: RemoteServer) -> None:
    peer.answers = [(200, {}, b"{}")]
    client.upload("/x", [MultipartField('a"\r\nX-Evil: 1\r\n\r\n', "text/plain\r\nX-Evil: 1", b"data")])
    head = peer.requests[0][2].split(b"\r\n\r\n")[0]
    assert b"\r\nX-Evil" not in head
    assert head.count(b"\r\n") == 3


def test_ids_become_paths_only_if_they_are_ids() -> None:
    assert to_id(IDS[0].upper()) == IDS[0]
    for value in ("../../admin", None, 3, f"{IDS[0]}/x"):
        with pytest.raises(UnexpectedAnswer):
            to_id(value)


def test_kinds_are_chosen_in_their_order() -> None:
    assert select_kinds(AGENT_KINDS, None, None) == list(AGENT_KINDS)
    assert select_kinds(AGENT_KINDS, "store, assistants", "store") == ["assistants"]
    for only, skip in (("thread", None), (None, "thread"), ("store", "store")):
        with pytest.raises(UserMistake, match="assistants, threads, crons, store"):
            select_kinds(AGENT_KINDS, only, skip)


def test_a_kind_that_the_source_lacks_is_no_failure(peer: Scripted, client: RemoteServer, lines: list[str]) -> None:
    peer.answers = [(404, {}, b""), (200, {}, b'{"not": "a list"}')]
    report = Report(lines.append)
    carry(["crons", "assistants"], client, client, report)
    assert report.notes == [{"kind": "crons", "item": "all", "reason": "the source does not have this kind"}]
    assert [failure["kind"] for failure in report.failures] == ["assistants"]
    assert (report.has_failures, report.is_complete) == (True, True)


def state(number: int, values: dict[str, Any], parent: int | None = None) -> dict[str, Any]:
    return {
        "checkpoint": {"checkpoint_id": IDS[number]},
        "parent_checkpoint": None if parent is None else {"checkpoint_id": IDS[parent]},
        "created_at": "2026-01-01T00:00:00+00:00",
        "values": values,
        "next": [],
        "tasks": [],
        "interrupts": [],
    }


def test_a_state_is_sent_as_its_changes() -> None:
    history = [state(2, {"log": [1, 2], "n": 2}, 1), state(1, {"log": [1], "n": 1, "old": 0}, 0), state(0, {})]
    first, second, third = build_changes(history)
    assert [change["checkpoint_id"] for change in (first, second, third)] == IDS
    assert (second["values"], second["appended"]) == ({"log": [1], "n": 1, "old": 0}, {})
    assert (third["values"], third["appended"], third["removed"]) == ({"n": 2}, {"log": [2]}, ["old"])

    # Without its parent a state is sent whole.
    [alone] = build_changes(history[:1])
    assert (alone["parent_checkpoint_id"], alone["values"]) == (None, {"log": [1, 2], "n": 2})


def test_a_difference_is_named() -> None:
    sent = [state(1, {"n": 1}), state(0, {})]
    assert compare_histories(sent, [state(1, {"n": 1, "empty": None}), state(0, {})]) is None
    assert compare_histories(sent, [{**sent[0], "created_at": "2026-01-01T01:00:00+01:00"}, sent[1]]) is None
    assert "1 of 2 states" in str(compare_histories(sent, sent[:1]))
    assert "values of the state" in str(compare_histories(sent, [state(1, {"n": 2}), state(0, {})]))


def test_prompts_that_others_published_are_not_carried(
    peer: Scripted, client: RemoteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers.time, "sleep", lambda _seconds: None)
    prompts = [{"repo_handle": f"prompt-{number}", "tenant_id": IDS[number]} for number in range(2)]
    replies: list[tuple[int, Any]] = [
        (200, {"id": IDS[0]}),
        (200, {"repos": []}),
        (200, {"repos": prompts}),
        (404, None),
        (200, {}),
        (200, {"commits": []}),
        (200, {"commits": []}),
        (200, []),
        (200, []),
    ]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]
    report = Report(lambda _line: None)
    carry_prompts(client, client, report)
    assert report.of("prompts").carried == 1
    assert not [path for path, *_ in peer.requests if "prompt-1" in path]


def test_a_thread_whose_graph_takes_no_history_keeps_its_values(peer: Scripted, client: RemoteServer) -> None:
    states = [state(1, {"n": 1}, 0), {**state(0, {}), "tasks": [{"name": "count"}]}]
    thread = {"thread_id": IDS[0], "metadata": {"graph_id": "js"}, "status": "idle"}
    refusal = {"detail": [{"loc": ["body", "history"], "msg": "graphs in JavaScript take supersteps, not a history"}]}
    replies: list[tuple[int, Any]] = [
        (200, []),
        (200, [thread]),
        (404, None),
        (200, states),
        (200, thread),
        (422, refusal),
        (200, thread),
    ]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]

    report = Report(lambda _line: None)
    carry_threads(client, client, report)
    assert report.of("threads").carried == 1
    assert "without its history" in report.notes[0]["reason"]
    sent = json.loads(peer.requests[-1][2])
    assert sent["supersteps"] == [{"updates": [{"values": {"n": 1}, "as_node": "count"}]}]
    assert "history" not in sent


def test_a_history_that_is_too_large_is_cut_to_its_latest_states(peer: Scripted, client: RemoteServer) -> None:
    states = [state(1, {"n": 1}, 0), state(0, {})]
    thread = {"thread_id": IDS[0], "metadata": {"graph_id": "g"}, "status": "idle"}
    replies: list[tuple[int, Any]] = [
        (422, {"detail": "no select"}),
        (200, [thread]),
        (404, None),
        (200, states),
        (200, thread),
        (413, {"detail": "too large"}),
        (200, thread),
        (200, states[:1]),
    ]
    peer.answers = [(status, {}, json.dumps(reply).encode()) for status, reply in replies]

    report = Report(lambda _line: None)
    carry_threads(client, client, report)
    assert [note["reason"] for note in report.notes] == [
        "its history is too large: the latest 1 of 2 states are carried"
    ]
    assert (report.of("threads").carried, report.failures) == (1, [])
