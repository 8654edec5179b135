"""What whoever has the link of a shared run sees, without a key: that run, all below it, and the feedback on them.

Filters that ask about the rest of a trace are refused here: their answers would tell of what is not shared.
"""

from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.kernel.db import Session
from portside.kernel.errors import Invalid, NotFound
from portside.tracing.attachments import Links
from portside.tracing.conditions import Condition, Conditions, all_of, narrow
from portside.tracing.feedback import Feedback, FeedbackQuery, find_feedback
from portside.tracing.pages import find_page
from portside.tracing.run_queries import FoundRuns, RunPage, conditions_of, page_of_runs
from portside.tracing.runs import EVERYTHING, RunNotFound, show_runs
from portside.tracing.runs_v2 import PUBLIC_SELECTS, RunItems, Selects, read_selects, tell_runs
from portside.tracing.sql import sql
from portside.tracing.types import Run

_ABOUT_THE_REST = ("trace_filter", "tree_filter", "execution_order")
_MAX_ITEMS = 1000


class ShareNotFound(NotFound):
    """Nothing is shared by this link, or not any more."""

    code = "share_not_found"


class SharedFeedbackQuery(msgspec.Struct):
    """Which feedback to list."""

    run: list[UUID] | None = None
    key: list[str] | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=100)] = 100
    offset: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0


class SharedSelection(msgspec.Struct):
    """What to tell of each run."""

    selects: Selects | None = None


class _Shared(msgspec.Struct):
    """A shared run, and where it stands."""

    workspace_id: UUID
    id: UUID
    trace_id: UUID
    dotted_order: str

    def meets(self, conditions: Conditions) -> Condition:
        """Return what holds for the run and all below it."""
        of_workspace = conditions.of(sql.when_workspace, value=self.workspace_id)
        below = conditions.of(sql.when_below, trace_id=self.trace_id, dotted_order=self.dotted_order)
        return all_of([of_workspace, below])


async def show_shared_run(db: Session, token: UUID, links: Links, run_id: UUID | None = None) -> Run:
    """Return the shared run, or one below it. Raises ShareNotFound and RunNotFound."""
    shared = await _find(db, token)
    found = await show_runs(db, shared.workspace_id, [run_id or shared.id], list(EVERYTHING), links)
    if not found or not f"{found[0].dotted_order}.".startswith(f"{shared.dotted_order}."):
        raise RunNotFound
    return found[0]


async def query_shared_runs(db: Session, token: UUID, body: RunPage, links: Links) -> FoundRuns:
    """Return a page of the runs that are shared. Raises ShareNotFound, and what `query_runs` raises."""
    shared = await _find(db, token)
    for name in _ABOUT_THE_REST:
        if getattr(body, name):
            raise Invalid.field(["body", name], "asks about runs that are not shared", "not_supported")
    conditions = Conditions()
    asked = all_of([shared.meets(conditions), conditions_of(body, shared.workspace_id, conditions)])
    return await page_of_runs(db, shared.workspace_id, body, asked, links)


async def tell_shared_runs(db: Session, token: UUID, body: SharedSelection, links: Links) -> RunItems:
    """Return the runs that are shared in the newer form, in order of time. Raises ShareNotFound and Invalid."""
    shared = await _find(db, token)
    selects = read_selects(body.selects, "body")
    if hidden := sorted(selects - PUBLIC_SELECTS):
        raise Invalid.field(["body", "selects"], f"{hidden[0]} is not shown to everybody", "not_supported")
    page = await find_page(db, shared.meets(Conditions()), None, limit=_MAX_ITEMS, descending=False)
    items: list[dict[str, Any]] = await tell_runs(db, shared.workspace_id, page.ids, selects, links)
    return RunItems(items, has_more=page.cursors.next is not None)


async def list_shared_feedback(db: Session, token: UUID, query: SharedFeedbackQuery) -> list[Feedback]:
    """List the feedback on the runs that are shared, without who gave it. Raises ShareNotFound."""
    shared = await _find(db, token)
    statement, values = narrow(sql.ids_of_runs, shared.meets(Conditions()))
    ids = {row["id"] for row in await db.fetch(statement, **values)}
    wanted = FeedbackQuery(
        run=sorted(ids.intersection(query.run) if query.run else ids),
        key=query.key,
        limit=query.limit,
        offset=query.offset,
    )
    found = await find_feedback(db, shared.workspace_id, wanted)
    for item in found:
        source = item.feedback_source
        item.feedback_source = {"type": source.get("type")} if isinstance(source, dict) else None
    return found


async def _find(db: Session, token: UUID) -> _Shared:
    row = await db.fetchrow(sql.shared_run, share_token=token)
    if row is None:
        raise ShareNotFound
    return _Shared(**dict(row))
