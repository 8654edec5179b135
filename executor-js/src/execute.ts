// Runs graphs. The outcome of a run comes from its own stream; only a run that stopped at an interrupt reads the stored
// state, which has the ids of the interrupted tasks.

import { parseCommand } from "./commands.js";
import { type Emitted, EventEncoder } from "./events.js";
import type { Libraries } from "./libraries.js";
import { CallFailed } from "./link.js";
import { log } from "./logs.js";
import { ValuePieces } from "./pieces.js";
import type { Graph, Graphs, Snapshot } from "./project.js";

import { currentWork, type Fields, RunRows, type Server, type Work } from "./server.js";
import { LEASE_LOST, Pending } from "./stopping.js";
import { isPlainRecord, json, plain } from "./values.js";

const INTERRUPT = "__interrupt__";
const POSITION = ["checkpoint_id", "checkpoint_ns", "checkpoint_map"];
const REFUSALS = new Set(["UnknownInterruptError", "OtherLanguage"]);
// Shorter values are in the thread's row as a whole.
const LONG_BYTES = 8192;
const STRICT_RESUME = "__pregel_strict_resume";
// What a graph sends to a graph of another server that is one of its nodes: that it resumes, so that the input is not
// applied again, and the answers to questions by their ids. Both do no more than a command of a client can.
const [RESUMING, RESUME_MAP] = ["__pregel_resuming", "__pregel_resume_map"];

/** One run of a graph: `RunRequest` of `portside/executor/requests.py`. */
export interface RunRequest {
  graph_id: string;
  input: unknown;
  command: Fields | null;
  config: { configurable?: Fields; metadata?: Fields; tags?: string[]; recursion_limit?: number };
  context: Fields | null;
  stream_modes: string[];
  stream_subgraphs: boolean;
  interrupt_before: "*" | string[] | null;
  interrupt_after: "*" | string[] | null;
  durability: "sync" | "async" | "exit";
  strict_resume: boolean;
  tracer: { project_name?: string; example_id?: string } | null;
  attempt: number;
  is_ephemeral: boolean;
  resume: boolean;
  max_event_bytes?: number;
}

/** The values without the long lists that are in the last checkpoint, and the versions of those lists. */
export interface ForRow {
  row_values?: Buffer;
  long_values?: Record<string, string>;
}

/** How a run ended: `Outcome` of `portside/executor/requests.py`. */
export interface Outcome extends ForRow {
  values: Buffer | null;
  interrupts: Record<string, Fields[]>;
  has_next: boolean;
  error: { error: string; message: string } | null;
  is_refused?: boolean;
}

export interface Execution {
  request: RunRequest;
  /** The number of the server's call. */
  call: number;
  timeoutSeconds: number;
  signal: AbortSignal;
  push(event: Emitted): void;
}

/** Executes the runs of this process. */
export class Executor {
  constructor(
    private readonly libraries: Libraries,
    private readonly graphs: Graphs,
    private readonly server: Server,
  ) {}

  /** Execute a run to its end. Throws CallFailed for a run that took too long, was cancelled or is malformed. */
  async execute(execution: Execution): Promise<Outcome> {
    const { request } = execution;
    const stopping = new AbortController();
    const tasks = new Pending();
    const configurable = request.config.configurable ?? {};
    const threadId = String(configurable.thread_id ?? "");
    const rows = new RunRows(this.server, threadId, request.is_ephemeral);
    const work = toWork(execution, { rows, fail: (error) => stopping.abort(error), pending: tasks });

    const timer = setTimeout(
      () => stopping.abort(new RunTimeout()),
      Math.min(execution.timeoutSeconds * 1000, 2 ** 31 - 1),
    );

    const cancel = () => stopping.abort(execution.signal.reason);
    execution.signal.addEventListener("abort", cancel, { once: true });

    try {
      const outcome = await currentWork.run(work, () => this.run(execution, stopping.signal));

      if (request.is_ephemeral) {
        rows.drop();
      } else {
        await rows.flush();
      }

      return outcome;
    } catch (error) {
      // Its nodes may still run, and it may be tried again: its rows are kept.
      stopping.abort(error);
      await tasks.stopped();

      if (error instanceof CallFailed && error.code === LEASE_LOST) {
        rows.drop();
      } else {
        // What storing rows fails with is known to the server.
        await rows.flush().catch(() => {});
      }

      throw error;
    } finally {
      clearTimeout(timer);
      execution.signal.removeEventListener("abort", cancel);
    }
  }

