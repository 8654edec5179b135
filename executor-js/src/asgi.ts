// ASGI over the link, as `portside/executor/asgi.py` describes it, and the web's requests and responses.
//
// A scope becomes a `Request`, whose body is read from the client only when the project reads it. A `Response` becomes
// messages, which wait if the client reads slowly. What asks the server in turn is an exchange of this side.

import type { Link } from "./link.js";
import { CallFailed } from "./link.js";
import type { Fields } from "./server.js";

type Pair = [name: Buffer, value: Buffer];

/** A message of ASGI. */
export interface Message {
  type: string;
  status?: number;
  headers?: Pair[];
  body?: Uint8Array;
  more_body?: boolean;
  [name: string]: unknown;
}

/** The fields of a scope that this side reads. */
export interface Scope {
  type: string;
  method?: string;
  scheme?: string;
  path: string;
  query_string?: Uint8Array;
  headers: Pair[];
  client?: [host: string, port: number] | null;
  [name: string]: unknown;
}

type Receive = () => Promise<Message>;

const DISCONNECTED = "client_disconnected";
const UNREAD_BYTES = 256 * 1024;
const PIECE_BYTES = 8 * 1024 * 1024;
const WITHOUT_BODY = new Set([101, 204, 205, 304]);
const BODILESS = new Set(["GET", "HEAD"]);
const HOST = /^[\w.:[\]-]+$/;

/** The body of a request, which its reader asks the client for. What authentication has read is read again. */
export class Body {
  private readonly unread: Message[] = [];
  /** Why the client sent no more, such as a body over the limit; the server answers the client with it. */
  failure: CallFailed | null = null;
  private isWhole = false;

  constructor(private readonly client: Receive) {}

  /** Return the next message of the client, which the application gets as well. */
  async record(): Promise<Message> {
    const message = await this.next();
    this.unread.push(message);
    return message;
  }

  /** Return the next message of the client. Throws CallFailed. */
  async next(): Promise<Message> {
    const chunk = this.unread.shift();
    if (chunk !== undefined) {
      return chunk;
    }

    try {
      const message = await this.client();
      this.isWhole = message.type === "http.request" && !message.more_body;
      return message;
    } catch (error) {
      if (error instanceof CallFailed) {
        this.failure ??= error;
      }

      throw error;
    }
  }

  /** Wait until the client of a request has gone; never resolves while its body may still be read. */
  async ended(method: string): Promise<void> {
    if (BODILESS.has(method) || this.isWhole) {
      while ((await this.client()).type === "http.request") {
        // A request without a body has an empty one.
      }
    } else {
      await new Promise(() => {});
    }
  }

  /** Return the body as it comes. */
  stream(): ReadableStream<Uint8Array> {
    const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
      const message = await this.next();
      if (message.type !== "http.request") {
        this.failure ??= new CallFailed(DISCONNECTED, "the client disconnected");
        throw this.failure;
      }

      const piece = message.body ?? new Uint8Array();
      if (piece.length > 0) {
        controller.enqueue(new Uint8Array(piece));
      }

      if (!message.more_body) {
        controller.close();
      } else if (piece.length === 0) {
        await pull(controller);
      }
    };

    return new ReadableStream({ pull }, { highWaterMark: 0 });
  }
}

/** Make the request of a scope. Throws CallFailed for a path that a URL cannot have. */
export function toRequest(scope: Scope, body: Body, signal: AbortSignal): Request {
  const method = scope.method ?? "GET";
  const headers = new Headers(scope.headers.map(([name, value]) => [latin(name), latin(value)] as [string, string]));
  const content = BODILESS.has(method) ? {} : { body: body.stream(), duplex: "half" };
  return new Request(toAddress(scope), { method, headers, signal, ...content } as RequestInit);
}

