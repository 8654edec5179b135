"""For whom the code of a graph is just executed, so that what it asks of the server can be asked in their name.

It goes where Python's context goes: into tasks, and into the threads of nodes that are no coroutines. A thread that the
code starts by itself begins without it.
"""

from contextvars import ContextVar
from typing import Any

_user: ContextVar[Any] = ContextVar("acting_for", default=None)


def act_for(config: Any) -> None:
    """Execute what follows in this task for the user of a graph's config, or for nobody."""
    _user.set(((config or {}).get("configurable") or {}).get("langgraph_auth_user"))


def acting_for() -> Any:
    """Return the user whom the graph is executed for; None for nobody, and outside of graphs."""
    return _user.get()
