// What runs of graphs do, and what the server is asked for meanwhile: it keeps the rows of checkpoints in memory here.
// `tests/db/test_javascript_parts.py` bundles this; it fails if a test does.
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { test } from "node:test";
import { BaseCallbackHandler } from "@langchain/core/callbacks/base";
import { emptyCheckpoint } from "@langchain/langgraph-checkpoint";
import { parseCommand } from "../../executor-js/src/commands.js";
import { Executor, type Outcome, type RunRequest } from "../../executor-js/src/execute.js";
import { importLibraries } from "../../executor-js/src/libraries.js";
import { CallFailed, type Link } from "../../executor-js/src/link.js";
import { installLoopback } from "../../executor-js/src/loopback.js";
import { Operations } from "../../executor-js/src/operations.js";
import { ValuePieces } from "../../executor-js/src/pieces.js";
import { Graphs } from "../../executor-js/src/project.js";
import { makeSaver } from "../../executor-js/src/saver.js";
import type { Schemas } from "../../executor-js/src/schemas.js";
import { currentWork, type Fields, RunRows, Server, type Work } from "../../executor-js/src/server.js";
import { LEASE_LOST } from "../../executor-js/src/stopping.js";
import { makeStore } from "../../executor-js/src/store.js";

writeFileSync(
  "graphs.mjs",
  `
import { Annotation, interrupt, MessagesAnnotation, StateGraph } from "@langchain/langgraph";
const Notes = Annotation.Root({
  notes: Annotation({ reducer: (left, right) => left.concat(right), default: () => [] }),
  seen: Annotation(),
});
const chain = (...nodes) => {
  const graph = new StateGraph(Notes);
  nodes.forEach((node, index) => {
    graph.addNode(String(index), node).addEdge(index === 0 ? "__start__" : String(index - 1), String(index));
  });
  return graph.compile();
};
export const steps = chain(() => ({ notes: ["one"] }), () => ({ notes: ["two"] }));
export const seeing = chain((_, config) => ({ seen: { ...config.configurable, ...config.metadata } }));
export const asking = chain(() => ({ notes: [interrupt("first?")] }), () => ({ notes: [interrupt("second?")] }));
export const endless = chain((_, { signal }) => {
  globalThis.onBegun();
  return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
});
export const failing = chain(() => ({ notes: ["one"] }), () => { throw new RangeError("not \\0 this"); });
export const wide = chain(() => ({ notes: ["x".repeat(5000)] }));
const more = ({ seen }) => ({ seen: [...seen, "one more"] });
export const growing = chain(more, more, more);
export const storing = chain(async (_, { store }) => {
  await store.put(["a"], "k", { v: 1 }, undefined, { ttl: 5 });
  return { notes: [] };
});
// Stops a moment after its signal, and says so.
export const late = chain((_, { signal }) => {
  globalThis.onBegun();
  return new Promise((resolve) => signal.addEventListener("abort", () => setTimeout(() => {
    globalThis.isStopped = true;
    resolve({ notes: ["late"] });
  }, 50)));
});
const Two = Annotation.Root({ left: Annotation(), right: Annotation() });
export const forked = new StateGraph(Two)
  .addNode("to left", () => ({ left: interrupt("left?") }))
  .addNode("to right", () => ({ right: interrupt("right?") }))
  .addEdge("__start__", "to left")
  .addEdge("__start__", "to right")
  .compile();
export async function made({ configurable }) {
  return chain(() => ({ notes: [configurable.suffix ?? "none"] }));
}
`,
);

const NAMES = ["steps", "seeing", "asking", "endless", "failing", "wide", "growing", "storing", "late", "forked", "made"];
const libraries = await importLibraries(`${process.cwd()}/package.json`);
const texts = (array: unknown) => JSON.parse(`[${String(array).slice(1, -1)}]`) as string[];

/** A server that keeps rows in memory, and remembers what it was asked for. */
class MemoryServer {
  asked: [method: string, body: Fields][] = [];
  /** How long a call takes. */
  delayMs = 0;
  private checkpoints: unknown[][] = [];
  private values: unknown[][] = [];
  private writes: unknown[][] = [];

