"""Measures lists of the console with a million rows, over HTTP. `python -m bench.lists [COUNT] [PART ...]`.

The rows are made inside the database. The parts are `platform` (traces of four runs each in one project, examples of
one dataset, runs of one annotation queue, many datasets), `deployments` (200 deployments with a project each, over
which the runs of the traces are spread; every read of the platform's API is measured) and `agent` (threads of an agent
server, and runs that ended, failed or wait). With `BENCH_FOLDER` they stay there for the next run.

Each request is sent four times; the first, which finds cold caches, is printed beside the median of the others, with
the CPU that the server and Postgres took for one of these, and the size of the answer. What takes longer than a second
is marked with an exclamation mark.
"""

import asyncio
import datetime as dt
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import httpx2

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from bench.traces import Clock, open_folder, platform_database, start_platform  # noqa: E402
from tests.servers import KEY, PROJECTS, ServerProcess, free_port  # noqa: E402

from portside.control.secrets import encrypt_secrets  # noqa: E402
from portside.kernel.crypto import SecretBox  # noqa: E402
from portside.kernel.embedded import EmbeddedPostgres  # noqa: E402
from portside.kernel.ids import uuid7  # noqa: E402

COUNT = 1_000_000
SLICE = 100_000
TIMES = 4
SLOW_MS = 1000
DEPLOYMENTS = 200
WORKSPACE = "(select id from workspaces order by created_at limit 1)"
PROJECT, DATASET, QUEUE = (UUID(int=number) for number in (1, 2, 3))
ASSISTANT, LISTENER = (UUID(int=number) for number in (4, 5))
# The project, the deployment and the revision with a number have ids that end in it.
PROJECT_OF, DEPLOYMENT_OF, REVISION_OF = (f"0000000{place}-0000-0000-0000-" for place in (1, 2, 3))

