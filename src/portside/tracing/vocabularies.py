"""What filters may speak of: fields of runs and of projects, each with the statement that holds its condition."""

from typing import NamedTuple

from portside.kernel.queries import Query
from portside.tracing.sql import sql


class Family(NamedTuple):
    """Two fields that, compared in one `and`, speak of one and the same thing: a piece of feedback, an entry."""

    query: Query
    slots: tuple[str, str]


class Vocabulary(NamedTuple):
    """The fields of one kind of thing, by how they are compared."""

    texts: dict[str, Query]
    numbers: dict[str, Query]
    times: dict[str, Query]
    families: dict[str, Family]
    searched: Query
    """Meets things that hold a text somewhere."""
    metadata: Query
    """Meets things whose metadata holds an object."""
    metadata_key: Query | None = None
    """Meets things whose metadata has a key."""
    tagged: Query | None = None
    any_tag: Query | None = None
    root: Query | None = None

    def pair(self, field: str) -> tuple[str, str] | None:
        """Return the family of a field and its place in it, None for one of none."""
        family, _, slot = field.partition("_")
        return (family, slot) if family in self.families and slot in self.families[family].slots else None


RUNS = Vocabulary(
    texts={
        "id": sql.when_id,
        "trace_id": sql.when_trace_id,
        "parent_run_id": sql.when_parent_run_id,
        "name": sql.when_name,
        "run_type": sql.when_run_type,
        "status": sql.when_status,
        "error": sql.when_error,
        "inputs": sql.when_inputs,
        "outputs": sql.when_outputs,
    },
    numbers={
        "latency": sql.when_latency,
        "total_tokens": sql.when_total_tokens,
        "prompt_tokens": sql.when_prompt_tokens,
        "completion_tokens": sql.when_completion_tokens,
        "execution_order": sql.when_execution_order,
    },
    times={"start_time": sql.when_start_time, "end_time": sql.when_end_time},
    families={
        "feedback": Family(sql.when_feedback, ("key", "score")),
        "metadata": Family(sql.when_metadata, ("key", "value")),
    },
    searched=sql.when_searched,
    metadata=sql.when_metadata_holds,
    tagged=sql.when_tagged,
    any_tag=sql.when_any_tag,
    root=sql.when_root,
)
PROJECTS = Vocabulary(
    texts={
        "id": sql.when_project_id,
        "name": sql.when_project_name,
        "description": sql.when_project_description,
        "reference_dataset_id": sql.when_project_reference_dataset,
    },
    numbers={},
    times={"start_time": sql.when_project_start_time, "end_time": sql.when_project_end_time},
    families={"metadata": Family(sql.when_project_metadata, ("key", "value"))},
    searched=sql.when_project_searched,
    metadata=sql.when_project_metadata_holds,
)
