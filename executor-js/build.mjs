// Builds the executor into one file without packages: `node build.mjs FOLDER`.

import { build } from "esbuild";

const folder = process.argv[2] ?? "dist";

await build({
  entryPoints: ["src/main.ts"],
  outfile: `${folder}/main.mjs`,
  bundle: true,
  platform: "node",
  target: "node20",
  format: "esm",
  logLevel: "warning",
  legalComments: "inline",
});
