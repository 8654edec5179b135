"""Results of experiments in the newer form of the API: examples with what is selected of their runs.

Pages go by the ids of examples, and a cursor is the last id of the page before: new examples move nothing.
"""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from portside.datasets.attachments import Links
from portside.datasets.examples import EVERYTHING, show_examples
from portside.datasets.experiments import Filters, examples_of, experiments_asked, runs_of
from portside.datasets.types import Example, Ids
from portside.kernel.db import Session
from portside.kernel.http.routes import refuse_field
from portside.tracing.attachments import Links as RunLinks
from portside.tracing.pages import CursorInvalid
from portside.tracing.runs_v2 import Selects, read_selects, tell_runs


class ExperimentRunsQuery(msgspec.Struct, kw_only=True):
    """Which experiments on which examples, which page, and what of each run. What is not acted on is refused."""

    experiment_ids: Annotated[list[UUID], msgspec.Meta(min_length=1, max_length=100)]
    example_ids: Ids | None = None
    filters: Filters | None = None
    page_size: Annotated[int, msgspec.Meta(ge=1, le=100)] = 20
    cursor: Annotated[str, msgspec.Meta(max_length=100)] | None = None
    selects: Selects | None = None
    comparative_experiment_id: UUID | None = None
    sort: dict[str, Any] | None = None


class ExampleRuns(msgspec.Struct, kw_only=True):
    """An example, and what is selected of the runs that experiments made on it."""

    id: UUID
    dataset_id: UUID
    name: str
    inputs: msgspec.Raw
    outputs: msgspec.Raw | None
    metadata: dict[str, Any]
    created_at: datetime
    modified_at: datetime
    source_run_id: UUID | None
    attachment_urls: dict[str, str]
    runs: list[dict[str, Any]]


class ExperimentRuns(msgspec.Struct):
    """One page of examples."""

    items: list[ExampleRuns]
    next_cursor: str | None


async def query_results(
    db: Session, workspace_id: UUID, dataset_id: UUID, body: ExperimentRunsQuery, links: tuple[Links, RunLinks]
) -> ExperimentRuns:
    """Return a page of the examples that experiments ran on.

    Raises DatasetNotFound, FilterInvalid, CursorInvalid and Invalid.
    """
    for name in ("sort", "comparative_experiment_id"):
        if getattr(body, name):
            raise refuse_field(name, "this is not supported")
    selects = read_selects(body.selects, "body")
    after = _place(body.cursor)
    asked = await experiments_asked(db, workspace_id, dataset_id, body.experiment_ids, body.filters)
    ran = set(await examples_of(db, workspace_id, asked))
    if body.example_ids is not None:
        ran &= set(body.example_ids)
    ahead = sorted(example for example in ran if after is None or example > after)
    ids = ahead[: body.page_size]
    by_example = await runs_of(db, workspace_id, asked, ids)
    wanted = [run for runs in by_example.values() for run in runs]
    told = {run["id"]: run for run in await tell_runs(db, workspace_id, wanted, {"ID", *selects}, links[1])}
    examples = await show_examples(db, workspace_id, ids, None, links[0], shown=EVERYTHING)
    items = [
        _item(example, [told[run] for run in by_example.get(example.id, []) if run in told])
        for example in examples
        if example.dataset_id == dataset_id
    ]
    return ExperimentRuns(items, str(ids[-1]) if len(ahead) > len(ids) else None)


def _place(cursor: str | None) -> UUID | None:
    try:
        return None if cursor is None else UUID(cursor)
    except ValueError:
        raise CursorInvalid from None


def _item(example: Example, runs: list[dict[str, Any]]) -> ExampleRuns:
    fields = msgspec.structs.asdict(example)
    linked = fields.pop("attachment_urls") or {}
    urls = {name.removeprefix("attachment."): one.presigned_url for name, one in linked.items()}
    return ExampleRuns(**fields, attachment_urls=urls, runs=runs)
