// Random versions of long values, put by the executor's checkpointer and read again by another one: each must be what was
// put, byte for byte. `tests/db/test_javascript_saver.py` bundles this; it prints how much was put and what failed.
import { connect } from "node:net";
import { importLibraries } from "../../executor-js/src/libraries.js";
import { Link } from "../../executor-js/src/link.js";
import { ValuePieces } from "../../executor-js/src/pieces.js";
import { makeSaver } from "../../executor-js/src/saver.js";
import { currentWork, Server, type Work } from "../../executor-js/src/server.js";
import { encode } from "../../executor-js/src/values.js";

const { PORTSIDE_SOCKET: socket = "", PORTSIDE_PROJECT: project = "", SEED = "1", RUNS = "60" } = process.env;
const link = new Link(connect(socket), { handlers: new Map(), onHello: () => {}, pong: () => null });
const libraries = await importLibraries(`${project}/package.json`);
const saver = makeSaver(libraries, new Server(link, false));
const { AIMessage, HumanMessage } = libraries.messages as any;

let state = Number(SEED);
const random = () => {
  // A linear congruential generator: Node has none that takes a seed.
  state = (state * 1664525 + 1013904223) % 2 ** 32;
  return state / 2 ** 32;
};
const below = (limit: number) => Math.floor(random() * limit);
const pick = <T>(from: T[]): T => from[below(from.length)] as T;
const text = () => pick(["abc ", "\u03b1\u03b2 ", "x"]).repeat(pick([1, 10, 100, 500]));

const leaf = (): unknown =>
  pick<() => unknown>([
    () => new AIMessage({ content: text(), id: String(random()) }),
    () => new HumanMessage({ content: text(), id: String(random()), additional_kwargs: { n: random() } }),
    () => new AIMessage({ content: [{ type: "text", text: text() }], response_metadata: { a: [1, { b: null }] } }),
    () => ({ role: "user", content: text(), n: below(3), missing: undefined }),
    () => [text(), 1, 1.5, true],
    () => new Set([text()]),
    () => new Map([[text(), 1]]),
    () => new Date(below(10 ** 12)),
    () => text(),
    () => pick([null, undefined, true, 1, 0, -0, 2 ** 40, "", new Uint8Array([1, 2]), 12345678901234567890n]),
  ])();
const many = (limit: number, make: () => unknown = leaf) => Array.from({ length: below(limit) }, make);
const key = () => pick(["__proto__x", "10", "9", "a\nb", text().slice(0, 20), String(below(50))]);
const record = (limit: number): Record<string, unknown> => Object.fromEntries(many(limit, () => [key(), leaf()]) as any);

const fresh = (): unknown =>
  pick<() => unknown>([
    () => many(60, () => new AIMessage({ content: text(), id: String(random()) })),
    () => record(30),
    () => ({ messages: many(40), deep: { er: { est: { of: { all: many(9, text) } } } }, table: record(40) }),
    () => many(40),
  ])();

function changed(value: unknown): unknown {
  if (random() < 0.05) {
    return fresh();
  }
  if (Array.isArray(value)) {
    return changedList(value.slice());
  }
  return typeof value === "object" && value?.constructor === Object ? changedRecord({ ...value }) : leaf();
}

function changedRecord(made: Record<string, unknown>): unknown {
  const name = pick([...Object.keys(made), key()]);
  const inner = made[name];
  if (random() < 0.15) {
    delete made[name];
  } else {
    made[name] = typeof inner === "object" && inner !== null && random() < 0.9 ? changed(inner) : leaf();
  }
  return made;
}

function changedList(made: any[]): unknown {
  const at = below(made.length + 1);
  const append = () => made.push(leaf());
  pick<() => unknown>([
    append,
    append,
    append,
    append,
    () => made.push(...many(10)),
    () => made.splice(at, 0, leaf()),
    () => made.splice(at, 1, leaf()),
    () => made.splice(at, 1),
    () => made.splice(0, at >> 1),
    () => made.reverse(),
    () => mutate(made[at]),
  ])();
  return made;
}

