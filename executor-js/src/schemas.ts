// The JSON schemas of graphs: of what they declare at run time, such as zod schemas, else of the types of their source.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import type { Libraries } from "./libraries.js";
import { log, stackOf } from "./logs.js";
import type { Graph } from "./project.js";
import type { Fields } from "./server.js";

/** The schemas of a graph; null where there is none. */
export interface GraphSchemas {
  input_schema: Fields | null;
  output_schema: Fields | null;
  state_schema: Fields | null;
  config_schema: Fields | null;
  context_schema: Fields | null;
}

/** Where a graph is exported. */
interface Place {
  file: string;
  name: string;
}

interface Found {
  state?: Fields;
  input?: Fields;
  output?: Fields;
  config?: Fields;
}

const WORKER = fileURLToPath(new URL("./schema-worker.mjs", import.meta.url));
const READ_WITHIN_MS = 120_000;
const TYPESCRIPT = /\.[mc]?tsx?$/;

/** Reads the schemas of the project's graphs. */
export class Schemas {
  private readonly ofTypes = new Map<number, Promise<Record<string, Record<string, Found>>>>();

  constructor(
    private readonly libraries: Libraries,
    /** The file and the name of each graph's export, by their ids. */
    private readonly places: Map<string, Place>,
  ) {}

  /** Return the schemas of a graph. */
  of(id: string, graph: Graph): Promise<GraphSchemas> {
    return this.read(id, graph, "");
  }

  /** Return the schemas of a graph's subgraph; `name` is its path in the graph. */
  ofSubgraph(id: string, name: string, graph: Graph): Promise<GraphSchemas> {
    return this.read(id, graph, `|${name}`);
  }

  private async read(id: string, graph: Graph, path: string): Promise<GraphSchemas> {
    const declared = this.declared(graph);
    const known = declared.state && declared.input && declared.output ? {} : await this.typed(id, path);
    const named = ofChannels(graph);
    const config = declared.config ?? (hasProperties(known.config) ? known.config : undefined);
    return {
      input_schema: declared.input ?? known.input ?? named.input,
      output_schema: declared.output ?? known.output ?? named.output,
      state_schema: declared.state ?? known.state ?? named.state,
      config_schema: config ?? {},
      context_schema: config ?? null,
    };
  }

  /** Return the schemas of what a graph's builder was given. */
  private declared(graph: Graph): Found {
    const builder = graph.builder as unknown as Fields | undefined;
    if (builder === undefined) {
      return {};
    }
    const state = this.schema(builder._schemaRuntimeDefinition);
    const input = this.schema(builder._inputRuntimeDefinition, "getInputJsonSchema");
    const output = this.schema(builder._outputRuntimeDefinition);
    const config = this.schema(builder._configRuntimeSchema ?? (graph as unknown as Fields).contextSchema);
    return {
      state,
      // Without one of its own the input is any part of the state.
      input: input ?? partial(this.schema(builder._schemaRuntimeDefinition, "getInputJsonSchema")),
      output: output ?? state,
      config,
    };
  }

  private schema(definition: unknown, method = "getJsonSchema"): Fields | undefined {
    if (typeof definition !== "object" || definition === null) {
      return undefined;
    }
    const known = definition as Record<string, unknown>;
    try {
      if (typeof known[method] === "function") {
        return (known[method] as () => Fields)();
      }
      return "_zod" in known || "_def" in known ? (this.libraries.toJsonSchema(definition) as Fields) : undefined;
    } catch (error) {
      log("info", "a schema of a graph could not be made", { error: String(error).slice(0, 300) });
      return undefined;
    }
  }

  /** Return the schemas that the types of a graph's source have. */
  private async typed(id: string, path: string): Promise<Found> {
    const place = this.places.get(id);
    if (place === undefined || !TYPESCRIPT.test(place.file) || !existsSync(WORKER)) {
      return {};
    }
    // Those of several files take hardly longer than those of one, but of a file only one graph is read at a time.
    const batch = this.batchOf(id, place.file);
    const reading = this.ofTypes.get(batch) ?? readTypes(this.inBatch(batch));
    this.ofTypes.set(batch, reading);
    return (await reading)[id]?.[place.name + path] ?? {};
  }

  private batchOf(id: string, file: string): number {
    const ofFile = [...this.places].filter(([, place]) => place.file === file);
    return ofFile.findIndex(([other]) => other === id);
  }

  private inBatch(batch: number): [string, Place][] {
    return [...this.places].filter(([id, { file }]) => TYPESCRIPT.test(file) && this.batchOf(id, file) === batch);
  }
}

async function readTypes(places: [string, Place][]) {
  const specs = places.map(([id, { file, name }]) => [id, { sourceFile: file, exportSymbol: name }]);
  const worker = new Worker(WORKER, {
    workerData: Object.fromEntries(specs),
    stdout: true,
    stderr: true,
    execArgv: [],
  });
  const timer = setTimeout(() => worker.terminate(), READ_WITHIN_MS);
  try {
    return await new Promise<Record<string, Record<string, Found>>>((resolve, reject) => {
      worker.once("message", resolve);
      worker.once("error", reject);
      worker.once("exit", () => reject(new Error("the types were not read in time")));
    });
  } catch (error) {
    log("info", "the schemas of graphs could not be read from their types", { error: stackOf(error).slice(0, 500) });
    return {};
  } finally {
    clearTimeout(timer);
    void worker.terminate();
  }
}

/** Return schemas that name the keys of a graph, and say nothing of their types. */
function ofChannels(graph: Graph): { state: Fields; input: Fields; output: Fields } {
  const named = (keys: unknown): Fields =>
    Array.isArray(keys) ? { type: "object", properties: Object.fromEntries(keys.map((key) => [key, {}])) } : {};
  const input = graph.inputChannels as unknown;
  const state = named(graph.streamChannelsAsIs);
  return { state, input: Array.isArray(input) ? named(input) : state, output: named(graph.outputChannels) };
}

function partial(schema: Fields | undefined): Fields | undefined {
  if (schema === undefined) {
    return undefined;
  }
  const { required: _, ...rest } = schema;
  return rest;
}

function hasProperties(schema: Fields | undefined): boolean {
  return Object.keys((schema?.properties ?? {}) as Fields).length > 0;
}
