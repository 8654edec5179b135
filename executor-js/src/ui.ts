// Bundles the React components that `ui` of a configuration file names: `node ui.mjs CONFIG_FILE [watch]`.
//
// The bundles are in `.langgraph_api/ui/NAME` beside the file. They are written for `LoadExternalComponent` of
// LangGraph's SDK: a script that sets `__LGUI_NAME`, whose `render` puts a component into a shadow root of the page.
// React and the SDK are those of the page, which offers its packages in `LGUI_REQUIRE`.

import { existsSync } from "node:fs";
import { mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { basename, dirname, join, resolve } from "node:path";
import { type BuildOptions, build, context, type Plugin } from "esbuild";
import { tailwind } from "./tailwind.js";

const OF_THE_PAGE = [
  "react",
  "react/jsx-runtime",
  "react-dom",
  "@langchain/langgraph-sdk",
  "@langchain/langgraph-sdk/react",
  "@langchain/langgraph-sdk/react-ui",
];

const FOLDERS_ABOVE = 3;
const FILES = ["entrypoint.js", "entrypoint.css"];
const WITHIN_THE_SCRIPT = [".gif", ".jpeg", ".jpg", ".otf", ".png", ".svg", ".ttf", ".webp", ".woff", ".woff2"];

interface Components {
  name: string;
  /** The folder from which the path in the configuration file counts, and the file there. */
  base: string;
  file: string;
  /** The folder of the configuration file. */
  folder: string;
  shared: string[];
}

/** The packages that the page offers, instead of those of the project. */
function offeredByPage(shared: string[]): Plugin {
  const isOffered = (path: string) =>
    OF_THE_PAGE.includes(path) || shared.some((name) => path === name || path.startsWith(`${name}/`));

  return {
    name: "offered-by-page",
    setup({ onResolve, onLoad }) {
      onResolve({ filter: /^[^./]/ }, ({ path, kind }) =>
        kind !== "entry-point" && isOffered(path) ? { path, namespace: "page" } : undefined,
      );
      onLoad({ filter: /.*/, namespace: "page" }, ({ path }) => ({
        contents: `module.exports = globalThis[Symbol.for("LGUI_REQUIRE")](${JSON.stringify(path)});`,
      }));
    },
  };
}

/** Write the files of each successful build, each at once: a server may read them meanwhile. */
function written(into: string): Plugin {
  return {
    name: "written",
    setup({ onEnd }) {
      onEnd(async ({ errors, outputFiles = [] }) => {
        if (errors.length > 0) {
          return;
        }

        await mkdir(into, { recursive: true });

        for (const { path, contents } of outputFiles) {
          const temporary = join(into, `.${basename(path)}`);
          await writeFile(temporary, contents);
          await rename(temporary, join(into, basename(path)));
        }

        const files = outputFiles.map(({ path }) => basename(path));
        await Promise.all(
          FILES.filter((name) => !files.includes(name)).map((name) => rm(join(into, name), { force: true })),
        );
      });
    },
  };
}

function entry(file: string): string {
  return `import components from ${JSON.stringify(file)};
export function render(name, shadowRootId) {
  const root = document.getElementById(shadowRootId)?.shadowRoot;
  if (!root) return;
  if (!components[name]) throw new Error(\`the agent has no component \${name}\`);
  const element = document.createElement("div");
  root.append(element);
  window[Symbol.for("LGUI_EXT_STORE")].respond(shadowRootId, components[name], element);
}`;
}

function optionsFor({ name, base, file, folder, shared }: Components, isWatched: boolean): BuildOptions {
  return {
    stdin: { contents: entry(file), resolveDir: folder, sourcefile: `ui ${name}` },
    entryNames: "entrypoint",
    // Components may import each other by paths that count as their own does, with no tsconfig.json.
    nodePaths: [folder, base],
    outdir: join(folder, ".langgraph_api", "ui", name),
    write: false,
    bundle: true,
    platform: "browser",
    target: "es2020",
    jsx: "automatic",
    minify: !isWatched,
    sourcemap: isWatched ? "inline" : false,
    define: { "process.env.NODE_ENV": isWatched ? '"development"' : '"production"' },
    loader: Object.fromEntries(WITHIN_THE_SCRIPT.map((ending) => [ending, "dataurl"])),
    globalName: `__LGUI_${name.replace(/[^a-zA-Z0-9]/g, "_")}`,
    logLevel: "warning",
    plugins: [offeredByPage(shared), tailwind(folder), written(join(folder, ".langgraph_api", "ui", name))],
  };
}

/** The folder from which a path counts: that of the configuration file, else the nearest one above that has the file. */
function findBase(folder: string, file: string): string {
  const folders = [folder];
  for (let above = 0; above < FOLDERS_ABOVE; above += 1) {
    folders.push(dirname(folders[above] as string));
  }

  return folders.find((each) => existsSync(resolve(each, file))) ?? folder;
}

async function readComponents(configFile: string): Promise<Components[]> {
  const config = JSON.parse(await readFile(configFile, "utf8")) as {
    ui?: Record<string, string>;
    ui_config?: { shared?: string[] };
  };

  const folder = dirname(resolve(configFile));
  const shared = config.ui_config?.shared ?? [];

  return Object.entries(config.ui ?? {}).map(([name, path]) => {
    const base = findBase(folder, path);
    return { name, base, file: resolve(base, path), folder, shared };
  });
}

async function main(configFile: string, isWatched: boolean): Promise<void> {
  const all = await readComponents(configFile);
  if (isWatched) {
    const contexts = await Promise.all(all.map((each) => context(optionsFor(each, true))));
    await Promise.all(contexts.map((each) => each.watch()));

    // It ends with what started it.
    process.stdin.on("close", () => process.exit()).resume();
  } else {
    await Promise.all(all.map((each) => build(optionsFor(each, false))));
  }
}

const [configFile = "langgraph.json", mode] = process.argv.slice(2);

main(configFile, mode === "watch").catch((error) => {
  // The bundler has said what is wrong with the sources.
  if (!error.errors) {
    process.stderr.write(`${error}\n`);
  }

  process.exitCode = 1;
});
