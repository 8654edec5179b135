"""Crons by the stock Python SDK: created, found, changed, paused, deleted, and really fired."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4
from zoneinfo import ZoneInfo

import httpx2
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import APIStatusError

from tests.conftest import eventually
from tests.servers import ServerProcess, agent_server

EVERY_SECOND = "* * * * * *"
HI = {"messages": [{"role": "user", "content": "hi"}]}
NOBODY = "01a1fbd3-88f9-7738-8000-000000000000"


@pytest.fixture(scope="module")
def step_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steps") / "steps"


@pytest.fixture(scope="module")
def server(module_database: str, tmp_path_factory: pytest.TempPathFactory, step_log: Path) -> Iterator[ServerProcess]:
    with agent_server(module_database, tmp_path_factory.mktemp("agent"), STEP_LOG=str(step_log)) as running:
        yield running


@pytest.fixture
def tag() -> dict[str, str]:
    """Metadata that only this test's crons and threads have."""
    return {"tag": uuid4().hex}


def steps_done(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


def in_half_a_year() -> int:
    """Return a month in which no test runs: no scheduled time passes during the test."""
    return (datetime.now(UTC).month + 5) % 12 + 1


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


async def test_a_cron_has_the_documented_fields(client: LangGraphClient, tag: dict[str, str]):
    schedule = f"0 9 * {in_half_a_year()} MON-FRI"
    cron = await client.crons.create(
        "echo", schedule=schedule, input=HI, metadata=tag, config={"tags": ["a"]}, timezone="Europe/Berlin"
    )

    assert set(cron) == {
        "cron_id",
        "assistant_id",
        "thread_id",
        "user_id",
        "end_time",
        "schedule",
        "timezone",
        "payload",
        "next_run_date",
        "metadata",
        "on_run_completed",
        "enabled",
        "is_enabled",
        "created_at",
        "updated_at",
        "skipped_count",
    }

    assert cron["assistant_id"] == "046b5dc7-2108-582c-9c6c-31d556d138f0"
    assert (cron["thread_id"], cron["end_time"], cron["on_run_completed"]) == (None, None, "delete")
    assert (cron["enabled"], cron["is_enabled"], cron["metadata"]) == (True, True, tag)

    assert cron["payload"] == {
        "assistant_id": cron["assistant_id"],
        "schedule": schedule,
        "timezone": "Europe/Berlin",
        "input": HI,
        "metadata": tag,
        "config": {"tags": ["a"], "configurable": {"cron_id": cron["cron_id"]}},
    }

    following = instant(cron["next_run_date"])
    assert following.utcoffset() == timedelta(0)
    assert following.astimezone(ZoneInfo("Europe/Berlin")).strftime("%H:%M:%S") == "09:00:00"
    assert await client.http.get(f"/runs/crons/{cron['cron_id']}") == cron


async def test_preview_returns_the_next_times_of_a_schedule(client: LangGraphClient):
    asked = {"schedule": "0 9 * * *", "timezone": "Europe/Berlin"}
    times = await client.http.post("/runs/crons/preview", json=asked)
    assert times["timezone"] == "Europe/Berlin"
    found = [instant(each) for each in times["next_run_dates"]]
    assert len(found) == 5
    assert all(each.strftime("%H:%M:%S") == "09:00:00" for each in found)
    assert [(late - early).days for early, late in pairwise(each.replace(tzinfo=None) for each in found)] == [1] * 4

    end = (datetime.now(UTC) + timedelta(hours=49)).isoformat()
    times = await client.http.post("/runs/crons/preview", json={"schedule": "@daily", "end_time": end, "count": 20})
    assert len(times["next_run_dates"]) in {2, 3}

    with pytest.raises(APIStatusError) as refused:
        await client.http.post("/runs/crons/preview", json={"schedule": "bad"})

    assert refused.value.status_code == 422


async def test_cron_runs_now_and_keeps_its_schedule(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(
        thread_id, "echo", schedule=f"0 9 1 {in_half_a_year()} *", input=HI, context={"only": "known"}
    )
    path = f"/runs/crons/{cron['cron_id']}"

    await client.http.post(f"{path}/run", json={})

    async def is_over() -> bool:
        runs = await client.runs.list(thread_id)
        return [run["status"] for run in runs] == ["success"]

    await eventually(is_over)
    assert (await client.http.get(path))["next_run_date"] == cron["next_run_date"]
    await client.crons.update(cron["cron_id"], enabled=False)

    soon = datetime.now(UTC) + timedelta(hours=1)
    over = await client.crons.create("echo", schedule=f"0 9 1 {in_half_a_year()} *", end_time=soon)
    assert over["next_run_date"] is None

    for place, status in ((path, 409), (f"/runs/crons/{over['cron_id']}", 409), (f"/runs/crons/{NOBODY}", 404)):
        with pytest.raises(APIStatusError) as refused:
            await client.http.post(f"{place}/run", json={})
        assert refused.value.status_code == status


async def test_a_cron_on_a_thread(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(
        thread_id, "echo", schedule="@daily", input=HI, multitask_strategy="enqueue", enabled=False
    )
    assert (cron["thread_id"], cron["on_run_completed"], cron["enabled"]) == (thread_id, None, False)
    assert cron["payload"]["multitask_strategy"] == "enqueue"
    assert [c["cron_id"] for c in await client.crons.search(thread_id=thread_id)] == [cron["cron_id"]]

    with pytest.raises(APIStatusError) as refused:
        await client.crons.create_for_thread(NOBODY, "echo", schedule="@daily")

    assert refused.value.status_code == 404
    assert f"Thread with ID '{NOBODY}' not found. Please verify" in str(refused.value.body)
    await client.threads.delete(thread_id)
    assert await client.crons.count(thread_id=thread_id) == 0


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"schedule": None}, 422, "schedule"),
        ({"assistant_id": None}, 422, "assistant_id"),
        ({"schedule": "bad"}, 422, "Invalid cron schedule: 'bad'. Reason: "),
        ({"schedule": ""}, 422, "Invalid cron schedule: ''. Reason: "),
        ({"schedule": "0 0 30 2 *"}, 422, "Invalid cron schedule"),
        ({"schedule": 5}, 422, "schedule"),
        ({"timezone": "Mars/Olympus"}, 422, "timezone"),
        ({"end_time": "2001-01-01T00:00:00+00:00"}, 422, "end_time"),
        ({"end_time": "soon"}, 422, "end_time"),
        ({"end_time": "9999-12-31T23:59:59-23:00"}, 422, "end_time"),
        ({"on_run_completed": "explode"}, 422, "on_run_completed"),
        ({"durability": "maybe"}, 422, "durability"),
        ({"stream_mode": ["nothing"]}, 422, "stream_mode"),
        ({"enabled": "yes"}, 422, "is_enabled"),
        ({"webhook": "http://127.0.0.1/"}, 422, "webhook"),
        ({"assistant_id": "nothing"}, 422, "Invalid assistant: 'nothing'"),
        ({"assistant_id": NOBODY}, 404, "Thread or assistant not found."),
        ({"context": {"a": 1}, "config": {"configurable": {"b": 2}}}, 400, "Cannot specify both"),
    ],
)
async def test_refused_cron_stores_nothing(server: ServerProcess, client: LangGraphClient, body, status, says):
    before = await client.crons.count()
    sent = {"assistant_id": "echo", "schedule": "@daily", **body}
    async with httpx2.AsyncClient(base_url=server.url) as http:
        response = await http.post(
            "/runs/crons", json={name: value for name, value in sent.items() if value is not None}
        )

    assert (response.status_code, says in response.text) == (status, True), response.text
    assert await client.crons.count() == before


