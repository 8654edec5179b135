"""What has to be true when a load is over, whatever was done to the servers; each check names what is wrong."""

from collections import defaultdict
from itertools import pairwise
from typing import Any, NamedTuple

from tests.failure.cluster import OVER, Cluster, Entry, begun_twice_after_its_end
from tests.failure.load import Heard, Load, Promised


class Interval(NamedTuple):
    """A step that somebody executed; one that was cut off has no length."""

    begin: float
    end: float
    run: str


async def wrong_after(load: Load) -> list[str]:
    """Return everything that is wrong; nothing may run any more."""
    cluster = load.cluster
    rows = {str(row["run_id"]): dict(row) for row in await cluster.fetch("select * from runs order by number")}
    entries = sober(cluster.ledger.entries(), cluster.paused, rows)
    return [
        *load.surprises,
        *(text for one in load.promised.values() for text in wrong_run(one, rows.get(one.run))),
        *[text for thread in load.threads for text in await wrong_thread(cluster, thread, rows, load)],
        *wrong_order(entries, rows),
        *(f"step begun again: {entry}" for entry in begun_twice_after_its_end(entries)),
        *await orphans(cluster),
        *(text for heard in load.heard for text in wrong_stream(heard)),
    ]


def sober(entries: list[Entry], paused: set[int], rows: dict[str, dict[str, Any]]) -> list[Entry]:
    """Leave out what a process that was paused did for runs that had gone to another one: no lease can prevent that.

    It may end the step it was in, or begin the one whose turn it was; that nothing of it is kept is checked in the
    states of threads. Whoever took a run over need not have executed it: one that was cancelled is only settled.
    """

    def is_late(entry: Entry) -> bool:
        row = rows.get(entry.run)
        return entry.pid in paused and (row is None or entry.attempt < row["attempt"])

    return [entry for entry in entries if not is_late(entry)]


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
        asked = promised is not None and promised.steps - 1 == len(steps)
        if promised and rows[run]["status"] == "success" and len(steps) != promised.steps and not asked:
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


def wrong_stream(heard: Heard) -> list[str]:
    """Ids grow, so that no event came twice, and attempts never go back."""
    wrong = []
    places = [tuple(int(part) for part in name.split("-")) for name in heard.ids]
    if any(after <= before for before, after in pairwise(places)):
        wrong.append(f"ids of run {heard.run}: {heard.ids}")
    attempts = [data["attempt"] for _, data in heard.events if isinstance(data, dict) and "attempt" in data]
    if attempts != sorted(attempts):
        wrong.append(f"attempts of run {heard.run}: {attempts}")
    return wrong
