// The assistants of an agent, by the names that people know.

import { useMemo } from "react";
import { useAgentApi } from "./agentQueries";

const SHOWN = 1000;

/** The assistants as pairs of id and name, sorted by name, and a name for each id. */
export function useAssistants(deploymentId: string) {
  const assistants = useAgentApi(deploymentId, "POST /assistants/search", {
    body: { limit: SHOWN, sort_by: "name", sort_order: "asc", select: ["assistant_id", "name", "graph_id"] },
  });

  return useMemo(() => {
    const pairs = (assistants.data ?? []).map(
      (each) => [each.assistant_id ?? "", each.name ?? each.graph_id ?? ""] as const,
    );
    const names = new Map(pairs);
    return { pairs, getName: (id: string) => names.get(id) ?? id.slice(-8) };
  }, [assistants.data]);
}
