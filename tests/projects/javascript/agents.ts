import { appendFileSync, existsSync } from "node:fs";
import { BaseChatModel } from "@langchain/core/language_models/chat_models";
import { AIMessage } from "@langchain/core/messages";
import { FakeStreamingChatModel } from "@langchain/core/utils/testing";
import {
  Annotation,
  Command,
  END,
  interrupt,
  type LangGraphRunnableConfig,
  MessagesAnnotation,
  Send,
  START,
  StateGraph,
} from "@langchain/langgraph";
import { Client } from "@langchain/langgraph-sdk";
import { z } from "zod";

// A model that streams its words.
const words = ["Hel", "lo ", "there"];
const model = new FakeStreamingChatModel({ chunks: words.map((text) => new AIMessage(text)) as never, sleep: 0 });

export const chat = new StateGraph(MessagesAnnotation)
  .addNode("talk", async (state) => ({ messages: [await model.invoke(state.messages)] }))
  .addEdge(START, "talk")
  .compile();

const usage_metadata = { input_tokens: 3, output_tokens: 4, total_tokens: 7 };

class Counting extends BaseChatModel {
  override _llmType() {
    return "counting";
  }

  // As the classes of providers have it.
  override getLsParams() {
    return { ls_model_type: "chat" as const, ls_provider: "openai", ls_model_name: "gpt-4o-mini" };
  }

  override async _generate() {
    return { generations: [{ text: "seven", message: new AIMessage({ content: "seven", usage_metadata }) }] };
  }
}

export const counted = new StateGraph(MessagesAnnotation)
  .addNode("count", async (state) => ({ messages: [await new Counting({}).invoke(state.messages)] }))
  .addEdge(START, "count")
  .compile();

const Asked = Annotation.Root({ question: Annotation<string>, answer: Annotation<unknown>, path: Annotation<string> });

export const ask = new StateGraph(Asked)
  .addNode("decide", (state) => ({ answer: interrupt({ ask: state.question }) }))
  .addNode("route", (state) => new Command({ update: { path: "routed" }, goto: state.answer === "stop" ? END : "last" }), {
    ends: ["last", END],
  })
  .addNode("last", () => ({ path: "last" }))
  .addEdge(START, "decide")
  .addEdge("decide", "route")
  .compile();

const Fan = Annotation.Root({
  subjects: Annotation<string[]>,
  jokes: Annotation<string[]>({ reducer: (left, right) => left.concat(right), default: () => [] }),
});

export const fan = new StateGraph(Fan)
  .addNode("tell", (state: { subject: string }) => ({ jokes: [`about ${state.subject}`] }))
  .addConditionalEdges(START, (state) => state.subjects.map((subject) => new Send("tell", { subject })))
  .compile();

const child = new StateGraph(Asked)
  .addNode("inside", (state, config: LangGraphRunnableConfig) => {
    config.writer?.({ from: "inside" });
    return { answer: interrupt(`inside: ${state.question}`) };
  })
  .addEdge(START, "inside")
  .compile();

export const nested = new StateGraph(Asked)
  .addNode("before", (state) => ({ path: `${state.path ?? ""}before ` }))
  .addNode("child", child)
  .addNode("after", (state) => ({ path: `${state.path}after` }))
  .addEdge(START, "before")
  .addEdge("before", "child")
  .addEdge("child", "after")
  .compile();

const Remembered = Annotation.Root({ note: Annotation<string>, found: Annotation<unknown> });

export const memory = new StateGraph(Remembered)
  .addNode("remember", async (state, config: LangGraphRunnableConfig) => {
    const store = config.store;
    await store?.put(["notes", "js"], "first", { text: state.note });
    await store?.put(["notes", "js"], "second", { text: "other" });
    await store?.delete(["notes", "js"], "second");
    const item = await store?.get(["notes", "js"], "first");
    const found = await store?.search(["notes"], { filter: { text: state.note } });
    const namespaces = await store?.listNamespaces({ prefix: ["notes"] });
    const shown = { item: item?.value, isDate: item?.updatedAt instanceof Date, missing: await store?.get(["a"], "b") };
    return { found: { ...shown, keys: found?.map((each) => each.key), namespaces } };
  })
  .addEdge(START, "remember")
  .compile();

