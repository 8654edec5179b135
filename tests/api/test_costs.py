"""Costs of runs are computed when a run is stored, by the price of its model that was valid then; none counts twice."""

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tracers.langchain import LangChainTracer
from langsmith import Client

from portside.kernel.errors import UserMistake
from portside.tracing import rollups
from portside.tracing.costs import RecomputedCosts
from portside.tracing.prices import read_prices, sync_prices
from portside.tracing.retention import TracesToDelete, delete_traces
from portside.tracing.rollups import DailyRollups
from portside.usage import limits
from tests.api.hosted import Hosted, in_new_workspace

NOW = datetime.now(UTC)
PRICE = {"name": "mine", "match_pattern": "mine-1", "prompt_cost": 0.000002, "completion_cost": "0.00001"}


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared_hosted: Hosted) -> AsyncIterator[Hosted]:
    async with in_new_workspace(shared_hosted) as running:
        yield running


def model_run(
    usage: dict[str, Any] | None, model: str | None = "gpt-4o", provider: str = "openai", **more: Any
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"ls_provider": provider}
    if model:
        metadata["ls_model_name"] = model

    if usage:
        metadata["usage_metadata"] = usage

    metadata.update(more.pop("metadata", {}))
    run = {
        "id": str(uuid4()),
        "name": "model",
        "run_type": "llm",
        "session_name": "p",
        "start_time": (NOW - timedelta(minutes=5)).isoformat(),
        "end_time": NOW.isoformat(),
        "inputs": {},
        "outputs": {},
        "extra": {"metadata": metadata},
    }

    return {**run, **more}


async def store(server: Hosted, *runs: dict[str, Any]) -> None:
    (await server.client.post("/runs/batch", json={"post": list(runs)})).raise_for_status()


async def read_run(server: Hosted, run: dict[str, Any]) -> dict[str, Any]:
    answer = await server.client.get(f"/runs/{run['id']}")
    answer.raise_for_status()
    return answer.json()


async def ask(server: Hosted, method: str, path: str, body: Any = None, status: int = 200, **params: Any) -> Any:
    answer = await server.client.request(method, path, json=body, params=params)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def usage(
    given: int, made: int, given_details: dict[str, int] | None = None, made_details: dict[str, int] | None = None
) -> dict[str, Any]:
    return {
        "input_tokens": given,
        "output_tokens": made,
        "total_tokens": given + made,
        "input_token_details": given_details or {},
        "output_token_details": made_details or {},
    }


@pytest.mark.filterwarnings("ignore:.*is deprecated")
async def test_the_sdk_reads_costs_of_a_chain_and_its_model(server: Hosted) -> None:
    answer = AIMessage("hello", usage_metadata=usage(1000, 200, {"cache_read": 600}))  # type: ignore[arg-type]
    model = GenericFakeChatModel(messages=iter([answer]), metadata={"ls_provider": "openai", "ls_model_name": "gpt-4o"})
    client = Client(api_url=server.url, api_key=server.key)

    def trace() -> None:
        chain = RunnableLambda(lambda text: text) | model
        chain.invoke("hi", {"callbacks": [LangChainTracer(project_name="p", client=client)]})
        client.flush(timeout=300)

    await asyncio.to_thread(trace)
    runs = {run.run_type: run for run in await asyncio.to_thread(lambda: list(client.list_runs(project_name="p")))}
    made = runs["llm"]
    root = next(run for run in runs.values() if run.parent_run_id is None)

    assert (made.prompt_cost, made.completion_cost, made.total_cost) == (
        Decimal("0.00175"),
        Decimal("0.002"),
        Decimal("0.00375"),
    )

    made = await asyncio.to_thread(client.read_run, made.id)
    assert made.prompt_cost_details == {"cache_read": Decimal("0.00075")}
    assert (root.run_type, root.total_tokens, root.total_cost) == ("chain", 1200, Decimal("0.00375"))
    project = await asyncio.to_thread(client.read_project, project_name="p", include_stats=True)
    assert (project.total_tokens, project.total_cost) == (1200, Decimal("0.00375"))


