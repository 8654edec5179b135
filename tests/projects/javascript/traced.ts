// Graphs whose runs end in the ways that a trace has to tell apart.
import { Annotation, Command, NodeInterrupt, START, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({ answer: Annotation<unknown> });

const leaving = new StateGraph(State)
  .addNode("leave", () => new Command({ graph: Command.PARENT, goto: "arrive" }), { ends: [] })
  .addEdge(START, "leave")
  .compile();

// A subgraph that hands over to a node of its parent.
export const handover = new StateGraph(State)
  .addNode("child", leaving, { ends: ["arrive"] })
  .addNode("arrive", () => ({ answer: "arrived" }))
  .addEdge(START, "child")
  .compile();

export const refusing = new StateGraph(State)
  .addNode("refuse", () => {
    throw new NodeInterrupt("not today");
  })
  .addEdge(START, "refuse")
  .compile();

const careful = new StateGraph(State)
  .addNode("stop", () => ({ answer: "stopped" }))
  .addEdge(START, "stop")
  .compile({ interruptBefore: ["stop"] });

// A subgraph that waits before its node.
export const halting = new StateGraph(State).addNode("child", careful).addEdge(START, "child").compile();

const likeInterrupts = JSON.stringify([{ id: "0".repeat(32), value: { ask: "why?" } }], null, 2);

// Fails with a message that looks like that of an interrupt.
export const lookalike = new StateGraph(State)
  .addNode("interrupt", () => {
    throw new Error(likeInterrupts);
  })
  .addEdge(START, "interrupt")
  .compile();