  call = async (method: string, body: unknown): Promise<unknown> => {
    const given = body as Fields & { arguments: unknown[] };
    this.asked.push([method, given]);
    await new Promise((resolve) => setTimeout(resolve, this.delayMs));
    if (method === "checkpoints.put") {
      this.checkpoints.push(...(given.checkpoints as unknown[][]));
      this.values.push(...(given.values as unknown[][]));
      for (const row of given.writes as unknown[][]) {
        const isNew = (each: unknown[]) => each.slice(0, 5).join() !== row.slice(0, 5).join();
        this.writes = [...this.writes.filter(isNew), row];
      }
      return null;
    }
    if (method === "store.batch") {
      return (given.ops as unknown[]).map(() => null);
    }
    return given.operation === "read" ? this.read(given.arguments) : this.list(given.arguments[0] as Fields);
  };

  /** The bodies of the calls of a method. */
  of(method: string): Fields[] {
    return this.asked.filter(([name]) => name === method).map(([, body]) => body);
  }

  /** All metadata that was stored with checkpoints. */
  get metadata(): Fields[] {
    return this.checkpoints.map((row) => JSON.parse(row[4] as string));
  }

  /** The channels and the data of all writes. */
  get written(): [channel: unknown, data: unknown][] {
    return this.writes.map((row) => [row[7], row[9]]);
  }

  /** Mark the checkpoints of a thread as those of a deleted run. */
  markDeleted(): void {
    for (const row of this.checkpoints) {
      row[4] = JSON.stringify({ ...JSON.parse(row[4] as string), source: "deleted" });
    }
  }

  private read([thread, namespace, id]: unknown[]): Fields | null {
    const rows = this.checkpoints.filter((row) => row[0] === thread && row[1] === namespace && [row[2], null].includes(id));
    return rows.length === 0 ? null : this.shown(rows.sort((a, b) => (String(a[2]) < String(b[2]) ? 1 : -1))[0] as unknown[]);
  }

  private list(query: Fields): Fields[] {
    const { before, after_id: after, page_size: size } = query;
    const rows = this.checkpoints.filter((row) => row[0] === query.thread_id && row[1] === (query.checkpoint_ns ?? row[1]));
    const older = rows.filter((row) => [before, after].every((id) => id == null || String(row[2]) < String(id)));
    return older.sort((a, b) => (String(a[2]) < String(b[2]) ? 1 : -1)).slice(0, size as number).map((row) => this.shown(row));
  }

  private shown(row: unknown[]): Fields {
    const [thread_id, checkpoint_ns, checkpoint_id, parent_id, metadata, kind, body, names, versions] = row;
    const value = (channel: string, index: number) =>
      this.values.find((each) => each[0] === thread_id && each[2] === channel && each[3] === texts(versions)[index]);
    const writes = this.writes.filter((each) => each[0] === thread_id && each[2] === checkpoint_id);
    return {
      ...{ thread_id, checkpoint_ns, checkpoint_id, parent_id, kind, body, metadata: JSON.parse(metadata as string) },
      value_channels: texts(names),
      value_datas: texts(names).map((channel, index) => value(channel, index)?.[5]),
      write_tasks: writes.map((each) => each[3]),
      write_channels: writes.map((each) => each[7]),
      write_datas: writes.map((each) => each[9]),
    };
  }
}

interface Made {
  memory: MemoryServer;
  server: Server;
  executor: Executor;
  graphs: Graphs;
  operations: Operations;
  saver: ReturnType<typeof makeSaver>;
}

/** An executor of the graphs above, for a server that encrypts rows or does not. */
async function made({ isEncrypted = false } = {}): Promise<Made> {
  const memory = new MemoryServer();
  const server = new Server(memory as unknown as Link, isEncrypted);
  const graphs = new Graphs(Object.fromEntries(NAMES.map((name) => [name, { path: `./graphs.mjs:${name}`, description: null }])));
  await graphs.load(process.cwd());
  const saver = makeSaver(libraries, server);
  graphs.attach(saver, makeStore(libraries, server));
  const executor = new Executor(libraries, graphs, server);
  return { memory, server, executor, graphs, saver, operations: new Operations(libraries, graphs, null as unknown as Schemas) };
}