PROGRESS = """
create table if not exists bench_lists (rows bigint not null);
insert into bench_lists select 0 where not exists (select from bench_lists)
"""
PLACES = f"""
insert into projects (id, workspace_id, name) select '{PROJECT}', {WORKSPACE}, 'many' on conflict do nothing;
insert into datasets (workspace_id, id, name, data_type) select {WORKSPACE}, '{DATASET}', 'many', 'kv'
on conflict do nothing;
insert into dataset_versions (workspace_id, dataset_id, as_of) select {WORKSPACE}, '{DATASET}', '2026-01-01Z'
on conflict do nothing;
insert into annotation_queues (workspace_id, id, name, rubric_items) select {WORKSPACE}, '{QUEUE}', 'many', '[]'
on conflict do nothing;
"""
# One trace in a hundred failed. A trace is a chain with three runs below it; ten traces are one conversation.
RUNS = f"""
insert into runs (
    workspace_id, id, trace_id, parent_run_id, dotted_order, project_id, name, run_type, start_time, end_time, error,
    inputs, outputs, extra, patched, patch_order, is_awaited, received_at
)
select {WORKSPACE}, m.id, m.trace, case when m.part > 0 then m.trace end,
    to_char(m.at at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || m.trace
        || case when m.part > 0 then '.' || to_char(m.at at time zone 'UTC', 'YYYYMMDD"T"HH24MISSUS"Z"') || m.id
           else '' end,
    '{PROJECT}', (array['agent', 'plan', 'model', 'search'])[1 + m.part],
    (array['chain', 'chain', 'llm', 'tool'])[1 + m.part], m.at, m.at + make_interval(secs => n % 97 / 10.0),
    case when n / 4 % 100 = 0 and m.part in (0, 3) then 'ValueError: no' end,
    '{{"messages": [{{"role": "user", "content": "' || repeat(md5(n::text) || ' lorem ipsum ', 4) || '"}}]}}',
    '{{"answer": "' || repeat(md5('a' || n) || ' dolor sit amet ', 4) || '"}}',
    '{{"metadata": {{"thread_id": "conversation ' || n / 40 || '"}}}}', 0, 0, false, m.at
from generate_series($1::int, $2::int) n
cross join lateral (
    select n % 4 as part, now() - make_interval(secs => ($3 - n + n % 4) * 2.5) as at, md5('run ' || n)::uuid as id,
        md5('run ' || (n - n % 4))::uuid as trace
) m
"""
DEPLOYED = (
    f"""
    insert into listeners (id, workspace_id, compute_type, compute_id, version, last_seen_at)
    select '{LISTENER}', {WORKSPACE}, 'process', 'bench', '1', now() + interval '1 day' on conflict do nothing
    """,
    f"""
    insert into desired_generations (workspace_id, generation) select {WORKSPACE}, 1 on conflict do nothing
    """,
    f"""
    insert into projects (id, workspace_id, name)
    select ('{PROJECT_OF}' || lpad(n::text, 12, '0'))::uuid, {WORKSPACE}, 'agent-' || n
    from generate_series(0, {DEPLOYMENTS - 1}) n on conflict do nothing
    """,
)
DEPLOYMENT = f"""
insert into deployments (
    id, workspace_id, name, deployment_type, status, latest_revision_id, active_revision_id, source,
    assigned_listener_id, direct_url, tracing_project_id, service_key_id, service_key_sealed
)
select ('{DEPLOYMENT_OF}' || $1::text)::uuid, {WORKSPACE}, 'agent-' || $1::text::int, 'dev', 'READY', $2::uuid,
    $2::uuid, 'internal_source', '{LISTENER}', 'http://127.0.0.1:9', ('{PROJECT_OF}' || $1::text)::uuid,
    (select id from api_keys order by created_at limit 1), $3::bytea
on conflict do nothing
"""
# Ten revisions of each, of which the last one is served and has logs.
REVISION = f"""
insert into revisions (id, deployment_id, number, status, source, secrets_sealed, is_built, resource_spec)
select $2::uuid, ('{DEPLOYMENT_OF}' || $1::text)::uuid, $4::int, 'DEPLOYED',
    'internal_source', $3::bytea, true, '{{}}'
"""
SERVED = (
    f"""
    insert into revision_logs (deployment_id, revision_id, type, at, level, message)
    select ('{DEPLOYMENT_OF}' || $1::text)::uuid, $2::uuid, case when n % 10 = 0 then 'build' else 'deploy' end,
        now() - make_interval(secs => n), 'INFO', 'line ' || n
    from generate_series(1, 1000) n
    """,
    f"""
    insert into deployment_metrics (deployment_id, measured_at, metrics)
    select ('{DEPLOYMENT_OF}' || $1::text)::uuid, now(),
        jsonb_build_object('server_version', '1', 'replicas', 1, 'cpu', 0.01, 'revision', $2::uuid)
    """,
)
SPREAD_RUNS = RUNS.replace(
    f"'{PROJECT}', (array", f"('{PROJECT_OF}' || lpad((n / 4 % {DEPLOYMENTS})::text, 12, '0'))::uuid, (array"
).replace("'run '", "'spread '")
SPREAD_TRACES = f"""
insert into traces (workspace_id, trace_id, project_id, api_key_id, user_id, received_at)
select {WORKSPACE}, md5('spread ' || n)::uuid, ('{PROJECT_OF}' || lpad((n / 4 % {DEPLOYMENTS})::text, 12, '0'))::uuid,
    (select id from api_keys order by created_at limit 1), (select id from users limit 1),
    now() - make_interval(secs => ($3::int - n) * 2.5)
from generate_series($1::int, $2::int) n where n % 4 = 0
"""
EXAMPLES = f"""
insert into examples (
    workspace_id, id, since, dataset_id, created_at, position, inputs, outputs, metadata, attachments
)
select {WORKSPACE}, md5('example ' || n)::uuid, '2026-01-01Z', '{DATASET}', '2026-01-01Z', n,
    json_build_object('question', md5(n::text)), json_build_object('answer', md5('a' || n)),
    jsonb_build_object('part', n % 100), '{{}}'
from generate_series($1::int, $2::int) n where $3::int > 0
"""
QUEUED = f"""
insert into queued_runs (workspace_id, queue_id, run_id)
select {WORKSPACE}, '{QUEUE}', md5('run ' || n)::uuid from generate_series($1::int, $2::int) n where $3::int > 0
"""
DATASETS = f"""
insert into datasets (workspace_id, id, name, data_type)
select {WORKSPACE}, md5('dataset ' || n)::uuid, 'dataset ' || n, 'kv'
from generate_series($1::int, $2::int) n where n % 100 = 0 and $3::int > 0
"""
THREADS = f"""
insert into portside.threads (
    thread_id, metadata, status, created_at, updated_at, state_updated_at, "values", interrupts
)
select md5(n::text)::uuid,
    jsonb_build_object('graph_id', 'echo', 'assistant_id', '{ASSISTANT}', 'user_id', 'user-' || n % 5000),
    case when n % 50 = 0 then 'interrupted' when n % 100 = 1 then 'error' else 'idle' end,
    now() - make_interval(secs => $3 - n), now() - make_interval(secs => (n * 7919::bigint) % 604800), now(),
    jsonb_build_object('messages', jsonb_build_array(jsonb_build_object('type', 'human', 'content', md5('m' || n)))),
    '{{}}'
from generate_series($1::int, $2::int) n
"""
# Three in a hundred failed, and one in fifty waits for tomorrow. No trigger says that these are delayed.
AGENT_RUNS = f"""
insert into portside.runs (
    run_id, thread_id, assistant_id, status, metadata, kwargs, multitask_strategy, created_at, updated_at, run_after,
    is_delayed, error
)
select md5('run ' || n)::uuid, md5(n::text)::uuid, '{ASSISTANT}',
    case when n % 100 < 3 then 'error' when n % 50 = 7 then 'pending' else 'success' end,
    '{{}}', '{{"input": null, "config": {{"configurable": {{"graph_id": "echo"}}}}}}',
    'enqueue', now() - make_interval(secs => $3 - n), now(),
    now() + case when n % 50 = 7 then '1 day' else '0' end::interval,
    n % 50 = 7,
    case when n % 100 < 3 then '{{"error": "ValueError", "message": "no"}}'::jsonb end
from generate_series($1::int, $2::int) n
"""
FILLS = {
    "platform": (
        (PROGRESS, PLACES),
        (RUNS, EXAMPLES, QUEUED, DATASETS),
        ("runs", "examples", "queued_runs", "datasets"),
    ),
    "deployments": (
        (PROGRESS.replace("bench_lists", "bench_lists_deployments"), *DEPLOYED),
        (SPREAD_RUNS, SPREAD_TRACES),
        ("runs", "traces", "deployments", "revisions", "revision_logs"),
    ),
    "agent": ((PROGRESS,), (THREADS, AGENT_RUNS), ("portside.threads", "portside.runs")),
}
EVER = "1970-01-01T00:00:00Z"
SELECTS = [
    "ID",
    "NAME",
    "STATUS",
    "START_TIME",
    "LATENCY_SECONDS",
    "INPUTS_PREVIEW",
    "OUTPUTS_PREVIEW",
    "ERROR_PREVIEW",
]
Request = tuple[str, str, dict[str, Any] | None]


