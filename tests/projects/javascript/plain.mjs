import { getHeapStatistics, setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Annotation, DeltaChannel, entrypoint, StateGraph, task } from "@langchain/langgraph";

const State = Annotation.Root({
  steps: Annotation({ reducer: (left, right) => left.concat(right), default: () => [] }),
});

const step = (name) => () => ({ steps: [name] });

// A StateGraph that is not compiled.
export const steps = new StateGraph(State)
  .addNode("one", step("one"))
  .addNode("two", step("two"))
  .addNode("three", step("three"))
  .addEdge("__start__", "one")
  .addEdge("one", "two")
  .addEdge("two", "three");

const double = task("double", async (number) => number * 2);

export const functional = entrypoint("functional", async ({ numbers }) => Promise.all(numbers.map((each) => double(each))));

setFlagsFromString("--expose-gc");
const collectGarbage = runInNewContext("gc");

// How many bytes of the heap are in use.
export const heap = new StateGraph(Annotation.Root({ bytes: Annotation() }))
  .addNode("measure", () => {
    collectGarbage();
    return { bytes: getHeapStatistics().used_heap_size };
  })
  .addEdge("__start__", "measure");

// Emits this many events of 1 MB, with a turn of the event loop after each.
export const flood = new StateGraph(Annotation.Root({ events: Annotation() }))
  .addNode("emit", async ({ events }, { writer }) => {
    for (let count = 0; count < events; count++) {
      writer?.("x".repeat(1_000_000));
      await new Promise((resolve) => setImmediate(resolve));
    }

    return {};
  })
  .addEdge("__start__", "emit");

// Binary data, and the classes that it has when it is read again.
export const binary = new StateGraph(Annotation.Root({ data: Annotation(), classes: Annotation(), sent: Annotation() }))
  .addNode("keep", ({ data, sent }, { writer }) => {
    if (data !== undefined) {
      return { classes: data.map((each) => (each instanceof Uint8Array ? "Uint8Array" : each.constructor.name)), sent: [...data[2]] };
    }
    const made = [new Uint8Array([255, 254]), new Uint8Array([97, 98, 99]).buffer, new Float32Array([1.5, 2])];
    writer?.(made);
    return { data: made, sent };
  })
  .addEdge("__start__", "keep");

// A channel that is stored as a chain of writes.
const Notes = Annotation.Root({
  notes: () => new DeltaChannel((notes, writes) => notes.concat(...writes)),
});

export const noting = new StateGraph(Notes).addNode("note", () => ({ notes: ["noted"] })).addEdge("__start__", "note");

const Ledger = Annotation.Root({
  key: Annotation(),
  text: Annotation(),
  table: Annotation({ reducer: (_, right) => right, default: () => ({}) }),
  lines: Annotation({ reducer: (_, right) => right, default: () => [] }),
  nested: Annotation({ reducer: (_, right) => right, default: () => ({ all: [] }) }),
});

// Returns its whole dict, list and list in a dict with one entry more.
export const ledger = new StateGraph(Ledger)
  .addNode("enter", ({ key, text, table, lines, nested }) => ({
    table: { ...table, [key]: { text } },
    lines: [...lines, text],
    nested: { count: lines.length, all: [...nested.all, { text }] },
  }))
  .addEdge("__start__", "enter");
