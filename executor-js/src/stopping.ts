// Stops runs for good: a run that is cancelled, or whose lease ends, is over when none of its nodes runs any more.
//
// LangGraph stops waiting for a node as soon as its signal aborts, but the node's own code continues until it looks at
// the signal. So the functions of nodes are watched: each call of one belongs to the run that it was made in.

import type { Runnable } from "@langchain/core/runnables";
import { CallFailed } from "./link.js";
import { log } from "./logs.js";
import { currentWork } from "./server.js";

const STOP_WITHIN_MS = 60_000;
// A run is stopped this long before the end of its lease, because that takes a moment.
const STOP_EARLY_S = 0.5;
// What the server has sent meanwhile may not have been read yet.
const READ_WITHIN_S = 0.05;
// After this the process ends itself, with what does not stop.
const STOPPED_WITHIN_S = 5;
/** The code of the error of a run that was stopped because the server did not renew its lease in time. */
export const LEASE_LOST = "lease_lost";

/** The monotonic clock of this process, in seconds, by which the server tells the ends of leases. */
export function clockSeconds(): number {
  return performance.now() / 1000;
}

/** The server's leases of the runs of this process, by the numbers of its calls. */
export class Leases {
  private readonly leases = new Map<number, Lease>();

  /** `endProcess` is called when a run does not stop, and the server surely has no run of this process. */
  constructor(private readonly endProcess: () => void) {}

  /** Watch a run; `until` is 0 while the end of its lease is unknown. Close the lease at the end of the run. */
  begin(call: number, until: number, cancelled: AbortSignal): Lease {
    const lease = new Lease(until, cancelled, {
      onStuck: () => {
        if ([...this.leases.values()].every((each) => each.isLost)) {
          log("error", "this executor exits: its server is silent, and a cancelled run does not stop");
          this.endProcess();
        }
      },
      onClose: () => this.leases.delete(call),
    });

    this.leases.set(call, lease);
    return lease;
  }

  /** Take the times until which the server surely has its leases. */
  renew(leases: [call: number, until: number][]): void {
    for (const [call, until] of leases) {
      const lease = this.leases.get(call);
      if (lease !== undefined) {
        lease.until = until;
      }
    }
  }
}

/**
 * Stops a run shortly before the server's lease of it ends: later another server may have it.
 *
 * So a run stops also if its server is paused, or does not hear of it.
 */
export class Lease {
  isLost = false;
  /** Rejects when the run did not stop in time. */
  readonly givenUp: Promise<never>;
  private readonly controller = new AbortController();
  private readonly cancel = () => this.controller.abort(this.cancelled.reason);
  private timer: NodeJS.Timeout;

  constructor(
    public until: number,
    private readonly cancelled: AbortSignal,
    private readonly options: { onStuck(): void; onClose(): void },
  ) {
    cancelled.addEventListener("abort", this.cancel, { once: true });
    this.timer = setTimeout(() => this.look(), this.left() * 1000);
    this.givenUp = new Promise((_, reject) => {
      this.giveUp = () => {
        // Again and again: the process ends only when the leases of all its runs are lost.
        this.timer = setTimeout(this.giveUp, STOPPED_WITHIN_S * 1000);
        reject(lost("it did not stop"));
        options.onStuck();
      };
    });

    this.givenUp.catch(() => {});
  }

  private giveUp = () => {};

  /** Aborts when the run is to stop: it was cancelled, or its lease ends. */
  get signal(): AbortSignal {
    return this.controller.signal;
  }

  /** Watch the run no more. */
  close(): void {
    clearTimeout(this.timer);
    this.cancelled.removeEventListener("abort", this.cancel);
    this.options.onClose();
  }

  private left(): number {
    return this.until === 0 ? STOPPED_WITHIN_S : Math.max(0, this.until - STOP_EARLY_S - clockSeconds());
  }

  private look(): void {
    const leftMs = this.left();
    this.timer = setTimeout(() => (leftMs > 0 ? this.look() : this.lose()), (leftMs || READ_WITHIN_S) * 1000);
  }

  private lose(): void {
    if (this.left() > 0) {
      this.look();
    } else if (!this.signal.aborted) {
      log("warning", "a run is stopped: the server did not renew its lease in time");
      this.isLost = true;
      this.timer = setTimeout(this.giveUp, STOPPED_WITHIN_S * 1000);
      this.controller.abort(lost("it was stopped"));
    }
  }
}

function lost(what: string): CallFailed {
  return new CallFailed(LEASE_LOST, `the server did not renew the lease in time, and ${what}`);
}

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
      const leftMs = until - Date.now();
      if (leftMs <= 0) {
        log("warning", "cancelled work still runs: a node does not look at its signal");
        return;
      }

      await settledWithin([...this.promises], leftMs);
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