def traces(**fields: Any) -> Request:
    body = {
        "project_ids": [str(PROJECT)],
        "selects": SELECTS,
        "page_size": 50,
        "min_start_time": EVER,
    }

    return "POST", "/v2/runs/query", {**body, "is_root": True, **fields}


REQUESTS: dict[str, dict[str, Request]] = {
    "platform": {
        "traces": traces(),
        "traces, failed": traces(filter='eq(status, "error")'),
        "traces, interrupted (none)": traces(filter='eq(status, "interrupted")'),
        "traces, running (none)": traces(filter='eq(status, "pending")'),
        "traces, a name (none)": traces(filter='eq(name, "nobody")'),
        "traces, a text (none)": traces(filter='search("nowhere to be found")'),
        "traces, a tag (none)": traces(filter='has(tags, "none")'),
        "traces, metadata (none)": traces(filter='and(eq(metadata_key, "a"), eq(metadata_value, "b"))'),
        "traces, many tokens (none)": traces(filter="gt(total_tokens, 100000)"),
        "traces, tokens of the trace (none)": traces(trace_filter="gt(total_tokens, 100000)"),
        "traces, a run below (none)": traces(tree_filter='eq(name, "nobody")'),
        "traces, slow (none)": traces(filter='gt(latency, "1000s")'),
        "all runs, a text (none)": traces(is_root=None, filter='search("nowhere to be found")'),
        **{
            f"the same, 1.5 s: {name}": traces(search_seconds=1.5, **fields)
            for name, fields in {
                "running": {"filter": 'eq(status, "pending")'},
                "a text": {"filter": 'search("nowhere to be found")'},
                "tokens of the trace": {"trace_filter": "gt(total_tokens, 100000)"},
            }.items()
        },
        "conversations": ("POST", "/v2/threads/query", {"project_id": str(PROJECT), "min_start_time": EVER}),
        "examples": ("GET", f"/examples?dataset={DATASET}&limit=50", None),
        "examples, page 10,000": ("GET", f"/examples?dataset={DATASET}&limit=50&offset=500000", None),
        "dataset": ("GET", f"/datasets/{DATASET}", None),
        "datasets": ("GET", "/datasets?limit=50", None),
        "datasets, by a part of the name": ("GET", "/datasets?limit=50&name_contains=dataset%2099", None),
        "annotation queues": ("GET", "/annotation-queues?limit=50", None),
        "queued runs": ("GET", f"/annotation-queues/{QUEUE}/runs?limit=50", None),
        "queued runs, page 10,000": ("GET", f"/annotation-queues/{QUEUE}/runs?limit=50&offset=500000", None),
        "size of an annotation queue": ("GET", f"/annotation-queues/{QUEUE}/size", None),
    },
    "deployments": {
        "deployments, second page": ("GET", "/v2/deployments?limit=100&offset=100", None),
        "deployments, by a part of the name": ("GET", "/v2/deployments?limit=100&name_contains=19", None),
        "deployments, unknown (none)": ("GET", "/v2/deployments?limit=100&status=UNKNOWN", None),
        "projects, without figures": ("GET", "/sessions?limit=100", None),
        "traces of a project": traces(project_ids=[PROJECT_OF + f"{7:012}"]),
        "conversations of a project": (
            "POST",
            "/v2/threads/query",
            {"project_id": PROJECT_OF + f"{7:012}", "min_start_time": EVER},
        ),
        "figures of a project": ("POST", "/runs/stats", {"session": [PROJECT_OF + f"{7:012}"]}),
        "figures of all projects": (
            "POST",
            "/runs/stats",
            {"session": [PROJECT_OF + f"{number:012}" for number in range(DEPLOYMENTS)]},
        ),
    },
    "agent": {
        "health": ("GET", "/ok", None),
        "metrics": ("GET", "/metrics", None),
        "assistants": ("POST", "/assistants/search", {"limit": 50}),
        "crons": ("POST", "/runs/crons/search", {"limit": 50}),
        "namespaces of the store": ("POST", "/store/namespaces", {}),
        "a thread": ("GET", "/threads/c4ca4238-a0b9-2382-0dcc-509a6f75849b", None),
        "its runs": ("GET", "/threads/c4ca4238-a0b9-2382-0dcc-509a6f75849b/runs", None),
        "its history": ("GET", "/threads/c4ca4238-a0b9-2382-0dcc-509a6f75849b/history", None),
        "its storage": ("GET", "/threads/c4ca4238-a0b9-2382-0dcc-509a6f75849b/storage", None),
        "threads": ("POST", "/threads/search", {"limit": 50}),
        "threads, interrupted": ("POST", "/threads/search", {"limit": 50, "status": "interrupted"}),
        "threads, busy (none)": ("POST", "/threads/search", {"limit": 50, "status": "busy"}),
        "threads of a user": ("POST", "/threads/search", {"limit": 50, "metadata": {"user_id": "user-7"}}),
        "threads of nobody": ("POST", "/threads/search", {"limit": 50, "metadata": {"user_id": "nobody"}}),
        "threads with values of nobody": ("POST", "/threads/search", {"limit": 50, "values": {"a": "b"}}),
        "threads, page 10,000": ("POST", "/threads/search", {"limit": 50, "offset": 500_000}),
        "threads counted": ("POST", "/threads/count", {}),
        "queue": ("POST", "/runs/search", {"limit": 50, "status": ["pending", "running"]}),
        "queue, page 100": ("POST", "/runs/search", {"limit": 50, "offset": 5000, "status": ["pending", "running"]}),
        "failed runs": ("POST", "/runs/search", {"limit": 50, "status": ["error", "timeout"]}),
        "timed-out runs (none)": ("POST", "/runs/search", {"limit": 50, "status": ["timeout"]}),
        "runs of a thread": ("POST", "/runs/search", {"thread_id": "c4ca4238-a0b9-2382-0dcc-509a6f75849b"}),
    },
}


