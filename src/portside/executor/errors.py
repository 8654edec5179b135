"""How the execution of a graph fails, where that is not an outcome of the run."""

from portside.kernel.errors import PortsideError


class GraphFailed(PortsideError):
    """The graph's own code failed while the graph was opened; the message says how."""

    code = "graph_failed"


class RunTimeout(Exception):
    """The run took longer than it may."""
