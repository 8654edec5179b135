"""What of a shared dataset is seen by whoever has its link: examples as they are, and the experiments on them."""

from uuid import UUID

import msgspec

from portside.datasets.attachments import Links
from portside.datasets.datasets import open_share
from portside.datasets.examples import list_examples
from portside.datasets.types import Example, ExampleQuery, SharedExampleQuery
from portside.kernel.db import Session
from portside.tracing.project_lists import ProjectQuery, list_projects
from portside.tracing.types import TracerSession


async def list_shared_examples(db: Session, token: UUID, query: SharedExampleQuery, links: Links) -> list[Example]:
    """List the examples of a shared dataset. Raises SharedDatasetNotFound and what a list of examples raises."""
    workspace_id, dataset_id = await open_share(db, token)
    wanted = ExampleQuery(dataset=dataset_id, **msgspec.structs.asdict(query))
    return await list_examples(db, workspace_id, wanted, links)


async def list_shared_experiments(db: Session, token: UUID, query: ProjectQuery) -> list[TracerSession]:
    """List the experiments on a shared dataset. Raises SharedDatasetNotFound and Invalid."""
    workspace_id, dataset_id = await open_share(db, token)
    query.reference_dataset, query.reference_free = [dataset_id], None
    return await list_projects(db, workspace_id, query)
