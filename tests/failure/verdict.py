"""What has to be true when a load is over, whatever was done to the servers; each check names what is wrong."""

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import httpx2

from tests.failure.cluster import LEASE_S, OVER, Cluster, Entry, Pause, begun_twice_after_its_end
from tests.failure.load import REPLAYED_WITHIN_S, Heard, Load, Promised, listen
from tests.failure.stories import wrong_story

# A lease was renewed a second before a pause, or a little earlier: it may run out so long after the pause began.
SURELY_HELD_S = LEASE_S - 1.5
# How soon a process that goes on must have noticed what it lost, on a machine that is busy.
NOTICED_WITHIN_S = 5.0


class Interval(NamedTuple):
    """A step that somebody executed; one that was cut off has no length."""

    begin: float
    end: float
    run: str


async def wrong_after(load: Load) -> list[str]:
    """Return everything that is wrong; nothing may run any more."""
    cluster = load.cluster
    rows = {str(row["run_id"]): dict(row) for row in await cluster.fetch("select * from runs order by number")}
    late, entries = told_apart(cluster.ledger.entries(), cluster.pauses, rows)
    return [
        *load.surprises,
        *(text for one in load.promised.values() for text in wrong_run(one, rows.get(one.run))),
        *[text for thread in load.threads for text in await wrong_thread(cluster, thread, rows, load)],
        *wrong_order(entries, rows),
        *wrong_lateness(late, entries),
        *(f"step begun again: {entry}" for entry in begun_twice_after_its_end(entries)),
        *await orphans(cluster),
        *(text for heard in load.heard for text in wrong_stream(heard, load, rows.get(heard.run))),
        *await wrong_replays(load, rows),
    ]


def told_apart(
    entries: list[Entry], pauses: list[Pause], rows: dict[str, dict[str, Any]]
) -> tuple[list[Entry], list[Entry]]:
    """Return what paused processes did for runs that had gone to another one meanwhile, and all else.

    No lease can keep a process from ending the step that it was in, or from beginning the one whose turn it was, before
    it looks at the clock; that nothing of it is kept is checked in the states of threads and in the streams. A run that
    has no row any more was ended by somebody else: by whom is not written anywhere, so the time alone tells.
    """

    def is_late(entry: Entry) -> bool:
        row = rows.get(entry.run)
        if row is not None and entry.attempt >= row["attempt"]:
            return False
        return any(
            pause.pid == entry.pid and pause.began + SURELY_HELD_S <= entry.at <= pause.ended + NOTICED_WITHIN_S
            for pause in pauses
        )

    late = [entry for entry in entries if is_late(entry)]
    return late, [entry for entry in entries if not is_late(entry)]


def wrong_lateness(late: list[Entry], entries: list[Entry]) -> list[str]:
    """A process ends at most one step, and begins at most one, of a run that another one goes on with already."""
    taken_over: dict[tuple[str, int], float] = {}
    for entry in entries:
        for attempt in range(1, entry.attempt):
            taken_over.setdefault((entry.run, attempt), entry.at)
    counts: dict[tuple[str, int, int, str], int] = defaultdict(int)
    for entry in late:
        if entry.at > taken_over.get((entry.run, entry.attempt), math.inf):
            counts[entry.run, entry.attempt, entry.pid, entry.event] += 1
    return [f"{count} times late: {key}" for key, count in counts.items() if count > 1]