async def test_invalid_and_unknown_cron_ids(server: ServerProcess):
    async with httpx2.AsyncClient(base_url=server.url) as http:
        for response, status, says in (
            (await http.get("/runs/crons/abc"), 422, "Invalid cron ID: must be a UUID"),
            (await http.get(f"/runs/crons/{NOBODY}"), 404, "Not Found"),
            (await http.delete(f"/runs/crons/{NOBODY}"), 404, "Not Found"),
            (await http.patch(f"/runs/crons/{NOBODY}", json={"schedule": "@daily"}), 404, f"Cron '{NOBODY}' not found"),
            (await http.patch(f"/runs/crons/{NOBODY}", json={}), 400, "Request body cannot be empty"),
            (await http.post("/runs/crons/search", json={"assistant_id": "echo"}), 422, "assistant_id"),
            (await http.post("/runs/crons/search", json={"select": ["nothing"]}), 422, "select"),
            (await http.post("/runs/crons/search", json={"sort_by": "payload"}), 422, "sort_by"),
            (await http.post("/runs/crons/search", json={"limit": 0}), 422, "limit"),
        ):
            assert (response.status_code, says in response.text) == (status, True), response.text


async def test_crons_are_found_sorted_and_counted(server: ServerProcess, client: LangGraphClient, tag: dict[str, str]):
    month = in_half_a_year()
    made = [
        await client.crons.create(
            "echo" if number else "approval",
            schedule=f"{number} 0 1 {month} *",
            metadata={**tag, "number": number},
            enabled=bool(number),
            end_time=datetime(2095 - number, 1, 1, tzinfo=UTC) if number > 1 else None,
        )
        for number in range(4)
    ]

    ids = [cron["cron_id"] for cron in made]
    search = client.crons.search
    crons = client.crons

    def found(page) -> list[int]:
        return [ids.index(cron["cron_id"]) for cron in page]

    assert found(await search(metadata=tag)) == [3, 2, 1, 0]
    assert found(await search(metadata=tag, sort_order="asc")) == [0, 1, 2, 3]
    assert found(await search(metadata=tag, sort_by="next_run_date", sort_order="asc", limit=2, offset=1)) == [1, 2]
    assert found(await search(metadata=tag, sort_by="end_time")) == [2, 3, 1, 0]
    assert found(await search(metadata=tag, sort_by="end_time", sort_order="asc")) == [3, 2, 0, 1]
    assert found(await search(metadata=tag, sort_by="assistant_id"))[:1] in ([0], [3])
    assert found(await search(metadata=tag, sort_by="cron_id", sort_order="asc")) == [0, 1, 2, 3]

    assert found(await search(metadata=tag, sort_by="updated_at")) == [3, 2, 1, 0]
    assert found(await search(metadata=tag, sort_by="thread_id", sort_order="asc")) == [0, 1, 2, 3]
    assert found(await search(metadata=tag, enabled=False)) == [0]
    assert found(await search(metadata=tag, enabled=True, assistant_id=made[1]["assistant_id"])) == [3, 2, 1]
    assert found(await search(metadata={**tag, "number": 2})) == [2]
    assert await crons.count(metadata=tag) == 4
    assert await crons.count(metadata=tag, assistant_id=made[0]["assistant_id"]) == 1

    assert await search(metadata=tag, select=["schedule", "enabled"], limit=1) == [
        {"schedule": f"3 0 1 {month} *", "enabled": True}
    ]

    async with httpx2.AsyncClient(base_url=server.url) as http:
        page = await http.post("/runs/crons/search", json={"metadata": tag, "limit": 3, "offset": None})
        assert (page.headers["x-pagination-total"], page.headers["x-pagination-next"]) == ("4", "3")
        past = await http.post("/runs/crons/search", json={"metadata": tag, "is_enabled": True, "offset": 9})

        assert (past.json(), past.headers["x-pagination-total"], "x-pagination-next" in past.headers) == (
            [],
            "3",
            False,
        )

        counted = await http.post("/runs/crons/count", json={"metadata": tag, "is_enabled": False})
        assert counted.json() == 1


