// Calls every public method of the stock JavaScript client against the server at the address in the first argument.
// Prints one line of JSON for each: {"method": "threads.create", "ok": true} or {..., "ok": false, "error": "..."}.
// The first line has the names of all methods that the client has.
import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { Client } from "@langchain/langgraph-sdk";

const client = new Client({ apiUrl: process.argv[2], apiKey: null });
const resources = ["assistants", "threads", "runs", "crons", "store"];
const hi = { messages: [{ role: "user", content: "hi" }] };
const foo = { foo: ["in"] };

const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
const methods = resources.flatMap((resource) =>
  Object.getOwnPropertyNames(Object.getPrototypeOf(client[resource]))
    .filter((name) => name !== "constructor")
    .map((name) => `${resource}.${name}`),
);
print({ methods });

async function check(method, act) {
  try {
    await act();
    print({ method, ok: true });
  } catch (error) {
    print({ method, ok: false, error: String(error?.stack ?? error).slice(0, 1500) });
  }
}

async function collect(stream, enough = () => false) {
  const events = [];
  for await (const event of stream) {
    events.push(event);
    if (enough(events)) break;
  }
  return events;
}

async function until(probe) {
  const deadline = Date.now() + 120_000;
  while (!(await probe())) {
    if (Date.now() > deadline) throw new Error("not reached within 120 s");
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

const names = (events) => events.map((event) => event.event);
const texts = (values) => values.messages.map((message) => message.content);
const newThread = async (options) => (await client.threads.create(options)).thread_id;
const tag = randomUUID();

// Assistants

let assistant;
await check("assistants.create", async () => {
  assistant = await client.assistants.create({ graphId: "parent", metadata: { tag }, name: "one", context: { a: 1 } });
  assert.equal(assistant.version, 1);
});
await check("assistants.get", async () => {
  assert.equal((await client.assistants.get(assistant.assistant_id)).name, "one");
});
await check("assistants.update", async () => {
  assert.equal((await client.assistants.update(assistant.assistant_id, { name: "two" })).version, 2);
});
await check("assistants.getVersions", async () => {
  const versions = await client.assistants.getVersions(assistant.assistant_id, { limit: 5 });
  assert.deepEqual(versions.map((row) => row.version), [2, 1]);
});
await check("assistants.setLatest", async () => {
  assert.equal((await client.assistants.setLatest(assistant.assistant_id, 1)).name, "one");
});
await check("assistants.search", async () => {
  assert.equal((await client.assistants.search({ metadata: { tag }, limit: 5 })).length, 1);
  const page = await client.assistants.search({ limit: 1, includePagination: true });
  assert.equal(page.next, "1");
});
await check("assistants.count", async () => {
  assert.equal(await client.assistants.count({ metadata: { tag } }), 1);
});
await check("assistants.getGraph", async () => {
  const graph = await client.assistants.getGraph("parent", { xray: true });
  assert.ok(graph.nodes.some((node) => node.id === "child:sub1"));
});
await check("assistants.getSchemas", async () => {
  assert.equal((await client.assistants.getSchemas(assistant.assistant_id)).graph_id, "parent");
});
await check("assistants.getSubgraphs", async () => {
  const found = await client.assistants.getSubgraphs(assistant.assistant_id, { namespace: "child", recurse: true });
  assert.deepEqual(Object.keys(found), ["child"]);
});
await check("assistants.delete", async () => {
  await client.assistants.delete(assistant.assistant_id);
  await assert.rejects(client.assistants.get(assistant.assistant_id), /404/);
});

// Threads

let thread;
await check("threads.create", async () => {
  const threadId = randomUUID();
  thread = await client.threads.create({ threadId, metadata: { tag }, ttl: 60, ifExists: "raise" });
  assert.equal(thread.thread_id, threadId);
  const supersteps = [{ updates: [{ values: foo, asNode: "__start__" }] }];
  const made = await client.threads.create({ graphId: "twostep", supersteps });
  assert.deepEqual((await client.threads.getState(made.thread_id)).next, ["a"]);
});
await check("threads.get", async () => {
  assert.equal((await client.threads.get(thread.thread_id, { include: ["ttl"] })).metadata.tag, tag);
});
await check("threads.update", async () => {
  const changed = await client.threads.update(thread.thread_id, { metadata: { a: 1 } });
  assert.deepEqual(changed.metadata, { tag, a: 1 });
  await client.threads.update(thread.thread_id, { metadata: { b: 1 }, returnMinimal: true });
});
await check("threads.search", async () => {
  const found = await client.threads.search({ metadata: { tag }, sortBy: "created_at", sortOrder: "asc", limit: 5 });
  assert.deepEqual(found.map((row) => row.thread_id), [thread.thread_id]);
});
await check("threads.count", async () => {
  assert.equal(await client.threads.count({ metadata: { tag }, status: "idle" }), 1);
});
await check("threads.getState", async () => {
  await client.runs.wait(thread.thread_id, "twostep", { input: foo });
  const state = await client.threads.getState(thread.thread_id, undefined, { subgraphs: true });
  assert.deepEqual(state.values, { foo: ["in", "a", "b"] });
});
await check("threads.getHistory", async () => {
  const history = await client.threads.getHistory(thread.thread_id, { limit: 10 });
  assert.equal(history.length, 4);
  const older = await client.threads.getState(thread.thread_id, history[1].checkpoint);
  assert.deepEqual(older.next, ["b"]);
  const before = await client.threads.getHistory(thread.thread_id, { limit: 10, before: history[1].checkpoint });
  assert.equal(before.length, 2);
});
await check("threads.updateState", async () => {
  await client.threads.updateState(thread.thread_id, { values: { foo: ["hand"] }, asNode: "b" });
  assert.equal((await client.threads.getState(thread.thread_id)).values.foo.at(-1), "hand");
});
await check("threads.patchState", async () => {
  await client.threads.patchState(thread.thread_id, { patched: true });
  await client.threads.patchState({ configurable: { thread_id: thread.thread_id } }, { again: true });
  const { metadata } = await client.threads.getState(thread.thread_id);
  assert.deepEqual([metadata.patched, metadata.again], [true, true]);
});
await check("threads.copy", async () => {
  const copied = await client.threads.copy(thread.thread_id);
  assert.notEqual(copied.thread_id, thread.thread_id);
  assert.equal((await client.threads.getState(copied.thread_id)).values.foo.at(-1), "hand");
});
await check("threads.joinStream", async () => {
  const done = (events) => events.some((event) => event.data?.status === "run_done");
  const events = await collect(client.threads.joinStream(thread.thread_id, { lastEventId: "-" }), done);
  assert.equal(events[0].event, "metadata");
});
await check("threads.delete", async () => {
  await client.threads.delete(thread.thread_id);
  await assert.rejects(client.threads.get(thread.thread_id), /404/);
});

// Runs

await check("runs.wait", async () => {
  const threadId = await newThread();
  assert.deepEqual(texts(await client.runs.wait(threadId, "echo", { input: hi })), ["hi", "echo: hi"]);
  assert.deepEqual(await client.runs.wait(null, "plain", { input: { question: "q" } }), { answer: "Q" });
  await assert.rejects(client.runs.wait(null, "boom", { input: { n: 0 } }), /kaboom/);
  const asked = await client.runs.wait(threadId, "approval", { input: { text: "a" } });
  assert.equal(asked.__interrupt__[0].value.question, "approve?");
  const answered = await client.runs.wait(threadId, "approval", { command: { resume: "yes" } });
  assert.equal(answered.text, "done:yes");
});
await check("runs.stream", async () => {
  const threadId = await newThread();
  const told = [];
  const streamMode = ["values", "updates", "messages-tuple"];
  const options = { input: hi, streamMode, onRunCreated: (run) => told.push(run), streamResumable: true };
  const events = await collect(client.runs.stream(threadId, "echo", options));
  assert.deepEqual(names(events), ["metadata", "values", "messages", "updates", "values"]);
  assert.equal(told[0].thread_id, threadId);
  const inside = await collect(client.runs.stream(null, "parent", { input: foo, streamSubgraphs: true }));
  assert.ok(names(inside).some((name) => name.startsWith("values|child:")));
  const failed = await collect(client.runs.stream(null, "boom", { input: { n: 0 } }));
  assert.equal(failed.at(-1).event, "error");
});
let run;
await check("runs.create", async () => {
  thread = await client.threads.create();
  const options = { input: foo, streamMode: "updates", streamResumable: true, metadata: { m: 1 }, durability: "sync" };
  run = await client.runs.create(thread.thread_id, "twostep", options);
  assert.equal(run.metadata.m, 1);
});
await check("runs.join", async () => {
  assert.deepEqual(await client.runs.join(thread.thread_id, run.run_id), { foo: ["in", "a", "b"] });
});
await check("runs.get", async () => {
  assert.equal((await client.runs.get(thread.thread_id, run.run_id)).status, "success");
});
await check("runs.list", async () => {
  const listed = await client.runs.list(thread.thread_id, { limit: 5, status: "success" });
  assert.deepEqual(listed.map((row) => row.run_id), [run.run_id]);
});
await check("runs.joinStream", async () => {
  const options = { lastEventId: "-1", streamMode: "updates" };
  const events = await collect(client.runs.joinStream(thread.thread_id, run.run_id, options));
  assert.deepEqual(names(events), ["updates", "updates"]);
  let locator;
  const onRunCreated = (made) => (locator = made);
  await collect(client.runs.stream(null, "slow", { input: { count: 3 }, onRunCreated, streamResumable: true, onCompletion: "keep" }));
  const again = await collect(client.runs.joinStream(null, locator.run_id, { lastEventId: "-1" }));
  assert.equal(again[0].event, "metadata");
});
await check("runs.cancel", async () => {
  const threadId = await newThread();
  const long = await client.runs.create(threadId, "slow", { input: { count: 10_000, pause_s: 0.05 } });
  await until(async () => (await client.threads.getState(threadId)).values.ticks?.length > 0);
  await client.runs.cancel(threadId, long.run_id, true, "interrupt");
  assert.equal((await client.runs.get(threadId, long.run_id)).status, "interrupted");
  const other = await client.runs.create(threadId, "slow", { input: { count: 10_000, pause_s: 0.05 } });
  await client.runs.cancel(threadId, other.run_id, false, "rollback");
  await until(() => client.runs.get(threadId, other.run_id).then(() => false, () => true));
});
await check("runs.createBatch", async () => {
  const runs = await client.runs.createBatch([
    { assistantId: "echo", input: hi, on_completion: "keep" },
    { assistantId: "plain", input: { question: "q" } },
  ]);
  assert.deepEqual(texts(await client.runs.join(runs[0].thread_id, runs[0].run_id)), ["hi", "echo: hi"]);
});
await check("runs.delete", async () => {
  await client.runs.delete(thread.thread_id, run.run_id);
  assert.deepEqual(await client.runs.list(thread.thread_id), []);
});

await check("runs.cancelMany", async () => {
  const threadId = await newThread();
  const { run_id } = await client.runs.create(threadId, "echo", { input: hi, afterSeconds: 600 });
  await client.runs.cancelMany({ threadId, runIds: [run_id] });
  await until(async () => (await client.runs.get(threadId, run_id)).status === "interrupted");
});
await check("threads.prune", async () => {
  const threadId = await newThread();
  assert.equal((await client.threads.prune([threadId], { strategy: "delete" })).pruned_count, 1);
  await assert.rejects(client.threads.get(threadId), /404/);
});
await check("threads.stream", async () => {
  for (const transport of globalThis.WebSocket ? ["sse", "websocket"] : ["sse"]) {
    const thread = client.threads.stream({ assistantId: "echo", transport });
    const messages = thread.values;
    await thread.run.start({ input: hi });
    assert.deepEqual(texts(await messages), ["hi", "echo: hi"]);
    await thread.close();
  }
});

// The store

const space = ["js", tag];
await check("store.putItem", () => client.store.putItem(space, "k", { n: 1 }, { ttl: 60, index: false }));
await check("store.getItem", async () => {
  assert.deepEqual((await client.store.getItem(space, "k", { refreshTtl: true })).value, { n: 1 });
});
await check("store.searchItems", async () => {
  const found = await client.store.searchItems(space, { filter: { n: { $gt: 0 } }, limit: 5 });
  assert.deepEqual(found.items.map((item) => item.key), ["k"]);
});
await check("store.listNamespaces", async () => {
  assert.deepEqual((await client.store.listNamespaces({ prefix: ["js"], suffix: [tag] })).namespaces, [space]);
});
await check("store.deleteItem", async () => {
  await client.store.deleteItem(space, "k");
  assert.equal(await client.store.getItem(space, "k"), null);
});

// Crons

let cron;
await check("crons.create", async () => {
  cron = await client.crons.create("echo", { schedule: "0 0 1 1 *", input: hi, metadata: { tag } });
});
await check("crons.createForThread", async () => {
  const made = await client.crons.createForThread(await newThread(), "echo", { schedule: "0 0 1 1 *", input: hi });
  await client.crons.delete(made.cron_id);
});
await check("crons.search", async () => {
  const found = await client.crons.search({ limit: 50 });
  assert.ok(found.some((row) => row.cron_id === cron.cron_id));
});
await check("crons.count", async () => assert.ok((await client.crons.count()) >= 1));
await check("crons.update", async () => {
  assert.equal((await client.crons.update(cron.cron_id, { enabled: false })).enabled, false);
});
await check("crons.delete", () => client.crons.delete(cron.cron_id));
