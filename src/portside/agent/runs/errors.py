"""The errors of requests about runs."""

from portside.kernel.errors import Conflict, NotFound


class RunNotFound(NotFound):
    """No run with this id exists on the thread."""

    code = "run_not_found"


class NothingToCancel(NotFound):
    """No runs found to cancel."""

    code = "nothing_to_cancel"


class ThreadBusy(Conflict):
    """The thread already has a run; wait for it to finish, or choose another multitask_strategy."""

    code = "thread_busy"
