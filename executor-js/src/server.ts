// What graphs use of their server, over the link: where rows of checkpoints go, and which call the current code runs
// for.

import { AsyncLocalStorage } from "node:async_hooks";
import { CallFailed, type Link } from "./link.js";
import { ValuePieces } from "./pieces.js";

/** The scope of checkpoints outside of a transaction. */
const MAIN_SCOPE = 0;
const EPHEMERAL_DELAY_MS = 100;
const EPHEMERAL_LIMIT_BYTES = 1024 * 1024;

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
  ephemeral: EphemeralRows | null;
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
  ephemeral: null,
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
    const ephemeral = work?.ephemeral;
    if (ephemeral?.threadId === threadId) {
      if (!isAwaited && ephemeral.keep(checkpointNs, body, rows.size)) {
        return;
      }
      await ephemeral.flush();
    }
    await this.call("checkpoints.put", body);
  }

  /** Return the row of a checkpoint, the latest of its namespace without an id, or null. */
  async read(threadId: string, checkpointNs: string, checkpointId: string | null): Promise<Fields | null> {
    const ephemeral = currentWork.getStore()?.ephemeral;
    if (ephemeral?.threadId === threadId) {
      if (ephemeral.isEmpty(checkpointNs)) {
        return null;
      }
      await ephemeral.flush();
    }
    return (await this.operate("read", threadId, checkpointNs, checkpointId)) as Fields | null;
  }

  /** Do another operation on checkpoints, with its arguments in order. */
  operate(operation: string, ...given: unknown[]): Promise<unknown> {
    const scope = currentWork.getStore()?.scope ?? MAIN_SCOPE;
    return this.call("checkpoints", { scope, operation, arguments: given });
  }
}

function raised(failed: CallFailed): Error {
  const name = failed.fields.type;
  return typeof name === "string" ? Object.assign(new Error(failed.message), { name }) : failed;
}

/**
 * The rows of a run on a thread that is deleted with it: they wait, because a short run needs no checkpoint.
 *
 * They are sent after a moment, if they grow, and if the run is stopped.
 */
export class EphemeralRows {
  private puts: Fields[] = [];
  private size = 0;
  private isSending = false;
  private readonly namespaces = new Set<string>();
  private readonly sent: Promise<unknown>[] = [];
  private readonly timer: NodeJS.Timeout;

  constructor(
    private readonly server: Server,
    readonly threadId: string,
  ) {
    this.timer = setTimeout(() => this.send(), EPHEMERAL_DELAY_MS);
  }

  /** Whether the thread surely has no checkpoint in a namespace. */
  isEmpty(checkpointNs: string): boolean {
    return !this.namespaces.has(checkpointNs);
  }

  /** Keep rows for now; false if rows are sent at once by now. */
  keep(checkpointNs: string, body: Fields, size: number): boolean {
    this.namespaces.add(checkpointNs);
    if (this.isSending) {
      return false;
    }
    this.puts.push({ ...body, call: currentWork.getStore()?.call ?? 0 });
    this.size += size;
    if (this.size > EPHEMERAL_LIMIT_BYTES) {
      this.send();
    }
    return true;
  }

  /** Wait until all rows are with the server. Throws what storing them failed with. */
  async flush(): Promise<void> {
    this.send();
    await Promise.all(this.sent);
  }

  /** Forget the rows: the run has ended, and its thread with it. */
  drop(): void {
    clearTimeout(this.timer);
    this.isSending = true;
    this.puts = [];
  }

  private send(): void {
    clearTimeout(this.timer);
    this.isSending = true;
    const puts = this.puts;
    this.puts = [];
    for (const body of puts) {
      const call = this.server.call("checkpoints.put", body);
      // A failure is that of the run's other checkpoints as well: the server ends the run.
      call.catch(() => {});
      this.sent.push(call);
    }
  }
}