async def fill(url: str, part: str, count: int) -> None:
    """Write rows until there are as many."""
    places, fills, tables = FILLS[part]
    progress = "bench_lists_deployments" if part == "deployments" else "bench_lists"
    connection = await asyncpg.connect(url)
    for statement in places:
        await connection.execute(statement)

    # No trigger: nothing has been counted that these rows could change.
    await connection.execute("set session_replication_role = replica")
    done = await connection.fetchval(f"select rows from {progress}")
    began = time.perf_counter()
    for first in range(done, count, SLICE):
        last = min(first + SLICE, count) - 1
        async with connection.transaction():
            for statement in fills:
                await connection.execute(statement, first, last, count, timeout=900)
            await connection.execute(f"update {progress} set rows = $1", last + 1)

        print(f"{last + 1:,} of {count:,} after {time.perf_counter() - began:,.0f} s", flush=True)

    if done < count:
        for table in tables:
            await connection.execute(f"vacuum analyze {table}", timeout=900)

    await connection.close()


def measure(url: str, key: str, requests: dict[str, Request], clock: Clock) -> None:
    """Print the milliseconds of each request, the first time and later, with the CPU of server and Postgres."""
    print(f"{'':50}{'first ms':>10}{'later ms':>10}{'CPU ms':>10}{'Postgres':>10}", flush=True)
    with httpx2.Client(base_url=url, headers={"X-Api-Key": key}, timeout=300) as client:
        for name, (method, path, body) in requests.items():
            times = []
            before = clock.read()
            for place in range(TIMES):
                if place == 1:
                    before = clock.read()

                began = time.perf_counter()
                answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
                times.append((time.perf_counter() - began) * 1000)

            used = [(now - then) / (TIMES - 1) * 1000 for now, then in zip(clock.read(), before, strict=True)]
            later = statistics.median(times[1:])
            mark = "!" if max(times) > SLOW_MS else " "
            print(
                f"{name:48} {mark}{times[0]:10,.0f}{later:10,.0f}{used[0]:10,.1f}{used[1]:10,.1f}  "
                f"{answer.status_code} {len(answer.content) / 1000:,.1f} kB {_count(answer)}",
                flush=True,
            )


