import { AIMessage } from "@langchain/core/messages";
import { Annotation, MessagesAnnotation, StateGraph } from "@langchain/langgraph";

const State = Annotation.Root({ ...MessagesAnnotation.spec, count: Annotation<number> });

async function answer(state: typeof State.State) {
  const last = state.messages.at(-1);
  return { messages: [new AIMessage(`echo: ${last?.content}`)], count: (state.count ?? 0) + 1 };
}

export const graph = new StateGraph(State).addNode("answer", answer).addEdge("__start__", "answer").compile();
