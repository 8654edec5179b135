import { Annotation, StateGraph } from "@langchain/langgraph";
import { greet } from "greeting";

const State = Annotation.Root({ name: Annotation<string>(), answer: Annotation<string>() });

export default new StateGraph(State)
  .addNode("greet", ({ name }) => ({ answer: `${greet(name)}, from Node ${process.versions.node.split(".")[0]}` }))
  .addEdge("__start__", "greet")
  .compile();