  private async run(execution: Execution, signal: AbortSignal): Promise<Outcome> {
    const { request, push } = execution;
    const command = request.command === null ? null : parseCommand(this.libraries, request.command);

    // An attempt that continues from a checkpoint has taken its input already.
    const input = request.resume ? null : (command ?? request.input);
    const config = this.config(request);
    const last = new LastValues();
    let graph: Graph | null = null;
    try {
      graph = await this.graphs.open(request.graph_id, withContext(config, request));
      const encoder = new EventEncoder(request.stream_modes, request.config.configurable ?? {});
      for await (const item of this.stream(graph, input, { ...config, signal }, request, encoder)) {
        last.see(item);
        for (const emitted of encoder.encode(...item)) {
          checkSize(`an event '${emitted[0]}'`, emitted[1], request);
          push(emitted);
        }
      }

      throwIfStopped(signal, execution.signal);
      const outcome = await ended(graph, request, last);
      checkSize("the result", outcome.values, request);

      return outcome;
    } catch (error) {
      throwIfStopped(signal, execution.signal);
      if (error instanceof CallFailed) {
        throw error;
      }

      return failed(signal.aborted ? signal.reason : error, graph, last, request);
    }
  }

  /** Start the graph, and yield its items as namespace, mode and payload. */
  private async *stream(
    graph: Graph,
    input: unknown,
    config: Fields,
    request: RunRequest,
    encoder: EventEncoder,
  ): AsyncGenerator<[string[], string, unknown]> {
    const streamMode = [...encoder.streamed] as string[];
    if (streamMode.length === 1 && isBefore(this.libraries.versions["@langchain/langgraph"] ?? "", [0, 2, 20])) {
      // Older versions name the mode of an item only if there are several.
      streamMode.push(streamMode[0] === "values" ? "updates" : "values");
    }

    const options = {
      ...config,
      streamMode,
      subgraphs: request.stream_subgraphs,
      interruptBefore: request.interrupt_before ?? undefined,
      interruptAfter: request.interrupt_after ?? undefined,
      context: request.context ?? undefined,
      durability: graph.checkpointer ? request.durability : undefined,
    } as unknown as Parameters<Graph["stream"]>[1];

    if (!request.stream_modes.includes("events")) {
      for await (const chunk of await graph.stream(input as never, options)) {
        yield item(chunk as unknown as unknown[]);
      }

      return;
    }

    let root: string | null = null;
    const events: unknown = await graph.streamEvents(input as never, { ...options, version: "v2" } as never);
    for await (const event of events as AsyncIterable<{ event: string; run_id: string; data: Fields }>) {
      root ??= event.run_id;
      if (event.event === "on_chain_stream" && event.run_id === root) {
        yield item(event.data.chunk as unknown[]);
      } else {
        yield [[], "events", event];
      }
    }
  }

  /** Make the graph's config. What steers LangGraph from the inside is not a client's to set, except a resume. */
  private config(request: RunRequest): Fields {
    const config = request.config;
    const dropped = request.resume ? POSITION : [];
    const configurable: Fields = Object.fromEntries(
      Object.entries(config.configurable ?? {}).filter(
        ([key, value]) => (!key.startsWith("__pregel_") || isResume(key, value)) && !dropped.includes(key),
      ),
    );

    if (request.strict_resume) {
      configurable[STRICT_RESUME] = true;
    }

    return {
      configurable,
      metadata: { ...config.metadata },
      tags: config.tags ?? [],
      ...(config.recursion_limit ? { recursionLimit: config.recursion_limit } : {}),
      ...(configurable.run_id ? { runId: String(configurable.run_id) } : {}),
      ...((request.tracer !== null || request.resume) && isTracing() ? { callbacks: [this.tracer(request)] } : {}),
    };
  }

  /** Return the tracer of a run. An attempt that continues from a checkpoint shows the input that the run was given. */
  private tracer(request: RunRequest) {
    const { LangChainTracer } = this.libraries.tracer;
    const { project_name: projectName, example_id: exampleId } = request.tracer ?? {};

    const tracer = new LangChainTracer({ projectName, exampleId });
    if (request.resume) {
      showInput(tracer as unknown as Fields, request.command ?? request.input);
    }

    return tracer;
  }

  /** Return the outcome of a cancelled run: its last values, open interrupts, and whether steps are left. */
  async readOutcome(request: RunRequest): Promise<Outcome> {
    const config = this.config(request);
    const graph = await this.graphs.open(request.graph_id, withContext(config, request));
    const state = graph.checkpointer ? await graph.getState(latest(request)) : null;

    return state?.createdAt === undefined
      ? { values: null, interrupts: {}, has_next: false, error: null }
      : toOutcome(graph, state, state.values, longLists(select(graph, state.values)));
  }
}

