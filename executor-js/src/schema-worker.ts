// Reads the schemas of graphs from the types of their sources, which takes seconds: in a thread of an executor, or as
// the program of a build: `node schema-worker.mjs FOLDER GRAPHS`, with the locations of graphs by their ids as JSON.

import { existsSync, readFileSync } from "node:fs";
import { setPriority } from "node:os";
import { resolve } from "node:path";
import { isMainThread, parentPort, workerData } from "node:worker_threads";
import { getStaticGraphSchema } from "@langchain/langgraph-api/schema";
import ts from "typescript";
import { batches, hashContent, isSource, keep, type Place, type ReadTypes, type TypeSchemas } from "./types.js";

const NICE = 15;

async function read(places: Map<string, Place>): Promise<ReadTypes> {
  const specs = [...places].map(([id, { file, name }]) => [id, { sourceFile: file, exportSymbol: name }]);
  const reads = new Set<string>();
  const missing = new Set<string>();
  const { readFile, fileExists } = ts.sys;

  ts.sys.readFile = (path, encoding) => {
    reads.add(resolve(path));
    return readFile(path, encoding);
  };

  ts.sys.fileExists = (path) => {
    const exists = fileExists(path);
    if (!exists && path.endsWith("/tsconfig.json")) {
      missing.add(resolve(path));
    }

    return exists;
  };

  try {
    const schemas = (await getStaticGraphSchema(Object.fromEntries(specs), {
      mainThread: true,
    })) as unknown as TypeSchemas;
    const files = [...reads].filter((path) => isSource(path) && existsSync(path));
    const hashes = files.map((path): [string, string] => [path, hashContent(readFileSync(path))]);

    return { schemas, files: Object.fromEntries([...hashes, ...[...missing].map((path) => [path, ""])]) };
  } finally {
    Object.assign(ts.sys, { readFile, fileExists });
  }
}

async function keepAll(folder: string, graphs: Record<string, string>): Promise<void> {
  const places = Object.entries(graphs).map(([id, location]): [string, Place] => {
    const [file, name = "default"] = location.split(/:(?=[^:/]*$)/);
    return [id, { file: resolve(folder, file as string), name }];
  });

  for (const batch of batches(new Map(places))) {
    await keep(folder, batch, await read(batch));
  }
}

// The parser prints what the compiler says of the project.
process.stdout.write = () => true;

if (isMainThread) {
  const [folder = ".", graphs = "{}"] = process.argv.slice(2);
  await keepAll(resolve(folder), JSON.parse(graphs));
} else {
  const { places, isBackground } = workerData as { places: Map<string, Place>; isBackground: boolean };
  if (isBackground) {
    // Of this thread alone, on Linux.
    setPriority(NICE);
  }

  parentPort?.postMessage(await read(places));
}
