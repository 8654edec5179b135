import { Annotation, interrupt, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({ answer: Annotation() });

export const graph = new StateGraph(State)
  .addNode("ask", async () => ({ answer: interrupt("Who are you?") }))
  .addEdge("__start__", "ask")
  .compile();
