// An agent with two tools, of which one needs a person's approval. Replace `PocketModel` with a chat model of your choice.

import { createAgent, humanInTheLoopMiddleware, tool } from "langchain";
import { z } from "zod";
import { PocketModel } from "./model.js";

const OPERATIONS: Record<string, (left: number, right: number) => number> = {
  "+": (left, right) => left + right,
  "-": (left, right) => left - right,
  "*": (left, right) => left * right,
  "/": (left, right) => left / right,
};

const calculate = tool(({ left, operator, right }) => String(OPERATIONS[operator]?.(left, right)), {
  name: "calculate",
  description: "Calculates with two numbers.",
  schema: z.object({ left: z.number(), operator: z.enum(["+", "-", "*", "/"]), right: z.number() }),
});

const send = tool(({ text }) => `sent "${text}"`, {
  name: "send",
  description: "Sends a message. This example only says so.",
  schema: z.object({ text: z.string() }),
});

export const agent = createAgent({
  model: new PocketModel({}),
  tools: [calculate, send],
  middleware: [humanInTheLoopMiddleware({ interruptOn: { send: true } })],
});