/** Change an object in its place, as nodes do by mistake. */
function mutate(item: any): void {
  if (item instanceof AIMessage) {
    pick<() => unknown>([
      () => (item.content = text()),
      () => (item.additional_kwargs.changed = random()),
      () => item.tool_calls?.push({ name: "tool", args: {}, id: text() }),
    ])();
  } else if (item?.constructor === Object) {
    item.changed = random();
  }
}

function work(): Work {
  const nothing = { call: 0, scope: 0, run: null, isAwaited: true, metadata: {}, configurable: {}, rows: null };
  return { ...nothing, pieces: new ValuePieces(), fail: () => {}, track: (value) => value };
}

const wanted = new Map<string, Record<string, Buffer>>();
const writes = new Map<string, Map<string, Buffer>>();
let [put, number] = [0, 0];

function checkpoint(values: Record<string, unknown>, versions: Record<string, string>): any {
  const id = `1f0-${String(number++).padStart(8, "0")}`;
  return { v: 4, id, ts: "", channel_values: values, channel_versions: versions, versions_seen: {} };
}

/** A run: it reads a checkpoint, and writes some more after it. */
async function run(thread: string, from: string | null): Promise<string[]> {
  const named = { thread_id: thread, checkpoint_ns: "" };
  let config: any = { configurable: from === null ? named : { ...named, checkpoint_id: from } };
  const found = from === null ? undefined : await saver.getTuple(config);
  let values: Record<string, unknown> = { ...found?.checkpoint.channel_values };
  let versions = { ...(found?.checkpoint.channel_versions as Record<string, string>) };
  const made: string[] = [];
  for (let step = 0; step < 4; step++) {
    const names = ["one", "two", "three"].filter(() => step + number === 0 || random() < 0.6);
    const news = Object.fromEntries(names.map((name) => [name, saver.getNextVersion(versions[name]) as string]));
    for (const name of names) {
      const next = values[name] === undefined ? fresh() : changed(values[name]);
      if (config.configurable.checkpoint_id !== undefined && random() < 0.5) {
        const of = `${config.configurable.checkpoint_id} ${name} ${number}`;
        writes.set(config.configurable.checkpoint_id, (writes.get(config.configurable.checkpoint_id) ?? new Map()).set(of, encode(next)));
        put += encode(next).length;
        await saver.putWrites(config, [[name, next]], of);
      }
      values = { ...values, [name]: next };
    }
    versions = { ...versions, ...news };
    const next = checkpoint({ ...values }, versions);
    wanted.set(next.id, Object.fromEntries(Object.entries(values).map(([name, value]) => [name, encode(value)])));
    put += names.reduce((sum, name) => sum + encode(values[name]).length, 0);
    config = await saver.put(config, next, { source: "loop", step, parents: {} }, news);
    made.push(next.id);
  }
  return made;
}

const failures: string[] = [];

function compare(what: string, read: unknown, stored: Buffer): void {
  if (!encode(read).equals(stored)) {
    failures.push(what);
  }
}

const thread = `thread ${SEED}`;
const all: (string | null)[] = [null];
for (let runs = 0; runs < Number(RUNS); runs++) {
  // Mostly from the latest checkpoint, as runs do; sometimes a fork.
  const from = random() < 0.9 ? (all.at(-1) as string | null) : pick(all);
  all.push(...(await currentWork.run(work(), () => run(thread, from))));
}
let seen = 0;
for await (const found of saver.list({ configurable: { thread_id: thread, checkpoint_ns: "" } })) {
  const { id } = found.checkpoint;
  for (const [name, data] of Object.entries(wanted.get(id) ?? {})) {
    compare(`${id} ${name}`, found.checkpoint.channel_values[name], data);
  }
  for (const [task, , value] of found.pendingWrites ?? []) {
    compare(`${id} ${task}`, value, writes.get(id)?.get(task) as Buffer);
  }
  if ((found.pendingWrites ?? []).length !== (writes.get(id)?.size ?? 0)) {
    failures.push(`${id} lacks writes`);
  }
  seen++;
}
console.log(JSON.stringify({ seen, wanted: wanted.size, put, failures: failures.slice(0, 5) }));
process.exit(0);
