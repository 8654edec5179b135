// Parts of the executor where the code of a project, or a client that leaves, could end the whole process.
// `tests/db/test_javascript_parts.py` bundles this; it fails if a test does.
import assert from "node:assert/strict";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { connect, createServer, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, type TestContext, test } from "node:test";
import * as checkpoint from "@langchain/langgraph-checkpoint";
import { type Message, Outbox } from "../../executor-js/src/asgi.js";
import { type Emitted, EventBatches } from "../../executor-js/src/events.js";
import { loadHandlers } from "../../executor-js/src/handlers.js";
import { importPackage, type Libraries } from "../../executor-js/src/libraries.js";
import { CallFailed, type Handler, Link } from "../../executor-js/src/link.js";
import { installLoopback } from "../../executor-js/src/loopback.js";
import { packValue, unpackValue } from "../../executor-js/src/msgpack.js";
import type { Server } from "../../executor-js/src/server.js";
import { makeStore } from "../../executor-js/src/store.js";
import { clockSeconds, LEASE_LOST, Leases } from "../../executor-js/src/stopping.js";

const folder = mkdtempSync(join(tmpdir(), "parts-"));

/** A link whose other end, in this process too, serves `handlers`. */
async function linked(handlers: Record<string, Handler>): Promise<Link> {
  const server = createServer();
  const path = join(folder, `link-${Math.random()}`);
  const accepted = new Promise<Socket>((resolve) => server.once("connection", resolve));
  await new Promise<void>((resolve) => server.listen(path, resolve));
  const open = (socket: Socket, served: Record<string, Handler>) =>
    new Link(socket, { handlers: new Map(Object.entries(served)), onHello: () => {}, pong: () => null });
  const near = open(connect(path), {});
  const far = open(await accepted, { ...handlers, ping: async () => "pong" });
  after(() => {
    near.close();
    far.close();
    server.close();
  });
  return near;
}

/** A promise that a test settles. */
function gate(): { passed: Promise<void>; open(): void } {
  let open = () => {};
  const passed = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { passed, open: () => open() };
}

test("a handler of items that throws fails its own call alone", async () => {
  const link = await linked({
    count: async (_body, call) => {
      for (const item of [1, 2, 3]) {
        call.send(item);
      }
    },
  });
  const seen: unknown[] = [];
  const onItem = (item: unknown) => {
    seen.push(item);
    throw new Error("this item is wrong");
  };
  await assert.rejects(link.call("count", null, { onItem }), /this item is wrong/);
  assert.deepEqual(seen, [1]);
  assert.equal(await link.call("ping", null), "pong");
});

test("a method that throws at once answers with an error", async () => {
  const link = await linked({
    broken: () => {
      throw new CallFailed("closed", "the exchange is over");
    },
  });
  await assert.rejects(link.call("broken", null), { code: "closed", message: "the exchange is over" });
  assert.equal(await link.call("ping", null), "pong");
});

test("a call whose signal has aborted is not sent", async () => {
  const link = await linked({});
  const signal = AbortSignal.abort(new Error("stopped before"));
  await assert.rejects(link.call("ping", null, { signal }), /stopped before/);
});

/** The fetch of the SDK's clients in graphs; the server sends `first`, and `second` when the test lets it. */
async function loopback() {
  const [second, cancelled] = [gate(), gate()];
  const link = await linked({
    "http.request": async (_body, call) => {
      call.signal.addEventListener("abort", cancelled.open);
      call.send([200, []]);
      call.send(Buffer.from("first"));
      await second.passed;
      call.send(Buffer.from("second"));
    },
  });
  installLoopback(link as unknown as Server);
  const place = globalThis as unknown as Record<symbol, typeof fetch>;
  const send = place[Symbol.for("langgraph_api:fetch")] as typeof fetch;
  return { link, second, cancelled, send: (init: RequestInit = {}) => send("http://portside.invalid/ok", init) };
}

const textOf = (piece: { value?: Uint8Array }) => new TextDecoder().decode(piece.value);

test("a response that nobody reads any more is cancelled, and its last pieces are dropped", async () => {
  const { link, second, cancelled, send } = await loopback();
  const reader = (await send()).body?.getReader();
  assert.equal(textOf((await reader?.read()) ?? {}), "first");
  await reader?.cancel();
  await cancelled.passed;
  second.open();
  assert.equal(await link.call("ping", null), "pong");
});