def _count(answer: httpx2.Response) -> str:
    if not answer.is_success:
        return answer.text[:200]

    try:
        found = answer.json()
    except ValueError:
        # A page, a table or lines.
        return ""

    if isinstance(found, dict) and "items" in found:
        more = " and more" if found.get("next_cursor") else ""
        return f"{len(found['items'])} rows{more}"

    return f"{len(found)} rows" if isinstance(found, list) else json.dumps(found)[:60]


def measure_platform(folder: Path, count: int) -> None:
    """Lists of the platform: traces, datasets, annotation queues."""
    with platform_database(folder) as (_, url):
        asyncio.run(fill(url, "platform", count))
        with start_platform(folder, url) as server:
            measure(server.url, KEY, REQUESTS["platform"], _clock(server, folder / "postgres"))


def measure_deployments(folder: Path, count: int) -> None:
    """Every read of the platform with many deployments, and lists of their traces."""
    with platform_database(folder) as (_, url):
        asyncio.run(deploy(url, SecretBox.from_file(folder / "home" / "master-key")))
        asyncio.run(fill(url, "deployments", count))
        with start_platform(folder, url) as server:
            workspace = httpx2.get(f"{server.url}/settings", headers={"X-Api-Key": KEY}).json()
            requests = {**dict(reads(workspace["id"])), **REQUESTS["deployments"]}
            measure(server.url, KEY, requests, _clock(server, folder / "postgres"))