async def test_a_cron_is_changed(client: LangGraphClient, tag: dict[str, str]):
    cron = await client.crons.create(
        "echo",
        schedule=f"0 0 1 {in_half_a_year()} *",
        input={"a": 1},
        metadata=tag,
        context={"user": "me"},
        config={"tags": ["a"]},
    )
    cron_id = cron["cron_id"]
    end = datetime(2090, 1, 1, tzinfo=UTC)

    metadata_only = await client.crons.update(cron_id, metadata={"more": True})
    assert metadata_only["metadata"] == {**tag, "more": True}
    assert metadata_only["payload"]["metadata"] == {"more": True}
    assert metadata_only["next_run_date"] == cron["next_run_date"]
    assert metadata_only["updated_at"] > cron["updated_at"]
    assert metadata_only["created_at"] == cron["created_at"]

    in_tokyo = await client.crons.update(cron_id, timezone="Asia/Tokyo")
    assert instant(in_tokyo["next_run_date"]).astimezone(ZoneInfo("Asia/Tokyo")).hour == 0

    at_noon = f"0 12 * {in_half_a_year()} *"
    changed = await client.crons.update(
        cron_id,
        schedule=at_noon,
        timezone="America/New_York",
        input={"b": 2},
        end_time=end,
        on_run_completed="keep",
    )

    assert instant(changed["next_run_date"]).astimezone(ZoneInfo("America/New_York")).hour == 12
    assert (changed["end_time"], changed["on_run_completed"]) == (end.isoformat(), "keep")
    assert (changed["payload"]["input"], changed["payload"]["schedule"]) == ({"b": 2}, at_noon)
    assert changed["payload"]["config"] == {"tags": ["a"], "configurable": {"cron_id": cron_id}}

    cleared = await client.crons.update(cron_id, end_time=None)
    assert cleared["end_time"] is None
    assert "end_time" not in cleared["payload"]

    paused = await client.crons.update(cron_id, enabled=False)
    assert (paused["enabled"], paused["is_enabled"], paused["payload"]["enabled"]) == (False, False, False)
    assert (await client.http.patch(f"/runs/crons/{cron_id}", json={"is_enabled": True}))["enabled"] is True

    for patch, status in (
        ({"schedule": "bad"}, 422),
        ({"schedule": ""}, 422),
        ({"timezone": ""}, 422),
        ({"multitask_strategy": "reject"}, 422),
        ({"end_time": "2001-01-01"}, 422),
        ({"webhook": "http://10.0.0.1/"}, 422),
        ({"assistant_id": "nothing"}, 422),
        ({"config": {"configurable": {"a": 1}}}, 400),
        ({"schedule": None}, 400),
        ({"unknown": 1}, 400),
    ):
        with pytest.raises(APIStatusError) as refused:
            await client.http.patch(f"/runs/crons/{cron_id}", json=patch)
        assert refused.value.status_code == status, patch

    moved = await client.http.patch(f"/runs/crons/{cron_id}", json={"assistant_id": "approval"})
    assert moved["assistant_id"] == moved["payload"]["assistant_id"] != cron["assistant_id"]
    assert (await client.http.get(f"/runs/crons/{cron_id}")) == moved

    await client.crons.delete(cron_id)
    with pytest.raises(APIStatusError) as gone:
        await client.crons.delete(cron_id)

    assert gone.value.status_code == 404


