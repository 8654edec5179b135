// Stops runs for good: a run that is cancelled is over when none of its nodes runs any more.
//
// LangGraph stops waiting for a node as soon as its signal aborts, but the node's own code goes on until it looks at
// the signal. So the functions of nodes are watched: each call of one belongs to the run that it was made in.

import type { Runnable } from "@langchain/core/runnables";
import { log } from "./logs.js";
import { currentWork } from "./server.js";

const STOP_WITHIN_MS = 60_000;

/** The promises of one run's nodes. */
export class Pending {
  private readonly promises = new Set<PromiseLike<unknown>>();

  /** Remember what a node returned, until it is settled. */
  track<T>(value: T): T {
    if (isPromise(value)) {
      const forget = () => {
        this.promises.delete(value);
      };
      this.promises.add(value);
      value.then(forget, forget);
    }
    return value;
  }

  /** Wait until all nodes have stopped; those that take too long are logged and left behind. */
  async stopped(): Promise<void> {
    const until = Date.now() + STOP_WITHIN_MS;
    while (this.promises.size > 0) {
      const left = until - Date.now();
      if (left <= 0) {
        log("warning", "cancelled work still runs: a node does not look at its signal");
        return;
      }
      await settledWithin([...this.promises], left);
    }
  }
}

async function settledWithin(promises: PromiseLike<unknown>[], milliseconds: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((resolve) => {
    timer = setTimeout(resolve, milliseconds);
  });
  await Promise.race([Promise.allSettled(promises), late]);
  clearTimeout(timer);
}

function isPromise(value: unknown): value is Promise<unknown> {
  return typeof value === "object" && value !== null && typeof (value as Promise<unknown>).then === "function";
}

type Callable = Runnable & { func?: (...given: unknown[]) => unknown };
const watched = new WeakSet<object>();

/** Watch the functions of a graph's nodes, of those of its subgraphs, and of tools that they call. */
export function watchNodes(graph: { nodes?: Record<string, unknown> }): void {
  for (const node of Object.values(graph.nodes ?? {})) {
    const bound = (node as { bound?: unknown }).bound;
    const prototype = bound === undefined ? null : callablePrototype(bound);
    if (prototype !== null && !watched.has(prototype)) {
      watched.add(prototype);
      watchCalls(prototype);
    }
  }
}

/** Return the prototype of LangGraph's functions, whose instances have `func`. */
function callablePrototype(bound: unknown): Callable | null {
  const { func, invoke, steps, first } = bound as Callable & { steps?: unknown[]; first?: unknown };
  if (typeof func === "function" && typeof invoke === "function") {
    return Object.getPrototypeOf(bound);
  }
  const inner = Array.isArray(steps) ? steps[0] : first;
  return inner === undefined || inner === null ? null : callablePrototype(inner);
}

function watchCalls(prototype: Callable): void {
  const invoke = prototype.invoke;
  prototype.invoke = function (this: Callable, ...given: Parameters<typeof invoke>) {
    const { func } = this;
    if (typeof func === "function" && !watched.has(func)) {
      const tracked = function (this: unknown, ...args: unknown[]) {
        const result = func.apply(this, args);
        return currentWork.getStore()?.track(result) ?? result;
      };
      watched.add(tracked);
      this.func = tracked;
    }
    return invoke.apply(this, given);
  };
}
