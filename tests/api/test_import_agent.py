"""An import of an agent server: what the target has afterwards is what the source had, item by item.

Started again it changes nothing, and goes on where another one ended. What a server does not take is named, and the
rest is carried.
"""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

from tests.commands import Done, run_here
from tests.servers import ServerProcess, agent_server

LONG_AHEAD = datetime(2100, 1, 1, tzinfo=UTC)
HI = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def target(agent_database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with agent_server(agent_database, tmp_path_factory.mktemp("target")) as running:
        yield running


@pytest.fixture(scope="module")
def before(server: ServerProcess) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=server.url, api_key="") as client:
        yield client


@pytest.fixture(scope="module")
def after(target: ServerProcess) -> Iterator[SyncLangGraphClient]:
    with get_sync_client(url=target.url, api_key="") as client:
        yield client


def run_import(source: str, target: str, *arguments: str, folder: Path) -> tuple[Done, dict[str, Any]]:
    """Run an import of agents, and return its result and its report."""
    file = folder / "report.json"
    done = run_here("import", "agent", "--from", source, "--to", target, "--report", str(file), *arguments)
    assert file.stat().st_mode & 0o777 == 0o600, "it names what others may not know of"
    return done, json.loads(file.read_text())


def history(client: SyncLangGraphClient, thread_id: str) -> list[dict[str, Any]]:
    """The history of a thread, apart from what the record of a task of a former step may lack."""
    states: Any = client.threads.get_history(thread_id, limit=100)
    for state in states[1:]:
        state["tasks"] = [task["name"] for task in state["tasks"]]
    return states


@pytest.fixture(scope="module")
def filled(before: SyncLangGraphClient) -> dict[str, Any]:
    """Fill the source with one of everything; return the ids."""
    assistant = before.assistants.create("echo", name="Support", context={"tone": "kind"}, description="first")
    assistant_id = assistant["assistant_id"]
    before.assistants.update(assistant_id, metadata={"team": "a"}, description="second")
    before.assistants.update(assistant_id, graph_id="steps", name="Sales")
    before.assistants.set_latest(assistant_id, 2)

    talk = before.threads.create(metadata={"user": "ann"}, ttl={"ttl": 600, "strategy": "delete"})["thread_id"]
    for _ in range(2):
        before.runs.wait(talk, assistant_id, input=HI)
    before.threads.update_state(talk, {"messages": [{"role": "user", "content": "by hand"}]}, as_node="answer")

    waiting = before.threads.create()["thread_id"]
    before.runs.wait(waiting, "approval", input={"text": "a"})
    empty = before.threads.create(metadata={"empty": True})["thread_id"]

    hourly = before.crons.create(
        assistant_id, schedule="0 * * * *", timezone="Europe/Berlin", end_time=LONG_AHEAD, input=HI
    )
    of_thread = before.crons.create_for_thread(talk, "echo", schedule="@daily", input=HI, enabled=False)

    for namespace in (["users"], ["users", "ann"], ["users", "ann", "notes"]):
        before.store.put_item(namespace, "a key / with.signs", {"of": namespace, "n": 1})

    crons = [hourly["cron_id"], of_thread["cron_id"]]
    return {"assistant": assistant_id, "talk": talk, "waiting": waiting, "empty": empty, "crons": crons}


