// The schemas that the types of graphs' sources have. TypeScript's compiler needs seconds for them, so they are kept in
// a file of the project, with hashes of the sources that they were read from. A build writes it, and so does an
// executor that had to read types.

import { createHash } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { dirname, join, relative, resolve } from "node:path";
import type { Fields } from "./server.js";

/** Where a graph is exported. */
export interface Place {
  file: string;
  name: string;
}

/** The schemas of a graph; those that it has no types for are missing. */
export interface Found {
  state?: Fields;
  input?: Fields;
  output?: Fields;
  config?: Fields;
}

/** Schemas by the ids of graphs, and by the path of a subgraph: `graph`, `graph|child`. */
export type TypeSchemas = Record<string, Record<string, Found>>;

/** What was read, and the hashes of the files that it was read from; "" for one that would count if it were there. */
export interface ReadTypes {
  schemas: TypeSchemas;
  files: Record<string, string>;
}

interface Kept extends ReadTypes {
  version: number;
  /** Where each graph was exported. */
  exports: Record<string, string>;
}

const VERSION = 2;
const FILE = join(".langgraph_api", "schemas.json");
const TYPESCRIPT = /\.[mc]?tsx?$/;

/** Group graphs in TypeScript: those of several files take hardly longer than one, but one of each file at a time. */
export function batches(places: Map<string, Place>): Map<string, Place>[] {
  const groups: Map<string, Place>[] = [];
  const counts = new Map<string, number>();
  for (const [id, place] of places) {
    if (TYPESCRIPT.test(place.file)) {
      const index = counts.get(place.file) ?? 0;
      counts.set(place.file, index + 1);
      groups[index] ??= new Map();
      groups[index].set(id, place);
    }
  }

  return groups;
}

/** Return the kept schemas that are still those of the sources, by the ids of graphs. */
export async function keptSchemas(folder: string, places: Map<string, Place>): Promise<TypeSchemas> {
  const { schemas, exports } = await readKept(folder);
  const same = Object.entries(schemas).filter(([id]) => exports[id] === toExportName(folder, places.get(id)));
  return Object.fromEntries(same);
}

function toExportName(folder: string, place: Place | undefined): string {
  return place === undefined ? "" : `${relative(folder, place.file)}:${place.name}`;
}

async function readKept(folder: string): Promise<Kept> {
  try {
    const kept = JSON.parse(await readFile(join(folder, FILE), "utf8")) as Kept;
    if (kept.version === VERSION && (await areSame(folder, kept.files))) {
      return kept;
    }
  } catch {
    // Nothing was kept, or by another version.
  }

  return { version: VERSION, exports: {}, schemas: {}, files: {} };
}

async function areSame(folder: string, files: Record<string, string>): Promise<boolean> {
  for (const [path, hash] of Object.entries(files)) {
    const content = await readFile(resolve(folder, path)).catch(() => null);
    if ((content === null ? "" : hashContent(content)) !== hash) {
      return false;
    }
  }

  return true;
}

/** Keep schemas beside those that are still right. A folder that cannot be written to stays as it is. */
export async function keep(folder: string, places: Map<string, Place>, read: ReadTypes): Promise<void> {
  const path = join(folder, FILE);
  const before = await readKept(folder);
  const files = Object.entries(read.files).map(([file, hash]) => [relative(folder, file), hash]);
  const exports = [...places].map(([id, place]) => [id, toExportName(folder, place)]);

  const kept: Kept = {
    version: VERSION,
    exports: { ...before.exports, ...Object.fromEntries(exports) },
    schemas: { ...before.schemas, ...read.schemas },
    files: { ...before.files, ...Object.fromEntries(files) },
  };

  try {
    await mkdir(dirname(path), { recursive: true });
    const temporary = `${path}.${process.pid}`;
    await writeFile(temporary, JSON.stringify(kept));
    await rename(temporary, path);
  } catch {
    // The next process reads the types again.
  }
}

/** Whether a file decides about types: any source, but of installed packages only what names their version. */
export function isSource(path: string): boolean {
  return !path.includes("/node_modules/") || path.endsWith("/package.json");
}

export function hashContent(content: string | Uint8Array): string {
  return createHash("sha256").update(content).digest("hex");
}
