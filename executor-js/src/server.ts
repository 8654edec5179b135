// The server as graphs see it, over the link: it takes the rows of checkpoints. Also the call of the server that the
// current code runs for.

import { AsyncLocalStorage } from "node:async_hooks";
import { CallFailed, type Link } from "./link.js";
import { ValuePieces } from "./pieces.js";

/** The scope of checkpoints outside of a transaction. */
const MAIN_SCOPE = 0;
const EPHEMERAL_DELAY_MS = 100;
const EPHEMERAL_LIMIT_BYTES = 1024 * 1024;
const UNANSWERED_LIMIT_BYTES = 8 * 1024 * 1024;
// Empty rows take memory as well.
const ROWS_OVERHEAD_BYTES = 512;

export type Fields = Record<string, unknown>;

/** The call of the server that code runs for. */
export interface Work {
  /** The number of the call, by which the server knows its user. */
  call: number;
  /** The transaction that its checkpoints are written in. */
  scope: number;
  /** The run and the number of the attempt; null for anything else. */
  run: [id: string, attempt: number] | null;
  /** Whether a step waits until its checkpoint is stored. */
  isAwaited: boolean;
  /** The metadata and the configurable fields that the run began with. */
  metadata: Fields;
  configurable: Fields;
  /** The rows of the run's own thread. */
  rows: RunRows | null;
  /** The long values of its checkpoints. */
  pieces: ValuePieces;
  /** Ends the run with an error that none of its code caught. */
  fail(error: unknown): void;
  /** Remember a promise of the graph's code, until it is settled. */
  track<T>(promise: T): T;
}

const NOTHING = {
  call: 0,
  scope: MAIN_SCOPE,
  run: null,
  isAwaited: true,
  metadata: {},
  configurable: {},
  rows: null,
  track: <T>(value: T) => value,
};

/** The call that the current code runs for; it follows the code into callbacks and promises. */
export const currentWork = new AsyncLocalStorage<Work>();

/** What the code of a handler runs for: no run of a graph, and no user. */
export function handlerWork(fail: (error: unknown) => void): Work {
  return { ...NOTHING, pieces: new ValuePieces(), fail };
}

/** Rows of the tables of checkpoints; `executor/checkpoints/rows.py` names their columns. */
export interface Rows {
  checkpoints: unknown[][];
  values: unknown[][];
  pieces: unknown[][];
  writes: unknown[][];
  size: number;
}

/** Calls the server. */
export class Server {
  constructor(
    private readonly link: Link,
    /** Whether the server encrypts what it stores. */
    readonly isEncrypted: boolean,
  ) {}

  /** Call a method. Throws an error with the name and the message of the one that the server raised. */
  async call(
    method: string,
    body: Fields,
    options: { onItem?: (item: unknown) => void; signal?: AbortSignal } = {},
  ): Promise<unknown> {
    try {
      return await this.link.call(method, { call: currentWork.getStore()?.call ?? 0, ...body }, options);
    } catch (error) {
      throw error instanceof CallFailed ? raised(error) : error;
    }
  }

  /** Store rows; the server buffers them with those of the run. */
  async put(threadId: string, checkpointNs: string, rows: Rows): Promise<void> {
    const work = currentWork.getStore();
    const isAwaited = work?.isAwaited ?? false;
    const body = {
      scope: work?.scope ?? MAIN_SCOPE,
      thread_id: threadId,
      checkpoint_ns: checkpointNs,
      run: work?.run ?? null,
      is_awaited: isAwaited,
      ...rows,
    };

    const own = work?.rows;
    if (own?.threadId === threadId) {
      if (!isAwaited) {
        return own.put(checkpointNs, body, rows.size);
      }

      await own.flush();
    }

    await this.call("checkpoints.put", body);
  }

  /** Return the row of a checkpoint, the latest of its namespace without an id, or null. */
  async read(threadId: string, checkpointNs: string, checkpointId: string | null): Promise<Fields | null> {
    const own = currentWork.getStore()?.rows;
    if (own?.threadId === threadId && own.isEmpty(checkpointNs)) {
      return null;
    }

    return (await this.operate("read", threadId, checkpointNs, checkpointId)) as Fields | null;
  }

