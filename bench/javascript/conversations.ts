// The graphs of `bench.conversations` in TypeScript.
import { AIMessage } from "@langchain/core/messages";
import { Annotation, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";

const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ";

function text(length: number): string {
  return Array.from({ length }, () => LETTERS[Math.floor(Math.random() * LETTERS.length)]).join("");
}

export const conversation = new StateGraph(MessagesAnnotation)
  .addNode("think", async () => ({ messages: [new AIMessage(text(600))] }))
  .addNode("reply", async () => ({ messages: [new AIMessage(text(400))] }))
  .addEdge(START, "think")
  .addEdge("think", "reply")
  .compile();

const Tiny = Annotation.Root({ count: Annotation<number> });

export const tiny = new StateGraph(Tiny)
  .addNode("one", async () => ({ count: 1 }))
  .addNode("two", async () => ({ count: 2 }))
  .addEdge(START, "one")
  .addEdge("one", "two")
  .compile();