const Slow = Annotation.Root({ file: Annotation<string>, done: Annotation<string> });

// A subagent that looks at its signal only when it has ended, and says so in a file.
const subagent = new StateGraph(Slow)
  .addNode("work", async (state, config: LangGraphRunnableConfig) => {
    appendFileSync(state.file, "begun\n");
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, 600_000);
      config.signal?.addEventListener("abort", () => {
        clearTimeout(timer);
        setTimeout(resolve, 300);
      });
    });
    await config.store?.put(["cancelled"], "work", { text: "stopped" });
    appendFileSync(state.file, "stopped\n");
    return { done: "no" };
  })
  .addEdge(START, "work")
  .compile();

export const delegating = new StateGraph(Slow)
  .addNode("call", async (state) => subagent.invoke({ file: state.file }))
  .addEdge(START, "call")
  .compile();

// Two steps that say in a file who does them; the second waits for another file.
const step = (name: string) => (state: typeof Slow.State) => {
  appendFileSync(state.file, `${name} ${process.pid}\n`);
  return { done: name };
};

export const stages = new StateGraph(Slow)
  .addNode("one", step("one"))
  .addNode("two", async (state) => {
    step("two")(state);
    while (!existsSync(`${state.file}.go`)) {
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
    return { done: "two" };
  })
  .addEdge(START, "one")
  .addEdge("one", "two")
  .compile();

// A node that does not yield before its file is there.
export const blocking = new StateGraph(Slow)
  .addNode("block", (state) => {
    step("block")(state);
    while (!existsSync(`${state.file}.go`));
    return { done: "blocked" };
  })
  .addEdge(START, "block")
  .compile();

const Failing = Annotation.Root({ how: Annotation<string>, ok: Annotation<boolean> });

export const failing = new StateGraph(Failing)
  .addNode("fail", async (state) => {
    if (state.how === "throw") {
      throw new RangeError("thrown on purpose");
    }
    if (state.how === "reject") {
      void Promise.reject(new TypeError("rejected on purpose"));
      await new Promise((resolve) => setTimeout(resolve, 600_000));
    }
    if (state.how === "loop") {
      for (;;);
    }
    if (state.how === "timer") {
      setTimeout(() => {
        throw new Error("thrown in a timer");
      }, 10);
      await new Promise((resolve) => setTimeout(resolve, 600_000));
    }
    return { ok: true };
  })
  .addEdge(START, "fail")
  .compile();

const Caller = Annotation.Root({ called: Annotation<unknown> });

export const caller = new StateGraph(Caller)
  .addNode("call", async () => {
    const client = new Client();
    const input = { messages: [{ role: "user", content: "from JavaScript" }] };
    const { thread_id: thread } = await client.threads.create();
    const python = (await client.runs.wait(null, "python", { input })) as { messages: { content: string }[] };
    const values = (await client.runs.wait(thread, "echo", { input })) as { messages: { content: string }[] };
    const events: string[] = [];
    for await (const { event } of client.runs.stream(thread, "echo", { input, streamMode: "updates" })) {
      events.push(event);
    }
    return { called: { said: [values, python].map((each) => each.messages.at(-1)?.content), events } };
  })
  .addEdge(START, "call")
  .compile();

const Typed = z.object({ name: z.string(), size: z.number().optional() });
const Context = z.object({ tone: z.enum(["kind", "rude"]).default("kind") });

export const typed = new StateGraph(Typed, { context: Context })
  .addNode("greet", (state, config) => ({ name: `${config.context?.tone} ${state.name}` }))
  .addEdge(START, "greet")
  .compile();

export async function made(config: { configurable?: { suffix?: string } }) {
  const suffix = config.configurable?.suffix ?? "none";
  return new StateGraph(Remembered)
    .addNode("write", (state) => ({ note: `${state.note}-${suffix}` }))
    .addEdge(START, "write")
    .compile();
}