let threads = 0;

function request(graph_id: string, given: Partial<RunRequest> & { configurable?: Fields } = {}): RunRequest {
  const { configurable, config, ...others } = given;
  return {
    graph_id,
    input: { notes: [] },
    command: null,
    config: { configurable: { thread_id: `thread-${threads++}`, ...configurable }, ...config },
    context: null,
    stream_modes: ["values"],
    stream_subgraphs: false,
    interrupt_before: null,
    interrupt_after: null,
    durability: "sync",
    strict_resume: false,
    tracer: null,
    attempt: 1,
    is_ephemeral: false,
    resume: false,
    ...others,
  };
}

/** Execute a run to its end. */
function run(executor: Executor, sent: RunRequest, options: { timeoutSeconds?: number; signal?: AbortSignal; events?: string[] } = {}) {
  const { timeoutSeconds = 60, signal = new AbortController().signal, events = [] } = options;
  return executor.execute({ request: sent, call: 7, timeoutSeconds, signal, push: ([name]) => void events.push(name) });
}

/** What the nodes above call and set. */
const shared = globalThis as unknown as { onBegun(): void; isStopped?: boolean };
shared.onBegun = () => {};

/** A signal that aborts as soon as a node has begun. */
function stoppedOnceBegun(code: string): AbortSignal {
  const stopping = new AbortController();
  shared.onBegun = () => void setImmediate(() => stopping.abort(new CallFailed(code, "it was stopped")));
  return stopping.signal;
}

const valuesOf = (outcome: Outcome) => JSON.parse(String(outcome.values)) as Fields & { notes: string[] };

/** What work of a call that executes no run is done for. */
function work(metadata: Fields = {}, configurable: Fields = {}): Work {
  const nothing = { call: 1, scope: 0, run: null, isAwaited: true, rows: null, fail: () => {}, track: <T>(value: T) => value };
  return { ...nothing, metadata, configurable, pieces: new ValuePieces() };
}

test("a run that takes too long is stopped", async () => {
  const { executor } = await made();
  await assert.rejects(run(executor, request("endless"), { timeoutSeconds: 0.05 }), { code: "run_timeout" });
});

test("a cancelled run ends when its nodes have stopped, and keeps nothing of what they returned", async () => {
  const { executor, memory } = await made();
  const signal = stoppedOnceBegun("cancelled");
  await assert.rejects(run(executor, request("late"), { signal }), { code: "cancelled" });
  assert.equal(shared.isStopped, true);
  assert.equal(memory.written.some(([, data]) => (data as Buffer).includes("late")), false);
});

test("of what a cancelled task wrote only its error is stored", async () => {
  const { saver, memory } = await made();
  const config = { configurable: { thread_id: "thread", checkpoint_ns: "", checkpoint_id: "1f000000-0000-6000-8000-000000000000" } };
  const stopped = Object.assign(new Error("Aborted"), { name: "AbortError" });
  await saver.putWrites(config, [["notes", ["late"]], ["__error__", stopped]], "cancelled");
  await saver.putWrites(config, [["notes", ["done"]], ["__error__", new Error("another")]], "failed");
  assert.deepEqual(memory.written.map(([channel]) => channel), ["__error__", "notes", "__error__"]);
});

test("an attempt that continues takes its checkpoint, and neither its input nor the place that it names", async () => {
  const { executor } = await made();
  const first = request("steps", { input: { notes: ["given"] }, interrupt_after: ["0"] });
  assert.equal((await run(executor, first)).has_next, true);
  const configurable = { ...first.config.configurable, checkpoint_id: "1f000000-0000-6000-8000-000000000000" };
  const again = { ...first, resume: true, interrupt_after: null, config: { configurable } };
  assert.deepEqual(valuesOf(await run(executor, again)).notes, ["given", "one", "two"]);
});

