// An executor process of the agent server, for graphs or handlers in JavaScript: `node main.mjs --socket PATH`.
//
// It imports the project, tells the server what its graphs or handlers are, and serves the server's calls
// (`portside/executor/messages.py`). It ends with its link, so it never outlives its server.

import { readFileSync } from "node:fs";
import { connect } from "node:net";
import { dirname } from "node:path";
import { type Emitted, EventBatches } from "./events.js";
import { Executor, type RunRequest } from "./execute.js";
import { loadHandlers, type Sources } from "./handlers.js";
import { importLibraries, type Libraries } from "./libraries.js";
import { CallFailed, type Handler, Link, type ServedCall } from "./link.js";
import { installSdkLogger, log, toStack } from "./logs.js";
import { installLoopback } from "./loopback.js";
import { Operations } from "./operations.js";
import { ValuePieces } from "./pieces.js";
import { firstFile, Graphs, ProjectFailed, registerTypeScript, type Source } from "./project.js";
import { makeSaver, OtherLanguage } from "./saver.js";
import { Schemas } from "./schemas.js";
import { currentWork, type Fields, Server, toFailure, type Work } from "./server.js";
import { clockSeconds, Leases } from "./stopping.js";
import { makeStore } from "./store.js";

const PROTOCOL = 1;
const END_WITHIN_MS = 1000;
const LANGUAGE = `JavaScript ${process.version.slice(1)}`;

interface ServerHello {
  protocol: number;
  file: string;
  graphs: Record<string, Source>;
  env: Record<string, string>;
  is_encrypted: boolean;
  /** What to import instead of the graphs. */
  handlers: Sources | null;
}

interface GraphCall {
  request: Fields;
  call: number;
  timeout_s: number;
  scope: number;
  leased_until?: number;
  is_unfollowed?: boolean;
}

function main(): void {
  const socket = process.argv[process.argv.indexOf("--socket") + 1];
  if (socket === undefined || !process.argv.includes("--socket")) {
    process.stderr.write("usage: node main.mjs --socket PATH\n");
    process.exit(2);
  }

  // Ctrl-C in a terminal reaches the whole group of processes; the server decides when its executors end.
  process.on("SIGINT", () => {});
  surviveUncaughtErrors();
  const handlers = new Map<string, Handler>();
  const connection = connect(socket);
  let isGreeted = false;

  const link: Link = new Link(connection, {
    handlers,
    pong: () => ({ blocked_s: 0, memory_bytes: memoryBytes(), clock_s: clockSeconds() }),
    onHello: (body) => {
      if (!isGreeted) {
        isGreeted = true;
        void prepare(link, handlers, body as ServerHello).then((hello) =>
          link.hello({ ...hello, clock_s: clockSeconds() }),
        );
      }
    },
  });

  link.on("close", () => process.exit(0));
}

/** Let an error that nobody caught end the run of its code, not the process. */
function surviveUncaughtErrors(): void {
  const end = (error: unknown, what: string) => {
    const work = currentWork.getStore();
    log("error", what, { run_id: work?.run?.[0] }, error);
    work?.fail(error);
  };

  process.on("unhandledRejection", (error) =>
    end(error, "a promise of the project was rejected, and nobody caught it"),
  );
  process.on("uncaughtException", (error) => end(error, "the project threw an error, and nobody caught it"));
}

/** Import the project, and return what its graphs are, or why it does not load. */
async function prepare(link: Link, handlers: Map<string, Handler>, hello: ServerHello): Promise<Fields> {
  const base = { protocol: PROTOCOL, language: LANGUAGE, pid: process.pid };
  if (hello.protocol !== PROTOCOL) {
    const older = hello.protocol > PROTOCOL ? "this executor" : "the server";
    const versions = `the server speaks version ${hello.protocol} of the protocol, and this executor version ${PROTOCOL}`;
    return { ...base, failure: `${versions}: upgrade ${older}` };
  }

  for (const [name, value] of Object.entries(hello.env)) {
    process.env[name] ??= value;
  }

  const folder = dirname(hello.file);
  try {
    const hasTypeScript = await registerTypeScript();
    requireTypeScript(hello, hasTypeScript);
    const server = new Server(link, hello.is_encrypted);
    installLoopback(server);
    installSdkLogger();

    if (hello.handlers !== null) {
      return { ...base, handlers: await loadHandlers(folder, hello.handlers, link, handlers) };
    }

    const graphs = new Graphs(hello.graphs);
    await graphs.load(folder);
    const libraries = await importLibraries(firstFile(folder, hello.graphs));

    // The packages of 2024 have no store.
    const hasStore = (libraries.checkpoint as Partial<typeof libraries.checkpoint>).BaseStore !== undefined;
    graphs.attach(makeSaver(libraries, server), hasStore ? makeStore(libraries, server) : null);
    const schemas = new Schemas(libraries, folder, graphs.places);
    const leases = new Leases(() => endProcess(link));

    serve(handlers, { libraries, graphs, server, schemas, leases });
    if (process.env.PORTSIDE_PREPARE_SCHEMAS) {
      void schemas.prepare();
    }

    return { ...base, graphs: graphs.facts(), libraries: libraries.versions };
  } catch (error) {
    const reason = error instanceof ProjectFailed || (error as Error)?.name === "MissingLibrary";
    return { ...base, failure: `${hello.file}: ${reason ? (error as Error).message : toStack(error)}` };
  }
}