def wrong_run(promised: Promised, row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [] if promised.is_temporary or promised.may_vanish else [f"lost: {promised}"]
    if row["status"] not in OVER:
        return [f"not over: {promised}, {row['status']}"]
    allowed = {"success", "interrupted"} if promised.may_stop else {"success"}
    return [] if row["status"] in allowed else [f"{row['status']} {row['error']} {row['cancel_reason']}: {promised}"]


async def wrong_thread(cluster: Cluster, thread: str, rows: dict[str, dict[str, Any]], load: Load) -> list[str]:
    """The thread is at rest, and its state holds every step of its runs once, in the order of the runs."""
    row = await cluster.thread_row(thread)
    wrong = []
    if row["status"] == "busy" or row["active_runs"] != 0:
        wrong.append(f"not at rest: thread {thread}, {row['status']}, {row['active_runs']} active runs")
    done = defaultdict[str, list[int]](list)
    for run, step, _ in (row.get("values") or {}).get("done", []):
        done[run].append(step)
    order = [run for run, one in rows.items() if str(one["thread_id"]) == thread]
    if list(done) != [run for run in order if run in done]:
        wrong.append(f"thread {thread} holds steps of {list(done)}, its runs were {order}")
    for run, steps in done.items():
        if steps != list(range(len(steps))):
            wrong.append(f"run {run} left the steps {steps}")
        promised = load.promised.get(run)
        whole = promised.steps - promised.is_asking if promised else 0
        if promised and rows[run]["status"] == "success" and len(steps) != whole:
            wrong.append(f"run {run} left {len(steps)} of {promised.steps} steps")
    return wrong


def wrong_order(entries: list[Entry], rows: dict[str, dict[str, Any]]) -> list[str]:
    """The runs of a thread were executed one at a time, in their order."""
    wrong = []
    for thread, intervals in by_thread(entries).items():
        intervals.sort()
        for before, after in pairwise(intervals):
            if before.run != after.run and after.begin < before.end:
                wrong.append(f"thread {thread}: {before} and {after} at once")
        numbers = [rows[one.run]["number"] for one in intervals if one.run in rows]
        if numbers != sorted(numbers):
            wrong.append(f"thread {thread}: runs in the order {numbers}")
    return wrong


def by_thread(entries: list[Entry]) -> dict[str, list[Interval]]:
    ends = {(e.run, e.attempt, e.step, e.pid): e.at for e in entries if e.event == "end"}
    found = defaultdict[str, list[Interval]](list)
    for e in entries:
        if e.event == "begin":
            found[e.thread].append(Interval(e.at, ends.get((e.run, e.attempt, e.step, e.pid), e.at), e.run))
    return found


async def orphans(cluster: Cluster) -> list[str]:
    """Everything that is remembered belongs to a thread."""
    wrong = []
    for table in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        query = f"select count(*) from {table} where thread_id not in (select thread_id::text from threads)"
        count = (await cluster.fetch(query))[0][0]
        if count:
            wrong.append(f"{count} rows in {table} belong to no thread")
    return wrong


def wrong_stream(heard: Heard, load: Load, row: dict[str, Any] | None) -> list[str]:
    """A stream that can be resumed ended; ids grow, so that no event came twice; what was heard is the whole story."""
    wrong = [f"{heard.run}: the stream never ended"] if heard.is_resumable and not heard.is_over else []
    places = [tuple(int(part) for part in name.split("-")) for name in heard.ids]
    if any(after <= before for before, after in pairwise(places)):
        wrong.append(f"ids of run {heard.run}: {heard.ids}")
    has_succeeded = heard.is_over and row is not None and row["status"] == "success"
    promised = load.promised[heard.run]
    steps = promised.steps - promised.is_asking if has_succeeded else None
    return wrong + [f"stream of run {heard.run}: {text} {heard.events}" for text in wrong_story(heard.events, steps)]


async def wrong_replays(load: Load, rows: dict[str, dict[str, Any]]) -> list[str]:
    """Whoever followed a resumable run, over however many connections, heard what anybody is told who comes later."""
    wrong = []
    async with httpx2.AsyncClient(timeout=REPLAYED_WITHIN_S) as http:
        for number, heard in enumerate(one for one in load.heard if one.is_resumable and one.is_over):
            row = rows.get(heard.run)
            if row is None or row["is_temporary"]:
                continue
            front = load.fronts[number % len(load.fronts)]
            again = Heard(heard.run, True, [], [])
            path = f"{front.url}/threads/{row['thread_id']}/runs/{heard.run}/stream"
            async with http.stream("GET", path, headers={"Last-Event-ID": "-1"}) as answer:
                await listen(answer, again)
            if again.ids != heard.ids:
                wrong.append(f"run {heard.run} was heard as {heard.ids} and is told as {again.ids}")
    return wrong