test("clients do not steer LangGraph from the inside", async () => {
  const { executor } = await made();
  const inside = { __pregel_checkpointer: null, __pregel_resuming: "yes", __pregel_read: 1, plain: "kept" };
  const { seen } = valuesOf(await run(executor, request("seeing", { configurable: inside }))) as { seen: Fields };
  assert.equal(seen.plain, "kept");
  assert.notEqual(seen.__pregel_read, 1);
  assert.notEqual(seen.__pregel_resuming, "yes");
});

test("the metadata of a run reaches its nodes and its checkpoints, and its caller reaches no checkpoint", async () => {
  const { executor, memory } = await made();
  const configurable = { langgraph_auth_user_id: "alice", langgraph_request_id: "r", __hidden: "h", colour: "red", deep: { a: 1 } };
  const sent = request("seeing", { configurable, config: { metadata: { tag: "x", text: "a\u0000b" } } });
  const { seen } = valuesOf(await run(executor, { ...sent, config: { ...sent.config, metadata: { tag: "x", text: "a\u0000b" } } })) as {
    seen: Fields;
  };
  assert.equal(seen.tag, "x");
  assert.equal(seen.langgraph_auth_user_id, "alice");
  assert.ok(memory.metadata.length > 0);
  for (const stored of memory.metadata) {
    assert.deepEqual([stored.colour, stored.tag, stored.text], ["red", "x", "a\ufffdb"]);
    for (const name of ["langgraph_auth_user_id", "langgraph_request_id", "__hidden", "deep", "thread_id"]) {
      assert.equal(name in stored, false, name);
    }
  }
});

test("an event, and a result, that is larger than the limit ends the run with an error", async () => {
  const { executor } = await made();
  for (const [stream_modes, what] of [[["updates"], "the result"], [["updates", "values"], "an event 'updates'"]] as const) {
    const limit = what === "the result" ? 5030 : 1000;
    const outcome = await run(executor, request("wide", { stream_modes: [...stream_modes], input: { notes: ["y".repeat(20)] }, max_event_bytes: limit }));
    assert.equal(outcome.error?.error, "EventTooLarge");
    assert.match(outcome.error?.message ?? "", new RegExp(`^${what} of this run has \\d+ bytes`));
    assert.equal(outcome.values === null || outcome.values.length <= limit, true);
  }
});

test("a run that fails keeps the values that it had reached, and its message can be stored", async () => {
  const { executor } = await made();
  const outcome = await run(executor, request("failing"));
  assert.deepEqual(outcome.error, { error: "RangeError", message: "not \ufffd this" });
  assert.equal(outcome.is_refused, false);
  assert.deepEqual(valuesOf(outcome).notes, ["one"]);
});

test("only questions that nobody has answered are open", async () => {
  const { executor } = await made();
  const first = request("forked", { input: { left: 0 } });
  const asked = Object.values((await run(executor, first)).interrupts).flat();
  assert.deepEqual(asked.map(({ value }) => value).sort(), ["left?", "right?"]);
  const left = asked.find(({ value }) => value === "left?")?.id as string;
  const outcome = await run(executor, { ...first, input: null, command: { resume: { [left]: "yes" } } });
  assert.deepEqual(Object.values(outcome.interrupts).flat().map(({ value }) => value), ["right?"]);
  assert.equal(outcome.has_next, true);
});

test("an answer to a question that is not open is refused if the server asks for that", async () => {
  const { executor } = await made();
  const first = request("asking");
  await run(executor, first);
  const wrong = { ...first, input: null, command: { resume: { "00000000000000000000000000000000": "yes" } }, strict_resume: true };
  const outcome = await run(executor, wrong);
  assert.deepEqual([outcome.error?.error, outcome.is_refused], ["UnknownInterruptError", true]);
});

