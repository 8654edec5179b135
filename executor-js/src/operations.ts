// What the server asks of graphs beside executing runs: their states, their drawings and their schemas.

import { invalid, parseCommand } from "./commands.js";
import { toCheckpoint } from "./events.js";
import { type ForRow, longLists, partsForRow, shownInterrupt } from "./execute.js";
import type { Libraries } from "./libraries.js";
import { CallFailed } from "./link.js";
import type { Graph, Graphs, Snapshot } from "./project.js";
import { OtherLanguage } from "./saver.js";
import type { GraphSchemas, Schemas } from "./schemas.js";
import type { Fields } from "./server.js";
import { json, plain } from "./values.js";

type Config = { configurable: Fields } & Fields;

interface StateRead {
  graph_id: string;
  config: Config;
  subgraphs: boolean;
  without_checkpoint: Fields;
  select: string[] | null;
}

interface HistoryRead {
  graph_id: string;
  config: Config;
  limit: number;
  before: unknown;
  filter: Fields | null;
  select: string[] | null;
}

interface StateChange {
  graph_id: string;
  config: Config;
  values: unknown;
  as_node: string | null;
}

interface StateCreation {
  graph_id: string;
  config: Config;
  supersteps: Fields[][];
  history?: unknown[] | null;
}

interface DescriptionRequest {
  graph_id: string;
  config: Config;
  context: Fields | null;
  xray: number | boolean;
  namespace: string | null;
  recurse: boolean;
}

interface ChangedState extends ForRow {
  checkpoint: Fields;
  values: Buffer;
  has_next: boolean;
  interrupts: Record<string, Fields[]>;
}

/** Reads, changes and describes the graphs of the project. Methods take the messages of `executor/requests.py`. */
export class Operations {
  constructor(
    private readonly libraries: Libraries,
    private readonly graphs: Graphs,
    private readonly schemaReader: Schemas,
  ) {}

  /** Return the JSON of a state, or null if the config names a checkpoint that does not exist. */
  async readState(read: StateRead): Promise<Buffer | null> {
    const graph = await this.graphs.open(read.graph_id, read.config);
    const state = threadState(
      await refused(() => graph.getState(read.config, { subgraphs: read.subgraphs }), stateRefused),
    );
    if (state.created_at === null && read.config.configurable.checkpoint_id) {
      return null;
    }

    return json(
      selectFields(state.checkpoint === null ? { ...state, ...read.without_checkpoint } : state, read.select),
    );
  }

  /** Return the JSON of a list of states, newest first. */
  async readHistory(read: HistoryRead): Promise<Buffer> {
    const graph = await this.graphs.open(read.graph_id, read.config);
    const options = { limit: read.limit, before: before(read.before), filter: read.filter ?? undefined };
    const snapshots = await refused(() => collect(graph.getStateHistory(read.config, options)), stateRefused);
    return json(snapshots.map((snapshot) => selectFields(threadState(snapshot), read.select)));
  }

  /** Change a state; null if the config names a checkpoint that does not exist. */
  async updateState(change: StateChange): Promise<ChangedState | null> {
    const graph = await this.graphs.open(change.graph_id, change.config);
    const isNamed = Boolean(change.config.configurable.checkpoint_id);
    if (isNamed && (await graph.getState(change.config)).createdAt === undefined) {
      return null;
    }

    const values = change.values as Parameters<Graph["updateState"]>[1];
    const config = await refused(
      () => graph.updateState(change.config, values, (change.as_node ?? undefined) as never),
      (reason) => new CallFailed("bad_request", reason),
    );

    return toChangedState(graph, change.config, toCheckpoint(config) ?? {});
  }

