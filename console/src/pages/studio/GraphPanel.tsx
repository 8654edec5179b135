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
}

export function GraphPanel({ deploymentId, assistantId, nodes, next }: Props) {
  const found = useAgentApi(
    deploymentId,
    "GET /assistants/{assistant_id}/graph",
    { path: { assistant_id: assistantId }, query: { xray: "true" } },
    GRAPH_REFRESH,
  );
  if (!found.data) {
    return found.error ? <Problem error={found.error} retry={() => void found.refetch()} /> : null;
  }
  return (
    <Suspense fallback={<p className="soft card-body">Drawing…</p>}>
      <GraphView drawing={found.data} states={nodes} next={next} />
    </Suspense>
  );
}
