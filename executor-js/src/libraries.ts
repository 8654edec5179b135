// The project's own copies of LangGraph's packages. Two builds of a package may be loaded, for `import` and for
// `require`: ours must be the one that the graph uses, so that its classes are the same.

import { existsSync, readFileSync, realpathSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, sep } from "node:path";
import { pathToFileURL } from "node:url";
import type * as LoadModule from "@langchain/core/load";
import type * as MessagesModule from "@langchain/core/messages";
import type * as TracerModule from "@langchain/core/tracers/tracer_langchain";
import type * as GraphModule from "@langchain/langgraph";
import type * as ZodModule from "@langchain/langgraph/zod/schema";
import type * as CheckpointModule from "@langchain/langgraph-checkpoint";

/** The parts of the project's packages that this process uses. */
export interface Libraries {
  graph: typeof GraphModule;
  checkpoint: typeof CheckpointModule;
  messages: typeof MessagesModule;
  load: typeof LoadModule;
  tracer: typeof TracerModule;
  /** Make the JSON schema of a zod schema. */
  toJsonSchema(schema: unknown): unknown;
  /** Makes the schemas of graphs with zod, with a project's additions; null in versions without it. */
  zod: Partial<typeof ZodModule> | null;
  /** Versions by the names of packages. */
  versions: Record<string, string>;
}

/** The project lacks a package; the message names it and says what to do. */
class MissingLibrary extends Error {
  override name = "MissingLibrary";
}

interface Manifest {
  version?: string;
  main?: string;
  exports?: unknown;
}

interface Package {
  folder: string;
  manifest: Manifest;
}

const GRAPH = "@langchain/langgraph";
const CHECKPOINT = "@langchain/langgraph-checkpoint";
const CORE = "@langchain/core";

/** Import the packages that a file of the project uses. Throws MissingLibrary. */
export async function importLibraries(file: string): Promise<Libraries> {
  const graph = find(GRAPH, file);
  const inGraph = join(graph.folder, "package.json");
  const [checkpoint, core] = [find(CHECKPOINT, inGraph), find(CORE, inGraph)];
  const isRequired = wasRequired(graph);
  const load = async (from: Package, path = ".") => import(entry(from, path, isRequired));

  return {
    graph: await load(graph),
    checkpoint: await load(checkpoint),
    messages: await load(core, "./messages"),
    load: await load(core, "./load"),
    tracer: await load(core, "./tracers/tracer_langchain"),
    zod: hasEntry(graph, "./zod/schema") ? await load(graph, "./zod/schema") : null,
    toJsonSchema: (await load(core, "./utils/json_schema")).toJsonSchema,
    versions: Object.fromEntries(
      [
        [GRAPH, graph],
        [CHECKPOINT, checkpoint],
        [CORE, core],
      ].map(([name, found]) => [name, (found as Package).manifest.version ?? "unknown"]),
    ),
  };
}

/** Import a package that a file of the project, or a package of it, uses; null if there is none. */
export async function importPackage(name: string, file: string, by?: string): Promise<Record<string, unknown> | null> {
  try {
    const from = by === undefined ? file : join(find(by, file).folder, "package.json");
    const library = find(name, from);
    return await import(entry(library, ".", wasRequired(library)));
  } catch (error) {
    if (error instanceof MissingLibrary) {
      return null;
    }

    throw error;
  }
}

/** Find a package as Node does: in the folders `node_modules` above a file. */
function find(name: string, file: string): Package {
  for (let folder = dirname(file); ; folder = dirname(folder)) {
    const place = join(folder, "node_modules", name);
    const path = join(place, "package.json");
    if (existsSync(path)) {
      // Package managers link packages from elsewhere: their own packages are beside the real place.
      return { folder: realpathSync(place), manifest: JSON.parse(readFileSync(path, "utf8")) };
    }

    if (folder === dirname(folder)) {
      throw new MissingLibrary(`the project has no package ${name}: add it to package.json, and install the packages`);
    }
  }
}

/** Whether the project loaded a package by `require`, as TypeScript without "type": "module" does. */
function wasRequired(found: Package): boolean {
  const cache = createRequire(join(found.folder, "package.json")).cache;
  // With the separator: the name of one package may begin with that of another.
  return Object.keys(cache).some((path) => path.startsWith(found.folder + sep));
}

function hasEntry({ manifest: { exports } }: Package, path: string): boolean {
  return typeof exports === "object" && exports !== null && path in exports;
}

function entry(found: Package, path: string, isRequired: boolean): string {
  const { exports, main } = found.manifest;
  const entries = exports === undefined || typeof exports === "string" ? { ".": exports ?? main } : exports;

  const target = select((entries as Record<string, unknown>)[path], isRequired ? "require" : "import");
  if (target === null) {
    throw new MissingLibrary(`${found.folder} has no entry ${path}: install a newer version of the package`);
  }

  return pathToFileURL(join(found.folder, target)).href;
}

function select(conditions: unknown, wanted: string): string | null {
  if (typeof conditions === "string") {
    return conditions;
  }
  if (typeof conditions !== "object" || conditions === null) {
    return null;
  }

  for (const [condition, target] of Object.entries(conditions)) {
    if (condition === wanted || condition === "node" || condition === "default") {
      const path = select(target, wanted);
      if (path !== null && !path.endsWith(".d.ts")) {
        return path;
      }
    }
  }

  return null;
}