async def test_thread_cron_does_not_delete_its_thread(client: LangGraphClient):
    thread_id = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(thread_id, "echo", schedule="@yearly")
    with pytest.raises(APIStatusError) as refused:
        await client.crons.update(cron["cron_id"], on_run_completed="delete")

    assert refused.value.status_code == 422


async def test_deleting_an_assistant_deletes_its_crons(client: LangGraphClient):
    assistant = await client.assistants.create("echo")
    await client.crons.create(assistant["assistant_id"], schedule="@yearly")
    assert await client.crons.count(assistant_id=assistant["assistant_id"]) == 1
    await client.assistants.delete(assistant["assistant_id"])
    assert await client.crons.count(assistant_id=assistant["assistant_id"]) == 0


async def test_a_stateless_cron_fires_and_its_threads_are_kept(client: LangGraphClient, tag: dict[str, str]):
    created_s = int(time.time())
    cron = await client.crons.create(
        "echo", schedule=EVERY_SECOND, input=HI, metadata=tag, on_run_completed="keep", context={"user": "me"}
    )

    async def two_are_over() -> list:
        threads = await client.threads.search(metadata=tag, status="idle")
        return threads if len(threads) >= 2 else []

    thread = (await eventually(two_are_over))[0]
    assert thread["metadata"] == {**tag, "graph_id": "echo", "assistant_id": cron["assistant_id"]}
    assert [message["content"] for message in thread["values"]["messages"]] == ["hi", "echo: hi"]
    [run] = await client.runs.list(thread["thread_id"])
    assert run["metadata"].items() >= tag.items()
    configurable = run["kwargs"]["config"]["configurable"]
    assert configurable["cron_id"] == cron["cron_id"]

    assert configurable["user"] == run["kwargs"]["context"]["user"] == "me"
    assert configurable["langgraph_auth_user"] == {"identity": "", "is_authenticated": True, "display_name": ""}
    assert configurable["langgraph_request_id"] is None
    before = cron
    after = await client.http.get(f"/runs/crons/{cron['cron_id']}")
    assert instant(after["next_run_date"]) > instant(before["next_run_date"])
    assert after["updated_at"] == before["updated_at"]

    await client.crons.delete(cron["cron_id"])
    # At most one run for each full second in between.
    assert len(await client.threads.search(metadata=tag, limit=1000)) <= int(time.time()) - created_s


