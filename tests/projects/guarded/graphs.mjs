// A graph that tells who it runs for, and what the server shows to it. In JavaScript: for TypeScript a server reads types.

import { Annotation, START, StateGraph } from "@langchain/langgraph";

const Reported = Annotation.Root({ reported: Annotation() });

function tell(_state, config) {
  const { langgraph_auth_user: user, ...configurable } = config.configurable;
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
