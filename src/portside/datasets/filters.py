"""What filters of examples may speak of; the language is that of runs."""

from portside.datasets.sql import sql
from portside.tracing.vocabularies import Family, Vocabulary

EXAMPLES = Vocabulary(
    texts={
        "id": sql.when_id,
        "source_run_id": sql.when_source_run_id,
        "inputs": sql.when_inputs,
        "outputs": sql.when_outputs,
    },
    numbers={},
    times={"created_at": sql.when_created_at, "modified_at": sql.when_modified_at},
    families={"metadata": Family(sql.when_metadata, ("key", "value"))},
    searched=sql.when_searched,
    metadata=sql.when_holds,
    metadata_key=sql.when_has_key,
)