/** End this process, in which code does not stop, after sending what is queued for the server. */
function endProcess(link: Link): void {
  setTimeout(() => link.close());
  setTimeout(() => process.exit(0), END_WITHIN_MS);
}

function requireTypeScript(hello: ServerHello, hasTypeScript: boolean): void {
  const paths = [...Object.values(hello.graphs).map(({ path }) => path), ...Object.values(hello.handlers ?? {})];
  const typescript = paths.find((path) => /\.[mc]?tsx?:/.test(path));
  if (typescript !== undefined && !hasTypeScript) {
    throw new ProjectFailed(`${typescript} is TypeScript, and the executor's packages (tsx) are not installed`);
  }
}

interface Parts {
  libraries: Libraries;
  graphs: Graphs;
  server: Server;
  schemas: Schemas;
  leases: Leases;
}

function serve(handlers: Map<string, Handler>, { libraries, graphs, server, schemas, leases }: Parts): void {
  const executor = new Executor(libraries, graphs, server);
  const operations = new Operations(libraries, graphs, schemas);

  const serving = (method: string, work: (request: never) => Promise<unknown>) => {
    handlers.set(method, async (body) => {
      const { request, call, scope } = body as GraphCall;
      return currentWork.run(toWork(request, call, scope), () => answered(work(request as never)));
    });
  };

  handlers.set("execute", (body, call) => answered(execute(executor, leases, body as GraphCall, call)));
  handlers.set("leases", async (body) => leases.renew((body as { leases: [number, number][] }).leases));
  serving("read_outcome", (request) => executor.readOutcome(request));
  serving("read_state", (request) => operations.readState(request));
  serving("read_history", (request) => operations.readHistory(request));
  serving("update_state", (request) => operations.updateState(request));
  serving("create_state", (request) => operations.createState(request));

  serving("draw", (request) => operations.draw(request));
  serving("schemas", (request) => operations.schemas(request));
  serving("subgraphs", (request) => operations.subgraphs(request));
}

async function execute(executor: Executor, leases: Leases, given: GraphCall, call: ServedCall): Promise<unknown> {
  const lease = leases.begin(given.call, given.leased_until ?? 0, call.signal);
  const batches = new EventBatches(call, given.is_unfollowed ?? false);
  const execution = {
    request: given.request as unknown as RunRequest,
    call: given.call,
    timeoutSeconds: given.timeout_s,
    signal: lease.signal,
    push: (event: Emitted) => batches.add(event),
  };

  // An empty item tells the server that the run has begun, also if its first node blocks this thread.
  call.send([], true);

  try {
    return await Promise.race([executor.execute(execution), lease.givenUp]);
  } finally {
    lease.close();
    batches.close();
  }
}

/** Return the work of a call that executes no run; a change of a state has these fields in its metadata. */
function toWork(request: Fields, call: number, scope: number): Work {
  const { configurable = {}, metadata = {} } = (request.config ?? {}) as { configurable?: Fields; metadata?: Fields };

  return {
    call,
    scope,
    run: null,
    isAwaited: true,
    metadata: { ...metadata, graph_id: request.graph_id },
    configurable,
    rows: null,
    pieces: new ValuePieces(),
    fail: () => {},
    track: (value) => value,
  };
}

/** Await work of graphs. Throws CallFailed for the errors that the server answers its clients with. */
async function answered<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (error) {
    if (error instanceof OtherLanguage) {
      throw new CallFailed("other_language", error.message);
    }

    throw toFailure(error);
  }
}

/** Return the memory of this process that is not shared with files; 0 where the system does not tell. */
function memoryBytes(): number {
  try {
    const [, resident = 0, shared = 0] = readFileSync("/proc/self/statm", "latin1").split(" ").map(Number);
    // Counted in pages, whose size differs between machines.
    return Math.round(process.memoryUsage.rss() * (1 - shared / resident));
  } catch {
    return 0;
  }
}

main();