  /** Make the state of a new thread from supersteps. */
  async createState(creation: StateCreation): Promise<ChangedState> {
    if (creation.history?.length) {
      throw invalid(["body", "history"], "graphs in JavaScript take supersteps, not a history");
    }

    const supersteps = creation.supersteps.map((updates, step) => ({
      updates: updates.map((update, index) => this.update(update, ["body", "supersteps", step, "updates", index])),
    }));
    const graph = await this.graphs.open(creation.graph_id, creation.config);

    await refused(
      () => graph.bulkUpdateState(creation.config, supersteps as never),
      (reason) => invalid(["body", "supersteps"], reason),
    );

    return toChangedState(graph, creation.config, {});
  }

  private update(update: Fields, loc: (string | number)[]): Fields {
    const command = update.command as Fields | null | undefined;
    const values = command == null ? update.values : parseCommand(this.libraries, command, [...loc, "command"]);
    return { values, asNode: update.as_node ?? undefined };
  }

  /** Draw a graph. */
  async draw(request: DescriptionRequest): Promise<{ nodes: unknown[]; edges: unknown[] }> {
    const graph = await this.described(request);
    const config = { ...request.config, xray: request.xray || undefined } as never;

    // The first versions draw at once, and without the graphs that they call.
    const drawing = await failing(request.graph_id, async () =>
      "getGraphAsync" in graph ? graph.getGraphAsync(config) : (graph as Graph).getGraph(config),
    );
    const { nodes, edges } = plain(drawing.toJSON()) as { nodes: Fields[]; edges: Fields[] };

    return { nodes: nodes.map(drawNode), edges };
  }

  /** Return the schemas of a graph. */
  async schemas(request: DescriptionRequest): Promise<GraphSchemas> {
    const graph = await this.described(request);
    return failing(request.graph_id, () => this.schemaReader.of(request.graph_id, graph));
  }

  /** Return the schemas of the subgraphs of a graph by their names. */
  async subgraphs(request: DescriptionRequest): Promise<Record<string, GraphSchemas>> {
    const graph = await this.described(request);
    const { namespace, recurse } = request;

    return failing(request.graph_id, async () => {
      const schemas: Record<string, GraphSchemas> = {};
      const isNested = namespace?.includes("|") ?? false;
      for await (const [name, subgraph] of graph.getSubgraphsAsync(namespace ?? undefined, recurse || isNested)) {
        schemas[name] = await this.schemaReader.ofSubgraph(request.graph_id, name, subgraph as unknown as Graph);
      }

      return schemas;
    });
  }

  private described(request: DescriptionRequest): Promise<Graph> {
    return failing(request.graph_id, () => this.graphs.open(request.graph_id, request.config));
  }
}

/** Return what work returns. Throws CallFailed that tells the client what the project's code threw. */
async function failing<T>(graphId: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof CallFailed) {
      throw error;
    }

    const { name, message } = error as Error;
    throw new CallFailed("graph_failed", `Graph '${graphId}': ${name}: ${message}`);
  }
}

/** Return what a change of a graph returns. Throws what `refusal` makes of the reason why the graph refuses it. */
async function refused<T>(work: () => Promise<T>, refusal: (reason: string) => CallFailed): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof CallFailed || error instanceof OtherLanguage || !(error instanceof Error)) {
      throw error;
    }

    throw refusal(error.name === "Error" ? error.message : `${error.name}: ${error.message}`);
  }
}

function stateRefused(reason: string): CallFailed {
  return new CallFailed("bad_request", `the graph refuses the values of this state: ${reason}`);
}

async function collect<T>(items: AsyncIterable<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const item of items) {
    list.push(item);
  }

  return list;
}

function drawNode(node: Fields): Fields {
  if (typeof node.data !== "object" || node.data === null) {
    return node;
  }

  const { id: _, ...data } = node.data as Fields;
  return { ...node, data };
}

async function toChangedState(graph: Graph, config: Config, checkpoint: Fields): Promise<ChangedState> {
  const latest = { configurable: { thread_id: config.configurable.thread_id, checkpoint_ns: "" } };
  const state = threadState(await refused(() => graph.getState(latest), stateRefused));
  const tasks = state.tasks as { id: string; interrupts: Fields[] }[];
  const open = tasks.filter((task) => task.interrupts.length > 0).map((task) => [task.id, task.interrupts]);
  const values = json(state.values);

  return {
    checkpoint,
    values,
    ...partsForRow(values, state.values, longLists(state.values)),
    has_next: (state.next as string[]).length > 0,
    interrupts: plain(Object.fromEntries(open)) as Record<string, Fields[]>,
  };
}