test("a run stops at its limit of steps", async () => {
  const { executor } = await made();
  const sent = request("steps");
  const outcome = await run(executor, { ...sent, config: { ...sent.config, recursion_limit: 1 } });
  assert.equal(outcome.error?.error, "GraphRecursionError");
});

test("a run that stores its state at its end stores no steps", async () => {
  const { executor, memory } = await made();
  await run(executor, request("steps", { durability: "exit" }));
  assert.deepEqual(memory.metadata.map(({ step }) => step), [2]);
  const [put] = memory.of("checkpoints.put");
  assert.deepEqual([put?.is_awaited, put?.call], [false, 7]);
});

test("a short run whose thread is deleted with it stores nothing", async () => {
  const { executor, memory } = await made();
  const outcome = await run(executor, request("steps", { is_ephemeral: true, durability: "async" }));
  assert.deepEqual(valuesOf(outcome).notes, ["one", "two"]);
  assert.deepEqual(memory.of("checkpoints.put"), []);
});

test("a stopped run leaves its rows with the server, unless another server may have the run", async () => {
  for (const [code, isKept] of [["cancelled", true], [LEASE_LOST, false]] as const) {
    const { executor, memory } = await made();
    const sent = request("endless", { is_ephemeral: true, durability: "async" });
    await assert.rejects(run(executor, sent, { signal: stoppedOnceBegun(code) }), { code });
    assert.equal(memory.metadata.length > 0, isKept, code);
  }
});

test("rows that the server encrypts are stored one after the other, and writes are whole", async () => {
  for (const isEncrypted of [true, false]) {
    const { executor, saver, memory, server } = await made({ isEncrypted });
    const seen = Array.from({ length: 200 }, (_, number) => `an item of a list, which has number ${number}`);
    await run(executor, request("growing", { input: { seen } }));
    const rows = memory.of("checkpoints.put").flatMap(({ writes }) => writes as unknown[][]);
    assert.equal(rows.every((row) => row[10] === null), isEncrypted);

    const stored = memory.metadata.length;
    const config = { configurable: { thread_id: "thread", checkpoint_ns: "" } };
    const rowsOfRun = new RunRows(server, "thread", false);
    const checkpoint = { ...emptyCheckpoint(), id: "1f000000-0000-6000-8000-000000000000" };
    const put = () => saver.put(config, checkpoint, { source: "input", step: -1, parents: {} }, {});
    memory.delayMs = 20;
    await currentWork.run({ ...work(), isAwaited: false, rows: rowsOfRun }, put);
    assert.equal(memory.metadata.length > stored, isEncrypted);
    await rowsOfRun.flush();
    assert.equal(memory.metadata.length, stored + 1);
  }
});

test("calls of the server say which run they are for", async () => {
  const { executor, memory, server } = await made();
  installLoopback(server);
  await run(executor, request("storing"));
  const [batch] = memory.of("store.batch");
  assert.equal(batch?.call, 7);
  const [[kind, fields]] = batch?.ops as [[string, Buffer]];
  assert.deepEqual([kind, JSON.parse(String(fields)).key], ["put", "k"]);
});

test("a graph that a function makes is made with the config of the run", async () => {
  const { executor } = await made();
  assert.deepEqual(valuesOf(await run(executor, request("made", { configurable: { suffix: "s" } }))).notes, ["s"]);
});

test("a run is traced into the project that the server names, and one that continues shows its input", async () => {
  process.env.LANGSMITH_TRACING = "true";
  const traced: { options: Fields; inputs: unknown }[] = [];
  // By this name LangChain knows that the run has a tracer.
  class LangChainTracer extends BaseCallbackHandler {
    name = "langchain_tracer";

    constructor(private readonly options: Fields) {
      super();
    }

    override handleChainStart(_chain: unknown, inputs: unknown, _runId: string, parentRunId?: string): void {
      if (parentRunId === undefined) {
        traced.push({ options: this.options, inputs });
      }
    }
  }
  const { graphs, server } = await made();
  const tracing = new Executor({ ...libraries, tracer: { LangChainTracer } as never }, graphs, server);
  const sent = request("steps", { input: { notes: ["given"] }, tracer: { project_name: "project", example_id: "example" } });
  await run(tracing, sent);
  await run(tracing, { ...sent, resume: true });
  delete process.env.LANGSMITH_TRACING;
  const options = { projectName: "project", exampleId: "example" };
  assert.deepEqual(traced, Array(2).fill({ options, inputs: { notes: ["given"] } }));
});

