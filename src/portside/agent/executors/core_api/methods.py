"""The fields of the core API's messages that each method of a link uses."""

from collections.abc import Mapping
from typing import NamedTuple

from portside.executor import messages


class Method(NamedTuple):
    """The fields of `Call`, `GraphCall`, `Item` and `Result` that a method uses; None if it sends nothing there."""

    body: str = "other"
    request: str | None = None
    item: str = "other"
    result: str | None = "other"


OTHER = Method()
"""A method that sends values without a fixed shape."""
METHODS: Mapping[str, Method] = {
    messages.EXECUTE: Method("graph", "run", item="events", result="outcome"),
    "read_outcome": Method("graph", "run", result="outcome"),
    "read_state": Method("graph", "state_read", result="json"),
    "read_history": Method("graph", "history_read", result="json"),
    messages.UPDATE_STATE: Method("graph", "state_change", result="changed"),
    messages.CREATE_STATE: Method("graph", "state_creation", result="changed"),
    "draw": Method("graph", "description", result="drawing"),
    "schemas": Method("graph", "description", result="schemas"),
    "subgraphs": Method("graph", "description", result="subgraphs"),
    messages.CHECKPOINTS_PUT: Method("checkpoint_put", result=None),
    messages.CHECKPOINTS: Method("checkpoint_call"),
    messages.STORE_BATCH: Method("store_batch"),
    messages.HTTP_REQUEST: Method("http_request", item="head", result=None),
    messages.RETIRE: Method("retirement", result=None),
    messages.LEASES: Method("leases", result=None),
}
