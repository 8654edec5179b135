// Builds the executor into files without packages but those of `runtime`: `node build.mjs FOLDER [--source-maps]`.

import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { build } from "esbuild";

const folder = process.argv[2] ?? "dist";

const { metafile } = await build({
  entryPoints: { main: "src/main.ts", "schema-worker": "src/schema-worker.ts", ui: "src/ui.ts" },
  outdir: folder,
  outExtension: { ".js": ".mjs" },
  bundle: true,
  external: ["esbuild", "tailwindcss", "typescript", "tsx"],
  platform: "node",
  target: "node20",
  format: "esm",
  logLevel: "warning",
  legalComments: "inline",
  metafile: true,
  // Beside the files, which are the same with and without: `make coverage` finds the sources by them.
  sourcemap: process.argv.includes("--source-maps") ? "external" : false,
  // The reader of types requires its compiler.
  banner: {
    js: 'import { createRequire as __createRequire } from "node:module";\nconst require = __createRequire(import.meta.url);',
  },
});

// Files that the reader of types looks for beside itself, and its licence.
const reader = dirname(createRequire(import.meta.url).resolve("@langchain/langgraph-api/schema"));
await mkdir(join(folder, "schema"), { recursive: true });
await copyFile(join(reader, "schema", "types.template.mts"), join(folder, "schema", "types.template.mts"));
await copyFile(join(reader, "..", "..", "..", "LICENSE"), join(folder, "schema", "LICENSE"));

// The packages whose code the files contain: the bill of materials of a release names them.
const inBundle = Object.values(metafile.outputs).flatMap((output) => Object.keys(output.inputs));
const folders = inBundle.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0]);
const bundled = {};
for (const package_ of new Set(folders.filter((each) => each !== undefined).sort())) {
  const { name, version, license } = JSON.parse(await readFile(join(package_, "package.json"), "utf-8"));
  bundled[name] = { version, license };
}
await writeFile(join(folder, "bundled.json"), `${JSON.stringify(bundled, null, 2)}\n`);