/** Have a tracer show this input of the root run. Newer versions make the run in a step of its own. */
function showInput(tracer: Fields, given: unknown): void {
  for (const name of ["handleChainStart", "_createRunForChainStart"]) {
    const original = tracer[name];
    if (typeof original === "function") {
      tracer[name] = (chain: unknown, inputs: unknown, runId: string, parentRunId?: string, ...others: unknown[]) =>
        original.call(tracer, chain, parentRunId === undefined ? given : inputs, runId, parentRunId, ...others);
    }
  }
}

/** Whether a part of a client's config is how a parent graph on another server resumes this one. */
function isResume(key: string, value: unknown): boolean {
  return (key === RESUMING && value === true) || (key === RESUME_MAP && isPlainRecord(value));
}

function isBefore(version: string, wanted: number[]): boolean {
  const parts = version.split(".").map((part) => Number.parseInt(part, 10));
  const index = wanted.findIndex((part, at) => parts[at] !== part);
  return index >= 0 && (parts[index] ?? 0) < (wanted[index] ?? 0);
}

/** The run took longer than it may. */
class RunTimeout extends CallFailed {
  constructor() {
    super("run_timeout", "the run took too long");
  }
}

function toWork(
  { request, call }: Execution,
  { rows, fail, pending }: { rows: RunRows; fail(error: unknown): void; pending: Pending },
): Work {
  const { configurable = {}, metadata = {} } = request.config;
  const runId = configurable.run_id;

  return {
    call,
    scope: 0,
    run: runId === undefined ? null : [String(runId), request.attempt],
    isAwaited: request.durability === "sync",
    metadata,
    configurable,
    rows,
    pieces: new ValuePieces(),
    fail,
    track: (value) => pending.track(value),
  };
}

function withContext(config: Fields, request: RunRequest): Fields {
  return request.context === null ? config : { ...config, context: request.context };
}

function isTracing(): boolean {
  const names = ["LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2", "LANGSMITH_TRACING", "LANGCHAIN_TRACING"];
  return names.some((name) => process.env[name] === "true");
}

/** Throw what stopped a run, unless that was an error of its own code. */
function throwIfStopped(signal: AbortSignal, cancelled: AbortSignal): void {
  if (cancelled.aborted || (signal.aborted && signal.reason instanceof CallFailed)) {
    throw signal.reason;
  }
}

function item(chunk: unknown[]): [string[], string, unknown] {
  const [first, second, third] = chunk;
  return chunk.length === 3 ? [first as string[], second as string, third] : [[], first as string, second];
}

/** The last values of a run, and whether it stopped at an interrupt. */
class LastValues {
  values: unknown;
  hasValues = false;
  isStopped = false;

  see([namespace, mode, payload]: [string[], string, unknown]): void {
    if (namespace.length > 0 || (mode !== "values" && mode !== "updates")) {
      return;
    }

    const isObject = typeof payload === "object" && payload !== null;
    const stopped = isObject && INTERRUPT in payload;
    this.isStopped ||= stopped;

    if (mode !== "values") {
      return;
    }

    const values = stopped ? without(payload as Fields, INTERRUPT) : payload;
    if (!stopped || Object.keys(values as Fields).length > 0) {
      this.values = values;
      this.hasValues = true;
    }
  }
}

function without(record: Fields, key: string): Fields {
  const { [key]: _, ...rest } = record;
  return rest;
}

/** Return the versions of those values that are long lists in the last checkpoint, by their keys. */
export function longLists(values: unknown): Record<string, string> {
  const isObject = typeof values === "object" && values !== null;
  return (isObject && currentWork.getStore()?.pieces.longLists(values as Fields)) || {};
}

/** Leave lists of the last checkpoint out of the values that the thread's row keeps; nothing for short values. */
export function partsForRow(encoded: Buffer, values: unknown, versions: Record<string, string>): ForRow {
  if (encoded.length < LONG_BYTES || Object.keys(versions).length === 0) {
    return {};
  }

  const rest = Object.entries(values as Fields).filter(([name]) => !(name in versions));
  return { row_values: json(Object.fromEntries(rest)), long_values: versions };
}

async function ended(graph: Graph, request: RunRequest, last: LastValues): Promise<Outcome> {
  const breakpoints = [request.interrupt_before, request.interrupt_after, graph.interruptBefore, graph.interruptAfter];
  const mayStop = breakpoints.some((each) => each !== null && each !== undefined && each.length > 0);
  const values = last.hasValues ? select(graph, last.values) : null;
  if (graph.checkpointer && (last.isStopped || mayStop || !last.hasValues)) {
    // Before reading the state, which makes other objects.
    const versions = longLists(values);
    const state = await graph.getState(latest(request));
    return last.hasValues
      ? toOutcome(graph, state, last.values, versions)
      : toOutcome(graph, state, state.values, longLists(select(graph, state.values)));
  }

  return encoded(values);
}

