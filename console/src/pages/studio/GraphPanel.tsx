import { lazy, Suspense } from "react";
import { useAgentApi } from "../../api/agentQueries";
import { GRAPH_REFRESH } from "../../api/server";
import { Problem } from "../../ui/Problem";
import type { NodeState } from "./follow";

// The drawing brings its own library, which the rest of the page does not wait for.
const GraphView = lazy(() => import("./GraphView"));

interface Props {
  deploymentId: string;
  assistantId: string;
  nodes: Map<string, NodeState>;
  // The nodes that a thread goes on with.
  next: string[];
  // The nodes before which runs stop.
  pauses: string[];
  onPauses: (nodes: string[]) => void;
}

export function GraphPanel({ deploymentId, assistantId, nodes, next, pauses, onPauses }: Props) {
  const graph = useAgentApi(
    deploymentId,
    "GET /assistants/{assistant_id}/graph",
    { path: { assistant_id: assistantId }, query: { xray: "true" } },
    GRAPH_REFRESH,
  );
  if (!graph.data) {
    return graph.error ? <Problem error={graph.error} retry={() => void graph.refetch()} /> : null;
  }

  const names = graph.data.nodes.map((each) => String(each.id)).filter((name) => !/^__|:/.test(name));

  return (
    <>
      <Suspense fallback={<p className="soft card-body">Drawing…</p>}>
        <GraphView drawing={graph.data} states={nodes} next={next} />
      </Suspense>
      <details className="pauses">
        <summary>{pauses.length > 0 ? `Pauses before ${pauses.join(", ")}` : "Pause before a node"}</summary>
        {names.map((name) => (
          <label key={name} className="check">
            <input
              type="checkbox"
              checked={pauses.includes(name)}
              onChange={(event) =>
                onPauses(event.target.checked ? [...pauses, name] : pauses.filter((each) => each !== name))
              }
            />
            {name}
          </label>
        ))}
      </details>
    </>
  );
}