async def test_a_stateless_cron_fires_and_its_threads_go(client: LangGraphClient, tag: dict[str, str], step_log: Path):
    cron = await client.crons.create("steps", schedule=EVERY_SECOND, input={"done": []}, metadata=tag)

    async def has_fired() -> bool:
        return steps_done(step_log).count("three") >= 2

    await eventually(has_fired)
    await client.crons.delete(cron["cron_id"])

    async def nothing_is_left() -> bool:
        return not await client.threads.search(metadata=tag)

    await eventually(nothing_is_left)


async def test_a_cron_fires_on_its_thread(client: LangGraphClient, tag: dict[str, str]):
    thread_id = (await client.threads.create())["thread_id"]
    cron = await client.crons.create_for_thread(thread_id, "echo", schedule=EVERY_SECOND, input=HI, metadata=tag)

    async def has_run_twice() -> bool:
        return len(await client.runs.list(thread_id, status="success")) >= 2

    await eventually(has_run_twice)
    paused = await client.crons.update(cron["cron_id"], enabled=False)

    # Another cron shows that the scheduler goes on while this one is paused.
    other = (await client.threads.create())["thread_id"]
    ticking = await client.crons.create_for_thread(other, "echo", schedule=EVERY_SECOND, input=HI)

    async def other_has_run(times: int) -> bool:
        return len(await client.runs.list(other, limit=100)) >= times

    # A run that was being started during the update is there once the scheduler has started others.
    await eventually(lambda: other_has_run(2))
    runs = await client.runs.list(thread_id, limit=100)
    assert {run["metadata"]["tag"] for run in runs} == {tag["tag"]}
    assert {run["kwargs"]["config"]["configurable"]["cron_id"] for run in runs} == {cron["cron_id"]}
    assert "tag" not in (await client.threads.get(thread_id))["metadata"]
    await eventually(lambda: other_has_run(4))
    await client.crons.delete(ticking["cron_id"])

    assert len(await client.runs.list(thread_id, limit=100)) == len(runs)
    resumed = await client.crons.update(cron["cron_id"], enabled=True)
    assert instant(resumed["next_run_date"]) > instant(paused["next_run_date"])
    await client.crons.delete(cron["cron_id"])


async def test_a_busy_thread_skips_a_cron_that_rejects(client: LangGraphClient, tag: dict[str, str]):
    thread_id = (await client.threads.create())["thread_id"]
    busy = await client.runs.create(thread_id, "steps", input={"done": [], "pause_s": 600})
    cron = await client.crons.create_for_thread(
        thread_id, "echo", schedule=EVERY_SECOND, input=HI, multitask_strategy="reject"
    )

    async def has_moved_on() -> bool:
        now = await client.http.get(f"/runs/crons/{cron['cron_id']}")
        return now["next_run_date"] > cron["next_run_date"]

    await eventually(has_moved_on)
    assert len(await client.runs.list(thread_id)) == 1
    await client.crons.delete(cron["cron_id"])
    await client.runs.cancel(thread_id, busy["run_id"], wait=True)
