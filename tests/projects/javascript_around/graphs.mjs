import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage } from "@langchain/core/messages";
import { Annotation, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { createAgent, createMiddleware, humanInTheLoopMiddleware, tool } from "langchain";
import { z } from "zod";

// A model that calls a tool for what a person says, and then says what the tool returned.
class Calling extends BaseChatModel {
  _llmType() {
    return "calling";
  }

  bindTools() {
    return this;
  }

  async _generate(messages) {
    const last = messages.at(-1);
    const tool_calls = [{ id: `call ${messages.length}`, name: "send", args: { text: last.text } }];
    const message = last.type === "tool" ? new AIMessage(`done: ${last.text}`) : new AIMessage({ content: "", tool_calls });
    return { generations: [{ text: message.text, message }] };
  }
}

const send = tool(({ text }) => `sent ${text}`, {
  name: "send",
  description: "Sends a text.",
  schema: z.object({ text: z.string() }),
});

const counting = createMiddleware({
  name: "counting",
  stateSchema: z.object({ calls: z.number().default(0) }),
  beforeModel: (state) => ({ calls: state.calls + 1 }),
});

export const assistant = createAgent({
  model: new Calling({}),
  tools: [send],
  middleware: [counting, humanInTheLoopMiddleware({ interruptOn: { send: true } })],
});

export const echo = new StateGraph(MessagesAnnotation)
  .addNode("say", (state) => ({ messages: [new AIMessage(`echo: ${state.messages.at(-1)?.text}`)] }))
  .addEdge(START, "say")
  .compile();

const Books = Annotation.Root({ books: Annotation(), query: Annotation(), found: Annotation() });

export const library = new StateGraph(Books)
  .addNode("keep", async (state, config) => {
    for (const text of state.books) {
      await config.store?.put(["books"], text, { text });
    }
    const found = await config.store?.search(["books"], { query: state.query, limit: 1 });
    return { found: found?.map((each) => each.key) };
  })
  .addEdge(START, "keep")
  .compile();

const Held = Annotation.Root({ bytes: Annotation(), pid: Annotation() });
let held;

export const processId = new StateGraph(Held)
  .addNode("say", (state) => {
    held = Buffer.alloc(state.bytes, 1);
    return { pid: process.pid, bytes: held.length };
  })
  .addEdge(START, "say")
  .compile();
