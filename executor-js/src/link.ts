// Calls in both directions over one unix socket, between the agent server and this process: the other end of
// `portside/executor/link.py`, which describes the protocol. Frames that are queued in one turn are one write.

import { EventEmitter } from "node:events";
import type { Socket } from "node:net";
import { Packer, unpack } from "./msgpack.js";
import { Outgoing } from "./outgoing.js";

const [HELLO, CALL, ITEM, RESULT, ERROR, CANCEL, PING, PONG] = [0, 1, 2, 3, 4, 5, 6, 7] as const;
const HEADER_BYTES = 4;
const MAX_FRAME_BYTES = 256 * 1024 * 1024;
const HIGH_WATER_BYTES = 1024 * 1024;

/** The connection to the server ended before it answered. */
class LinkClosed extends Error {
  override name = "LinkClosed";
}

/** A call was answered with an error: a stable code, a message for people, and details. */
export class CallFailed extends Error {
  override name = "CallFailed";

  constructor(
    readonly code: string,
    message: string,
    readonly fields: Record<string, unknown> = {},
  ) {
    super(message);
  }
}

/** A call of the server while this process serves it; `signal` aborts when the server cancels it. */
export interface ServedCall {
  readonly signal: AbortSignal;
  /** Send an item before the result; an urgent one goes before the next node runs. */
  send(item: unknown, isUrgent?: boolean): void;
}

export type Handler = (body: unknown, call: ServedCall) => Promise<unknown>;

interface OpenCall {
  resolve(result: unknown): void;
  reject(failure: unknown): void;
  onItem?: (item: unknown) => void;
  /** What the handler of items threw: the call fails with it when the server has stopped. */
  failure?: { error: unknown };
}

interface Options {
  handlers: Map<string, Handler>;
  onHello(body: unknown): void;
  pong(): unknown;
}

/** The link to the server; emits `close` with the reason when it has ended. */
export class Link extends EventEmitter<{ close: [string] }> {
  private readonly packer = new Packer();
  private received: Buffer[] = [];
  private receivedBytes = 0;
  private neededBytes = HEADER_BYTES;
  private readonly outgoing: Outgoing;
  private isFlushing = false;
  private readonly open = new Map<number, OpenCall>();
  private readonly served = new Map<number, AbortController>();
  private nextNumber = 1;
  private reason: string | null = null;

  constructor(
    private readonly socket: Socket,
    private readonly options: Options,
  ) {
    super();
    this.outgoing = new Outgoing(socket);
    socket.on("data", (data) => this.take(data as Buffer));
    socket.on("error", (error) => this.end(`connection lost: ${error.message}`));
    socket.on("close", () => this.end("closed by the server"));
  }

  /**
   * Call a method of the server; `onItem` gets the items before the result.
   *
   * Throws CallFailed, LinkClosed, what `onItem` throws, and the reason of a signal that has aborted before the call.
   */
  call(method: string, body: unknown, options: { onItem?: (item: unknown) => void; signal?: AbortSignal } = {}) {
    if (this.reason !== null) {
      return Promise.reject(new LinkClosed(this.reason));
    }

    const { onItem, signal } = options;
    if (signal?.aborted) {
      return Promise.reject(signal.reason);
    }

    const number = this.nextNumber++;

    return new Promise<unknown>((resolve, reject) => {
      this.send(CALL, number, [method, body], true);
      const cancel = () => this.send(CANCEL, number, null);

      const settled =
        <T>(settle: (value: T) => void) =>
        (value: T) => {
          signal?.removeEventListener("abort", cancel);
          settle(value);
        };

      this.open.set(number, { resolve: settled(resolve), reject: settled(reject), onItem });
      signal?.addEventListener("abort", cancel, { once: true });
    });
  }

  /** Say what the server has to know before its first call. */
  hello(body: unknown): void {
    this.send(HELLO, 0, body);
  }

  /** Send what is queued, and end the connection. */
  close(): void {
    if (this.reason === null) {
      this.outgoing.end();
    } else {
      this.socket.end();
    }
  }

  private send(kind: number, number: number, body: unknown, isUrgent = false): void {
    if (this.reason !== null) {
      return;
    }

    const frame = this.packer.pack([kind, number, body], HEADER_BYTES);
    const size = frame.length - HEADER_BYTES;
    if (size > MAX_FRAME_BYTES) {
      throw new CallFailed("too_large", `a message has ${size} bytes, more than ${MAX_FRAME_BYTES}`);
    }

    frame.writeUInt32BE(size, 0);
    this.outgoing.add(frame);

    if (this.outgoing.waitingBytes > HIGH_WATER_BYTES) {
      this.flush();
    } else if (isUrgent) {
      // Before the next node runs, which may block this loop.
      queueMicrotask(() => this.flush());
    } else if (!this.isFlushing) {
      this.isFlushing = true;
      setImmediate(() => {
        this.isFlushing = false;
        this.flush();
      });
    }
  }