@pytest.mark.parametrize(
    ("model", "tokens", "cost"),
    [
        ("gpt-4o-2024-08-06", usage(1_000_000, 0), "2.5"),
        ("gpt-4o-2024-05-13", usage(1_000_000, 0), "5"),
        ("gpt-4o-mini", usage(0, 1_000_000), "0.6"),
        ("models/gemini-2.5-pro", usage(100_000, 0), "0.125"),
        # The price of long prompts begins above its threshold.
        ("gemini-2.5-pro", usage(200_000, 0), "0.25"),
        ("gemini-2.5-pro", usage(200_001, 0), "0.5000025"),
        ("gemini-2.5-pro-preview-05-06", usage(300_000, 10_000), "0.9"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", usage(10_000, 0, {"cache_creation": 4_000}), "0.033"),
        ("anthropic/claude-haiku-4.5", usage(10_000, 0, {"ephemeral_1h_input_tokens": 10_000}), "0.02"),
        ("o3-mini", usage(0, 1_000_000, {}, {"reasoning": 900_000}), "4.4"),
        ("gpt-4o-audio-preview", usage(1_000_000, 0, {"audio": 500_000}), "21.25"),
        ("gpt-4o", usage(10, 0, {"cache_read": 1_000_000}), "0.0000125"),
    ],
)
async def test_models_have_the_price_of_their_version(
    server: Hosted, model: str, tokens: dict[str, Any], cost: str
) -> None:
    run = model_run(tokens, model)
    await store(server, run)
    assert (await read_run(server, run))["total_cost"] == cost


async def test_costs_are_null_without_price_usage_or_model(server: Hosted) -> None:
    runs = [
        model_run(usage(5, 5), "unheard-of"),
        model_run(None),
        model_run(usage(5, 5), None),
        model_run(usage(5, 5), "deepseek-chat", "ollama"),
    ]

    chain = model_run(usage(5, 5), run_type="chain")
    await store(server, *runs, chain)

    for run in (*runs, chain):
        assert (await read_run(server, run))["total_cost"] is None


async def test_costs_of_the_client_win(server: Hosted) -> None:
    given = {**usage(5, 5), "input_cost": 0.5, "output_cost": 1, "input_cost_details": {"cache_read": 0.25}}
    run = model_run(given)
    await store(server, run)
    found = await read_run(server, run)
    assert (found["prompt_cost"], found["completion_cost"], found["total_cost"]) == ("0.5", "1", "1.5")
    assert found["prompt_cost_details"] == {"cache_read": "0.25"}


@pytest.mark.parametrize(
    ("reported", "costs"),
    [
        ({"input_cost": 0.5}, ("0.5", None, "0.5")),
        ({"output_cost": 1}, (None, "1", "1")),
        ({"total_cost": 2}, (None, None, "2")),
    ],
)
async def test_a_cost_that_the_client_reports_alone_is_the_total(
    server: Hosted, reported: dict[str, Any], costs: tuple[str | None, ...]
) -> None:
    run = model_run({**usage(1_000_000, 5), **reported})
    await store(server, run)
    found = await read_run(server, run)
    assert (found["prompt_cost"], found["completion_cost"], found["total_cost"]) == costs


@pytest.mark.parametrize("is_reversed", [False, True])
async def test_the_usage_may_come_with_a_later_request(server: Hosted, *, is_reversed: bool) -> None:
    run = model_run(None)
    later = {"outputs": {"usage_metadata": usage(1_000_000, 0)}, "end_time": NOW.isoformat()}

    requests = [("POST", "/runs", run), ("PATCH", f"/runs/{run['id']}", later)]
    for method, path, body in reversed(requests) if is_reversed else requests:
        await ask(server, method, path, body, 202)

    assert (await read_run(server, run))["total_cost"] == "2.5"
    await ask(
        server,
        "PATCH",
        f"/runs/{run['id']}",
        {"outputs": {"usage_metadata": usage(2_000_000, 0)}, "end_time": (NOW + timedelta(seconds=1)).isoformat()},
        202,
    )

    assert (await read_run(server, run))["total_cost"] == "5"


async def test_copied_batches_have_costs(server: Hosted) -> None:
    stamp = NOW.strftime("%Y%m%dT%H%M%S000000Z")
    runs = [model_run(usage(1_000_000, 0)) for _ in range(60)]
    await store(server, *({**run, "trace_id": run["id"], "dotted_order": stamp + run["id"]} for run in runs))
    found = await ask(server, "POST", "/runs/stats", {})
    assert (found["run_count"], found["total_cost"], found["total_tokens"]) == (60, "150.0", 60_000_000)


async def test_statistics_are_grouped_by_model_node_thread_and_user(server: Hosted) -> None:
    places = {"langgraph_node": "agent", "thread_id": "t1", "langgraph_auth_user_id": "ada"}
    await store(server, model_run(usage(1_000_000, 0), metadata=places), model_run(usage(1_000_000, 0), "gpt-4o-mini"))

    for attribute, group in (("model", "gpt-4o"), ("node", "agent"), ("thread", "t1"), ("user", "ada")):
        found = await ask(
            server, "POST", "/runs/stats", {"group_by": {"attribute": attribute}, "select": ["total_cost"]}
        )
        assert Decimal(found[group]["total_cost"]) == Decimal("2.5"), attribute

    series = {"metric": "total_cost", "group_by": {"attribute": "model"}}
    bounds = {"start_time": (NOW - timedelta(hours=1)).isoformat(), "stride": {"days": 1}}
    data = (await ask(server, "POST", "/charts/preview", {"bucket_info": bounds, "chart": {"series": [series]}}))[
        "data"
    ]

    assert {(point["group"], point["value"]) for point in data if point["value"]} == {
        ("gpt-4o", 2.5),
        ("gpt-4o-mini", 0.15),
    }


async def test_prices_of_a_workspace_are_set_changed_and_removed(server: Hosted) -> None:
    path = "/api/v1/model-price-map"
    created = await ask(server, "POST", path, {**PRICE, "provider": ""})
    assert (created["tenant_id"], created["source"]) == (str(server.actor.workspace_id), "workspace")
    assert created["provider"] is None, "of any provider"
    assert (created["prompt_cost"], created["completion_cost"]) == ("0.000002", "0.00001")
    await ask(server, "POST", path, PRICE, 409)

    run = model_run(usage(1_000_000, 0), "mine-1")
    await store(server, run)
    assert (await read_run(server, run))["total_cost"] == "2"
    changed = await ask(server, "PUT", f"{path}/{created['id']}", {**PRICE, "prompt_cost": 0.000003})
    assert changed["prompt_cost"] == "0.000003"
    second = model_run(usage(1_000_000, 0), "mine-1")

    await store(server, second)
    assert (await read_run(server, second))["total_cost"] == "3"
    assert (await read_run(server, run))["total_cost"] == "2", "the past stays until it is computed again"
    answer = await server.client.get(path, params={"q": "mine"})
    assert ([each["name"] for each in answer.json()], answer.headers["x-pagination-total"]) == (["mine"], "1")
    answer = await server.client.get(path, params={"q": "mine", "offset": 5})
    assert (answer.json(), answer.headers["x-pagination-total"]) == ([], "1"), "behind the end"
    await ask(server, "DELETE", f"{path}/{created['id']}", None, 204)
    await ask(server, "DELETE", f"{path}/{created['id']}", None, 404)

    shipped = (await ask(server, "GET", path, q="gpt-4o"))[0]
    assert (shipped["tenant_id"], shipped["source"]) == (None, "shipped")
    await ask(server, "DELETE", f"{path}/{shipped['id']}", None, 404)
    await ask(server, "PUT", f"{path}/{shipped['id']}", PRICE, 404)


async def test_a_price_begins_on_its_day_and_wins_over_the_shipped_one(server: Hosted) -> None:
    await ask(
        server,
        "POST",
        "/model-price-map",
        {**PRICE, "match_pattern": "gpt-4o", "start_time": (NOW - timedelta(days=2)).isoformat()},
    )

    runs = [model_run(usage(1_000_000, 0), start_time=(NOW - timedelta(days=days)).isoformat()) for days in (1, 3)]
    await store(server, *runs)
    assert [(await read_run(server, run))["total_cost"] for run in runs] == ["2", "2.5"]


async def test_a_price_for_the_provider_wins_over_one_for_all(server: Hosted) -> None:
    # Of prices for the same providers the one with the longer pattern would win.
    for_all = {**PRICE, "match_pattern": "mine-1|mine-1-large", "prompt_cost": 0.000003}
    for body in (for_all, {**PRICE, "provider": "openai"}):
        await ask(server, "POST", "/model-price-map", body)

    runs = [model_run(usage(1_000_000, 0), "mine-1", provider) for provider in ("openai", "azure")]
    await store(server, *runs)
    assert [(await read_run(server, run))["total_cost"] for run in runs] == ["2", "3"]


@pytest.mark.parametrize(
    "change",
    [
        {"match_pattern": "("},
        {"match_pattern": r"(a)\1"},
        {"prompt_cost": -1},
        {"prompt_cost": "NaN"},
        {"completion_cost": 2},
        {"prompt_cost_details": {"cache_read": "-0.1"}},
        {"match_path": ["model"]},
        {"match_pattern": ""},
    ],
)
async def test_invalid_prices_are_refused(server: Hosted, change: dict[str, Any]) -> None:
    await ask(server, "POST", "/model-price-map", {**PRICE, **change}, 422)


async def test_prices_belong_to_a_workspace_and_its_admins(server: Hosted) -> None:
    created = await ask(server, "POST", "/model-price-map", PRICE)
    other = await server.new_key("*", workspace_id=await server.new_workspace("Other"))
    reader = await server.new_key("projects:read", "runs:read")
    for key, method, path, status in (
        (other, "DELETE", f"/model-price-map/{created['id']}", 404),
        (reader, "DELETE", f"/model-price-map/{created['id']}", 403),
        (reader, "POST", "/model-price-map/recomputations", 403),
        (reader, "GET", "/model-price-map/models", 200),
    ):
        answer = await server.client.request(method, path, headers={"x-api-key": key})
        assert answer.status_code == status, (method, path)

    answer = await server.client.get("/model-price-map", params={"q": "mine"}, headers={"x-api-key": other})
    assert answer.json() == []

    await store(server, model_run(usage(5, 5), "of-this-workspace"))
    theirs = model_run(usage(1_000_000, 0), "mine-1")
    (await server.client.post("/runs", json=theirs, headers={"x-api-key": other})).raise_for_status()
    answer = await server.client.get(f"/runs/{theirs['id']}", headers={"x-api-key": other})
    assert (answer.json()["total_tokens"], answer.json()["total_cost"]) == (1_000_000, None)
    answer = await server.client.get("/model-price-map/models", headers={"x-api-key": other})
    assert [(each["name"], each["price_name"]) for each in answer.json()] == [("mine-1", None)]


async def finish(server: Hosted, task: RecomputedCosts) -> None:
    while (await task.activate()).again:
        pass


async def test_costs_are_computed_again_in_batches(own_server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [model_run(usage(1_000_000, 0), "mine-1") for _ in range(5)]
    elsewhere = model_run(usage(1_000_000, 0), "mine-1", session_name="q")
    await store(own_server, *runs, elsewhere, model_run(usage(1, 1)))
    models = await ask(own_server, "GET", "/model-price-map/models")

    assert [(each["name"], each["unpriced_runs"], each["price_id"] is None) for each in models] == [
        ("mine-1", 6, True),
        ("gpt-4o", 0, False),
    ]

    await ask(own_server, "POST", "/model-price-map", PRICE)
    project = (await ask(own_server, "GET", "/sessions", name="p"))[0]["id"]
    work = await ask(own_server, "POST", "/model-price-map/recomputations", {"session_id": project}, 202)
    monkeypatch.setattr(RecomputedCosts, "batch", 4)

    task = RecomputedCosts(own_server.db)
    await task.activate()
    path = f"/model-price-map/recomputations/{work['id']}"
    partly = await ask(own_server, "GET", path)
    assert (partly["runs"], partly["finished_at"]) == (4, None)

    # Another process goes on where this one stopped.
    await finish(own_server, RecomputedCosts(own_server.db))
    done = await ask(own_server, "GET", path)
    assert (done["runs"], done["changed"], done["progress"]) == (6, 5, 1.0)
    assert [(await read_run(own_server, run))["total_cost"] for run in runs] == ["2"] * 5
    assert (await read_run(own_server, elsewhere))["total_cost"] is None
    await ask(own_server, "DELETE", path, None, 404)

    models = await ask(own_server, "GET", "/model-price-map/models")
    assert {each["name"]: each["price_name"] for each in models} == {"mine-1": "mine", "gpt-4o": "GPT-4o"}


async def test_a_recomputation_can_be_cancelled(own_server: Hosted) -> None:
    run = model_run(usage(1_000_000, 0), "mine-1")
    await store(own_server, run)
    await ask(own_server, "POST", "/model-price-map", PRICE)
    work = await ask(own_server, "POST", "/model-price-map/recomputations", {}, 202)

    await ask(own_server, "DELETE", f"/model-price-map/recomputations/{work['id']}", None, 204)
    await finish(own_server, RecomputedCosts(own_server.db))
    assert (await ask(own_server, "GET", "/model-price-map/recomputations"))[0]["cancelled_at"] is not None
    assert (await read_run(own_server, run))["total_cost"] is None


async def test_long_recomputation_does_not_delay_others(own_server: Hosted) -> None:
    for _ in range(3):
        await store(own_server, model_run(usage(1_000_000, 0), "mine-1"))

    await ask(own_server, "POST", "/model-price-map", PRICE)
    works = [await ask(own_server, "POST", "/model-price-map/recomputations", {}, 202) for _ in range(3)]
    task = RecomputedCosts(own_server.db)
    task.batch = 1

    for done in ([1, 1, 1], [2, 2, 2]):
        for _ in works:
            await task.activate()

        found = [await ask(own_server, "GET", f"/model-price-map/recomputations/{work['id']}") for work in works]
        assert [each["runs"] for each in found] == done


async def test_a_recomputation_that_fails_pauses_and_others_go_on(own_server: Hosted) -> None:
    run = model_run(usage(1_000_000, 0), "mine-1")
    theirs = model_run(usage(1_000_000, 0), "mine-1")
    await store(own_server, run)

    await own_server.db.pool.execute(f"""
        create function refuse_costs() returns trigger language plpgsql as $$
        begin
            raise exception 'no costs of this run';
        end $$;
        create trigger refuse_costs before update of total_cost on runs for each row
        when (new.id = '{run["id"]}') execute function refuse_costs();
    """)

    await ask(own_server, "POST", "/model-price-map", PRICE)
    failing = await ask(own_server, "POST", "/model-price-map/recomputations", {}, 202)

    other = {"x-api-key": await own_server.new_key("*", workspace_id=await own_server.new_workspace("Others"))}
    for path, body in (("/runs", theirs), ("/model-price-map", PRICE), ("/model-price-map/recomputations", {})):
        (await own_server.client.post(path, json=body, headers=other)).raise_for_status()

    task = RecomputedCosts(own_server.db)
    task.first_pause_s = 600.0
    task.longest_pause_s = 1500.0
    assert [(await task.activate()).did for _ in range(3)] == [{"failed": 1}, {"runs": 1, "changed": 1}, {}]
    (done,) = (await own_server.client.get("/model-price-map/recomputations", headers=other)).json()
    assert (done["finished_at"] is None, done["error"], done["retry_at"]) == (False, None, None)

    path = f"/model-price-map/recomputations/{failing['id']}"
    for pause_s in (600, 1200, 1500):
        waiting = await ask(own_server, "GET", path)
        assert (waiting["error"], waiting["finished_at"]) == ("no costs of this run", None)
        left_s = (datetime.fromisoformat(waiting["retry_at"]) - datetime.now(UTC)).total_seconds()
        assert pause_s / 2 < left_s <= pause_s
        await own_server.db.pool.execute("update cost_recomputations set retry_at = now()")
        await task.activate()

    await own_server.db.pool.execute(
        "drop function refuse_costs cascade; update cost_recomputations set retry_at = now()"
    )
    await finish(own_server, task)
    done = await ask(own_server, "GET", path)
    assert (done["changed"], done["error"], done["retry_at"], done["progress"]) == (1, None, None, 1.0)


async def test_an_empty_workspace_is_computed_again_at_once(own_server: Hosted) -> None:
    work = await ask(own_server, "POST", "/model-price-map/recomputations", {}, 202)
    await finish(own_server, RecomputedCosts(own_server.db))
    done = await ask(own_server, "GET", f"/model-price-map/recomputations/{work['id']}")
    assert (done["runs"], done["progress"], done["finished_at"] is None) == (0, 1.0, False)


async def test_spend_stays_when_traces_are_deleted(own_server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollups, "COMMIT_MARGIN_S", 0.0)
    monkeypatch.setattr(DailyRollups, "quiet_s", 0.0)
    day = (NOW - timedelta(days=4)).replace(hour=12)
    run = model_run(usage(1_000_000, 0), start_time=day.isoformat())

    await store(own_server, run)
    reconciler = DailyRollups(own_server.db)

    async def spent() -> list[tuple[Any, ...]]:
        while (await reconciler.activate()).again:
            pass

        models = await ask(own_server, "GET", "/model-price-map/models")
        return [(each["runs"], each["total_cost"]) for each in models]

    assert await spent() == [(1, "2.5")]
    second = model_run(usage(1_000_000, 0), start_time=day.isoformat())
    await store(own_server, second)
    assert await spent() == [(2, "5")]
    project = (await ask(own_server, "GET", "/sessions", name="p"))[0]["id"]

    await delete_traces(own_server.db, own_server.actor.workspace_id, TracesToDelete(UUID(project), [UUID(run["id"])]))
    assert await spent() == [(2, "5")], "from the day as it was counted"
    assert await spent() == [(2, "5")], "after the day was looked at again"


async def test_a_file_of_the_operator_wins(own_server: Hosted, tmp_path: Any) -> None:
    before = model_run(usage(1_000_000, 0), "gpt-4o-2024-08-06", "azure")
    await store(own_server, before)
    assert (await read_run(own_server, before))["total_cost"] == "2.5"

    file = tmp_path / "prices.csv"
    file.write_text("name,providers,pattern,input,output\nours,openai azure,gpt-4o,1,2\n")
    assert await sync_prices(own_server.db, file) == 2
    assert await sync_prices(own_server.db, file) == 0
    run = model_run(usage(1_000_000, 0), "gpt-4o-2024-08-06", "azure")

    await store(own_server, run)
    assert (await read_run(own_server, run))["total_cost"] == "1"
    assert await sync_prices(own_server.db) == 2
    second = model_run(usage(1_000_000, 0), "gpt-4o-2024-08-06", "azure")

    await store(own_server, second)
    assert (await read_run(own_server, second))["total_cost"] == "2.5"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,pattern,input\n", "lacks the column output"),
        ("name,pattern,input,output,speed\n", "unknown column speed"),
        ("name,pattern,input,output\nx,(,1,1\n", "line 2: the pattern"),
        ("name,pattern,input,output\nx,x,cheap,1\n", "'cheap' in the column input is not a price"),
        ("name,pattern,input,output\nx,x,1,NaN\n", "line 2: 'NaN' in the column output"),
        ("name,pattern,input,output\nx,x,1000001,1\n", "is not a price from 0 to a million"),
        ("name,pattern,input,output\n\nx,x,1\n", "line 3: has 3 columns and the header 4"),
        ("name,pattern,input,output\nx,a{1,2},1,1\n", "line 2: has 5 columns"),
        ("name,pattern,from,input,output\nx,x,soon,1,1\n", "'soon' in the column from is not a day"),
        ("name,pattern,above,input,output\nx,x,-1,1,1\n", "'-1' in the column above"),
        ("name,pattern,input,output\n,x,1,1\n", "must not be empty"),
    ],
)
async def test_mistakes_in_files_are_named(tmp_path: Any, text: str, problem: str) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(text)
    with pytest.raises(UserMistake, match=problem):
        read_prices(file)


