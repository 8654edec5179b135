"""What runs inside a run: the graph and its subgraphs with their status, as the lifecycle events tell it."""

from typing import Any

Namespace = tuple[str, ...]
_OVER = frozenset({"completed", "failed", "interrupted"})


class Tree:
    """The agents of a thread's newest run."""

    def __init__(self) -> None:
        self.run_id: str | None = None
        self._nodes: dict[Namespace, dict[str, str]] = {}

    @property
    def is_running(self) -> bool:
        """Whether the run goes on."""
        root = self._nodes.get(())
        return root is not None and root["status"] not in _OVER

    def note(self, run_id: str, namespace: Namespace, data: dict[str, Any]) -> None:
        """Take in a lifecycle event; a run that begins takes the place of the one before it."""
        if not namespace and data["event"] == "running":
            self.run_id, self._nodes = run_id, {}
        name = data.get("graph_name") or (namespace[-1].partition(":")[0] if namespace else "")
        self._nodes[namespace] = {"status": data["event"], "graph_name": name}

    def unfinished(self) -> list[Namespace]:
        """Return the subgraphs that have not ended, the innermost first."""
        running = [namespace for namespace, node in self._nodes.items() if namespace and node["status"] not in _OVER]
        return sorted(running, key=len, reverse=True)

    def show(self, namespace: Namespace = ()) -> dict[str, Any]:
        """Return a node with everything below it (spec: AgentTreeNode)."""
        children = [self.show(ns) for ns in self._nodes if ns[:-1] == namespace and ns != namespace]
        shown = {"namespace": list(namespace), **self._nodes[namespace]}
        return {**shown, "children": children} if children else shown