/** Return the outcome of a run that left these values and nothing to do. */
function encoded(values: unknown): Outcome {
  const whole = json(values);
  const parts = partsForRow(whole, values, longLists(values));
  return { values: whole, ...parts, interrupts: {}, has_next: false, error: null };
}

function failed(error: unknown, graph: Graph | null, last: LastValues, request: RunRequest): Outcome {
  const { name, message } = toError(error);
  if (!REFUSALS.has(name)) {
    const runId = request.config.configurable?.run_id;
    log("error", "a run failed", { graph_id: request.graph_id, run_id: runId }, error);
  }

  const nothing = { values: null, interrupts: {}, has_next: false };
  const outcome = last.hasValues && graph !== null ? encoded(select(graph, last.values)) : nothing;

  return {
    // The thread keeps the values that it had: its checkpoints have these.
    ...(isTooLarge(outcome.values, request) ? nothing : outcome),
    error: { error: name, message },
    is_refused: REFUSALS.has(name),
  };
}

/** An event of a run, or its result, is larger than EVENT_MAX_BYTES allows. */
class EventTooLarge extends Error {
  override name = "EventTooLarge";
}

function isTooLarge(data: Buffer | null, request: RunRequest): boolean {
  const limit = request.max_event_bytes ?? 0;
  return limit > 0 && (data?.length ?? 0) > limit;
}

/** Throw EventTooLarge for an event, or the result of a run, that has more bytes than the server allows. */
function checkSize(what: string, data: Buffer | null, request: RunRequest): void {
  if (isTooLarge(data, request)) {
    throw new EventTooLarge(
      `${what} of this run has ${data?.length} bytes, more than EVENT_MAX_BYTES (${request.max_event_bytes}) allows`,
    );
  }
}

/** Return the class and the message of what was thrown. */
function toError(error: unknown): { name: string; message: string } {
  if (!(error instanceof Error)) {
    const { name, message } = (typeof error === "object" && error !== null ? error : {}) as Fields;
    return { name: typeof name === "string" ? name : "Error", message: String(message ?? error) };
  }

  const name = error.name === "Error" ? error.constructor.name : error.name;
  return { name: name || "Error", message: storable(error.message) };
}

/** Replace what Postgres cannot store. */
function storable(text: string): string {
  return text.toWellFormed().replaceAll("\0", "\ufffd");
}

function toOutcome(graph: Graph, state: Snapshot, values: unknown, versions: Record<string, string>): Outcome {
  const interrupts: Record<string, Fields[]> = {};
  for (const task of state.tasks) {
    const { result } = task as { result?: unknown };
    // A task with a result was answered.
    if (task.interrupts.length > 0 && (result === undefined || result === null)) {
      interrupts[task.id] = task.interrupts.map((each) => plain(shownInterrupt(each, task.id)) as Fields);
    }
  }

  const openInterrupts = Object.values(interrupts).flat();
  const output = select(graph, values);
  const isObject = typeof output === "object" && output !== null && !Array.isArray(output);
  const shownOutput = openInterrupts.length > 0 ? { ...(isObject ? output : {}), [INTERRUPT]: openInterrupts } : output;
  const whole = json(shownOutput);
  const parts = partsForRow(whole, output, versions);

  return { values: whole, ...parts, interrupts, has_next: state.next.length > 0, error: null };
}

/** Return an interrupt as its thread stores it. Thrown by a node, or by an old LangGraph, it gets its task's id. */
export function shownInterrupt(interrupt: object, taskId: string): Fields {
  const { id, value, responseSchema } = interrupt as Fields;
  const schema = responseSchema === undefined ? {} : { response_schema: responseSchema };
  return { id: id ?? taskId, value: value ?? null, ...schema };
}

function latest(request: RunRequest) {
  return { configurable: { thread_id: request.config.configurable?.thread_id, checkpoint_ns: "" } };
}

/** Select the output from the values of the state. */
function select(graph: Graph, values: unknown): unknown {
  if (typeof values !== "object" || values === null || typeof graph.streamChannelsAsIs === "string") {
    return values;
  }

  const keys = graph.outputChannels as string | string[];
  const fields = values as Fields;
  if (typeof keys === "string") {
    return fields[keys];
  }

  return Object.fromEntries(keys.filter((key) => key in fields).map((key) => [key, fields[key]]));
}