  private flush(): void {
    if (this.reason === null) {
      this.outgoing.flush();
    }
  }

  private end(reason: string): void {
    if (this.reason !== null) {
      return;
    }

    this.reason = reason;
    for (const call of this.open.values()) {
      call.reject(new LinkClosed(reason));
    }

    this.open.clear();
    for (const controller of this.served.values()) {
      controller.abort(new LinkClosed(reason));
    }

    this.emit("close", reason);
  }

  private take(data: Buffer): void {
    this.received.push(data);
    this.receivedBytes += data.length;

    if (this.receivedBytes < this.neededBytes) {
      return;
    }

    const buffer = this.received.length === 1 ? (this.received[0] as Buffer) : Buffer.concat(this.received);
    let at = 0;
    this.neededBytes = HEADER_BYTES;

    try {
      while (buffer.length - at >= HEADER_BYTES) {
        const start = at + HEADER_BYTES;
        const size = buffer.readUInt32BE(at);
        if (size > MAX_FRAME_BYTES) {
          return this.abort(`a frame of ${size} bytes`);
        }

        if (start + size > buffer.length) {
          this.neededBytes = HEADER_BYTES + size;
          break;
        }

        at = start + size;
        this.takeFrame(buffer.subarray(start, at));
      }
    } finally {
      // Also after an error, or the next data would bring the same frames again.
      const rest = buffer.subarray(at);
      this.received = rest.length ? [rest] : [];
      this.receivedBytes = rest.length;
    }
  }

  private takeFrame(frame: Buffer): void {
    let kind: number;
    let number: number;
    let body: unknown;
    try {
      [kind, number, body] = unpack(frame) as [number, number, unknown];
    } catch (error) {
      return this.abort(`a frame that is not msgpack: ${error}`);
    }

    switch (kind) {
      case HELLO:
        return this.options.onHello(body);
      case CALL:
        return this.serve(number, body as [string, unknown]);
      case ITEM:
        return this.takeItem(number, body);
      case RESULT:
        return this.finish(number, (opened) => opened.resolve(body));
      case ERROR: {
        const { code, message, fields } = body as { code: string; message: string; fields?: Record<string, unknown> };
        return this.finish(number, (opened) => opened.reject(new CallFailed(code, message, fields)));
      }
      case CANCEL:
        // The result may have crossed the cancellation: then the call is not served any more.
        return this.served.get(number)?.abort(new CallFailed("cancelled", "the call was cancelled"));
      case PING:
        return this.send(PONG, 0, this.options.pong(), true);
      default:
        return this.abort(`a frame of the unknown kind ${kind}`);
    }
  }

  private takeItem(number: number, item: unknown): void {
    const opened = this.open.get(number);
    if (opened === undefined || opened.failure !== undefined) {
      return;
    }

    try {
      opened.onItem?.(item);
    } catch (error) {
      opened.failure = { error };
      this.send(CANCEL, number, null);
    }
  }

  /** End a call of this side that the server has answered. */
  private finish(number: number, settle: (opened: OpenCall) => void): void {
    const opened = this.open.get(number);
    this.open.delete(number);

    if (opened?.failure !== undefined) {
      opened.reject(opened.failure.error);
    } else if (opened !== undefined) {
      settle(opened);
    }
  }

  private abort(problem: string): void {
    this.end(`the server broke the protocol: ${problem}`);
    this.socket.destroy();
  }

  private serve(number: number, [method, body]: [string, unknown]): void {
    const handler = this.options.handlers.get(method);
    if (handler === undefined) {
      return this.fail(number, new CallFailed("unknown_method", `there is no method '${method}'`));
    }

    const controller = new AbortController();
    this.served.set(number, controller);
    const call = {
      signal: controller.signal,
      send: (item: unknown, isUrgent = false) => this.send(ITEM, number, item, isUrgent),
    };

    // A handler that throws before its first await fails its call as well.
    const work = async () => handler(body, call);
    work()
      .then(
        (result) => this.send(RESULT, number, result),
        (failure) => this.fail(number, failure),
      )
      .catch((failure) => this.fail(number, failure))
      .finally(() => this.served.delete(number));
  }

  private fail(number: number, failure: unknown): void {
    const failed =
      failure instanceof CallFailed ? failure : new CallFailed("internal", `${(failure as Error)?.stack ?? failure}`);
    this.send(ERROR, number, { code: failed.code, message: failed.message, fields: failed.fields });
  }
}