test("a history begins before the checkpoint that it names, and has more than one page", async () => {
  const { executor, operations } = await made();
  const sent = request("steps");
  for (let turn = 0; turn < 30; turn++) {
    await run(executor, sent);
  }
  const config = { configurable: sent.config.configurable as Fields };
  const read = { graph_id: "steps", config, limit: 110, before: null as unknown, filter: null, select: ["checkpoint_id", "values.notes"] };
  const history = async (changes: Partial<typeof read>) =>
    JSON.parse(String(await currentWork.run(work(), () => operations.readHistory({ ...read, ...changes })))) as Fields[];

  const all = await history({});
  assert.equal(new Set(all.map((state) => state.checkpoint_id)).size, 110);
  assert.equal(all.length, 110);
  assert.deepEqual(Object.keys(all[0] as Fields).sort(), ["checkpoint_id", "values"]);
  assert.deepEqual(Object.keys((all[0] as { values: Fields }).values), ["notes"]);
  const [older] = await history({ limit: 1, before: { configurable: { checkpoint_id: all[3]?.checkpoint_id } } });
  assert.equal(older?.checkpoint_id, all[4]?.checkpoint_id);
});

test("all values are selected although one of them is selected as well", async () => {
  const { executor, operations } = await made();
  const sent = request("seeing");
  await run(executor, sent);
  const read = { graph_id: "seeing", config: { configurable: sent.config.configurable as Fields }, subgraphs: false, without_checkpoint: {} };
  const selected = await currentWork.run(work(), () => operations.readState({ ...read, select: ["values", "values.notes"] }));
  assert.deepEqual(Object.keys(JSON.parse(String(selected)).values).sort(), ["notes", "seen"]);
});

test("a checkpoint that does not exist is neither read nor changed", async () => {
  const { executor, operations, memory } = await made();
  const sent = request("steps");
  await run(executor, sent);
  const stored = memory.metadata.length;
  const config = { configurable: { ...sent.config.configurable, checkpoint_id: "1f000000-0000-6000-8000-000000000000" } };
  const common = { graph_id: "steps", config };
  const read = { ...common, subgraphs: false, without_checkpoint: {}, select: null };
  assert.equal(await currentWork.run(work(), () => operations.readState(read)), null);
  const change = { ...common, values: { notes: ["x"] }, as_node: "0" };
  assert.equal(await currentWork.run(work(), () => operations.updateState(change)), null);
  assert.equal(memory.metadata.length, stored);
});

test("the checkpoint of a deleted run is not there", async () => {
  const { executor, saver, memory } = await made();
  const sent = request("steps");
  await run(executor, sent);
  const config = { configurable: { ...sent.config.configurable, checkpoint_ns: "" } };
  assert.notEqual(await saver.getTuple(config), undefined);
  memory.markDeleted();
  assert.equal(await saver.getTuple(config), undefined);
});

for (const [what, command, field] of [
  ["nothing", {}, "body.command"],
  ["a list of names and objects", { goto: ["a", { node: "b", input: {} }] }, "body.command.goto"],
  ["a node without a name", { goto: { input: {} } }, "body.command.goto.node"],
  ["an update of three", { update: [["key", 1, 2]] }, "body.command.update.0"],
  ["an update without a key", { update: [[1, 2]] }, "body.command.update.0"],
  ["an update that is a text", { update: "text" }, "body.command.update"],
] as const) {
  test(`a command with ${what} is refused`, () => {
    assert.throws(
      () => parseCommand(libraries, command as unknown as Fields),
      (error: CallFailed) => error.code === "invalid" && error.message.startsWith(`${field}: `),
    );
  });
}
