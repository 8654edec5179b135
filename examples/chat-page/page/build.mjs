// Makes ../static/chat.js from chat.tsx. The result is kept in the repository, so that a deployment needs no Node.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { build } from "esbuild";

const digest = createHash("sha256");
for (const file of ["chat.tsx", "package.json"]) digest.update(readFileSync(file));

await build({
  entryPoints: ["chat.tsx"],
  outfile: "../static/chat.js",
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
  // A test of the examples compares it: whoever changes the page has to build it again.
  banner: { js: `// sources: ${digest.digest("hex")}` },
  legalComments: "eof",
});