  /** Do another operation on checkpoints, with its arguments in order. */
  async operate(operation: string, ...given: unknown[]): Promise<unknown> {
    const work = currentWork.getStore();
    const scope = work?.scope ?? MAIN_SCOPE;
    await work?.rows?.flush();
    return this.call("checkpoints", { scope, operation, arguments: given });
  }
}

/** An error that the server raised: it has the name and the message, and remembers the answer. */
class ServerError extends Error {
  constructor(
    name: string,
    readonly failed: CallFailed,
  ) {
    super(failed.message);
    this.name = name;
  }
}

function raised(failed: CallFailed): Error {
  const name = failed.fields.type;
  return typeof name === "string" ? new ServerError(name, failed) : failed;
}

/** Return the answer for an error that ends a call of the server: it raises its own error again, if it was one. */
export function toFailure(error: unknown): unknown {
  return error instanceof ServerError && typeof error.failed.fields.failure === "number" ? error.failed : error;
}

/**
 * The rows that a run writes to its thread: they are sent in their order, and no step waits for the answers.
 *
 * So a write and the checkpoint after it are in one batch of the server, which stores what they share once. The rows
 * of a thread that is deleted with its run wait, because a short run needs no checkpoint: they are sent after a moment,
 * if they grow, and if the run is stopped.
 */
export class RunRows {
  private held: { body: Fields; size: number }[] = [];
  /** Of all rows that were not answered. */
  private size = 0;
  private isHolding: boolean;
  private failure: unknown;
  private readonly namespaces = new Set<string>();
  private readonly sent = new Set<Promise<void>>();
  private readonly timer: NodeJS.Timeout | undefined;

  constructor(
    private readonly server: Server,
    readonly threadId: string,
    private readonly isEphemeral: boolean,
  ) {
    this.isHolding = isEphemeral;
    this.timer = isEphemeral ? setTimeout(() => this.sendHeld(), EPHEMERAL_DELAY_MS) : undefined;
  }

  /** Whether the thread surely has no checkpoint in a namespace. */
  isEmpty(checkpointNs: string): boolean {
    return this.isEphemeral && !this.namespaces.has(checkpointNs);
  }

  /** Take rows; wait only if many were not answered. Throws what storing earlier ones failed with. */
  async put(checkpointNs: string, body: Fields, bytes: number): Promise<void> {
    if (this.failure !== undefined) {
      throw this.failure;
    }

    const queued = { body: { ...body, call: currentWork.getStore()?.call ?? 0 }, size: bytes + ROWS_OVERHEAD_BYTES };
    this.namespaces.add(checkpointNs);
    this.size += queued.size;

    if (this.isHolding) {
      this.held.push(queued);
      if (this.size > EPHEMERAL_LIMIT_BYTES) {
        this.sendHeld();
      }

      return;
    }

    this.send(queued);
    // A server that encrypts rows may store those of a later call first.
    if (this.server.isEncrypted || this.size > UNANSWERED_LIMIT_BYTES) {
      await this.flush();
    }
  }

  /** Wait until all rows are with the server. Throws what storing them failed with. */
  async flush(): Promise<void> {
    this.sendHeld();
    while (this.sent.size > 0) {
      await Promise.all(this.sent);
    }

    if (this.failure !== undefined) {
      throw this.failure;
    }
  }

  /** Forget the rows that wait: the run has ended, and its thread with it. */
  drop(): void {
    clearTimeout(this.timer);
    this.isHolding = false;
    this.held = [];
  }

  private sendHeld(): void {
    const { held } = this;
    this.drop();
    for (const put of held) {
      this.send(put);
    }
  }

  private send({ body, size }: { body: Fields; size: number }): void {
    const answered = this.server
      .call("checkpoints.put", body)
      .catch((error: unknown) => {
        this.failure ??= error;
      })
      .then(() => {
        this.size -= size;
        this.sent.delete(answered);
      });

    this.sent.add(answered);
  }
}
