"""The runs of a batch that ingest refuses while it stores the others."""

from portside.kernel.errors import Invalid, Problem
from portside.tracing.types import IngestBatch

# How many refused runs a response describes.
_MAX_REFUSALS = 100


class RunsRefused(Invalid):
    """Some runs were refused, and each problem names its run; the other runs of the request were stored."""

    code = "runs_refused"


def drop_refused(batch: IngestBatch) -> None:
    """Drop everything about refused runs from a batch: a patch without its post would be half a run."""
    refused = {run.run_id for run in batch.refused}
    if refused:
        batch.runs = [write for write in batch.runs if write.id not in refused]
        batch.attachments = [file for file in batch.attachments if file.run_id not in refused]


def raise_for_refused(batch: IngestBatch) -> None:
    """Raise RunsRefused if runs of a batch were refused."""
    if not batch.refused:
        return

    others = ""
    stored_count = len({run.id for run in batch.runs})
    if stored_count == 1:
        others = "; 1 other run was stored"
    elif stored_count:
        others = f"; {stored_count} other runs were stored"

    problems: list[Problem] = []
    for run in batch.refused[:_MAX_REFUSALS]:
        for problem in run.problems:
            loc = problem.loc
            if run.run_id is not None and str(run.run_id) not in map(str, loc):
                loc = [*loc[:1], str(run.run_id), *loc[1:]]

            problems.append(Problem(loc, problem.msg + others, problem.type))

    raise RunsRefused(problems)


def describe_partial_success(batch: IngestBatch) -> tuple[int, str]:
    """Return how many spans were refused, and what to tell about them. Raises RunsRefused if none was stored."""
    if not batch.runs:
        raise_for_refused(batch)

    reasons = [f"{run.run_id}: {problem.msg}" for run in batch.refused[:_MAX_REFUSALS] for problem in run.problems]
    return len(batch.refused), "; ".join([*reasons, *batch.warnings])