@pytest.mark.parametrize("pattern", ["(?P<x>a)", "(a)\\1"])
async def test_patterns_that_postgres_refuses_are_named(own_server: Hosted, tmp_path: Any, pattern: str) -> None:
    file = tmp_path / "prices.csv"
    file.write_text(f"name,pattern,input,output\nours,{pattern},1,2\n")
    with pytest.raises(UserMistake, match=r"prices\.csv: the pattern .* of 'ours'"):
        await sync_prices(own_server.db, file)


async def test_shipped_prices_are_distinct() -> None:
    rows = read_prices()
    keys = {(row.provider, row.match_pattern, row.start_time, row.prompt_token_threshold) for row in rows}
    assert len(keys) == len(rows) > 80


def period(server: Hosted, days: int = 7, **more: Any) -> dict[str, Any]:
    start = (NOW - timedelta(days=days)).isoformat()
    end = (NOW + timedelta(hours=1)).isoformat()
    return {"start_time": start, "end_time": end, "workspace_ids": str(server.actor.workspace_id), **more}


async def test_costs_by_model_are_of_runs_with_a_model(server: Hosted) -> None:
    await store(server, model_run(usage(1_000_000, 0)), model_run(None, None, run_type="chain"))
    path = "/orgs/current/billing/costs"
    by_model = (await ask(server, "GET", path, **period(server, group_by="model")))["usage"]
    assert [(one["dimensions"]["model_name"], one["runs"]) for one in by_model] == [("gpt-4o", 1)]


