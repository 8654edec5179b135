// The graphs of bench/parity/project, in TypeScript: tests of clients use both.
import { AIMessage } from "@langchain/core/messages";
import { FakeListChatModel } from "@langchain/core/utils/testing";
import { Annotation, Command, interrupt, type LangGraphRunnableConfig, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";

const wait = (seconds: number) => new Promise((resolve) => setTimeout(resolve, seconds * 1000));

export const echo = new StateGraph(MessagesAnnotation)
  .addNode("answer", (state) => ({ messages: [new AIMessage(`echo: ${state.messages.at(-1)?.content}`)] }))
  .addEdge(START, "answer")
  .compile();

export const fake_chat = new StateGraph(MessagesAnnotation)
  .addNode("chat", async () => {
    const model = new FakeListChatModel({ responses: ["one two three four"] });
    return { messages: [await model.invoke("go")] };
  })
  .addEdge(START, "chat")
  .compile();

const Draft = Annotation.Root({ text: Annotation<string>, decision: Annotation<string> });

export const approval = new StateGraph(Draft)
  .addNode("draft", (state) => ({ text: `${state.text}!` }))
  .addNode("ask", (state) => ({ decision: interrupt({ question: "approve?", text: state.text }) as string }))
  .addNode("fin", (state) => ({ text: `done:${state.decision}` }))
  .addEdge(START, "draft")
  .addEdge("draft", "ask")
  .addEdge("ask", "fin")
  .compile();

const list = <T>() => Annotation<T[]>({ reducer: (left, right) => left.concat(right), default: () => [] });
const Foo = Annotation.Root({ foo: list<string>() });
const asks = (name: string) => () => ({ foo: [`${name}:${interrupt(name)}`] });
const says = (word: string) => () => ({ foo: [word] });

export const two_questions = new StateGraph(Foo)
  .addNode("left", asks("left"))
  .addNode("right", asks("right"))
  .addEdge(START, "left")
  .addEdge(START, "right")
  .compile();

const Ticks = Annotation.Root({ ticks: list<number>(), count: Annotation<number>, pause_s: Annotation<number> });

export const slow = new StateGraph(Ticks)
  .addNode(
    "tick",
    async (state) => {
      await wait(state.pause_s ?? 0.2);
      const done = (state.ticks ?? []).length + 1;
      return new Command({ update: { ticks: [done] }, goto: done < (state.count ?? 10) ? "tick" : "__end__" });
    },
    { ends: ["tick", "__end__"] },
  )
  .addEdge(START, "tick")
  .compile();

const child = new StateGraph(Foo)
  .addNode("sub1", says("sub1"))
  .addNode("sub2", says("sub2"))
  .addEdge(START, "sub1")
  .addEdge("sub1", "sub2")
  .compile();

export const parent = new StateGraph(Foo)
  .addNode("pre", says("pre"))
  .addNode("child", child)
  .addEdge(START, "pre")
  .addEdge("pre", "child")
  .compile();

const inner = new StateGraph(Foo).addNode("ia", asks("ia")).addEdge(START, "ia").compile();

export const nested_approval = new StateGraph(Foo).addNode("inner", inner).addEdge(START, "inner").compile();

export const twostep = new StateGraph(Foo)
  .addNode("a", says("a"))
  .addNode("b", says("b"))
  .addEdge(START, "a")
  .addEdge("a", "b")
  .compile();

const Settings = Annotation.Root({ greeting: Annotation<string>, times: Annotation<number> });
const Said = Annotation.Root({ said: Annotation<string> });

export const configurable = new StateGraph(Said, Settings)
  .addNode("greet", (_state, config) => {
    const context = (config.context ?? config.configurable ?? {}) as { greeting?: string; times?: number };
    return { said: Array(context.times ?? 1).fill(context.greeting ?? "hello").join(" ") };
  })
  .addEdge(START, "greet")
  .compile();

const Numbered = Annotation.Root({ n: Annotation<number> });

export const boom = new StateGraph(Numbered)
  .addNode("ok", (state) => ({ n: (state.n ?? 0) + 1 }))
  .addNode("bad", () => {
    throw new RangeError("kaboom");
  })
  .addEdge(START, "ok")
  .addEdge("ok", "bad")
  .compile();

const Question = Annotation.Root({ question: Annotation<string> });
const Answer = Annotation.Root({ answer: Annotation<string> });
const Both = Annotation.Root({ ...Question.spec, ...Answer.spec });

export const plain = new StateGraph({ state: Both, input: Question, output: Answer })
  .addNode("shout", (state) => ({ answer: state.question.toUpperCase() }))
  .addEdge(START, "shout")
  .compile();

export const writer = new StateGraph(Said)
  .addNode("write", (_state, config: LangGraphRunnableConfig) => {
    config.writer?.({ progress: 1 });
    config.writer?.("half");
    return { said: "written" };
  })
  .addEdge(START, "write")
  .compile();

export const remember = new StateGraph(Said)
  .addNode("keep", async (state, { store }: LangGraphRunnableConfig) => {
    const before = (await store?.get(["parity", "graph"], state.said))?.value.seen ?? 0;
    await store?.put(["parity", "graph"], state.said, { seen: before + 1 });
    return { said: String(before + 1) };
  })
  .addEdge(START, "keep")
  .compile();
