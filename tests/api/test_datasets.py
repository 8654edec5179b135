"""Datasets with the stock client: created, filled, versioned, split, shared, exported, and evaluated.

Every version of a dataset always reads the same. A request that changes examples is applied as a whole or not at all.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
import pytest_asyncio
from langsmith import Client, aevaluate, evaluate
from langsmith.evaluation import evaluate_comparative
from langsmith.schemas import DataType, ExampleUpdate
from langsmith.utils import LangSmithConflictError, LangSmithError, LangSmithNotFoundError

from portside.datasets import datasets, files
from portside.datasets.files import build_version, to_line, write_csv, write_lines
from portside.datasets.versions import find_fixed_moment
from tests.api.hosted import Hosted, open_hosted
from tests.conftest import eventually

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is deprecated"),
]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "pattern": "^(a+)+$"}}, "required": ["q"]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(platform_database: str) -> AsyncIterator[Hosted]:
    async with open_hosted(platform_database) as running:
        yield running


def open_client(server: Hosted, base: str = "") -> Client:
    return Client(api_url=server.url + base, api_key=server.key)


@pytest.mark.parametrize("base", ["", "/api/v1", "/api"])
async def test_a_dataset_is_created_changed_and_deleted(server: Hosted, base: str):
    client = open_client(server, base)
    name = f"life {base}"

    def work() -> None:
        made = client.create_dataset(name, description="first", metadata={"team": base or "root"})
        with pytest.raises(LangSmithConflictError):
            client.create_dataset(name)

        assert client.has_dataset(dataset_name=name)
        assert [d.id for d in client.list_datasets(metadata={"team": base or "root"})] == [made.id]
        named = client.list_datasets(dataset_name_contains=f"LIFE {base}", data_type="kv", limit=1)
        assert [d.id for d in named] == [made.id]
        assert not list(client.list_datasets(dataset_ids=[made.id], data_type="llm"))

        written = client.create_examples(
            dataset_id=made.id,
            examples=[{"inputs": {"b": n, "a": "é"}, "reference_outputs": {"n": n * 2}} for n in range(3)],
        )

        assert written["count"] == 3
        shown = client.read_dataset(dataset_id=made.id)
        assert (shown.example_count, shown.session_count, shown.metadata["team"]) == (3, 0, base or "root")
        examples = list(client.list_examples(dataset_name=name))
        assert [(e.inputs["b"], e.outputs["n"]) for e in examples] == [(0, 0), (1, 2), (2, 4)]
        assert list(examples[0].inputs) == ["b", "a"]
        client.delete_dataset(dataset_id=made.id)

        with pytest.raises(LangSmithNotFoundError):
            client.read_dataset(dataset_name=name)

        assert not list(client.list_examples(example_ids=[e.id for e in examples]))

    await asyncio.to_thread(work)


async def test_versions_keep_earlier_examples(server: Hosted):
    client = open_client(server)

    def work() -> None:
        made = client.create_dataset("versions")
        with pytest.raises(LangSmithNotFoundError):
            client.read_dataset_version(dataset_id=made.id, tag="latest")

        one = client.create_example({"q": 1}, dataset_id=made.id, reference_outputs={"a": 1}, metadata={"k": "v"})
        first = client.read_dataset_version(dataset_id=made.id, tag="latest")
        client.update_dataset_tag(dataset_id=made.id, as_of=first.as_of, tag="prod")
        client.update_example(one.id, inputs={"q": 2})

        two = client.create_example({"q": 3}, dataset_id=made.id)
        tagged = client.read_dataset_version(dataset_id=made.id, tag="prod")
        assert (tagged.as_of, tagged.tags) == (first.as_of, ["prod"])
        listed = client.request_with_retries("GET", f"/datasets/{made.id}/versions").json()
        assert [one["number"] for one in listed] == [3, 2, 1]
        searched = client.request_with_retries("GET", f"/datasets/{made.id}/versions?search=prod").json()
        assert [one["number"] for one in searched] == [1]

        assert client.read_dataset_version(dataset_id=made.id, as_of=first.as_of).as_of == first.as_of
        client.delete_example(one.id)
        with pytest.raises(LangSmithNotFoundError):
            client.read_example(one.id)

        assert client.read_example(one.id, as_of=first.as_of).inputs == {"q": 1}
        changed = client.list_examples(dataset_id=made.id, as_of="prod")
        assert [(e.id, e.inputs, e.outputs) for e in changed] == [(one.id, {"q": 1}, {"a": 1})]
        assert [e.id for e in client.list_examples(dataset_id=made.id, as_of="latest")] == [two.id]
        versions = list(client.list_dataset_versions(dataset_id=made.id))
        assert [v.tags for v in versions] == [[], [], [], ["prod"]]
        assert versions == sorted(versions, key=lambda v: v.as_of, reverse=True)

        diff = client.diff_dataset_versions(made.id, from_version="prod", to_version="latest")
        assert (diff.examples_added, diff.examples_removed, diff.examples_modified) == ([two.id], [one.id], [])
        diff = client.diff_dataset_versions(made.id, from_version="prod", to_version=versions[2].as_of)
        assert (diff.examples_added, diff.examples_removed, diff.examples_modified) == ([], [], [one.id])

        # A version begins at its moment: what it replaced is no part of it.
        diff = client.diff_dataset_versions(made.id, from_version=versions[2].as_of, to_version=versions[2].as_of)
        assert (diff.examples_added, diff.examples_removed, diff.examples_modified) == ([], [], [])
        with pytest.raises(LangSmithError):
            list(client.list_examples(dataset_id=made.id, as_of="nothing"))

        client.delete_examples([two.id], hard_delete=True)
        assert not list(client.list_examples(dataset_id=made.id, as_of=versions[0].as_of))

    await asyncio.to_thread(work)


async def test_a_version_has_what_it_wrote_and_not_what_it_replaced(server: Hosted):
    client = open_client(server)

    def work() -> None:
        made = client.create_dataset("replaced")
        example = client.create_example({"q": 1}, dataset_id=made.id)
        client.update_example(example.id, inputs={"q": 2})
        client.delete_example(example.id)
        deleted, changed, first = [version.as_of for version in client.list_dataset_versions(dataset_id=made.id)]

        # A version begins at its moment, and the one before it ends there.
        assert client.read_example(example.id, as_of=first).inputs == {"q": 1}
        assert client.read_example(example.id, as_of=changed).inputs == {"q": 2}
        with pytest.raises(LangSmithNotFoundError):
            client.read_example(example.id, as_of=deleted)

    await asyncio.to_thread(work)


async def test_examples_are_filtered_by_their_fields(server: Hosted):
    client = open_client(server)

    def found(**query: Any) -> list[int]:
        return sorted(e.inputs["n"] for e in client.list_examples(dataset_name="found", **query))

    def work() -> None:
        made = client.create_dataset("found")
        client.create_examples(
            dataset_id=made.id,
            examples=[
                {"inputs": {"n": n}, "metadata": {"kind": ["odd", "even"][n % 2], "n": n}, "split": split}
                for n, split in enumerate([None, "test", ["test", "hard"], "train"])
            ],
        )

        assert found() == [0, 1, 2, 3]
        assert found(metadata={"kind": "odd"}) == [0, 2]
        assert found(splits=["hard", "train"]) == [2, 3]
        assert found(filter="""and(not(has(metadata, '{"kind": "odd"}')), exists(metadata, "n"))""") == [1, 3]
        assert found(filter='has(metadata, "n")') == [0, 1, 2, 3]
        assert found(filter='and(has(metadata, "kind"), not(has(metadata, "bird")))') == [0, 1, 2, 3]
        assert found(filter="""has(metadata, '"kind"')""") == []

        assert found(filter='or(search(inputs, ":2"), eq(metadata_value, "3"))') == [2, 3]
        assert found(limit=2, offset=3) == [3]
        assert client.list_dataset_splits(dataset_id=made.id) == ["base", "hard", "test", "train"]
        (first, *_) = [e for e in client.list_examples(dataset_id=made.id) if e.inputs["n"] == 0]
        assert first.metadata == {"kind": "odd", "n": 0, "dataset_split": ["base"]}
        client.update_dataset_splits(dataset_id=made.id, split_name="hard", example_ids=[first.id])
        assert found(splits=["hard"]) == [0, 2]

        client.update_dataset_splits(dataset_id=made.id, split_name="base", example_ids=[first.id], remove=True)
        assert client.list_dataset_splits(dataset_id=made.id) == ["hard", "test", "train"]
        assert client.list_dataset_splits(dataset_id=made.id, as_of=first.modified_at) == [
            "base",
            "hard",
            "test",
            "train",
        ]
        (first, *_) = [e for e in client.list_examples(dataset_id=made.id) if e.inputs["n"] == 0]
        assert client.list_dataset_splits(dataset_id=made.id, as_of=first.modified_at) == ["hard", "test", "train"]

        assert {e.inputs["n"] for e in client.list_examples(dataset_id=made.id, limit=3)} < {0, 1, 2, 3}

    await asyncio.to_thread(work)
    dataset = (await server.client.get("/datasets", params={"name": "found"})).json()[0]["id"]
    for select, keys in {
        "id": {"id", "created_at", "modified_at", "inputs", "name", "dataset_id"},
        "outputs&exclude_default_fields=true": {"id", "outputs"},
    }.items():
        response = await server.client.get(f"/examples?dataset={dataset}&limit=1&select={select}")
        assert set(response.json()[0]) == keys

    for order in ("recent", "recently_created", "id", "random"):
        query = {"dataset": dataset, "order": order, "random_seed": 0.5}
        assert len((await server.client.get("/examples", params=query)).json()) == 4

    for query in (
        {"filter": "eq("},
        {"select": "colour"},
        {"order": "up"},
        {"metadata": "[]"},
        {"as_of": "2026-13-40"},
    ):
        response = await server.client.get("/examples", params={"dataset": dataset, **query})
        assert response.status_code in {400, 422}, (query, response.text)

    tagged = await server.client.put(f"/datasets/{dataset}/tags", json={"as_of": "2026-13-40", "tag": "x"})
    assert (tagged.status_code, tagged.json()["detail"][0]["loc"]) == (422, ["body", "as_of"])


async def test_attachments_are_stored_and_downloaded(server: Hosted):
    client = open_client(server)
    png = b"\x89PNG\r\n--\x00"

    def work() -> tuple[UUID, str]:
        made = client.create_dataset("attachments")
        (one,) = client.create_examples(
            dataset_id=made.id,
            examples=[
                {
                    "inputs": {"q": "?"},
                    "attachments": {"cat": {"mime_type": "image/png", "data": png}, "b.txt": ("text/plain", b"b")},
                }
            ],
        )["example_ids"]

        (example,) = client.list_examples(dataset_id=made.id, include_attachments=True)
        assert {name: a["reader"].read() for name, a in example.attachments.items()} == {"cat": png, "b.txt": b"b"}
        assert example.attachments["cat"]["mime_type"] == "image/png"
        before = example.modified_at

        client.update_examples(
            dataset_id=made.id,
            updates=[
                ExampleUpdate(
                    id=one,
                    attachments_operations={"rename": {"cat": "dog"}, "retain": []},
                    attachments={"new": ("text/plain", b"new")},
                )
            ],
        )

        shown = client.read_example(one)
        assert {name: a["reader"].read() for name, a in shown.attachments.items()} == {"dog": png, "new": b"new"}
        assert set(client.read_example(one, as_of=before).attachments) == {"cat", "b.txt"}

        with pytest.raises(LangSmithError, match="bird"):
            operations = {"rename": {"bird": "x"}, "retain": []}
            client.update_examples(dataset_id=made.id, updates=[{"id": one, "attachments_operations": operations}])

        client.update_examples(dataset_id=made.id, updates=[{"id": one, "metadata": {"kept": True}}])
        assert set(client.read_example(one).attachments) == {"dog", "new"}
        replacing = ExampleUpdate(id=one, attachments={"only": ("text/plain", b"only")})
        client.update_examples(dataset_id=made.id, updates=[replacing])

        shown = client.read_example(one)
        assert {name: a["reader"].read() for name, a in shown.attachments.items()} == {"only": b"only"}
        return one, example.attachments["cat"]["presigned_url"]

    example_id, url = await asyncio.to_thread(work)
    async with httpx2.AsyncClient() as nobody:
        response = await nobody.get(url)
        assert (response.content, response.headers["content-type"]) == (png, "image/png")
        assert response.headers["content-disposition"].startswith("attachment")
        changed = url[:-6] + ("A" if url[-6] != "A" else "B") + url[-5:]
        assert (await nobody.get(changed)).status_code == 403

        erased = {"example_ids": [str(example_id)], "hard_delete": True}
        assert (await server.client.post("/platform/datasets/examples/delete", json=erased)).status_code == 200
        assert (await nobody.get(url)).status_code == 404


async def test_examples_that_violate_a_schema_are_refused_as_a_whole(server: Hosted):
    client = open_client(server)

    def work() -> Any:
        return client.create_dataset("schema", inputs_schema=SCHEMA, outputs_schema={"required": ["a"]})

    made = await asyncio.to_thread(work)
    assert made.inputs_schema == SCHEMA

    def fill() -> None:
        good = {"inputs": {"q": "a"}, "reference_outputs": {"a": 1}}
        with pytest.raises(LangSmithError, match="schema_mismatch"):
            client.create_examples(dataset_id=made.id, examples=[good, {"inputs": {"q": 5}}])

        with pytest.raises(LangSmithError, match="schema_mismatch"):
            client.create_example({"q": "a" * 40 + "!"}, dataset_id=made.id, reference_outputs={"a": 1})

        assert not list(client.list_examples(dataset_id=made.id))
        (one,) = client.create_examples(dataset_id=made.id, examples=[good])["example_ids"]
        with pytest.raises(LangSmithError, match="required"):
            client.update_example(one, outputs={"b": 1}, dataset_id=made.id)

        client.update_example(one, outputs={"a": 2}, dataset_id=made.id)

    await asyncio.to_thread(fill)
    address = f"/datasets/{made.id}"
    for schema, text in (
        ({"properties": {"q": {"type": "no such type"}}}, "not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "another document"),
        ({"$ref": "file:///etc/passwd"}, "another document"),
        ({"required": ["z"]}, "required"),
    ):
        response = await server.client.patch(address, json={"inputs_schema_definition": schema})
        assert (response.status_code, text in response.text) == (422, True), response.text

    response = await server.client.patch(address, json={"outputs_schema_definition": None, "description": "new"})
    assert (response.json()["outputs_schema_definition"], response.json()["inputs_schema_definition"]) == (None, SCHEMA)
    assert (response.json()["description"], response.json()["name"]) == ("new", "schema")


@pytest.mark.parametrize("wrong", [0, 1, 2])
async def test_a_new_schema_is_checked_with_every_example(server: Hosted, monkeypatch: pytest.MonkeyPatch, wrong: int):
    monkeypatch.setattr(datasets, "_CHECK_BATCH", 2)
    dataset = (await server.client.post("/datasets", json={"name": f"checked {wrong}"})).json()["id"]
    examples = [{"dataset_id": dataset, "inputs": {"q": 5 if n == wrong else "a"}} for n in range(3)]
    made = (await server.client.post("/examples/bulk", json=examples)).json()

    refused = await server.client.patch(f"/datasets/{dataset}", json={"inputs_schema_definition": SCHEMA})
    assert (refused.status_code, made[wrong]["id"] in refused.text) == (422, True)
    assert (await server.client.get(f"/datasets/{dataset}")).json()["inputs_schema_definition"] is None


async def test_a_split_that_changes_nothing_makes_no_version(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "splits"})).json()["id"]
    example = (await server.client.post("/examples", json={"dataset_id": dataset, "inputs": {}})).json()["id"]

    async def move(split: str, *, remove: bool) -> tuple[list[str], int]:
        body = {"split_name": split, "examples": [example], "remove": remove}
        splits = (await server.client.put(f"/datasets/{dataset}/splits", json=body)).json()
        return splits, len((await server.client.get(f"/datasets/{dataset}/versions")).json())

    assert await move("base", remove=False) == await move("other", remove=True) == (["base"], 1)
    assert await move("test", remove=False) == (["base", "test"], 2)
    assert await move("base", remove=True) == (["test"], 3)


async def test_a_version_of_another_server_is_the_latest_and_past(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "carried"})).json()["id"]
    first = "2020-01-01T00:00:00Z"

    async def carry(as_of: str) -> httpx2.Response:
        example = str(uuid4())
        parts = {example: {"dataset_id": dataset}, f"{example}.inputs": {"q": 1}}
        form = {name: (None, json.dumps(value).encode(), "application/json") for name, value in parts.items()}
        return await server.client.post("/platform/examples/multipart", params={"as_of": as_of}, files=form)

    assert (await carry(first)).status_code == 201
    for wrong in (first, "2019-12-31T00:00:00Z", "2100-01-01T00:00:00Z"):
        refused = await carry(wrong)
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["query", "as_of"]), wrong

    latest = "2020-01-01T00:00:00.000001Z"
    assert (await carry(latest)).status_code == 201
    assert (await server.client.get(f"/datasets/{dataset}")).json()["example_count"] == 2

    newer = (await server.client.post("/datasets", json={"name": "beside carried"})).json()["id"]
    assert (await server.client.post("/examples", json={"dataset_id": newer, "inputs": {}})).status_code == 200
    version = (await server.client.get(f"/datasets/{dataset}/version", params={"tag": "latest"})).json()
    assert (version["as_of"], version["number"]) == (latest, 2)


async def test_datasets_are_sorted_by_the_examples_that_they_have_now(server: Hosted):
    async def fill(name: str, count: int) -> tuple[str, list[str]]:
        dataset = (await server.client.post("/datasets", json={"name": name})).json()["id"]
        body = [{"dataset_id": dataset, "inputs": {}}] * count
        return dataset, [one["id"] for one in (await server.client.post("/examples/bulk", json=body)).json()]

    emptied, examples = await fill("sizes 1", 2)
    small, _ = await fill("sizes 2", 1)
    assert (await server.client.delete("/examples", params={"example_ids": examples})).status_code == 200
    query = {"name_contains": "sizes", "sort_by": "example_count", "sort_by_desc": True}
    listed = (await server.client.get("/datasets", params=query)).json()
    assert [(one["id"], one["example_count"]) for one in listed] == [(small, 1), (emptied, 0)]


async def test_names_of_versions_are_no_times(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "reserved"})).json()["id"]
    await server.client.post("/examples", json={"dataset_id": dataset, "inputs": {}})
    for tag in ("latest", "2026-01-01"):
        refused = await server.client.put(f"/datasets/{dataset}/tags", json={"as_of": "latest", "tag": tag})
        assert (refused.status_code, refused.json()["detail"][0]["loc"]) == (422, ["body", "tag"])


async def test_examples_are_written_without_multipart(server: Hosted):
    info = (await server.client.get("/info")).json()
    info["instance_flags"]["dataset_examples_multipart_enabled"] = False
    client = Client(api_url=server.url, api_key=server.key, info=info)

    def work() -> None:
        made = client.create_dataset("plain")
        one = client.create_example({"n": 1}, dataset_id=made.id, split="test", metadata={"k": 1})
        assert one.metadata == {"k": 1, "dataset_split": ["test"]}
        client.create_examples(inputs=[{"n": 2}, {"n": 3}], reference_outputs=[{"o": 2}, None], dataset_id=made.id)
        client.update_example(one.id, inputs={"n": 10}, metadata={"k": 2})
        client.update_examples(example_ids=[one.id], outputs=[{"o": 10}])

        shown = client.read_example(one.id)
        assert (shown.inputs, shown.outputs) == ({"n": 10}, {"o": 10})
        assert shown.metadata == {"k": 2, "dataset_split": ["test"]}
        client.delete_examples([e.id for e in client.list_examples(dataset_id=made.id) if e.id != one.id])
        assert [e.id for e in client.list_examples(dataset_id=made.id)] == [one.id]

        with pytest.raises(LangSmithConflictError):
            client.create_example({"n": 1}, dataset_id=made.id, example_id=one.id)

    await asyncio.to_thread(work)
    missing = await server.client.delete(f"/examples/{uuid4()}")
    assert (missing.status_code, missing.json()) == (404, {"detail": "Example not found"})


@pytest.mark.parametrize("form", ["multipart", "json"])
async def test_an_example_of_another_dataset_is_a_conflict_in_every_form(server: Hosted, form: str):
    info = (await server.client.get("/info")).json()
    info["instance_flags"]["dataset_examples_multipart_enabled"] = form == "multipart"
    client = Client(api_url=server.url, api_key=server.key, info=info)

    def work() -> None:
        first, second = (client.create_dataset(f"{name} {form}") for name in ("first", "second"))
        ids = [uuid4(), uuid4()]
        client.create_example({"n": 1}, dataset_id=first.id, example_id=ids[0])

        # An example that was in the first dataset once is one of the second.
        client.create_example({"n": 2}, dataset_id=first.id, example_id=ids[1])
        client.delete_example(ids[1])
        client.create_example({"n": 2}, dataset_id=second.id, example_id=ids[1])

        updates = [ExampleUpdate(id=one, inputs={"n": 3}, dataset_id=first.id) for one in ids]
        with pytest.raises(LangSmithConflictError, match=f"{ids[1]} is in the dataset {second.id}"):
            client.update_examples(dataset_id=first.id, updates=updates)

        with pytest.raises(LangSmithConflictError, match=f"{ids[1]} is in the dataset {second.id}"):
            client.update_examples(example_ids=ids, inputs=[{"n": 3}] * 2, dataset_ids=[first.id] * 2)

        with pytest.raises(LangSmithConflictError, match=f"{ids[1]} is in the dataset {second.id}"):
            client.update_example(ids[1], inputs={"n": 3}, dataset_id=first.id)

        assert [client.read_example(one).inputs for one in ids] == [{"n": 1}, {"n": 2}]

        client.update_example(ids[1], inputs={"n": 4})
        assert client.read_example(ids[1]).inputs == {"n": 4}

    await asyncio.to_thread(work)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
async def test_a_download_holds_no_connection_and_keeps_its_version(server: Hosted, form: str):
    made = (await server.client.post("/datasets", json={"name": f"slow-{form}"})).raise_for_status().json()
    examples = [{"dataset_id": made["id"], "inputs": {"n": n, "text": "x" * 1000}} for n in range(1200)]
    added = await server.client.post("/examples/bulk", json=examples)
    added.raise_for_status()

    workspace = server.actor.workspace_id
    dataset = UUID(made["id"])
    version = build_version(workspace, dataset, await find_fixed_moment(server.db, workspace, dataset, None))
    written = write_csv(server.db, version) if form == "csv" else write_lines(server.db, version, to_line)
    pieces: list[str | bytes] = [await anext(written)]

    # The tracing clients of earlier tests may be sending what they have left.
    async def is_none_open() -> bool:
        return await server.open_transactions() == 0

    await eventually(is_none_open)

    for example in added.json()[-20:]:
        (await server.client.delete(f"/examples/{example['id']}")).raise_for_status()

    more = {"dataset_id": made["id"], "inputs": {"n": -1, "later": True}}
    (await server.client.post("/examples", json=more)).raise_for_status()
    pieces += [piece async for piece in written]
    text = "".join(piece if isinstance(piece, str) else piece.decode() for piece in pieces)
    assert len(pieces) > 1
    assert len(text.splitlines()) == (1201 if form == "csv" else 1200)
    assert "later" not in text


async def test_a_dataset_is_uploaded_and_downloaded_as_csv(server: Hosted):
    client = open_client(server)
    text = 'q,hint,a\r\n"one, two",é,3\r\n=2+2,,4\r\n'

    def work() -> None:
        file = ("sums.csv", text.encode())
        made = client.upload_csv(file, input_keys=["q", "hint"], output_keys=["a"], name="sums", description="d")
        assert (made.name, made.description, made.example_count, made.data_type.value) == ("sums", "d", 2, "kv")
        rows = [(e.inputs, e.outputs) for e in client.list_examples(dataset_id=made.id)]
        assert rows == [({"q": "one, two", "hint": "é"}, {"a": "3"}), ({"q": "=2+2", "hint": ""}, {"a": "4"})]
        assert client.upload_csv(file, input_keys=["q"], output_keys=["a"]).name == "sums.csv"

        with pytest.raises(LangSmithError, match="no column"):
            client.upload_csv(file, input_keys=["z"], output_keys=[], name="other")

        assert not client.has_dataset(dataset_name="other")

    await asyncio.to_thread(work)
    dataset = (await server.client.get("/datasets", params={"name": "sums"})).json()[0]["id"]
    downloaded = (await server.client.get(f"/datasets/{dataset}/csv")).text
    assert downloaded == text.replace("=2+2", "'=2+2"), "a spreadsheet must not run the cell as a formula"

    def upload_again() -> None:
        again = client.upload_csv(("again.csv", downloaded.encode()), input_keys=["q", "hint"], output_keys=["a"])
        assert {"q": "=2+2", "hint": ""} in [e.inputs for e in client.list_examples(dataset_id=again.id)]

    await asyncio.to_thread(upload_again)
    lines = (await server.client.get(f"/datasets/{dataset}/jsonl")).text.splitlines()
    assert json.loads(lines[1])["inputs"] == {"q": "=2+2", "hint": ""}
    assert (await server.client.get(f"/datasets/{dataset}/openai_ft")).status_code == 400


async def test_names_of_columns_are_no_formulas(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "columns"})).json()["id"]
    example = {"dataset_id": dataset, "inputs": {"=1+1": "a", "q": "b"}, "outputs": {"q": "c"}}
    assert (await server.client.post("/examples", json=example)).status_code == 200
    lines = (await server.client.get(f"/datasets/{dataset}/csv")).text.splitlines()
    assert lines == ["'=1+1,inputs.q,outputs.q", "a,b,c"]


async def test_a_file_with_too_many_rows_is_refused_as_a_whole(server: Hosted, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(files, "MAX_ROWS", 2)

    async def upload(rows: int) -> httpx2.Response:
        body = {"name": f"{rows} rows", "input_keys": "q"}
        file = {"file": ("rows.csv", b"q\r\n" + b"1\r\n" * rows, "text/csv")}
        return await server.client.post("/datasets/upload", data=body, files=file)

    assert (await upload(2)).json()["example_count"] == 2
    assert ((await upload(3)).status_code, "at most 2 rows" in (await upload(3)).text) == (422, True)
    assert (await server.client.get("/datasets", params={"name": "3 rows"})).json() == []


async def test_conversations_are_downloaded_in_openai_formats(server: Hosted):
    client = open_client(server)

    def work() -> list[Any]:
        made = client.create_dataset("chats", data_type=DataType.chat)
        message = {"type": "human", "data": {"content": "hi"}}
        client.create_chat_example([message], {"type": "ai", "data": {"content": "ho"}}, dataset_id=made.id)
        return client.read_dataset_openai_finetuning(made.id)

    asked = {"role": "user", "content": "hi"}
    answered = {"role": "assistant", "content": "ho"}
    assert await asyncio.to_thread(work) == [{"messages": [asked, answered]}]
    dataset = (await server.client.get("/datasets", params={"data_type": "chat"})).json()[0]["id"]
    lines = (await server.client.get(f"/datasets/{dataset}/openai")).text
    assert json.loads(lines) == {"input": [asked], "ideal": "ho"}
    call = {"role": "assistant", "content": None, "tool_calls": []}

    image = {"type": "image_url", "image_url": {}}
    blocks = {"role": "assistant", "content": [{"type": "text", "text": "a"}, image, "b"]}
    outputs = {"messages": [{"role": "assistant", "tool_calls": []}, call, blocks]}
    example = {"dataset_id": dataset, "inputs": {"input": "q"}, "outputs": outputs}
    assert (await server.client.post("/examples", json=example)).status_code == 200
    lines = (await server.client.get(f"/datasets/{dataset}/openai")).text.splitlines()
    assert json.loads(lines[-1]) == {"input": [{"role": "user", "content": "q"}], "ideal": "ab"}


async def test_an_example_is_created_from_a_run(server: Hosted):
    client = open_client(server)
    run_id = uuid4()

    def work() -> None:
        client.create_run(
            "source",
            {"q": 1},
            "chain",
            id=run_id,
            trace_id=run_id,
            outputs={"a": 2},
            dotted_order=f"20261121T020000000000Z{run_id}",
            attachments={"f": ("text/plain", b"file")},
        )

        client.flush(timeout=300)
        made = client.create_dataset("from runs")
        example = client.create_example(dataset_id=made.id, source_run_id=run_id, use_source_run_io=True)
        assert (example.inputs, example.outputs, example.source_run_id) == ({"q": 1}, {"a": 2}, run_id)
        assert example.attachments["f"]["reader"].read() == b"file"

        with pytest.raises(LangSmithError, match="no run"):
            client.create_example(dataset_id=made.id, source_run_id=uuid4(), use_source_run_io=True)

    await asyncio.to_thread(work)


async def test_an_example_takes_nothing_from_a_run_of_another_workspace(server: Hosted):
    run = {"id": str(uuid4()), "name": "r", "inputs": {"q": "secret"}}
    file = {f"attachment.{run['id']}.f": ("f", b"secret", "text/plain")}
    assert (await server.client.post("/runs", json=run)).status_code == 202
    assert (await server.client.post("/runs/multipart", files=file)).status_code == 202

    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Copiers"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        dataset = (await other.post("/datasets", json={"name": "copies"})).json()["id"]
        body = {"dataset_id": dataset, "source_run_id": run["id"], "use_source_run_io": True}
        refused = await other.post("/examples", json=body)
        assert (refused.status_code, "no run" in refused.text) == (422, True)

        own = {**run, "inputs": {"q": "own"}}
        assert (await other.post("/runs", json=own)).status_code == 202
        made = (await other.post("/examples", json=body)).json()
        assert (made["inputs"], made["attachment_urls"]) == ({"q": "own"}, {})


async def check_newer_form(server: Hosted, dataset_id: UUID, names: list[str]) -> None:
    """The same results by POST /api/v2/datasets/{id}/experiment-runs, page by page."""
    projects = {project["name"]: project["id"] for project in (await server.client.get("/sessions")).json()}
    path = f"/api/v2/datasets/{dataset_id}/experiment-runs"
    asked = {"experiment_ids": [projects[n] for n in names]}
    body: dict[str, Any] = {**asked, "page_size": 2, "selects": ["NAME", "OUTPUTS", "PROJECT_ID"]}
    first = (await server.client.post(path, json=body)).json()
    rest = (await server.client.post(path, json={**body, "cursor": first["next_cursor"]})).json()
    assert (len(first["items"]), len(rest["items"]), rest["next_cursor"]) == (2, 1, None)

    items = [*first["items"], *rest["items"]]
    assert {item["inputs"]["n"]: [run["outputs"]["n"] for run in item["runs"]] for item in items} == {
        1: [2, 2],
        2: [4, 4],
        3: [6, 6],
    }

    assert {run["project_id"] for item in items for run in item["runs"]} == set(asked["experiment_ids"])
    wrong = {projects[names[0]]: ["and(eq(feedback_key, 'exact'), eq(feedback_score, 0))"]}
    one = {"experiment_ids": [projects[names[0]]], "filters": wrong}
    (found,) = (await server.client.post(path, json=one)).json()["items"]
    assert (found["inputs"], [list(run) for run in found["runs"]]) == ({"n": 3}, [["id"]])
    only = {**asked, "example_ids": [items[0]["id"]]}
    assert [item["id"] for item in (await server.client.post(path, json=only)).json()["items"]] == only["example_ids"]

    for refused, status in (
        ({"experiment_ids": []}, 422),
        ({**asked, "sort": {"by": "feedback.x"}}, 422),
        ({**asked, "cursor": "x"}, 400),
        ({**asked, "selects": ["NO_SUCH"]}, 422),
        ({**asked, "comparative_experiment_id": str(uuid4())}, 422),
    ):
        assert (await server.client.post(path, json=refused)).status_code == status

    assert (await server.client.post(path.replace(str(dataset_id), str(uuid4())), json=asked)).status_code == 404


@pytest.mark.filterwarnings("ignore::UserWarning")
async def test_evaluations_run_end_to_end(server: Hosted):
    client = open_client(server)

    def double(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"n": inputs["n"] * 2}

    def exact(outputs: dict[str, Any], reference_outputs: dict[str, Any]) -> bool:
        return outputs["n"] == reference_outputs["n"]

    def mean(outputs: list[dict[str, Any]], reference_outputs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"key": "share", "score": sum(map(exact, outputs, reference_outputs)) / len(outputs)}

    async def adouble(inputs: dict[str, Any]) -> dict[str, Any]:
        return double(inputs)

    def work() -> tuple[Any, Any, Any]:
        made = client.create_dataset("evaluated")
        client.create_examples(
            dataset_id=made.id,
            examples=[{"inputs": {"n": n}, "reference_outputs": {"n": out}} for n, out in ((1, 2), (2, 4), (3, 7))],
        )

        options = {"data": "evaluated", "evaluators": [exact], "client": client}
        first = evaluate(double, summary_evaluators=[mean], experiment_prefix="first", **options)
        second = asyncio.run(aevaluate(adouble, experiment_prefix="second", **options))
        rows = {row["example"].inputs["n"]: row["evaluation_results"]["results"][0].score for row in first}
        assert rows == {1: True, 2: True, 3: False}
        client.flush(timeout=300)

        again = evaluate(first.experiment_name, evaluators=[exact], client=client)
        assert len(list(again)) == 3
        return made, first.experiment_name, second.experiment_name

    dataset, first, second = await asyncio.to_thread(work)

    def read() -> None:
        project = client.read_project(project_name=first)
        assert project.reference_dataset_id == dataset.id
        assert client.read_dataset(dataset_id=dataset.id).session_count == 2
        assert {p.name for p in client.list_projects(reference_dataset_id=dataset.id)} == {first, second}
        results = client.get_experiment_results(name=first)
        rows = {e.inputs["n"]: [run.outputs for run in e.runs] for e in results["examples_with_runs"]}
        assert rows == {1: [{"n": 2}], 2: [{"n": 4}], 3: [{"n": 6}]}

        wrong = {project.id: ["and(eq(feedback_key, 'exact'), eq(feedback_score, 0))"]}
        results = client.get_experiment_results(name=first, filters=wrong)
        assert [e.inputs["n"] for e in results["examples_with_runs"]] == [3]

        compared = evaluate_comparative(
            (first, second),
            evaluators=[lambda runs, example: {"key": "better", "scores": {r.id: 1 for r in runs}}],
            client=client,
        )

        assert len(list(compared)) == 3

    await asyncio.to_thread(read)
    await check_newer_form(server, dataset.id, [first, second])
    named = {project["name"]: project["id"] for project in (await server.client.get("/sessions")).json()}
    newer = client.datasets.experiment_runs.query(
        str(dataset.id), experiment_ids=[named[first]], page_size=2, selects=["NAME"]
    )
    assert [[run.name for run in item.runs or []] async for item in newer] == [["Target"]] * 3

    comparisons = (await server.client.get(f"/datasets/{dataset.id}/comparative")).json()
    assert {info["name"] for info in comparisons[0]["experiments_info"]} == {first, second}
    assert (await server.client.delete(f"/datasets/comparative/{comparisons[0]['id']}")).status_code == 200
    assert (await server.client.get(f"/datasets/{dataset.id}/comparative")).json() == []


async def test_a_dataset_is_shared_by_a_link(server: Hosted):
    client = open_client(server)

    def work() -> tuple[Any, str]:
        made = client.create_dataset("shared", description="for all")
        client.create_examples(dataset_id=made.id, examples=[{"inputs": {"n": 1}, "reference_outputs": {"o": 2}}])
        with pytest.raises(LangSmithNotFoundError):
            client.read_dataset_shared_schema(made.id)

        token = str(client.share_dataset(made.id)["share_token"])
        assert str(client.share_dataset(made.id)["share_token"]) == token
        assert str(client.read_dataset_shared_schema(made.id)["share_token"]) == token
        stranger = Client(api_url=server.url, api_key="placeholder")
        assert stranger.read_shared_dataset(token).name == "shared"
        assert [e.inputs for e in stranger.list_shared_examples(token)] == [{"n": 1}]
        assert list(stranger.list_shared_projects(dataset_share_token=token)) == []

        copy = client.clone_public_dataset(token, dataset_name="copied")
        assert [e.outputs for e in client.list_examples(dataset_id=copy.id)] == [{"o": 2}]
        client.unshare_dataset(made.id)

        return made, token

    _, token = await asyncio.to_thread(work)
    for place in ("datasets", "examples", "datasets/sessions"):
        assert (await server.client.get(f"/public/{token}/{place}")).status_code == 404


async def test_a_link_shows_the_experiments_on_its_dataset_alone(server: Hosted):
    async def create(path: str, **body: Any) -> Any:
        response = await server.client.post(path, json=body)
        assert response.is_success, response.text
        return response.json()

    shared = (await create("/datasets", name="shown"))["id"]
    hidden = (await create("/datasets", name="hidden"))["id"]
    shown = await create("/sessions", name="on shown", reference_dataset_id=shared)
    other = await create("/sessions", name="on hidden", reference_dataset_id=hidden)
    token = (await server.client.put(f"/datasets/{shared}/share", json={})).json()["share_token"]

    async with httpx2.AsyncClient(base_url=server.url) as nobody:
        for query in ({}, {"reference_dataset": hidden}, {"reference_free": True}):
            listed = (await nobody.get(f"/public/{token}/datasets/sessions", params=query)).json()
            assert [project["id"] for project in listed] == [shown["id"]], query

        for query in ({"id": other["id"]}, {"name": "on hidden"}):
            assert (await nobody.get(f"/public/{token}/datasets/sessions", params=query)).json() == []

    comparison = {"reference_dataset_id": shared, "experiment_ids": [shown["id"], other["id"]]}
    refused = await server.client.post("/datasets/comparative", json=comparison)
    assert (refused.status_code, "is not an experiment on this dataset" in refused.text) == (422, True)


async def test_a_deleted_experiment_is_compared_with_no_other(server: Hosted):
    async def create(path: str, **body: Any) -> str:
        response = await server.client.post(path, json=body)
        assert response.is_success, response.text
        return response.json()["id"]

    dataset = await create("/datasets", name="compared")
    experiments = [await create("/sessions", name=name, reference_dataset_id=dataset) for name in ("kept", "deleted")]
    assert (await server.client.delete(f"/sessions/{experiments[1]}")).is_success

    comparison = {"reference_dataset_id": dataset, "experiment_ids": experiments}
    refused = await server.client.post("/datasets/comparative", json=comparison)
    assert (refused.status_code, f"{experiments[1]} is not an experiment" in refused.text) == (422, True)


async def test_another_workspace_cannot_see_or_change_datasets(server: Hosted):
    client = open_client(server)

    def work() -> tuple[Any, Any]:
        made = client.create_dataset("ours")
        return made, client.create_example({"n": 1}, dataset_id=made.id)

    dataset, example = await asyncio.to_thread(work)
    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Strangers"))}
    change = {"inputs": {"n": 2}, "dataset_id": str(dataset.id)}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        assert (await other.get("/datasets")).json() == []
        assert (await other.get("/examples", params={"dataset": str(dataset.id)})).json() == []
        assert (await other.get("/examples", params={"id": str(example.id)})).json() == []

        for method, path, body in (
            ("GET", f"/datasets/{dataset.id}", None),
            ("PATCH", f"/datasets/{dataset.id}", {"name": "theirs"}),
            ("DELETE", f"/datasets/{dataset.id}", None),
            ("PUT", f"/datasets/{dataset.id}/share", {}),
            ("GET", f"/datasets/{dataset.id}/csv", None),
            ("GET", f"/datasets/{dataset.id}/splits", None),
            ("GET", f"/datasets/{dataset.id}/versions", None),
            ("GET", f"/datasets/{dataset.id}/version?tag=latest", None),
            ("PUT", f"/datasets/{dataset.id}/tags", {"as_of": "latest", "tag": "x"}),
            ("POST", f"/datasets/{dataset.id}/runs", {"session_ids": [str(uuid4())]}),
            ("POST", "/examples", change),
            ("GET", f"/examples/{example.id}", None),
            ("GET", f"/examples/{example.id}?as_of=prod", None),
            ("PATCH", f"/examples/{example.id}", change),
            ("DELETE", f"/examples/{example.id}", None),
        ):
            response = await other.request(method, path, json=body)
            assert response.status_code == 404, (method, path, response.text)

        assert (await other.request("DELETE", f"/examples?example_ids={example.id}")).status_code == 200
        body = {"id": str(dataset.id), "name": "ours"}
        assert (await other.post("/datasets", json=body)).json()["example_count"] == 0

    assert (await server.client.get(f"/examples/{example.id}")).json()["inputs"] == {"n": 1}


async def test_datasets_of_two_workspaces_with_the_same_id_stay_apart(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "twin"})).json()["id"]
    example = {"dataset_id": dataset, "inputs": {"q": 1}, "split": "theirs"}
    assert (await server.client.post("/examples", json=example)).status_code == 200
    path = f"/datasets/{dataset}"
    await server.client.put(f"{path}/tags", json={"as_of": "latest", "tag": "prod"})
    token = (await server.client.put(f"{path}/share", json={})).json()["share_token"]

    headers = {"x-api-key": await server.new_key(workspace_id=await server.new_workspace("Twins"))}
    async with httpx2.AsyncClient(base_url=server.url, headers=headers) as other:
        made = (await other.post("/datasets", json={"name": "twin", "id": dataset})).json()
        assert (made["id"], made["example_count"]) == (dataset, 0)
        for place in ("versions", "splits", "comparative"):
            assert (await other.get(f"{path}/{place}")).json() == [], place

        assert (await other.get("/examples", params={"dataset": dataset})).json() == []
        assert (await other.get("/examples", params={"dataset": dataset, "as_of": "prod"})).status_code == 404
        assert [(await other.get(f"{path}/{form}")).text for form in ("csv", "jsonl")] == ["\r\n", ""]
        for missing in (f"{path}/share", f"{path}/version?tag=prod", f"{path}/version?tag=latest"):
            assert (await other.get(missing)).status_code == 404, missing

        own = {"dataset_id": dataset, "inputs": {"q": "mine"}}
        assert (await other.post("/examples", json=own)).status_code == 200
        assert (await other.get(f"{path}/splits")).json() == ["base"]
        (version,) = (await other.get(f"{path}/versions")).json()
        assert (version["tags"], version["number"]) == ([], 1)
        shown = (await other.get(f"/public/{token}/examples")).json()
        assert [one["inputs"] for one in shown] == [{"q": 1}]

        assert (await other.delete(f"{path}/share")).status_code == 204
        assert (await other.delete(path)).status_code == 200

    assert (await server.client.get(path)).json()["example_count"] == 1
    assert (await server.client.get(f"{path}/share")).json()["share_token"] == token
    (version,) = (await server.client.get(f"{path}/versions")).json()
    assert (version["tags"], version["number"]) == (["prod"], 1)


async def test_concurrent_writers_make_one_version_each(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "crowd"})).json()["id"]
    same = str(uuid4())
    bodies = [{"dataset_id": dataset, "inputs": {"n": n}} for n in range(8)]
    bodies += [{"dataset_id": dataset, "inputs": {"n": n}, "id": same} for n in range(3)]
    responses = await asyncio.gather(*(server.client.post("/examples", json=body) for body in bodies))
    assert sorted(response.status_code for response in responses) == [200] * 9 + [409] * 2
    moments = [version["as_of"] for version in (await server.client.get(f"/datasets/{dataset}/versions")).json()]
    assert (len(set(moments)), moments) == (9, sorted(moments, reverse=True))

    assert (await server.client.get(f"/datasets/{dataset}")).json()["example_count"] == 9


async def test_malformed_bodies_name_their_field_and_change_nothing(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "odd"})).json()["id"]
    address = f"/v1/platform/datasets/{dataset}/examples"
    one = str(uuid4())

    async def send(*parts: tuple[str, str]) -> tuple[int, str]:
        lines = "".join(
            f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n' for name, text in parts
        )
        headers = {"content-type": "multipart/form-data; boundary=b"}
        response = await server.client.post(address, content=f"{lines}--b--\r\n".encode(), headers=headers)

        return response.status_code, response.text

    for parts, expected in (
        ([(one, "{}")], "inputs"),
        ([(f"{one}.inputs", "{}")], "after the part"),
        ([(one, "{}"), (f"{one}.inputs", "[]")], "object"),
        ([(one, "{}"), (f"{one}.inputs", '{"a": "\\u0000"}')], "NUL"),
        ([(one, "{}"), (f"{one}.colour", "{}")], "colour"),
        ([("no id", "{}")], "UUID"),
        ([(one, '{"split": 5}'), (f"{one}.inputs", "{}")], "split"),
        ([(one, "{}"), (one, "{}")], "two"),
    ):
        status, text = await send(*parts)
        assert (status, expected in text) == (422, True), text

    heavy = {"dataset_id": dataset, "inputs": {}, "metadata": {"text": "x" * 300_000}}
    refused = await server.client.post("/examples", json=heavy)
    assert (refused.status_code, refused.json()["detail"][0]["loc"][-1]) == (422, "metadata")

    for body, field in (
        ({"name": ""}, "name"),
        ({"name": "x", "transformations": [{}]}, "transformations"),
        ({"name": "x", "data_type": "tables"}, "data_type"),
    ):
        response = await server.client.post("/datasets", json=body)
        assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body", field])

    assert (await server.client.get(f"/datasets/{dataset}")).json()["example_count"] == 0


async def test_previews_of_examples_are_short(server: Hosted):
    dataset = (await server.client.post("/datasets", json={"name": "previews"})).json()["id"]
    long = {"q": "x" * 10_000}
    await server.client.post("/examples", json={"dataset_id": dataset, "inputs": long, "outputs": {"a": 1}})
    select = {"dataset": dataset, "select": ["inputs_preview", "outputs_preview"], "exclude_default_fields": True}
    (found,) = (await server.client.get("/examples", params=select)).json()
    assert (len(found["inputs_preview"]), found["outputs_preview"], "inputs" in found) == (250, '{"a":1}', False)
    (whole,) = (await server.client.get("/examples", params={"dataset": dataset})).json()
    assert (whole["inputs"], "inputs_preview" in whole) == (long, False)
