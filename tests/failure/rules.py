"""Rules that hold after a load, whatever faults the servers had. Each check returns the violations as text."""

import math
from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

import httpx2

from tests.failure.cluster import OVER, Cluster, Entry, Pause, begun_twice_after_its_end
from tests.failure.load import REPLAYED_WITHIN_S, AcceptedRun, Load, ReceivedEvents, receive
from tests.failure.steps import violations_in_steps

# After a pause a process notices that it lost its leases; on a busy machine that takes long.
NOTICED_WITHIN_S = 30.0


class Interval(NamedTuple):
    """When a step was executed; an interrupted one has no length."""

    begin: float
    end: float
    run: str


async def violations(load: Load) -> list[str]:
    """Return all violations. Call this when no run is left."""
    cluster = load.cluster
    rows = {str(row["run_id"]): dict(row) for row in await cluster.fetch("select * from runs order by number")}

    # A process that was paused just before it wrote a line writes it after those of the run's next attempt.
    chronological = sorted(cluster.ledger.entries(), key=lambda entry: entry.at)
    late, entries = split_late(chronological, cluster.pauses, rows)
    return [
        *load.unexpected,
        *(text for run in load.accepted.values() for text in wrong_run(run, rows.get(run.run))),
        *[text for thread in load.threads for text in await wrong_thread(cluster, thread, rows, load)],
        *wrong_order(entries, rows),
        *wrong_lateness(late, entries),
        *(f"step begun again: {entry}" for entry in begun_twice_after_its_end(entries)),
        *await orphans(cluster),
        *(text for one in load.received for text in wrong_stream(one, load, rows.get(one.run))),
        *await wrong_replays(load, rows),
    ]


def split_late(
    entries: list[Entry], pauses: list[Pause], rows: dict[str, dict[str, Any]]
) -> tuple[list[Entry], list[Entry]]:
    """Return the entries of paused processes for runs that another process had taken over, and all other entries.

    No lease can keep a process from ending its current step, or from beginning the next, before it looks at the clock.
    States of threads and streams show that nothing of it was kept. A run without a row was ended by another process;
    which one is not recorded, so only the time of the entry counts. On a busy machine a lease also runs out without a
    pause, or soon after one began; then an earlier entry of a later attempt shows that the run was taken over.
    """
    taken_over = first_entries_of_later_attempts(entries)

    def is_late(entry: Entry) -> bool:
        row = rows.get(entry.run)
        if row is not None and entry.attempt >= row["attempt"]:
            return False

        return entry.at > taken_over.get((entry.run, entry.attempt), math.inf) or any(
            pause.pid == entry.pid and pause.began <= entry.at <= pause.ended + NOTICED_WITHIN_S for pause in pauses
        )

    late = [entry for entry in entries if is_late(entry)]
    return late, [entry for entry in entries if not is_late(entry)]


def first_entries_of_later_attempts(entries: list[Entry]) -> dict[tuple[str, int], float]:
    """Return when another attempt is first seen to continue a run, for each run and attempt."""
    found: dict[tuple[str, int], float] = {}
    for entry in entries:
        for attempt in range(1, entry.attempt):
            found.setdefault((entry.run, attempt), entry.at)

    return found


def wrong_lateness(late: list[Entry], entries: list[Entry]) -> list[str]:
    """A process ends at most one step, and begins at most one, of a run that another process already continues."""
    taken_over = first_entries_of_later_attempts(entries)
    counts: dict[tuple[str, int, int, str], int] = defaultdict(int)
    for entry in late:
        if entry.at > taken_over.get((entry.run, entry.attempt), math.inf):
            counts[entry.run, entry.attempt, entry.pid, entry.event] += 1

    return [f"{count} times late: {key}" for key, count in counts.items() if count > 1]


def wrong_run(run: AcceptedRun, row: dict[str, Any] | None) -> list[str]:
    if row is None:
        return [] if run.is_temporary or run.may_vanish else [f"lost: {run}"]
    if row["status"] not in OVER:
        return [f"not over: {run}, {row['status']}"]

    allowed = {"success", "interrupted"} if run.may_stop else {"success"}
    return [] if row["status"] in allowed else [f"{row['status']} {row['error']} {row['cancel_reason']}: {run}"]


async def wrong_thread(cluster: Cluster, thread: str, rows: dict[str, dict[str, Any]], load: Load) -> list[str]:
    """The thread is idle, and its state holds every step of its runs once, in the order of the runs."""
    row = await cluster.thread_row(thread)
    wrong = []
    if row["status"] == "busy" or row["active_runs"] != 0:
        wrong.append(f"not idle: thread {thread}, {row['status']}, {row['active_runs']} active runs")

    done = defaultdict[str, list[int]](list)
    for run, step, _ in (row.get("values") or {}).get("done", []):
        done[run].append(step)

    order = [run for run, one in rows.items() if str(one["thread_id"]) == thread]
    if list(done) != [run for run in order if run in done]:
        wrong.append(f"thread {thread} holds steps of {list(done)}, its runs were {order}")

    for run, steps in done.items():
        if steps != list(range(len(steps))):
            wrong.append(f"run {run} left the steps {steps}")

        accepted = load.accepted.get(run)
        expected = accepted.steps - accepted.is_asking if accepted else 0
        if accepted and rows[run]["status"] == "success" and len(steps) != expected:
            wrong.append(f"run {run} left {len(steps)} of {accepted.steps} steps")

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
    """Every row of a checkpoint belongs to a thread."""
    wrong = []
    for table in ("checkpoints", "checkpoint_values", "checkpoint_writes"):
        query = f"select count(*) from {table} where thread_id not in (select thread_id::text from threads)"
        count = (await cluster.fetch(query))[0][0]
        if count:
            wrong.append(f"{count} rows in {table} belong to no thread")

    return wrong


def wrong_stream(received: ReceivedEvents, load: Load, row: dict[str, Any] | None) -> list[str]:
    """A resumable stream ended; event ids grow, so no event came twice; no step is missing."""
    wrong = [f"{received.run}: the stream never ended"] if received.is_resumable and not received.is_over else []
    positions = [tuple(int(part) for part in name.split("-")) for name in received.ids]
    if any(after <= before for before, after in pairwise(positions)):
        wrong.append(f"ids of run {received.run}: {received.ids}")

    has_succeeded = received.is_over and row is not None and row["status"] == "success"
    run = load.accepted[received.run]
    steps = run.steps - run.is_asking if has_succeeded else None
    kind = "resumable" if received.is_resumable else "live"

    return wrong + [
        f"{kind} stream of run {received.run}: {text} {received.events}, row {row}"
        for text in violations_in_steps(received.events, steps)
    ]


async def wrong_replays(load: Load, rows: dict[str, dict[str, Any]]) -> list[str]:
    """A client that followed a resumable run, over any number of connections, received the events of a later replay."""
    wrong = []
    async with httpx2.AsyncClient(timeout=REPLAYED_WITHIN_S) as http:
        for number, received in enumerate(one for one in load.received if one.is_resumable and one.is_over):
            row = rows.get(received.run)
            if row is None or row["is_temporary"]:
                continue

            front = load.fronts[number % len(load.fronts)]
            replayed = ReceivedEvents(received.run, True, [], [])
            path = f"{front.url}/threads/{row['thread_id']}/runs/{received.run}/stream"
            async with http.stream("GET", path, headers={"Last-Event-ID": "-1"}) as response:
                await receive(response, replayed)

            if replayed.ids != received.ids:
                wrong.append(f"run {received.run}: received {received.ids}, replayed {replayed.ids}")

    return wrong
