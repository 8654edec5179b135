// `new Client()` of LangGraph's SDK without an address, in a graph: requests to the graph's own server, over the link.

import type { Server } from "./server.js";

const FETCH = Symbol.for("langgraph_api:fetch");
const URL_OF_API = Symbol.for("langgraph_api:url");
const ADDRESS = "http://portside.invalid";
const WITHOUT_BODY = new Set([101, 204, 205, 304]);
// A graph that reads its response more slowly than the server sends it must not fill the executor's memory.
const MAX_UNREAD_BYTES = 64 * 1024 * 1024;

/** Let the SDK's clients without an address call this server. */
export function installLoopback(server: Server): void {
  const place = globalThis as unknown as Record<symbol, unknown>;
  place[FETCH] = (input: string | URL | Request, init?: RequestInit) => request(server, new Request(input, init));
  place[URL_OF_API] = ADDRESS;
}

/** Send a request to the server. Throws the reason of the request's signal, and what the server's call fails with. */
async function request(server: Server, given: Request): Promise<Response> {
  const url = new URL(given.url);
  const body = {
    method: given.method,
    path: decodeURIComponent(url.pathname),
    raw_path: Buffer.from(url.pathname),
    query: Buffer.from(url.search.slice(1)),
    headers: [["host", url.host] as [string, string], ...given.headers].map(([name, value]) => [
      Buffer.from(name, "latin1"),
      Buffer.from(value, "latin1"),
    ]),
    body: Buffer.from(await given.arrayBuffer()),
  };

  given.signal.throwIfAborted();

  return new Promise((resolve, reject) => {
    // Null when the body has ended: a cancelled stream throws if anything is added to it.
    let pieces: ReadableStreamDefaultController<Uint8Array> | null = null;
    const stop = new AbortController();
    const stream = new ReadableStream<Uint8Array>(
      {
        start(controller) {
          pieces = controller;
        },
        cancel() {
          pieces = null;
          stop.abort();
        },
      },
      new ByteLengthQueuingStrategy({ highWaterMark: MAX_UNREAD_BYTES }),
    );

    const fail = (error: unknown) => {
      reject(error);
      pieces?.error(error);
      pieces = null;
    };

    let hasHead = false;

    const onItem = (item: unknown) => {
      if (hasHead) {
        if (pieces?.desiredSize != null && pieces.desiredSize <= 0) {
          stop.abort();
          fail(new Error(`more than ${MAX_UNREAD_BYTES} bytes of the response to ${url.pathname} were not read`));
          return;
        }

        pieces?.enqueue(new Uint8Array(item as Buffer));
        return;
      }

      hasHead = true;
      const [status, headers] = item as [number, [Buffer, Buffer][]];
      const pairs = headers.map(
        ([name, value]) => [name.toString("latin1"), value.toString("latin1")] as [string, string],
      );

      resolve(new Response(WITHOUT_BODY.has(status) ? null : stream, { status, headers: pairs }));
    };

    const abort = () => {
      stop.abort();
      fail(given.signal.reason);
    };

    given.signal.addEventListener("abort", abort, { once: true });
    server.call("http.request", body, { onItem, signal: stop.signal }).then(() => {
      pieces?.close();
      pieces = null;
    }, fail);
  });
}
