"""Concurrent creates, changes, redeploys and interrupts of deployments, with a listener at work.

One revision of a deployment is in progress and at most one waits. Numbers have no gaps, the latest revision is the
newest, and a final state never changes. The suite runs a small load; CONTROL_LOAD="200 2000" asks for that many
deployments and revisions, CONTROL_SEED for another course of it.
"""

import asyncio
import os
import random
import sys
import time
from collections import Counter
from itertools import pairwise
from typing import Any

from portside.control.revisions import TERMINAL, TRANSITIONS
from portside.listener_api import RevisionStatus
from tests.api.control_server import Control, control, create_body

DEPLOYMENTS, REVISIONS = (int(n) for n in os.environ.get("CONTROL_LOAD", "6 50").split())
SEED = int(os.environ.get("CONTROL_SEED", "1"))
AT_ONCE = 40
STEPS = ("AWAITING_BUILD", "BUILDING", "AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED")
FAILURES = {"CREATING": "CREATE_FAILED", "BUILDING": "BUILD_FAILED", "DEPLOYING": "DEPLOY_FAILED"}


class Storm:
    """Clients that change deployments, and a listener that delivers what they ask for."""

    def __init__(self, plane: Control) -> None:
        self.plane = plane
        self.chance = random.Random(SEED)
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.answers: Counter[tuple[str, int]] = Counter()
        self.busy: set[str] = set()
        self.calm = asyncio.Event()

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        async with self.gate:
            response = await self.plane.client.request(method, f"/v2/deployments{path}", json=body)

        self.answers[method, response.status_code] += 1
        assert response.status_code < 500, response.text
        return response.json() if response.is_success else None

    async def change(self, deployment: dict[str, Any]) -> None:
        """Make one more revision of a deployment, in one of the ways there are; now and then stop what is at work."""
        path = f"/{deployment['id']}"
        way = self.chance.random()
        if way < 0.5:
            await self.ask("PATCH", path, {"source_revision_config": {"repo_ref": f"ref-{way}"}})
        elif way < 0.7:
            await self.ask("POST", f"{path}/revisions", {})
        else:
            # One that was never built is refused, and a change is made instead.
            revision = self.chance.choice((await self.ask("GET", f"{path}/revisions"))["resources"])
            if await self.ask("POST", f"{path}/revisions/{revision['id']}/redeploy") is None:
                await self.ask("PATCH", path, {"secrets": []})

        if way > 0.9:
            latest = (await self.ask("GET", path))["latest_revision_id"]
            await self.ask("POST", f"{path}/revisions/{latest}/interrupt")

    async def listen(self) -> None:
        """Deliver revisions until the storm is over and nothing is left to do."""
        listener_id = await self.plane.listener.connect()
        work: set[asyncio.Task[None]] = set()
        generation = 0
        while True:
            # The answer may be older than a report that arrives meanwhile, so it is the last word only without any.
            is_calm = self.calm.is_set() and not work
            desired = await self.plane.listener.desired(listener_id, generation, 0.2)
            generation = desired["generation"]

            waiting = [
                (deployment["id"], revision)
                for deployment in desired["deployments"]
                for revision in deployment["revisions"]
                if revision["status"] not in {"QUEUED", "DEPLOYED"} and revision["id"] not in self.busy
            ]

            for deployment_id, revision in waiting:
                self.busy.add(revision["id"])
                task = asyncio.create_task(self.deliver(deployment_id, revision))
                work.add(task)
                task.add_done_callback(work.discard)

            if is_calm and not waiting:
                return

    async def deliver(self, deployment_id: str, revision: dict[str, Any]) -> None:
        """Take a revision to one of its ends, as far as it is let."""
        steps = STEPS[2:] if revision["built_from"] else STEPS
        last = revision["status"]
        for step in steps:
            fails = FAILURES.get(last) if self.chance.random() < 0.1 else None
            async with self.gate:
                response = await self.plane.listener.report(deployment_id, revision["id"], fails or step)

            if fails or response.status_code != 204:
                assert response.status_code in {204, 409}, response.text
                return

            last = step


async def test_a_storm_of_changes_leaves_no_wrong_state(control_databases) -> None:
    async with control(await control_databases()) as plane:
        storm = Storm(plane)
        began = time.monotonic()
        listening = asyncio.create_task(storm.listen())
        made = await asyncio.gather(*(storm.ask("POST", "", create_body(f"agent-{n}")) for n in range(DEPLOYMENTS)))

        await asyncio.gather(*(storm.change(made[n % DEPLOYMENTS]) for n in range(REVISIONS - DEPLOYMENTS)))
        took_s = time.monotonic() - began
        storm.calm.set()
        await listening
        await judge(plane)
        sys.stdout.write(f"{DEPLOYMENTS} deployments, {REVISIONS} revisions: {took_s:.1f} s {dict(storm.answers)}\n")


async def judge(plane: Control) -> None:
    """Check the rules for the revisions of each deployment, and for the history of each revision."""
    rows = await plane.db.pool.fetch("""
        select r.id, r.deployment_id, r.number, r.status, r.is_built, d.latest_revision_id, d.active_revision_id,
               array_agg(m.status order by m.id) as moves, max(m.id) filter (where m.status = 'DEPLOYED') as deployed
        from revisions r join deployments d on d.id = r.deployment_id
             join revision_transitions m on m.revision_id = r.id
        group by r.id, d.id order by r.deployment_id, r.number
    """)

    assert len(rows) == REVISIONS
    by_deployment: dict[Any, list[Any]] = {}
    for row in rows:
        by_deployment.setdefault(row["deployment_id"], []).append(row)

    assert len(by_deployment) == DEPLOYMENTS

    for revisions in by_deployment.values():
        assert [row["number"] for row in revisions] == list(range(1, len(revisions) + 1))
        assert revisions[-1]["id"] == revisions[-1]["latest_revision_id"]
        deployed = max((row for row in revisions if row["deployed"]), key=lambda row: row["deployed"], default=None)
        assert revisions[-1]["active_revision_id"] == (deployed and deployed["id"])
        at_work = 0

        for row in revisions:
            moves = [RevisionStatus(status) for status in row["moves"]]
            assert moves[0] in {RevisionStatus.CREATING, RevisionStatus.QUEUED}
            assert all(after in TRANSITIONS[before] for before, after in pairwise(moves)), moves
            assert moves[-1] == row["status"]
            assert moves[-1] in TERMINAL
            at_work += RevisionStatus.CREATING in moves

        assert at_work >= 1

    waits = await plane.db.pool.fetchval("""
        select count(*) from revisions r join revision_transitions c on c.revision_id = r.id and c.status = 'CREATING'
        where exists (
            select from revisions o
            join revision_transitions b on b.revision_id = o.id and b.status = 'CREATING'
            join revision_transitions e on e.revision_id = o.id
                and e.id = (select max(id) from revision_transitions where revision_id = o.id)
            where o.deployment_id = r.deployment_id and o.id <> r.id and b.id < c.id and c.id < e.id
        )
    """)

    assert waits == 0, "two revisions of a deployment were at work at once"