test("an aborted request ends the reader of its response", async () => {
  const { send } = await loopback();
  const stop = new AbortController();
  const reader = (await send({ signal: stop.signal })).body?.getReader();
  assert.equal(textOf((await reader?.read()) ?? {}), "first");
  stop.abort(new Error("read enough"));
  await assert.rejects(reader?.read() ?? Promise.resolve(), /read enough/);
});

/** Let the loop of this thread turn, so that sockets are read. */
async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) {
    await new Promise(setImmediate);
  }
}

test("a response that nobody reads does not fill the memory", async () => {
  const stopped = gate();
  const piece = Buffer.alloc(1024 * 1024);
  const link = await linked({
    "http.request": async (_body, call) => {
      call.signal.addEventListener("abort", stopped.open);
      call.send([200, []]);
      for (let sent = 0; sent < 70 && !call.signal.aborted; sent++) {
        call.send(piece);

        // Its reader is on the same thread, which a sender holds up while much of it is not read.
        await turns(64);
      }
      await stopped.passed;
    },
  });
  installLoopback(link as unknown as Server);
  const place = globalThis as unknown as Record<symbol, typeof fetch>;
  const send = place[Symbol.for("langgraph_api:fetch")] as typeof fetch;
  const response = await send("http://portside.invalid/threads");
  await stopped.passed;
  await assert.rejects(response.text(), /67108864 bytes of the response to .threads were not read/);
});

test("a request that was aborted before is not sent", async () => {
  const { send } = await loopback();
  await assert.rejects(send({ signal: AbortSignal.abort(new Error("too late")) }), /too late/);
});

test("the body of a response is cancelled if the client has left before it", async () => {
  const cancelled = gate();
  const body = new ReadableStream({ pull: () => new Promise(() => {}), cancel: cancelled.open });
  const sent: Message[] = [];
  const outbox = new Outbox(await linked({}), 1, (messages) => void sent.push(...messages));
  await outbox.respond(new Response(body), AbortSignal.abort());
  await cancelled.passed;
  assert.equal(sent.at(-1)?.more_body, false);
});

test("a package is imported, though another whose name begins with its name was required", async () => {
  for (const name of ["sockets", "sockets-more"]) {
    const place = join(folder, "node_modules", name);
    mkdirSync(place, { recursive: true });
    const exports = { import: "./built.mjs", require: "./built.cjs" };
    writeFileSync(join(place, "package.json"), JSON.stringify({ name, exports: { ".": exports } }));
    writeFileSync(join(place, "built.mjs"), "export const build = 'import';");
    writeFileSync(join(place, "built.cjs"), "exports.build = 'require';");
  }
  const file = join(folder, "graph.mjs");
  createRequire(file)("sockets-more");
  assert.equal((await importPackage("sockets", file))?.build, "import");
  createRequire(file)("sockets");
  assert.equal((await importPackage("sockets", file))?.build, "require");
});

/** The leases of an executor, whose timers pass when the test says so. */
function leased(t: TestContext): { leases: Leases; ended(): number } {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const endProcess = t.mock.fn();
  return { leases: new Leases(endProcess), ended: () => endProcess.mock.callCount() };
}

const NEVER = new AbortController().signal;
const LONG_S = 3600;

test("a run is stopped when its lease ends, unless the server renewed it or it is over", (t) => {
  const { leases } = leased(t);
  const [lost, renewed, unknown, over] = [clockSeconds(), clockSeconds(), 0, clockSeconds()].map((until, call) =>
    leases.begin(call, until, NEVER),
  );
  leases.renew([
    [1, clockSeconds() + LONG_S],
    [9, clockSeconds()],
  ]);
  over?.close();
  // The first timer looks at the lease, the second one gives the link time for what is on its way.
  t.mock.timers.tick(0);
  assert.equal(lost?.signal.aborted, false);
  t.mock.timers.tick(100);
  assert.deepEqual([lost?.isLost, lost?.signal.reason.code], [true, LEASE_LOST]);
  // The server has not said yet until when it has the third one.
  t.mock.timers.tick(60_000);
  assert.deepEqual([renewed, unknown, over].map((lease) => [lease?.isLost, lease?.signal.aborted]), Array(3).fill([false, false]));
});

test("a renewal that was on its way when the lease ended keeps the run", (t) => {
  const { leases } = leased(t);
  const lease = leases.begin(1, clockSeconds(), NEVER);
  t.mock.timers.tick(0);
  leases.renew([[1, clockSeconds() + LONG_S]]);
  t.mock.timers.tick(60_000);
  assert.equal(lease.signal.aborted, false);
});

