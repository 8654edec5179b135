// WebSockets of the project's Hono application, which `@hono/node-ws` or `@hono/node-server` upgrades.
//
// Both need an HTTP server of Node. It listens on a socket in a private folder, and this program is its only client.

import { randomUUID } from "node:crypto";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type IncomingMessage, type Server } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bytes, latin, type Message, type Outbox, type Scope } from "./asgi.js";
import { importPackage } from "./libraries.js";
import { log } from "./logs.js";
import type { Fields } from "./server.js";

/** The header by which a request of this program is known. */
export const SOCKET_HEADER = "x-portside-socket";
const HANDSHAKE = /^(?:connection|upgrade|content-length|transfer-encoding|x-portside-.*|sec-websocket-.*)$/i;
const [NORMAL, NO_STATUS, ABNORMAL, FAILED] = [1000, 1005, 1006, 1011];

type Fetch = (request: Request, env: unknown) => Response | Promise<Response>;

/** The parts of a WebSocket of `ws` that are used here. */
interface Socket {
  protocol: string;
  on(event: string, listener: (...given: never[]) => void): void;
  send(data: string | Uint8Array): void;
  close(code?: number, reason?: string): void;
  terminate(): void;
  pause(): void;
  resume(): void;
}

type MakeSocket = new (address: string, protocols: string[], options: unknown) => Socket;

/** Connects the clients of WebSockets with the application. */
export class Sockets {
  private constructor(
    private readonly path: string,
    private readonly Socket: MakeSocket,
  ) {}

  /** Start the server; null if the project has no package that upgrades, or does not export how. */
  static async open(file: string, inject: unknown, fetch: Fetch): Promise<Sockets | null> {
    const ws = await importPackage("ws", file, typeof inject === "function" ? "@hono/node-ws" : undefined);
    const server = ws === null ? null : await upgradingServer(ws, file, inject, fetch);
    if (ws === null || server === null) {
      return null;
    }

    const folder = mkdtempSync(join(tmpdir(), "portside-"));
    const path = join(folder, "sockets");
    await new Promise<void>((resolve, reject) => {
      server.once("error", reject);
      server.listen(path, resolve);
    });

    server.unref();
    process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
    return new Sockets(path, (ws.WebSocket ?? ws.default) as MakeSocket);
  }

  /** Connect a client, whose messages `receive` returns, until one of both ends. `token` is in SOCKET_HEADER. */
  async serve(
    scope: Scope,
    address: URL,
    token: string,
    receive: () => Promise<Message>,
    outbox: Outbox,
  ): Promise<void> {
    const headers = Object.fromEntries(
      scope.headers.map(([name, value]) => [latin(name), latin(value)]).filter(([name]) => !HANDSHAKE.test(name ?? "")),
    );
    const protocols = (scope.subprotocols ?? []) as string[];

    // A colon ends the socket's path in this address, and older versions of `ws` end the request's path at one, too.
    const path = `${address.pathname}${address.search}`.replaceAll(":", "%3A");
    const target = `ws+unix:${this.path}:${path}`;
    const socket = new this.Socket(target, protocols, { headers: { ...headers, [SOCKET_HEADER]: token } });

    await new Promise<void>((resolve) => {
      let [isOpen, isOver] = [false, false];

      const end = (...messages: Message[]) => {
        if (!isOver) {
          isOver = true;
          void sendAll(outbox, messages).finally(resolve);
        }
      };

      socket.on("open", () => {
        isOpen = true;
        void outbox.send({ type: "websocket.accept", subprotocol: socket.protocol || null });
        void pump(receive, socket);
      });

      socket.on("message", (data: Buffer, isBinary: boolean) => {
        const message = isBinary ? { bytes: data } : { text: data.toString("utf8") };
        socket.pause();
        outbox.send({ type: "websocket.send", ...message }).then(
          () => socket.resume(),
          () => socket.terminate(),
        );
      });

      socket.on("unexpected-response", (_request: unknown, response: IncomingMessage) => {
        response.resume();
        end(...refusal(scope, response.statusCode ?? 500));
        socket.terminate();
      });

      socket.on("error", (error: Error) => {
        if (!isOver) {
          log("error", "a WebSocket of the project failed", { path: scope.path }, error);
        }
      });

      socket.on("close", (code: number, reason: Buffer) => {
        if (isOpen) {
          const sentCode = code === NO_STATUS ? NORMAL : code === ABNORMAL ? FAILED : code;
          end({ type: "websocket.close", code: sentCode, reason: reason.toString("utf8") });
        } else {
          end(...refusal(scope, 500));
        }
      });
    });
  }
}

/** Return a server of Node that upgrades by the project's own package; null without such a package. */
async function upgradingServer(ws: Fields, file: string, inject: unknown, fetch: Fetch): Promise<Server | null> {
  if (typeof inject === "function") {
    const server = createServer();
    inject(server);
    return server;
  }

  const adapter = await importPackage("@hono/node-server", file);
  if (adapter === null || typeof adapter.upgradeWebSocket !== "function") {
    return null;
  }

  const make = adapter.createAdaptorServer as (options: unknown) => Server;
  const { WebSocketServer } = (ws.WebSocketServer ? ws : ws.default) as {
    WebSocketServer: new (given: object) => unknown;
  };

  return make({ fetch, websocket: { server: new WebSocketServer({ noServer: true }) } });
}

/** Return what refuses a handshake. */
export function refusal(scope: Scope, status: number): Message[] {
  if ("websocket.http.response" in ((scope.extensions ?? {}) as object)) {
    const headers: Message["headers"] = [[bytes("content-type"), bytes("text/plain")]];
    return [
      { type: "websocket.http.response.start", status, headers },
      { type: "websocket.http.response.body", body: new Uint8Array() },
    ];
  }

  return [{ type: "websocket.close", code: NORMAL }];
}

/** Make a token that no client can guess. */
export const newToken = randomUUID;

async function sendAll(outbox: Outbox, messages: Message[]): Promise<void> {
  for (const message of messages) {
    await outbox.send(message);
  }
}

/** Pass the messages of the client on, until it ends. */
async function pump(receive: () => Promise<Message>, socket: Socket): Promise<void> {
  try {
    for (;;) {
      const message = await receive();
      if (message.type === "websocket.disconnect") {
        const code = Number(message.code);
        return code >= NORMAL && code !== NO_STATUS && code !== ABNORMAL
          ? socket.close(code, String(message.reason ?? ""))
          : socket.terminate();
      }

      socket.send((message.text ?? message.bytes ?? "") as string | Uint8Array);
    }
  } catch {
    // The link has ended, or the exchange.
    socket.terminate();
  }
}