async def deploy(url: str, box: SecretBox) -> None:
    """Write the rows of the deployments, with the sealed values that the platform would write."""
    connection = await asyncpg.connect(url)
    for statement in DEPLOYED:
        await connection.execute(statement)

    if not await connection.fetchval("select exists (select from deployments)"):
        # No trigger: the deployments' statuses have no history that somebody would read.
        await connection.execute("set session_replication_role = replica")
        for number in range(DEPLOYMENTS):
            place = f"{number:012}"
            served_id = UUID(REVISION_OF + place)
            await connection.execute(DEPLOYMENT, place, served_id, encrypt_secrets(box, served_id, []))
            for revision in range(1, 11):
                revision_id = served_id if revision == 10 else uuid7()
                sealed = encrypt_secrets(box, revision_id, [])
                await connection.execute(REVISION, place, revision_id, sealed, revision)

            for statement in SERVED:
                await connection.execute(statement, place, served_id)

    await connection.close()


def reads(workspace_id: str) -> Iterator[tuple[str, Request]]:
    """Yield a request for each GET of the platform's API whose parameters are known here, by its path."""
    known = {
        "deployment_id": DEPLOYMENT_OF + f"{7:012}",
        "revision_id": REVISION_OF + f"{7:012}",
        "session_id": PROJECT_OF + f"{7:012}",
        "listener_id": str(LISTENER),
    }
    now = dt.datetime.now(dt.UTC)
    month = f"start_time={now - dt.timedelta(days=31):%Y-%m-%dT%H:%M:%SZ}&end_time={now:%Y-%m-%dT%H:%M:%SZ}"
    used = f"?{month}&workspace_ids={workspace_id}"
    queries = {
        "/audit-logs": f"?{month}",
        "/orgs/current/billing/costs": used,
        "/orgs/current/billing/costs/export": used,
        "/orgs/current/billing/granular-usage": used,
        "/orgs/current/billing/granular-usage/export": used,
        "/orgs/current/billing/usage": f"?starting_on={EVER}&ending_before=2100-01-01T00:00:00Z",
        "/sessions": "?limit=100&include_stats=true",
        "/sessions/{session_id}": "?include_stats=true",
        "/v2/deployments": "?limit=100",
        "/v2/deployments/{deployment_id}/revisions/{revision_id}/logs": "?type=deploy",
    }
    for path, methods in json.loads((ROOT / "docs/reference/openapi-platform.json").read_text())["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        # The desired state is answered when it changes.
        if "get" in methods and not path.endswith("/desired") and all(name in known for name in names):
            yield path, ("GET", path.format_map(known) + queries.get(path, ""), None)


def measure_agent(folder: Path, count: int) -> None:
    """Lists of an agent server: threads and runs."""
    embedded = EmbeddedPostgres(folder / "agent")
    url = embedded.acquire()
    port = free_port()
    settings = {"DATABASE_URI": url, "LANGSMITH_TRACING": "false", "LOG_LEVEL": "WARNING"}
    arguments = ["serve", "--config", str(PROJECTS / "graphs" / "langgraph.json"), "--port", str(port)]

    server = ServerProcess(arguments, f"http://127.0.0.1:{port}", settings, folder / "log")
    try:
        server.start()
        asyncio.run(fill(url, "agent", count))
        measure(server.url, "", REQUESTS["agent"], _clock(server, folder / "agent"))
    finally:
        server.stop()
        embedded.release()


def _clock(server: ServerProcess, embedded: Path) -> Clock:
    assert server.process is not None
    return Clock(server.process.pid, EmbeddedPostgres(embedded).data)


MEASURED = {"platform": measure_platform, "deployments": measure_deployments, "agent": measure_agent}


if __name__ == "__main__":
    wanted = [each for each in sys.argv[1:] if not each.isdigit()] or ["platform", "deployments", "agent"]
    [rows] = [int(each) for each in sys.argv[1:] if each.isdigit()] or [COUNT]
    with open_folder() as kept_in:
        for each in wanted:
            MEASURED[each](kept_in, rows)