test("a run that is cancelled has the reason of its cancellation, and loses no lease", (t) => {
  const { leases } = leased(t);
  const cancelling = new AbortController();
  const lease = leases.begin(1, clockSeconds(), cancelling.signal);
  cancelling.abort(new Error("enough"));
  t.mock.timers.tick(0);
  t.mock.timers.tick(100);
  assert.equal(lease.signal.reason.message, "enough");
  assert.equal(lease.isLost, false);
});

test("an executor whose run does not stop ends when the leases of all its runs are lost", async (t) => {
  const { leases, ended } = leased(t);
  const stuck = leases.begin(1, clockSeconds(), NEVER);
  const held = leases.begin(2, clockSeconds() + LONG_S, NEVER);
  for (const passes of [0, 100, 5000]) t.mock.timers.tick(passes);
  await assert.rejects(stuck.givenUp, (error: CallFailed) => error.code === LEASE_LOST);
  t.mock.timers.tick(5000);
  assert.equal(ended(), 0, "the server still has the other run");
  held.close();
  t.mock.timers.tick(5000);
  assert.equal(ended(), 1);
  stuck.close();
});

/** The events of a run as they are sent; the timers pass when the test says so. */
function batched(t: TestContext, isUnfollowed: boolean) {
  t.mock.timers.enable({ apis: ["setTimeout", "setImmediate"] });
  const sent: string[][] = [];
  const call = { send: (events: unknown) => sent.push((events as Emitted[]).map(([name]) => name)) };
  const batches = new EventBatches(call, isUnfollowed);
  const add = (name: string, bytes = 2) => batches.add([name, Buffer.alloc(bytes)]);
  return { sent, batches, add };
}

test("events that nobody follows come together with the result, or after a moment", (t) => {
  const short = batched(t, true);
  short.add("first");
  t.mock.timers.tick(99);
  short.add("second");
  assert.deepEqual(short.sent, []);
  short.batches.close();
  assert.deepEqual(short.sent, [["first", "second"]]);
  t.mock.timers.reset();

  const long = batched(t, true);
  long.add("first");
  t.mock.timers.tick(100);
  assert.deepEqual(long.sent, [["first"]]);
  long.add("second");
  t.mock.timers.tick(0);
  assert.deepEqual(long.sent, [["first"], ["second"]]);
});

test("many events that nobody follows are sent, and those of a run that somebody follows at once", (t) => {
  const large = batched(t, true);
  large.add("first", 200_000);
  t.mock.timers.tick(0);
  assert.deepEqual(large.sent, []);
  large.add("second", 200_000);
  t.mock.timers.tick(0);
  assert.deepEqual(large.sent, [["first", "second"]]);
  large.batches.close();
  t.mock.timers.reset();

  const followed = batched(t, false);
  followed.add("first");
  followed.add("second");
  t.mock.timers.tick(0);
  assert.deepEqual(followed.sent, [["first", "second"]]);
});

test("the store is asked for what a graph wants, with the options that it gave", async () => {
  const asked: unknown[] = [];
  const server = {
    call: async (_method: string, { ops }: { ops: [kind: string, fields: Buffer][] }) => {
      asked.push(...ops.map(([kind, fields]) => [kind, JSON.parse(fields.toString())]));
      return ops.map(([kind]) => (kind === "search" ? [] : null));
    },
  };
  const store = makeStore({ checkpoint } as unknown as Libraries, server as unknown as Server);
  const namespace = ["users", "alice"];
  await store.put(namespace, "likes", { text: "tea" }, ["text"]);
  await store.put(namespace, "hidden", { text: "tea" }, false);
  await store.batch([{ namespace, key: "soon gone", value: { text: "tea" }, ttl: 5 } as never]);
  await store.delete(namespace, "likes");
  assert.equal(await store.get(namespace, "likes"), null);
  await store.search(["users"], { query: "drinks", filter: { text: "tea" }, limit: 3, offset: 2 });
  await store.listNamespaces({ prefix: ["users"], maxDepth: 1 });
  assert.deepEqual(asked, [
    ["put", { namespace, key: "likes", value: { text: "tea" }, index: ["text"] }],
    ["put", { namespace, key: "hidden", value: { text: "tea" }, index: false }],
    ["put", { namespace, key: "soon gone", value: { text: "tea" }, ttl: 5 }],
    ["put", { namespace, key: "likes", value: null }],
    ["get", { namespace, key: "likes" }],
    ["search", { namespace_prefix: ["users"], query: "drinks", filter: { text: "tea" }, limit: 3, offset: 2 }],
    ["list", { match_conditions: [["prefix", ["users"]]], max_depth: 1, limit: 100, offset: 0 }],
  ]);
});

let modules = 0;

