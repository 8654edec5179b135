"""An import of traces, datasets, prompts and queues: the target has what the source had, with its ids and times.

Imported traces are not billed, and only who manages the organization may import. A second import changes nothing.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client

from portside.identity.keys import to_short_key
from tests.api.hosted import PACKAGES, Hosted, open_hosted
from tests.databases import MigratedDatabases, with_name
from tests.preloaded import run_command

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    # Newer versions of the client have other names beside these.
    pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning", "ignore::langsmith.utils.LangSmithWarning"),
]
LONG_AGO = datetime(2025, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def databases(postgres: str, migrated: MigratedDatabases) -> Iterator[tuple[str, str]]:
    names = [migrated.copy(PACKAGES) for _ in range(2)]
    yield with_name(postgres, names[0]), with_name(postgres, names[1])
    for name in names:
        asyncio.run(migrated.drop(name))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def source(databases: tuple[str, str]) -> AsyncIterator[Hosted]:
    async with open_hosted(databases[0]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(databases: tuple[str, str]) -> AsyncIterator[Hosted]:
    async with open_hosted(databases[1]) as running:
        yield running


class Imported(NamedTuple):
    """What the source was filled with, and the report of the import."""

    ids: dict[str, str]
    report: dict[str, Any]


Import = Callable[..., Any]


@pytest.fixture(scope="module")
def run_import(source: Hosted, target: Hosted, tmp_path_factory: pytest.TempPathFactory) -> Import:
    """Run an import with a key of the target; return the report."""
    folder = tmp_path_factory.mktemp("import")

    async def run(*arguments: str, key: str = target.key, code: int = 0) -> dict[str, Any]:
        file = folder / f"{uuid4()}.json"
        options = ("--url", target.url, "--home", str(folder), "--report", str(file))
        environment = {
            "IMPORT_SOURCE_API_KEY": source.key,
            "PORTSIDE_API_KEY": key,
            "HOME": str(folder),
            "LANG": "C.UTF-8",
        }
        command = ("import", "langsmith", "--from", source.url, *options, *arguments)
        done = await asyncio.to_thread(run_command, *command, environment=environment, folder=folder)
        assert done.returncode == code, done.stderr
        assert source.key not in file.read_text() + done.stderr + done.stdout
        report: dict[str, Any] = json.loads(file.read_text())
        return report

    return run


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def imported(source: Hosted, run_import: Import, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    ids = await asyncio.to_thread(fill, source, tmp_path_factory.mktemp("files"))
    return Imported(ids, await run_import())


def fill(source: Hosted, folder: Path) -> dict[str, str]:
    """Fill the source with one of everything, by the stock client."""
    client = Client(api_url=source.url, api_key=source.key, auto_batch_tracing=False)
    root, child, one = uuid4(), uuid4(), uuid4()
    project = client.create_project("support", metadata={"team": "a"})
    times = {"start_time": LONG_AGO, "end_time": LONG_AGO + timedelta(seconds=3)}
    first = f"{LONG_AGO:%Y%m%dT%H%M%S%fZ}{root}"
    common = {"project_name": "support", "trace_id": root, **times}
    client.create_run(
        "agent",
        {"question": "why"},
        "chain",
        id=root,
        dotted_order=first,
        tags=["t"],
        outputs={"answer": 42},
        reference_example_id=one,
        **common,
    )
    usage = {"usage_metadata": {"input_tokens": 3, "output_tokens": 4, "total_tokens": 7}}
    client.create_run(
        "model",
        {"messages": []},
        "llm",
        id=child,
        parent_run_id=root,
        dotted_order=f"{first}.{LONG_AGO:%Y%m%dT%H%M%S%fZ}{child}",
        outputs=usage,
        error="Overloaded()",
        **common,
    )
    client.create_feedback(child, "correct", score=0.5, comment="nearly", session_id=project.id)
    client.create_feedback(None, "overall", score=1, project_id=project.id)

    parts = {f"attachment.{root}.picture": (None, b"\x89PNG", "image/png")}
    post = {"id": str(root), "trace_id": str(root), "dotted_order": first}
    parts[f"patch.{root}"] = (None, json.dumps(post).encode(), "application/json")
    headers = {"x-api-key": source.key}
    assert httpx2.post(f"{source.url}/runs/multipart", files=parts, headers=headers).status_code == 202

    schemas = {"inputs_schema": {"required": ["q"]}, "outputs_schema": {"type": "object"}}
    dataset = client.create_dataset("questions", description="d", metadata={"m": 1}, **schemas)
    experiment = client.create_project("experiment", reference_dataset_id=dataset.id, metadata={"model": "m"})
    examples = client.create_examples(
        dataset_id=dataset.id,
        examples=[
            {"id": one, "inputs": {"q": 1}, "outputs": {"a": 1}, "split": "train"},
            {"inputs": {"q": 2}, "split": ["test", "hard"], "attachments": {"file": ("text/plain", b"hello")}},
        ],
    )
    _, two = examples["example_ids"]
    client.update_dataset_tag(dataset_id=dataset.id, as_of=datetime.fromisoformat(str(examples["as_of"])), tag="v1")
    client.update_example(one, outputs={"a": "changed"}, dataset_id=dataset.id)
    client.delete_example(two)

    client.push_prompt("greeting", object={"lc": 1, "type": "constructor", "id": ["x"], "kwargs": {"n": 1}})
    client.push_prompt("greeting", object={"lc": 1, "type": "constructor", "id": ["x"], "kwargs": {"n": 2}})
    [latest, _] = client.list_prompt_commits("greeting")
    body = {"tag_name": "prod", "commit_id": str(latest.id)}
    assert httpx2.post(f"{source.url}/repos/-/greeting/tags", json=body, headers=headers).status_code < 300

    texts = {"description": "Greets", "readme": "# Greets", "tags": ["chat"]}
    client.update_prompt("greeting", **texts, is_public=True, is_archived=True)

    scale = {"type": "continuous", "min": 0, "max": 1}
    config = {"feedback_key": "correct", "feedback_config": scale, "is_lower_score_better": True}
    assert httpx2.post(f"{source.url}/feedback-configs", json=config, headers=headers).status_code < 300

    rubric = {
        "feedback_key": "correct",
        "description": "Is it right?",
        "score_descriptions": {"1": "yes"},
        "is_required": True,
    }
    queue = client.create_annotation_queue(
        name="To do", description="New ones", rubric_instructions="Be fair.", rubric_items=[rubric]
    )
    client.add_runs_to_annotation_queue(queue.id, run_ids=[child])
    client.add_runs_to_annotation_queue(queue.id, run_ids=[root])
    reviewed = {"last_reviewed_time": LONG_AGO.isoformat()}
    path = f"{source.url}/annotation-queues/{queue.id}/runs/{child}"
    assert httpx2.patch(path, json=reviewed, headers=headers).status_code < 300

    return {
        name: str(value)
        for name, value in {
            "root": root,
            "child": child,
            "project": project.id,
            "experiment": experiment.id,
            "dataset": dataset.id,
            "one": one,
            "two": two,
            "v1": examples["as_of"],
            "queue": queue.id,
        }.items()
    }


async def get(server: Hosted, path: str, **query: Any) -> Any:
    response = await server.client.get(path, params=query)
    response.raise_for_status()
    return response.json()


def without(value: Any, *names: str) -> Any:
    """Return data of the API without fields of these names, and without the id of the workspace."""
    dropped = {*names, "tenant_id", "app_path"}
    if isinstance(value, dict):
        return {key: without(item, *names) for key, item in value.items() if key not in dropped}
    if isinstance(value, list):
        return [without(item, *names) for item in value]
    return value


async def test_nothing_is_left_out(imported: Imported):
    assert imported.report["not_carried"] == []
    assert imported.report["carried_with_changes"] == []
    assert imported.report["is_complete"] is True


async def test_runs_keep_their_ids_times_and_values(imported: Imported, source: Hosted, target: Hosted):
    for name in ("root", "child"):
        path = f"/runs/{imported.ids[name]}"
        sent, stored = await get(source, path), await get(target, path)
        assert without(stored, "presigned_url", "s3_urls") == without(sent, "presigned_url", "s3_urls")

    assert stored["start_time"].startswith("2025-03-01T12:00:00")
    assert (stored["error"], stored["total_tokens"]) == ("Overloaded()", 7)


async def test_attachments_are_there(imported: Imported, target: Hosted):
    run = await get(target, f"/runs/{imported.ids['root']}")
    file = run["s3_urls"]["attachment.picture"]
    content = await target.client.get(file["presigned_url"])
    assert (content.content, file["mime_type"]) == (b"\x89PNG", "image/png")


async def test_feedback_is_there(imported: Imported, source: Hosted, target: Hosted):
    for query in ({"run": imported.ids["child"]}, {"session": imported.ids["project"], "level": "session"}):
        sent, stored = await get(source, "/feedback", **query), await get(target, "/feedback", **query)
        times = ("created_at", "modified_at", "user_id", "extend_trace_retention")
        assert without(stored, *times) == without(sent, *times)
        assert len(stored) == 1


async def test_imported_traces_are_not_billed(imported: Imported, source: Hosted, target: Hosted):
    def count(usage: list[dict[str, Any]]) -> int:
        return sum(entry["traces"] for entry in usage)

    assert count(await source.usage("workspace")) == 1
    assert count(await target.usage("workspace")) == 0
    rows = await target.db.pool.fetch(
        "select is_imported, received_at > now() - interval '1 hour' as is_new from traces"
    )
    assert [dict(row) for row in rows] == [{"is_imported": True, "is_new": True}]


async def test_only_who_manages_the_organization_imports(imported: Imported, target: Hosted, run_import: Import):
    for key in (await target.new_key(), await target.new_key("runs:*", "projects:*", "datasets:*")):
        body = {"post": [], "patch": []}
        headers = {"x-api-key": key}
        files = {f"post.{uuid4()}": (None, json.dumps(body).encode(), "application/json")}
        refusal = await target.client.post("/runs/multipart?imported=true", files=files, headers=headers)
        assert (refusal.status_code, "organization:manage" in refusal.text) == (403, True)


async def test_a_trace_that_goes_on_is_billed(imported: Imported, source: Hosted, target: Hosted):
    ids = [str(uuid4()) for _ in range(2)]

    async def send(run_id: str, query: str = "", **headers: str) -> None:
        order = f"20250301T120000000000Z{run_id}"
        run = {"id": run_id, "trace_id": run_id, "dotted_order": order, "name": "r", "run_type": "chain"}
        run |= {"start_time": "2025-03-01T12:00:00Z", "session_name": "billing"}
        files = {f"post.{run_id}": (None, json.dumps(run).encode(), "application/json")}
        answer = await target.client.post(f"/runs/multipart{query}", files=files, headers=headers)
        assert answer.status_code == 202

    async def count_billed() -> list[int]:
        """Return the traces of this day, and those that became long-lived."""
        day = {"starting_on": now - timedelta(days=1), "ending_before": now + timedelta(days=1)}
        query = {name: moment.isoformat() for name, moment in day.items()}
        answer = await target.client.get("/orgs/current/billing/usage", params=query)
        return [metric["value"] for metric in answer.json()]

    now = datetime.now(UTC)
    for run_id in ids:
        await send(run_id, "?imported=true")

    # Both came, and got feedback, in a month that has been billed since.
    await target.db.pool.execute(
        "update traces set received_at = received_at - interval '40 days', extended_at = now() - interval '39 days'"
        " where trace_id = any($1::uuid[])",
        ids,
    )
    traces, longlived = await count_billed()
    other_key = await target.new_key()
    await send(ids[0], **{"x-api-key": other_key})
    assert await count_billed() == [traces + 1, longlived + 1]

    rows = await target.db.pool.fetch(
        "select t.is_imported, k.short_key from traces t join api_keys k on k.id = t.api_key_id"
        " where t.trace_id = any($1::uuid[]) order by 1",
        ids,
    )
    assert [tuple(row) for row in rows] == [(False, to_short_key(other_key)), (True, to_short_key(target.key))]
    await target.db.pool.execute("delete from traces where trace_id = any($1::uuid[])", ids)


async def test_versions_keep_their_times_tags_and_examples(imported: Imported, source: Hosted, target: Hosted):
    path = f"/datasets/{imported.ids['dataset']}"
    versions = await get(source, f"{path}/versions")
    assert len(versions) == 3
    assert await get(target, f"{path}/versions") == versions
    assert await get(target, f"{path}/splits") == await get(source, f"{path}/splits")

    for version in versions:
        query = {"dataset": imported.ids["dataset"], "as_of": version["as_of"]}
        sent, stored = await get(source, "/examples", **query), await get(target, "/examples", **query)
        assert without(stored) == without(sent)

    [one] = await get(target, "/examples", dataset=imported.ids["dataset"])
    assert (one["id"], one["outputs"]) == (imported.ids["one"], {"a": "changed"})

    query = {"id": imported.ids["two"], "as_of": "v1", "dataset": imported.ids["dataset"], "select": "attachment_urls"}
    [two] = await get(target, "/examples", **query)
    content = await target.client.get(two["attachment_urls"]["attachment.file"]["presigned_url"])
    assert content.content == b"hello"


async def test_a_version_is_later_than_those_before(imported: Imported, target: Hosted):
    dataset_id = imported.ids["dataset"]
    example_id = str(uuid4())
    parts = {
        example_id: (None, json.dumps({"dataset_id": dataset_id}).encode(), "application/json"),
        f"{example_id}.inputs": (None, b'{"q": 0}', "application/json"),
    }
    for moment in (imported.ids["v1"], "2020-01-01T00:00:00Z", "2100-01-01T00:00:00Z"):
        answer = await target.client.post("/platform/examples/multipart", params={"as_of": moment}, files=parts)
        assert answer.status_code == 422
        assert "as_of" in answer.text


async def test_prompts_keep_their_commits_and_tags(imported: Imported, source: Hosted, target: Hosted):
    sent, stored = [await get(server, "/commits/-/greeting") for server in (source, target)]
    assert [commit["commit_hash"] for commit in stored["commits"]] == [
        commit["commit_hash"] for commit in sent["commits"]
    ]
    manifests = [(await get(server, "/commits/-/greeting/prod"))["manifest"] for server in (source, target)]
    assert manifests[0] == manifests[1] != {}


async def test_queues_keep_their_runs(imported: Imported, target: Hosted):
    queue = await get(target, f"/annotation-queues/{imported.ids['queue']}")
    runs = await get(target, f"/annotation-queues/{imported.ids['queue']}/runs")
    assert (queue["name"], [run["id"] for run in runs]) == ("To do", [imported.ids["child"], imported.ids["root"]])
    assert [run["last_reviewed_time"] for run in runs] == ["2025-03-01T12:00:00Z", None]


async def test_what_describes_the_data_is_there(imported: Imported, source: Hosted, target: Hosted):
    ids = imported.ids
    of_target = ("id", "owner", "full_name", "created_at", "updated_at", "modified_at")
    counted = ("num_views", "num_downloads", "num_likes")
    paths = (
        f"/sessions/{ids['project']}",
        f"/sessions/{ids['experiment']}",
        f"/datasets/{ids['dataset']}",
        f"/annotation-queues/{ids['queue']}",
        "/repos/-/greeting",
        "/feedback-configs",
    )
    for path in paths:
        sent = await get(source, path)
        stored = await get(target, path)
        assert without(stored, *of_target, *counted) == without(sent, *of_target, *counted)


async def test_a_second_import_changes_nothing(imported: Imported, run_import: Import):
    report = await run_import()
    assert {kind: counts["carried"] for kind, counts in report["counts"].items() if counts["carried"]} == {}
    assert report["counts"]["runs"]["present"] == 2


async def test_an_import_into_a_workspace_of_the_same_platform(imported: Imported, source: Hosted, run_import: Import):
    await source.new_workspace("Second")
    report = await run_import("--url", source.url, "--workspace", "Second", key=source.key)
    assert report["not_carried"] == []
    reason = "it has another id here, because another workspace has its own"
    changes = {(entry["item"], entry["reason"]) for entry in report["carried_with_changes"]}
    assert changes == {("support", reason), ("experiment", reason)}
    assert report["counts"]["runs"]["carried"] == 2


async def test_what_is_refused_is_named(imported: Imported, target: Hosted, run_import: Import):
    key = await target.new_key("datasets:*", "organization:read")
    report = await run_import("--only", "datasets,projects", key=key, code=3)
    assert {entry["kind"] for entry in report["not_carried"]} == {"projects"}
