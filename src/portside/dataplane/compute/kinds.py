"""The kinds of compute, by the names that `portside listener --compute` takes."""

from portside.dataplane.compute.interface import Compute
from portside.dataplane.compute.machine import Machine
from portside.dataplane.settings import ListenerSettings


def open_compute(kind: str, settings: ListenerSettings) -> Compute:
    """Return the compute of a kind. Raises KeyError for a name that is none."""
    kinds = {"process": Machine}
    return kinds[kind](settings)