/** The handlers of a module with this source, in the folder of the project, which has the SDK. */
async function handlersOf(source: string): Promise<Map<string, Handler>> {
  const name = `auth-${modules++}.mjs`;
  writeFileSync(name, `import { Auth, HTTPException } from "@langchain/langgraph-sdk/auth";\n${source}`);
  const serve = new Map<string, Handler>();
  await loadHandlers(process.cwd(), { auth: `./${name}:auth` }, null as unknown as Link, serve);
  return serve;
}

for (const [source, reason] of [
  ["export const auth = {};", /export an Auth of @langchain\/langgraph-sdk\/auth/],
  ['export const auth = new Auth().on("*", () => true);', /has no authenticate handler/],
  ['export const auth = new Auth().authenticate(() => "x").on("thread", () => true);', /do not exist: thread/],
  ["export const other = 1;", /exports no auth; it exports other/],
] as const) {
  test(`authentication that lets nobody in, or asks nobody, is refused: ${source}`, async () => {
    await assert.rejects(handlersOf(source), reason);
  });
}

test("nobody is let in without an identity, or as somebody who is not authenticated", async () => {
  const scope = { type: "http", method: "GET", path: "/", headers: [], query_string: Buffer.from("") };
  const signal = new AbortController().signal;
  const authenticate = async (returned: string) => {
    const handlers = await handlersOf(`export const auth = new Auth().authenticate(() => (${returned}));`);
    return handlers.get("auth.authenticate")?.({ scope, exchange: 1 }, { signal } as never) as Promise<unknown>;
  };
  assert.equal(((await authenticate('{ identity: "alice" }')) as { identity: string }).identity, "alice");
  await assert.rejects(authenticate('{ identity: "alice", is_authenticated: false }'), { code: "unauthorized" });
  for (const returned of ["null", '""', "{}", '{ identity: "" }']) {
    await assert.rejects(authenticate(returned), { code: "auth_failed" });
  }
});

/** Ask the handlers of a module for a decision. */
async function decide(source: string, resource: string, action: string, value: Record<string, unknown> = {}) {
  const handlers = await handlersOf(`export const auth = new Auth().authenticate(() => "x")${source};`);
  const call = { user: null, permissions: [], resource, action, value: packValue(value) };
  const answer = await handlers.get("auth.authorize")?.(call, { signal: NEVER } as never);
  const [changed, removed, result] = answer as [Uint8Array | null, string[], unknown];
  return { changed: changed === null ? null : unpackValue(changed), removed, result };
}

test("the handler that names the most of an action decides", async () => {
  const named = ["*", "*:read", "threads", "threads:read"].map((event) => `.on("${event}", () => ({ by: "${event}" }))`);
  for (const [count, wanted] of [[4, "threads:read"], [3, "threads"], [2, "*:read"], [1, "*"]] as const) {
    const { result } = await decide(named.slice(0, count).join(""), "threads", "read");
    assert.deepEqual(result, { by: wanted });
  }
  assert.equal((await decide('.on("store", () => false)', "threads", "read")).result, null);
  assert.equal((await decide('.on("threads", () => false)', "threads", "read")).result, false);
});

test("the server learns what a handler changed and removed", async () => {
  const source = '.on("threads", ({ value }) => { value.added = [1]; value.changed = 2; delete value.removed; })';
  const decision = await decide(source, "threads", "create", { kept: 1, changed: 1, removed: 1 });
  assert.deepEqual(decision, { changed: { added: [1], changed: 2 }, removed: ["removed"], result: null });
});

test("a handler that throws or returns no filter denies, and tells nobody why", async () => {
  for (const [handler, code, status] of [
    ['() => { throw new HTTPException(403, { message: "Readers read." }); }', "refused", 403],
    ['() => { throw new HTTPException(302, { message: "elsewhere" }); }', "auth_failed", 500],
    ['() => { throw Object.assign(new Error("inside"), { code: "ERR_ASSERTION" }); }', "forbidden", 403],
    ['() => { throw Object.assign(new Error("inside"), { status: 403 }); }', "auth_failed", 500],
    ["() => ({ owner: new Date() })", "auth_failed", 500],
    ["() => ({ owner: [undefined] })", "auth_failed", 500],
    ["() => Symbol()", "auth_failed", 500],
  ] as const) {
    await assert.rejects(decide(`.on("threads", ${handler})`, "threads", "read"), (error: CallFailed) => {
      assert.deepEqual([error.code, error.fields.status], [code, status], handler);
      assert.equal(/inside|elsewhere|owner/.test(error.message), false);
      return true;
    });
  }
});
