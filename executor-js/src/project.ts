// The graphs of the project: its modules, and the graphs that they export, opened for each use.
//
// An export may be a compiled graph, a StateGraph, an agent that has a graph, or a function that returns one of them.
// A function gets the config of its use.

import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { CompiledStateGraph, StateSnapshot } from "@langchain/langgraph";
import type { BaseCheckpointSaver, BaseStore } from "@langchain/langgraph-checkpoint";
import { CallFailed } from "./link.js";
import { toStack } from "./logs.js";
import type { Fields } from "./server.js";
import { watchNodes } from "./stopping.js";

// biome-ignore lint/suspicious/noExplicitAny: the types of a project's graph are unknown
export type Graph = CompiledStateGraph<any, any, any, any, any, any>;
export type Snapshot = StateSnapshot;
type Factory = (config: Fields) => unknown;

/** The facts of a graph that do not need an open graph. */
export interface Facts {
  description: string | null;
  is_factory: boolean;
  is_fixed: boolean;
  language: string;
}

/** A graph of the configuration: `path` is `file.ts:name`. */
export interface Source {
  path: string;
  description: string | null;
}

/** The project does not load; the message is for its author. */
export class ProjectFailed extends Error {
  override name = "ProjectFailed";
}

/** Let `import` and `require` load TypeScript. Without tsx, which is installed beside this program, they load none. */
export async function registerTypeScript(): Promise<boolean> {
  const tsx = "tsx";
  try {
    const [forImport, forRequire] = [await import(`${tsx}/esm/api`), await import(`${tsx}/cjs/api`)];
    forRequire.register();
    forImport.register();
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ERR_MODULE_NOT_FOUND") {
      return false;
    }

    throw error;
  }
}

/** The file and the name of an export. */
function place(folder: string, source: Source): { file: string; name: string } {
  const at = source.path.lastIndexOf(":");
  return { file: resolve(folder, source.path.slice(0, at)), name: source.path.slice(at + 1) };
}

/** Import an export of the project. Throws ProjectFailed, which names the line that failed. */
export async function importExport(folder: string, label: string, source: Source): Promise<unknown> {
  const { file, name } = place(folder, source);
  let module: Fields;
  try {
    module = await import(pathToFileURL(file).href);
  } catch (error) {
    throw new ProjectFailed(`${label} (${source.path}) cannot be imported: ${toStack(error)}`);
  }

  const inDefault = module.default as Fields | undefined;
  // A module that was loaded by `require` has its exports in `default` as well.
  const exported = name in module ? module[name] : inDefault?.[name];
  if (exported === undefined) {
    const exportNames = Object.keys(module).filter((each) => each !== "default" && each !== "module.exports");
    throw new ProjectFailed(
      `${label} (${source.path}): ${file} exports no ${name}; it exports ${exportNames.join(", ") || "nothing"}`,
    );
  }

  return exported;
}

/** The graphs of the project by their ids. */
export class Graphs {
  /** The file and the name of each graph's export. */
  readonly places = new Map<string, { file: string; name: string }>();
  private readonly exports = new Map<string, { graph: Graph } | { factory: Factory }>();
  private checkpointer: BaseCheckpointSaver | null = null;
  private store: BaseStore | null = null;

  constructor(private readonly sources: Record<string, Source>) {}

  /** Import every graph. Throws ProjectFailed, which names the graph and the line that failed. */
  async load(folder: string): Promise<void> {
    for (const [id, source] of Object.entries(this.sources)) {
      const exported = await importExport(folder, `graph '${id}'`, source);
      this.places.set(id, place(folder, source));

      const graph = asGraph(await exported);
      if (graph !== null) {
        this.exports.set(id, { graph });
      } else if (typeof exported === "function") {
        this.exports.set(id, { factory: exported as Factory });
      } else {
        throw new ProjectFailed(
          `graph '${id}' (${source.path}) is of type ${typeof exported}; export a compiled graph, a StateGraph, an ` +
            "agent, or a function that returns one",
        );
      }
    }
  }

  /** Return the facts of each graph, in the order of the configuration. */
  facts(): Record<string, Facts> {
    const facts: Record<string, Facts> = {};
    for (const [id, found] of this.exports) {
      const isFactory = "factory" in found;
      const description = this.sources[id]?.description ?? null;
      facts[id] = { description, is_factory: isFactory, is_fixed: !isFactory, language: "JavaScript" };
    }

    return facts;
  }

  /** Give the graphs their checkpointer, which replaces their own, and their store. */
  attach(checkpointer: BaseCheckpointSaver, store: BaseStore | null): void {
    this.checkpointer = checkpointer;
    this.store = store;

    for (const [id, found] of this.exports) {
      if ("graph" in found) {
        this.exports.set(id, { graph: this.equipped(id, found.graph) });
      }
    }
  }

  /** Open a graph for one use. Throws CallFailed for an unknown graph, and what a factory throws. */
  async open(id: string, config: Fields): Promise<Graph> {
    const graphExport = this.exports.get(id);
    if (graphExport === undefined) {
      const ids = [...this.exports.keys()].join("', '");
      throw new CallFailed("not_found", `Graph '${id}' not found. Expected one of: ['${ids}']`);
    }

    if ("graph" in graphExport) {
      return graphExport.graph;
    }

    const value = await graphExport.factory(config);
    const graph = asGraph(value);
    if (graph === null) {
      throw new TypeError(`the factory of graph '${id}' returned ${typeof value}; it must return a graph`);
    }

    return this.equipped(id, graph);
  }

  /** Return a copy with our checkpointer and store: the same graph may be a subgraph of another one. */
  private equipped(id: string, graph: Graph): Graph {
    const Copy = graph.constructor as new (fields: unknown) => Graph;
    const name = graph.name === undefined || graph.name === "LangGraph" ? id : graph.name;
    const copy = new Copy({ ...graph, checkpointer: this.checkpointer, store: this.store ?? graph.store, name });
    watchNodes(copy);
    return copy;
  }
}

function asGraph(value: unknown): Graph | null {
  const fields = (value ?? {}) as Fields;
  if (isPregel(fields)) {
    return value as Graph;
  }

  // An agent of `createAgent` holds its graph; a StateGraph becomes one.
  const inner = fields.graph as Fields | undefined;
  if (typeof value === "object" && inner !== undefined && isPregel(inner)) {
    return inner as unknown as Graph;
  }

  return typeof value === "object" && typeof fields.compile === "function" ? (fields.compile() as Graph) : null;
}

/** Whether a value is a compiled graph. Versions before 0.2.19 do not mark theirs. */
function isPregel(value: Fields): boolean {
  return value.lg_is_pregel === true || (typeof value.stream === "function" && "inputChannels" in value);
}

/** Return the file of the first graph, whose packages the graph uses; without graphs the folder's package.json. */
export function firstFile(folder: string, sources: Record<string, Source>): string {
  const first = Object.values(sources)[0];
  return first === undefined ? join(folder, "package.json") : place(folder, first).file;
}