/** Return a snapshot as a ThreadState. */
function threadState(snapshot: Snapshot): Fields {
  const configurable = (snapshot.config?.configurable ?? {}) as Fields;
  const checkpoint = configurable.checkpoint_id ? toCheckpoint(snapshot.config) : null;
  const parent = toCheckpoint(snapshot.parentConfig);
  const tasks = snapshot.tasks.map(threadTask);

  return {
    values: snapshot.values,
    next: [...snapshot.next],
    tasks,
    metadata: metadata(snapshot, configurable),
    created_at: snapshot.createdAt ?? null,
    checkpoint,
    parent_checkpoint: parent,
    interrupts: tasks.flatMap((task) => task.interrupts as Fields[]),
    checkpoint_id: checkpoint?.checkpoint_id ?? null,
    parent_checkpoint_id: parent?.checkpoint_id ?? null,
  };
}

/** Return a task; that of a subgraph has its checkpoint, or its state if that was requested. */
function threadTask(task: Snapshot["tasks"][number]): Fields {
  const { state, result, error } = task as { state?: Fields; result?: unknown; error?: unknown };
  const isSnapshot = state !== undefined && "values" in state;

  return {
    id: task.id,
    name: task.name,
    path: task.path ?? [],
    error: error == null ? null : errorText(error),
    interrupts: task.interrupts.map((each) => shownInterrupt(each, task.id)),
    checkpoint: isSnapshot ? null : toCheckpoint(state),
    state: isSnapshot ? threadState(state as unknown as Snapshot) : null,
    result: result ?? null,
  };
}

function errorText(error: unknown): string {
  const { name, message } = error as Fields;
  return typeof message === "string" ? `${name ?? "Error"}: ${message}` : String(error);
}

/** Add the thread and the namespace to a checkpoint's metadata; a copied thread keeps its checkpoints. */
function metadata(snapshot: Snapshot, configurable: Fields): Fields | null {
  if (snapshot.metadata === undefined || !configurable.checkpoint_id) {
    return null;
  }

  const complete: Fields = { ...snapshot.metadata, thread_id: configurable.thread_id };
  const { checkpoint_ns: checkpointNs } = configurable;

  return checkpointNs
    ? {
        ...complete,
        checkpoint_ns: checkpointNs,
        langgraph_checkpoint_ns: checkpointNs,
        checkpoint_map: complete.parents ?? {},
      }
    : complete;
}

function before(raw: unknown): Config | undefined {
  if (raw == null) {
    return undefined;
  }

  const config = (typeof raw === "object" ? raw : { checkpoint_id: raw }) as Fields;
  const { checkpoint_id: id } = (config.configurable ?? config) as Fields;
  if (typeof id !== "string") {
    throw invalid(["body", "before"], "Expected a checkpoint id, a checkpoint, or a config with one");
  }

  return { configurable: { checkpoint_id: id } };
}

/** Return the selected fields of a state, all if none are selected; `values.<key>` selects one key of the values. */
function selectFields(state: Fields, fields: string[] | null): Fields {
  if (fields === null || fields.length === 0) {
    return state;
  }

  const fieldsOfState: Fields = Object.fromEntries(
    fields.filter((each) => each in state).map((each) => [each, state[each]]),
  );
  const keys = fields.filter((each) => each.startsWith("values.")).map((each) => each.slice("values.".length));
  if (keys.length > 0 && !fields.includes("values")) {
    const values = (state.values ?? {}) as Fields;
    fieldsOfState.values = Object.fromEntries(keys.filter((key) => key in values).map((key) => [key, values[key]]));
  }

  return fieldsOfState;
}
