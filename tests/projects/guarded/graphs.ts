// A graph in TypeScript that tells who it runs for, and what the server shows to it.

import { Annotation, type LangGraphRunnableConfig, START, StateGraph } from "@langchain/langgraph";

const Reported = Annotation.Root({ reported: Annotation<Record<string, unknown>> });

function tell(_state: typeof Reported.State, config: LangGraphRunnableConfig) {
  const { langgraph_auth_user: user, ...configurable } = config.configurable as Record<string, any>;
  const reported = {
    identity: user.identity,
    email: user.email ?? null,
    permissions: configurable.langgraph_auth_permissions,
    user_id: configurable.user_id,
    auth_user_id: configurable.langgraph_auth_user_id,
    keys: Object.keys(configurable).filter((name) => name.toLowerCase().includes("api-key")),
  };
  return { reported };
}

export const told = new StateGraph(Reported).addNode("tell", tell).addEdge(START, "tell").compile();