/** Return the address that a scope is for. Throws CallFailed for a path that a URL cannot have. */
export function toAddress(scope: Scope): URL {
  const host = latin(scope.headers.find(([name]) => latin(name) === "host")?.[1] ?? new Uint8Array());
  // A host with other characters could move the beginning of the path.
  const scheme = scope.scheme === "https" || scope.scheme === "wss" ? "https" : "http";

  const origin = `${scheme}://${HOST.test(host) ? host : "localhost"}`;
  try {
    const path = encodeURI(scope.path).replace(/[?#]/g, encodeURIComponent);
    const query = latin(scope.query_string ?? new Uint8Array());
    const address = new URL(`${origin}${path}${query ? `?${query}` : ""}`);

    // Handlers that decide by the path must see the one that the server serves: a URL resolves `..`.
    if (address.pathname === path) {
      return address;
    }
  } catch {
    // Answered below.
  }

  throw new CallFailed("bad_request", "The path of the request is not valid.", { status: 400 });
}

/** Make the response of messages; `body` has the pieces that are still to come. */
function toResponse(start: Message, body: ReadableStream<Uint8Array> | Uint8Array): Response {
  const headers = (start.headers ?? []).map(([name, value]) => [latin(name), latin(value)] as [string, string]);
  const status = start.status ?? 500;
  const content = WITHOUT_BODY.has(status) ? null : body instanceof Uint8Array ? new Uint8Array(body) : body;
  return new Response(content, { status, headers });
}

/** Make the response of all of its messages. */
export function responseOfAll(messages: Message[]): Response {
  const [start, ...rest] = messages;
  return toResponse(start as Message, Buffer.concat(rest.map(({ body }) => body ?? new Uint8Array())));
}

/** Sends messages to the client of an exchange of the server. */
export class Outbox {
  private unreadBytes = 0;

  constructor(
    private readonly link: Link,
    private readonly number: number,
    private readonly put: (messages: Message[]) => void,
  ) {}

  /** Send a message. */
  async send(message: Message): Promise<void> {
    this.put([message]);
    const size = [message.body, message.bytes, message.text].find((each) => each != null) as
      | { length: number }
      | undefined;

    this.unreadBytes += size?.length ?? 0;

    if (this.unreadBytes > UNREAD_BYTES) {
      await this.link.call("asgi.drain", this.number);
      this.unreadBytes = 0;
    }
  }

  /** Send a response as its body comes, until `signal` aborts. Throws what the body fails with. */
  async respond(response: Response, signal: AbortSignal): Promise<void> {
    const headers = [...response.headers].map(([name, value]) => [bytes(name), bytes(value)] as Pair);
    await this.send({ type: "http.response.start", status: response.status, headers });
    const reader = response.body?.getReader();
    const stop = () => void reader?.cancel().catch(() => {});

    signal.addEventListener("abort", stop, { once: true });

    if (signal.aborted) {
      // The client left while the project made the response.
      stop();
    }

    try {
      for (;;) {
        const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
        if (done) {
          break;
        }

        for (let at = 0; at < value.length; at += PIECE_BYTES) {
          const body = value.subarray(at, at + PIECE_BYTES);
          await this.send({ type: "http.response.body", body, more_body: true });
        }
      }
    } finally {
      signal.removeEventListener("abort", stop);
    }

    await this.send({ type: "http.response.body", body: new Uint8Array(), more_body: false });
  }
}

interface OpenExchange {
  receive: Receive;
  drain(): Promise<void>;
}

/** The exchanges whose clients are on this side: requests that the application passes on to the server. */
export class Exchanges {
  private readonly open = new Map<number, OpenExchange>();
  private last = 0;

  /** Let the server ask for messages; call the second value at the end. */
  opened(receive: Receive, drain: () => Promise<void> = async () => {}): [number: number, close: () => void] {
    const number = ++this.last;
    this.open.set(number, { receive, drain });
    return [number, () => void this.open.delete(number)];
  }

  /** Return an exchange. Throws CallFailed after its end. */
  find(number: unknown): OpenExchange {
    const exchange = this.open.get(number as number);
    if (exchange === undefined) {
      throw new CallFailed("closed", "the exchange is over");
    }

    return exchange;
  }
}

/** The server's response to a request that the application passed on to it, as its messages come. */
export class ServerResponse {
  private controller: ReadableStreamDefaultController<Uint8Array> | null = null;
  private readonly waiting: (() => void)[] = [];
  private isOver = false;
  private readonly body: ReadableStream<Uint8Array>;

  /** `stop` is called when nobody reads the response any more. */
  constructor(
    private readonly resolve: (response: Response) => void,
    stop: () => void,
  ) {
    this.body = new ReadableStream(
      {
        start: (controller) => {
          this.controller = controller;
        },
        // It is called when all pieces have been read.
        pull: () => this.wake(),
        cancel: () => {
          this.isOver = true;
          this.wake();
          stop();
        },
      },
      { highWaterMark: 1 },
    );
  }

  /** Take a message. */
  take(message: Message): void {
    if (message.type === "http.response.start") {
      this.resolve(toResponse(message, this.body));
    } else if (message.type === "http.response.body" && !this.isOver) {
      if (message.body?.length) {
        this.controller?.enqueue(new Uint8Array(message.body));
      }

      if (!message.more_body) {
        this.end();
      }
    }
  }

  /** Wait until all that came was read. */
  async drained(): Promise<void> {
    if (!this.isOver && (this.controller?.desiredSize ?? 1) <= 0) {
      await new Promise<void>((resolve) => this.waiting.push(resolve));
    }
  }

  /** End the body, with an error if there is one. */
  end(error?: unknown): void {
    if (!this.isOver) {
      this.isOver = true;
      this.wake();

      if (error === undefined) {
        this.controller?.close();
      } else {
        this.controller?.error(error);
      }
    }
  }

  private wake(): void {
    for (const resolve of this.waiting.splice(0)) {
      resolve();
    }
  }
}

/** The bytes of text in the encoding of headers. */
export function bytes(text: string): Buffer {
  return Buffer.from(text, "latin1");
}

/** The text of bytes in the encoding of headers. */
export function latin(data: Uint8Array): string {
  return Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("latin1");
}

/** A scope with the headers of a request that the project's middleware may have changed. */
export function withHeaders(scope: Scope, headers: Headers): Fields {
  return { ...scope, headers: [...headers].map(([name, value]) => [bytes(name), bytes(value)]) };
}