async def test_usage_and_costs_are_counted_by_each_dimension(
    own_server: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollups, "COMMIT_MARGIN_S", 0.0)
    earlier = (NOW - timedelta(days=4)).replace(hour=12).isoformat()
    await store(
        own_server,
        model_run(usage(1_000_000, 0)),
        model_run(usage(1_000_000, 500), start_time=earlier),
        model_run(usage(5, 5), "unheard-of", session_name="=q"),
    )

    path = "/orgs/current/billing/costs"

    async def by(group_by: str, name: str) -> dict[Any, tuple[Any, ...]]:
        sums: dict[Any, tuple[Any, ...]] = {}
        for one in (await ask(own_server, "GET", path, **period(own_server, group_by=group_by)))["usage"]:
            traces, runs, cost, unpriced = sums.get(one["dimensions"][name], (0, 0, Decimal(0), 0))
            sums[one["dimensions"][name]] = (
                traces + (one["traces"] or 0),
                runs + one["runs"],
                cost + Decimal(one["total_cost"] or 0),
                unpriced + one["unpriced_runs"],
            )

        return sums

    key = own_server.key[:8]
    for _ in range(2):
        assert await by("project", "project_name") == {"p": (2, 2, Decimal("5.005"), 0), "=q": (1, 1, Decimal(0), 1)}
        assert await by("model", "model_name") == {
            "gpt-4o": (0, 2, Decimal("5.005"), 0),
            "unheard-of": (0, 1, Decimal(0), 1),
        }

        for group_by, name in (
            ("workspace", "workspace_name"),
            ("user", "user_email"),
            ("api_key", "api_key_short_key"),
        ):
            assert list((await by(group_by, name)).values()) == [(3, 3, Decimal("5.005"), 1)], group_by

        assert next(iter(await by("api_key", "api_key_short_key"))).startswith(key)
        reconciler = DailyRollups(own_server.db)
        while (await reconciler.activate()).again:
            pass

    today = await ask(own_server, "GET", path, **period(own_server, days=0))
    assert today["stride"] == {"days": 1, "hours": 0}, "costs are counted by day"
    week = (await ask(own_server, "GET", path, **period(own_server)))["usage"]
    latest = [one["dimensions"]["project_name"] for one in week if one["time_bucket"] == week[-1]["time_bucket"]]
    assert latest == ["p", "=q"], "the most expensive first"

    answer = await own_server.client.get(f"{path}/export", params=period(own_server))
    assert answer.headers["content-type"].startswith("text/csv")
    lines = answer.text.splitlines()
    assert lines[0].startswith("time_bucket,project_id,project_name,traces,runs,failed_runs,prompt_tokens")
    assert any(",'=q," in line for line in lines), "formulas are escaped"
    other = str(await own_server.new_workspace("Third"))
    stranger = await own_server.new_key(workspace_id=UUID(other))
    answer = await own_server.client.get(path, params=period(own_server), headers={"x-api-key": stranger})
    assert answer.json()["usage"] == []


