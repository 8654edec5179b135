// The JSON schemas of graphs: of what they declare at run time, such as zod schemas, else of the types of their source.

import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { Worker } from "node:worker_threads";
import type { Libraries } from "./libraries.js";
import { log, toStack } from "./logs.js";
import type { Graph } from "./project.js";
import type { Fields } from "./server.js";
import { batches, type Found, keep, keptSchemas, type Place, type ReadTypes, type TypeSchemas } from "./types.js";

/** The schemas of a graph; null where there is none. */
export interface GraphSchemas {
  input_schema: Fields | null;
  output_schema: Fields | null;
  state_schema: Fields | null;
  config_schema: Fields | null;
  context_schema: Fields | null;
}

const WORKER = fileURLToPath(new URL("./schema-worker.mjs", import.meta.url));
type SchemaMaker = (graph: Graph) => unknown;
const READ_WITHIN_MS = 300_000;

/** Reads the schemas of the project's graphs. */
export class Schemas {
  private readonly ofTypes = new Map<Map<string, Place>, Promise<TypeSchemas>>();
  private readonly batches: Map<string, Place>[];
  private kept: Promise<TypeSchemas> | null = null;

  constructor(
    private readonly libraries: Libraries,
    /** The folder of the project. */
    private readonly folder: string,
    /** The file and the name of each graph's export, by their ids. */
    private readonly places: Map<string, Place>,
  ) {
    this.batches = existsSync(WORKER) ? batches(places) : [];
  }

  /** Read the types of all graphs now, one batch after the other, and keep their schemas. */
  async prepare(): Promise<void> {
    for (const batch of this.batches) {
      await this.readBatch(batch, { isBackground: true });
    }
  }

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
    const types = declared.state && declared.input && declared.output ? {} : await this.typed(id, path);
    const channels = describeChannels(graph);
    const config = declared.config ?? (hasProperties(types.config) ? types.config : undefined);

    return {
      input_schema: declared.input ?? types.input ?? channels.input,
      output_schema: declared.output ?? types.output ?? channels.output,
      state_schema: declared.state ?? types.state ?? channels.state,
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

    const { getStateTypeSchema, getInputTypeSchema, getOutputTypeSchema } = this.libraries.zod ?? {};
    const state =
      this.registered(getStateTypeSchema, graph, builder._schemaRuntimeDefinition) ??
      this.schema(builder._schemaRuntimeDefinition);
    const input =
      this.registered(getInputTypeSchema, graph, builder._inputRuntimeDefinition) ??
      this.schema(builder._inputRuntimeDefinition, "getInputJsonSchema");

    const output =
      this.registered(getOutputTypeSchema, graph, builder._outputRuntimeDefinition) ??
      this.schema(builder._outputRuntimeDefinition);
    const config = this.schema(builder._configRuntimeSchema ?? (graph as unknown as Fields).contextSchema);

    return {
      state,
      // Without one of its own the input is any part of the state.
      input: input ?? partial(this.schema(builder._schemaRuntimeDefinition, "getInputJsonSchema")),
      output: output ?? state,
      config,
    };
  }

  /** Return the schema of zod definitions with what the project's registry adds to it. */
  private registered(make: SchemaMaker | undefined, graph: Graph, definition: unknown): Fields | undefined {
    try {
      return isZod(definition) ? (make?.(graph) as Fields | undefined) : undefined;
    } catch {
      // A version of zod that LangGraph's registry does not know.
      return undefined;
    }
  }

  private schema(definition: unknown, method = "getJsonSchema"): Fields | undefined {
    if (typeof definition !== "object" || definition === null) {
      return undefined;
    }

    const methods = definition as Record<string, unknown>;
    try {
      if (typeof methods[method] === "function") {
        return (methods[method] as () => Fields)();
      }

      return isZod(definition) ? (this.libraries.toJsonSchema(definition) as Fields) : undefined;
    } catch (error) {
      log("info", "a JSON schema of a graph could not be generated", { error: String(error).slice(0, 300) });
      return undefined;
    }
  }

  /** Return the schemas that the types of a graph's source have. */
  private async typed(id: string, path: string): Promise<Found> {
    const batch = this.batches.find((each) => each.has(id));
    return batch === undefined ? {} : ((await this.readBatch(batch))[id]?.[this.places.get(id)?.name + path] ?? {});
  }

  private readBatch(batch: Map<string, Place>, options = { isBackground: false }): Promise<TypeSchemas> {
    const reading = this.ofTypes.get(batch) ?? this.readOrKept(batch, options);
    this.ofTypes.set(batch, reading);
    return reading;
  }

  private async readOrKept(batch: Map<string, Place>, options: { isBackground: boolean }): Promise<TypeSchemas> {
    this.kept ??= keptSchemas(this.folder, this.places);
    const keptTypes = await this.kept;
    if ([...batch.keys()].every((id) => id in keptTypes)) {
      return keptTypes;
    }

    const read = await readTypes(batch, options);
    if (read === null) {
      return {};
    }

    await keep(this.folder, batch, read);
    return read.schemas;
  }
}

/** Read types in a thread, with a low priority in the background. Return null if that fails. */
async function readTypes(
  places: Map<string, Place>,
  { isBackground }: { isBackground: boolean },
): Promise<ReadTypes | null> {
  const worker = new Worker(WORKER, { workerData: { places, isBackground }, stdout: true, stderr: true, execArgv: [] });
  const timer = setTimeout(() => worker.terminate(), READ_WITHIN_MS);
  try {
    return await new Promise<ReadTypes>((resolve, reject) => {
      worker.once("message", resolve);
      worker.once("error", reject);
      worker.once("exit", () => reject(new Error("the types were not read in time")));
    });
  } catch (error) {
    log("info", "the schemas of graphs could not be read from their types", { error: toStack(error).slice(0, 500) });
    return null;
  } finally {
    clearTimeout(timer);
    void worker.terminate();
  }
}

/** Return schemas that name the keys of a graph, and say nothing of their types. */
function describeChannels(graph: Graph): { state: Fields; input: Fields; output: Fields } {
  const toObject = (keys: unknown): Fields =>
    Array.isArray(keys) ? { type: "object", properties: Object.fromEntries(keys.map((key) => [key, {}])) } : {};
  const input = graph.inputChannels as unknown;
  const state = toObject(graph.streamChannelsAsIs);
  return { state, input: Array.isArray(input) ? toObject(input) : state, output: toObject(graph.outputChannels) };
}

function partial(schema: Fields | undefined): Fields | undefined {
  if (schema === undefined) {
    return undefined;
  }

  const { required: _, ...rest } = schema;
  return rest;
}

function isZod(definition: unknown): boolean {
  return typeof definition === "object" && definition !== null && ("_zod" in definition || "_def" in definition);
}

function hasProperties(schema: Fields | undefined): boolean {
  return Object.keys((schema?.properties ?? {}) as Fields).length > 0;
}
