// Compiles style sheets that use Tailwind 4, for the classes of the sources that a bundle is made of.
//
// It is the project's Tailwind, or that of the executor if the project has none or an older one.

import { readdir, readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { build, type Plugin, type PluginBuild } from "esbuild";
import type * as Tailwind from "tailwindcss";

const USES_TAILWIND =
  /@(?:apply|config|custom-variant|plugin|reference|source|tailwind|theme|utility|variant)\b|@import\s+(?:url\()?["']tailwindcss/;
const SOURCES = /\.(?:[cm]?[jt]sx?|mdx?|html)$/;
// Where the classes of a source are: words, and words of a quoted text, which may have other quotation marks in it.
const WORDS = /[^\s"'`<>=;{}()]+/g;
const TEXTS = /"([^"\n]*)"|'([^'\n]*)'|`([^`]*)`/g;

type Compile = typeof Tailwind.compile;

/** Return what may be a class in a source; Tailwind ignores everything else. */
function candidates(source: string): Set<string> {
  const words = new Set(source.match(WORDS));
  for (const [, ...groups] of source.matchAll(TEXTS)) {
    for (const word of groups.find((each) => each !== undefined)?.split(/\s+|\$\{|\}/) ?? []) {
      words.add(word);
    }
  }

  return words;
}

async function load(folder: string): Promise<{ compile: Compile; root: string }> {
  for (const from of [join(folder, "package.json"), import.meta.url]) {
    try {
      const main = createRequire(from).resolve("tailwindcss");
      const compiler = await import(pathToFileURL(main).href);

      // Tailwind 3 has none.
      const compile: Compile | undefined = compiler.compile ?? compiler.default?.compile;
      if (compile) {
        return { compile, root: dirname(dirname(main)) };
      }
    } catch {
      // Try the next folder.
    }
  }

  throw new Error("Tailwind 4 is not installed: add tailwindcss to the packages of the project");
}

/** Return the files that a bundle is made of, without those of packages. */
async function inputs({ initialOptions }: PluginBuild): Promise<string[]> {
  const ignored: Plugin = {
    name: "no-styles",
    setup: ({ onLoad }) => onLoad({ filter: /\.css$/ }, () => ({ contents: "", loader: "css" })),
  };

  const plugins = [ignored, ...(initialOptions.plugins ?? []).filter(({ name }) => name === "offered-by-page")];
  const { metafile } = await build({ ...initialOptions, plugins, metafile: true, write: false, logLevel: "silent" });
  return Object.keys(metafile.inputs)
    .filter((path) => SOURCES.test(path) && !path.includes("node_modules") && !path.startsWith("page:"))
    .map((path) => resolve(initialOptions.absWorkingDir ?? process.cwd(), path));
}

/** Return the files that `@source` names: those below the part of the pattern that has no wildcard. */
async function findSources(sources: { base: string; pattern: string; negated?: boolean }[]): Promise<string[]> {
  const files = sources
    .filter(({ negated }) => !negated)
    .map(async ({ base, pattern }) => {
      const path = resolve(base, pattern.replace(/[^/]*[*{[].*$/, ""));
      const entries = await readdir(path, { recursive: true, withFileTypes: true }).catch(() => null);
      return entries === null
        ? [path]
        : entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath ?? entry.path, entry.name));
    });

  return (await Promise.all(files)).flat().filter((path) => SOURCES.test(path));
}

/** Return a style sheet that another one imports: one of Tailwind, of a package, or of the project. */
async function styleSheet(resolver: PluginBuild, root: string, id: string, base: string) {
  let path: string;
  if (id === "tailwindcss" || id.startsWith("tailwindcss/")) {
    path = createRequire(join(root, "package.json")).resolve(id === "tailwindcss" ? "tailwindcss/index.css" : id);
  } else {
    const resolution = await resolver.resolve(id, { kind: "import-rule", resolveDir: base });
    if (resolution.errors.length > 0) {
      throw new Error(`${id}: ${resolution.errors[0]?.text}`);
    }

    path = resolution.path;
  }

  return { path, base: dirname(path), content: await readFile(path, "utf8") };
}

async function pluginModule(id: string, base: string) {
  const path = createRequire(join(base, "package.json")).resolve(id);
  const plugin = await import(pathToFileURL(path).href);
  return { path, base: dirname(path), module: plugin.default ?? plugin };
}

/** Return a plugin that compiles the style sheets of a project that use Tailwind. */
export function tailwind(folder: string): Plugin {
  return {
    name: "tailwind",
    setup(bundler) {
      let inputFiles: Promise<string[]> | undefined;
      bundler.onStart(() => {
        inputFiles = undefined;
      });

      bundler.onLoad({ filter: /\.css$/, namespace: "file" }, async ({ path }) => {
        const source = await readFile(path, "utf8");
        if (!USES_TAILWIND.test(source)) {
          return undefined;
        }

        const { compile, root } = await load(folder);
        const watchFiles = [path];
        const compiler = await compile(source, {
          base: dirname(path),
          from: path,
          loadModule: pluginModule,
          loadStylesheet: async (id, base) => {
            const sheet = await styleSheet(bundler, root, id, base);
            watchFiles.push(sheet.path);
            return sheet;
          },
        });

        inputFiles ??= inputs(bundler);
        // Tailwind 4.0 has another name for them.
        const sources = compiler.sources ?? (compiler as unknown as { globs: typeof compiler.sources }).globs;
        const files = [...(compiler.root === "none" ? [] : await inputFiles), ...(await findSources(sources))];
        const words = await Promise.all(files.map(async (file) => candidates(await readFile(file, "utf8"))));
        const contents = compiler.build([...new Set(words.flatMap((each) => [...each]))]);

        return { contents, loader: path.endsWith(".module.css") ? "local-css" : "css", watchFiles };
      });
    },
  };
}