async def test_limits_show_what_is_left_of_the_month(server: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    await ask(server, "PUT", "/usage-limits", {"limit_type": "monthly_traces", "limit_value": 5})
    await store(server, model_run(None), model_run(None))

    # The month does not end between the traces and the question.
    query = "select max(received_at) from traces where workspace_id = $1"
    received_at = await server.db.pool.fetchval(query, server.actor.workspace_id)
    monkeypatch.setattr(limits, "now", lambda: received_at)
    found = {one["limit_type"]: one for one in (await ask(server, "GET", "/limits"))["monthly"]}
    assert [found["monthly_traces"][name] for name in ("limit_value", "used", "remaining")] == [5, 2, 3]

    assert (found["monthly_longlived_traces"]["limit_value"], found["monthly_longlived_traces"]["remaining"]) == (
        None,
        None,
    )


async def test_the_month_of_a_limit_is_that_of_the_calendar_in_utc(
    server: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "now", lambda: datetime(2027, 1, 31, 12, tzinfo=UTC))
    tick = timedelta.resolution
    month = (datetime(2027, 1, 1, tzinfo=UTC), datetime(2027, 2, 1, tzinfo=UTC))
    moments = [month[0] - tick, month[0], month[1] - tick, month[1]]
    runs = [model_run(None) for _ in moments]
    await store(server, *runs)

    for run, moment in zip(runs, moments, strict=True):
        update = "update traces set received_at = $2 where trace_id = $1"
        await server.db.pool.execute(update, UUID(run["id"]), moment)

    extend = "update traces set extended_at = $2 where trace_id = $1"
    await server.db.pool.execute(extend, UUID(runs[0]["id"]), month[0])
    await ask(server, "PUT", "/usage-limits", {"limit_type": "monthly_longlived_traces", "limit_value": 2})
    monthly = (await ask(server, "GET", "/limits"))["monthly"]
    assert [(one["used"], one["remaining"], one["resets_at"]) for one in monthly] == [
        (2, None, "2027-02-01T00:00:00Z"),
        (3, 0, "2027-02-01T00:00:00Z"),
    ]


CACHE_PRICE = {**PRICE, "prompt_cost": "0.001", "completion_cost": "0.01"}
FIVE_MINUTES = "ephemeral_5m_input_tokens"
HOUR = "ephemeral_1h_input_tokens"


@pytest.mark.parametrize(
    ("prices", "details", "cost", "parts"),
    [
        # A price of the cache is one for any lifetime.
        ({"cache_creation": "0.002"}, {FIVE_MINUTES: 100}, "1.1", {FIVE_MINUTES: "0.2"}),
        ({"cache_creation": "0.002"}, {HOUR: 100}, "1.1", {HOUR: "0.2"}),
        ({FIVE_MINUTES: "0.002"}, {"cache_creation": 100}, "1.1", {"cache_creation": "0.2"}),
        ({FIVE_MINUTES: "0.002"}, {HOUR: 100}, "1.1", {HOUR: "0.2"}),
        ({"cache_creation": "0.002", HOUR: "0.004"}, {HOUR: 100}, "1.3", {HOUR: "0.4"}),
        ({"cache_read": "0.0001"}, {HOUR: 100}, "1", None),
        # The tokens of a lifetime are a part of all that were written.
        ({"cache_creation": "0.002", HOUR: "0.004"}, {"cache_creation": 100, HOUR: 100}, "1.3", {HOUR: "0.4"}),
        (
            {"cache_creation": "0.002", HOUR: "0.004"},
            {"cache_creation": 100, HOUR: 40, FIVE_MINUTES: 50},
            "1.18",
            {HOUR: "0.16", FIVE_MINUTES: "0.1", "cache_creation": "0.02"},
        ),
        ({"cache_creation": "0.002", HOUR: "0.004"}, {"cache_creation": 0, HOUR: 40}, "1.12", {HOUR: "0.16"}),
    ],
)
async def test_tokens_written_to_a_cache_are_priced_once(
    server: Hosted, prices: dict[str, str], details: dict[str, int], cost: str, parts: dict[str, str] | None
) -> None:
    await ask(server, "POST", "/model-price-map", {**CACHE_PRICE, "prompt_cost_details": prices})
    run = model_run(usage(1000, 0, details), "mine-1")
    await store(server, run)
    found = await read_run(server, run)
    assert (found["prompt_cost"], found["prompt_cost_details"]) == (cost, parts)


@pytest.mark.parametrize(
    ("reported", "tokens", "cost"),
    [
        ({"input_tokens": "1000", "output_tokens": " 50 ", "total_tokens": "1050"}, (1000, 50, 1050), "1.5"),
        ({"input_tokens": "1e3", "output_tokens": 50.0}, (1000, 50, 1050), "1.5"),
        ({"input_tokens": -1000, "output_tokens": 50, "total_tokens": -950}, (0, 50, 50), "0.5"),
        ({"input_tokens": "many", "output_tokens": 50}, (0, 50, 50), "0.5"),
        ({"input_tokens": 1000, "output_tokens": 50, "total_tokens": 7}, (1000, 50, 1050), "1.5"),
        ({"input_tokens": 1000, "input_token_details": {"cache_read": "800", "audio": -5}}, (1000, 0, 1000), "0.28"),
    ],
)
async def test_counts_may_be_text_and_are_never_negative(
    server: Hosted, reported: dict[str, Any], tokens: tuple[int, int, int], cost: str
) -> None:
    details = {"cache_read": "0.0001", "audio": "0.1"}
    await ask(server, "POST", "/model-price-map", {**CACHE_PRICE, "prompt_cost_details": details})
    run = model_run(reported, "mine-1")
    await store(server, run)

    found = await read_run(server, run)
    assert tuple(found[f"{name}_tokens"] for name in ("prompt", "completion", "total")) == tokens
    assert found["total_cost"] == cost


@pytest.mark.filterwarnings("ignore:.*is deprecated")
async def test_a_run_has_the_details_of_its_tokens(server: Hosted) -> None:
    plain = model_run(usage(5, 5))
    run = model_run(usage(1000, 50, {"cache_read": 800, "audio": 7}, {"reasoning": 9}))
    lie = model_run({**usage(1000, 50), "input_token_details": {"cache_read": "x", "nested": {}, "audio": 1}})
    await store(server, plain, run, lie)

    found = [await read_run(server, one) for one in (plain, run, lie)]
    assert [one["prompt_token_details"] for one in found] == [None, {"cache_read": 800, "audio": 7}, {"audio": 1}]
    assert [one["completion_token_details"] for one in found] == [None, {"reasoning": 9}, None]

    client = Client(api_url=server.url, api_key=server.key)
    shown = await asyncio.to_thread(client.read_run, run["id"])
    assert shown.prompt_token_details == {"cache_read": 800, "audio": 7}
    selects = ["PROMPT_TOKEN_DETAILS", "COMPLETION_TOKEN_DETAILS"]
    newer = await ask(server, "GET", f"/api/v2/runs/{run['id']}", selects=selects)
    assert newer["prompt_token_details"] == {"raw": {"cache_read": 800, "audio": 7}}


async def test_details_of_the_outputs_complete_the_usage(server: Hosted) -> None:
    """The tracing SDK in its mode for OpenTelemetry sends the details in the outputs alone."""
    await ask(server, "POST", "/model-price-map", {**CACHE_PRICE, "prompt_cost_details": {"cache_read": "0.0001"}})
    message = {"kwargs": {"usage_metadata": usage(1000, 50, {"cache_read": 800})}}
    outputs = {"generations": [[{"message": message}]]}
    plain = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    run = model_run(plain, "mine-1", outputs=outputs)
    other = model_run({**plain, "input_tokens": 900}, "mine-1", outputs=outputs)

    await store(server, run, other)
    assert (await read_run(server, run))["total_cost"] == "0.78"
    assert (await read_run(server, other))["total_cost"] == "1.4", "the usage of another call"


async def test_attributes_that_older_servers_left_are_read_again(own_server: Hosted) -> None:
    """A run as a own_server stored it that knew fewer names of token counts."""
    plain = {"input_tokens": 1000, "output_tokens": 50, "total_tokens": 1050}
    attributes = [
        {"gen_ai.usage.cache_read.input_tokens": 800, "gen_ai.usage.cache_creation.input_tokens": 100},
        {"gen_ai.usage.details.cache_read_tokens": 800, "gen_ai.usage.details.cache_write_tokens": 100},
        {"llm.token_count.prompt_details.cache_read": 800, "llm.token_count.prompt_details.cache_write": 100},
    ]

    runs = [model_run(plain, "mine-1", metadata=found) for found in attributes]
    whole = {**plain, "input_token_details": {"cache_read": 800, "cache_creation": 100}}
    runs.append(model_run(None, "mine-1", metadata={"langsmith.usage_metadata": json.dumps(whole)}))
    text = model_run(None, "mine-1", metadata={"usage_metadata": json.dumps(whole)})
    prices = {"cache_read": "0.0001", "cache_creation": "0.002"}

    await ask(own_server, "POST", "/model-price-map", {**CACHE_PRICE, "prompt_cost_details": prices})
    await store(own_server, *runs, text)

    assert [(await read_run(own_server, run))["total_cost"] for run in (*runs, text)] == [
        "1.5",
        "1.5",
        "1.5",
        None,
        "0.88",
    ]
    for changed in (4, 0):
        work = await ask(own_server, "POST", "/model-price-map/recomputations", {}, 202)
        await finish(own_server, RecomputedCosts(own_server.db))
        done = await ask(own_server, "GET", f"/model-price-map/recomputations/{work['id']}")
        assert (done["runs"], done["changed"]) == (5, changed)
        assert [(await read_run(own_server, run))["total_cost"] for run in (*runs, text)] == ["0.88"] * 5


@pytest.mark.filterwarnings("ignore:.*is deprecated")
async def test_one_lie_does_not_make_a_list_unreadable(own_server: Hosted) -> None:
    """Values that servers of before stored, and that the stock client cannot parse."""
    given = {**usage(5, 5), "total_cost": 1, "input_cost_details": {"cache_read": "garbage", "audio": "0.5"}}
    lie = model_run(given)
    honest = model_run(usage(5, 5))
    await store(own_server, lie, honest)

    await own_server.db.pool.execute(
        """update runs set dotted_order = 'garbage.x', inputs = '"text"', outputs = '[1]', extra = '1', events = '["e"]'
           where id = $1""",
        UUID(lie["id"]),
    )

    await own_server.db.pool.execute(
        """update runs set usage = '{}', prompt_cost_details = '{"audio": "0.5", "cache_read": "garbage"}'
           where id = $1""",
        UUID(lie["id"]),
    )

    client = Client(api_url=own_server.url, api_key=own_server.key)
    listed = await asyncio.to_thread(lambda: {str(one.id): one for one in client.list_runs(project_name="p")})
    assert set(listed) == {lie["id"], honest["id"]}
    found = listed[lie["id"]]
    assert (found.inputs, found.outputs, found.parent_run_ids) == ({"input": "text"}, {"output": [1]}, [])
    assert found.events == [{"value": "e"}]
    shown = await asyncio.to_thread(client.read_run, lie["id"])
    assert shown.prompt_cost_details == {"audio": Decimal("0.5")}