@pytest.fixture(scope="module")
def imported(
    filled: dict[str, Any], server: ServerProcess, target: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    done, report = run_import(server.url, target.url, folder=tmp_path_factory.mktemp("import"))
    assert done.returncode == 0, done.stderr
    return report


def test_the_report_counts_what_was_carried(imported: dict[str, Any], filled: dict[str, Any]):
    assert imported["is_complete"] is True
    assert imported["not_carried"] == []
    assert imported["counts"]["threads"] == {"carried": 3, "present": 0, "failed": 0}
    assert imported["counts"]["store"]["carried"] == 3

    # The only changes: crons wait until the source has stopped.
    changes = {(entry["kind"], entry["item"]) for entry in imported["carried_with_changes"]}
    assert changes == {("crons", filled["crons"][0])}


def test_a_thread_keeps_its_states(imported, filled, before: SyncLangGraphClient, after: SyncLangGraphClient):
    states = history(before, filled["talk"])
    assert len(states) > 5
    assert history(after, filled["talk"]) == states

    sent: Any = before.threads.get(filled["talk"], include=["ttl"])
    stored: Any = after.threads.get(filled["talk"], include=["ttl"])
    for name in ("created_at", "metadata", "values", "status", "interrupts"):
        assert stored[name] == sent[name], name
    assert stored["ttl"]["ttl_minutes"] == 600


def test_a_thread_without_states_is_there(imported, filled, before: SyncLangGraphClient, after: SyncLangGraphClient):
    sent = before.threads.get(filled["empty"])
    assert after.threads.get(filled["empty"]) == sent


def test_a_question_is_still_open(imported, filled, before: SyncLangGraphClient, after: SyncLangGraphClient):
    assert history(after, filled["waiting"]) == history(before, filled["waiting"])
    assert after.threads.get(filled["waiting"])["status"] == "interrupted"

    def resume(client: SyncLangGraphClient) -> Any:
        thread: Any = client.threads.copy(filled["waiting"])
        return client.runs.wait(thread["thread_id"], "approval", command={"resume": "yes"})

    assert resume(after) == resume(before) == {"text": "a!", "decision": "yes"}


def test_messages_are_messages_again(imported, filled, after: SyncLangGraphClient):
    thread: Any = after.threads.copy(filled["talk"])
    count = len(after.threads.get(filled["talk"])["values"]["messages"])
    values: Any = after.runs.wait(thread["thread_id"], "echo", input=HI)
    assert len(values["messages"]) == count + 2


def test_an_assistant_keeps_its_versions(imported, filled, before: SyncLangGraphClient, after: SyncLangGraphClient):
    def versions(client: SyncLangGraphClient) -> list[dict[str, Any]]:
        rows: Any = client.assistants.get_versions(filled["assistant"])
        return [{key: value for key, value in row.items() if not key.endswith("_at")} for row in rows]

    assert versions(after) == versions(before)
    sent = before.assistants.get(filled["assistant"])
    stored = after.assistants.get(filled["assistant"])
    assert (stored["version"], stored["name"], stored["context"]) == (2, sent["name"], {"tone": "kind"})


def test_crons_keep_their_schedules(imported, filled, before: SyncLangGraphClient, after: SyncLangGraphClient):
    kept = ("assistant_id", "thread_id", "schedule", "timezone", "end_time", "payload", "metadata", "on_run_completed")
    for cron_id in filled["crons"]:
        [sent] = [cron for cron in before.crons.search() if cron["cron_id"] == cron_id]
        [stored] = [cron for cron in after.crons.search() if cron["cron_id"] == cron_id]
        for name in kept:
            left, right = dict(stored)[name], dict(sent)[name]
            if name == "payload":
                left, right = ({**payload, "enabled": None} for payload in (left, right))
            assert left == right, name
        assert dict(stored)["enabled"] is False


def test_store_items_keep_their_namespaces(imported, before: SyncLangGraphClient, after: SyncLangGraphClient):
    def items(client: SyncLangGraphClient) -> set[str]:
        found = client.store.search_items([], limit=100)["items"]
        return {json.dumps([item["namespace"], item["key"], item["value"]]) for item in found}

    assert items(after) == items(before)


def test_a_second_import_changes_nothing(imported, server: ServerProcess, target: ServerProcess, tmp_path: Path):
    done, report = run_import(server.url, target.url, folder=tmp_path)
    assert done.returncode == 0
    carried = {kind: counts["carried"] for kind, counts in report["counts"].items() if kind != "threads"}
    assert carried == {"assistants": 0, "crons": 0, "store": 0}
    assert report["counts"]["threads"]["present"] >= 3


def test_versions_that_an_import_did_not_come_to_are_carried_by_the_next(
    before: SyncLangGraphClient,
    after: SyncLangGraphClient,
    server: ServerProcess,
    target: ServerProcess,
    tmp_path: Path,
):
    """One that was killed between two versions of an assistant leaves it with the first ones."""
    assistant_id = before.assistants.create("echo", name="first")["assistant_id"]
    for name in ("second", "third"):
        before.assistants.update(assistant_id, name=name)

    after.assistants.create("echo", assistant_id=assistant_id, name="first")
    after.assistants.update(assistant_id, name="second")

    done, _ = run_import(server.url, target.url, "--only", "assistants", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    versions: Any = after.assistants.get_versions(assistant_id)
    assert [version["name"] for version in versions] == ["third", "second", "first"]
    assert after.assistants.get(assistant_id)["name"] == "third"


def test_only_and_skip_choose_kinds(imported, server: ServerProcess, target: ServerProcess, tmp_path: Path):
    _, report = run_import(server.url, target.url, "--only", "store,crons", "--skip", "crons", folder=tmp_path)
    assert list(report["counts"]) == ["store"]

    arguments = ("--from", server.url, "--to", target.url, "--only", "everything")
    assert "assistants, threads, crons, store" in run_here("import", "agent", *arguments).stderr


def test_a_history_is_refused_as_a_whole(imported, filled, target: ServerProcess, before: SyncLangGraphClient):
    from portside.transfer.threads import build_changes

    states: Any = before.threads.get_history(filled["talk"], limit=100)
    history = build_changes(states)

    def create(thread_id: str, history: list[dict[str, Any]]) -> httpx2.Response:
        body = {"thread_id": thread_id, "metadata": {"graph_id": "echo"}, "history": history}
        return httpx2.post(f"{target.url}/threads", json=body, timeout=300)

    for bad, where in (
        (history[::-1], "checkpoint_id"),
        ([history[0], *history], "checkpoint_id"),
        ([{**history[0], "metadata": {"source": "deleted"}}], "source"),
        ([{**history[0], "metadata": {"step": "one"}}], "step"),
        ([{**history[0], "values": {"messages": {"no": "messages"}}}, *history[1:]], "history"),
    ):
        thread_id = str(uuid4())
        refusal = create(thread_id, bad)
        assert refusal.status_code == 422
        assert where in refusal.text
        assert httpx2.get(f"{target.url}/threads/{thread_id}").status_code == 404
