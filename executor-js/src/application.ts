// The project's web application (`http.app`), which is a Hono application, with the server's routes in it.
//
// The project's routes come first, so it can override the server's, and its middleware sees every request. Routes that
// match every path, such as the pages of a front end, come after the server's. Hono's router is asked for the handlers
// of each request: what it finds gets the server's routes added, and authentication before all else.

import {
  Body,
  type Exchanges,
  type Message,
  Outbox,
  responseOfAll,
  type Scope,
  ServerResponse,
  toAddress,
  toRequest,
  withHeaders,
} from "./asgi.js";
import { CallFailed, type Link, type ServedCall } from "./link.js";
import { log, toStack } from "./logs.js";
import { unpackValue } from "./msgpack.js";
import { ProjectFailed } from "./project.js";
import { currentWork, type Fields, handlerWork } from "./server.js";
import { newToken, refusal, SOCKET_HEADER, Sockets } from "./sockets.js";

const EXCHANGE = Symbol("exchange");
const EVERY_METHOD = "ALL";
const EVERYTHING = new Set(["*", "/*"]);
const WATCH_AFTER_MS = 100;
const UNROUTED = "unrouted";
const TITLE = { openapi: "3.1.0", info: { title: "Project", version: "1" } };

/** The parts of Hono's context that are used here. */
interface Context {
  env: { [EXCHANGE]?: Exchange };
  req: { raw: Request; bodyCache?: { json?: unknown }; arrayBuffer(): Promise<ArrayBuffer> };
  set(name: string, value: unknown): void;
}

type Next = () => Promise<void>;
type HonoHandler = (context: Context, next: Next) => unknown;

interface Route {
  basePath: string;
  path: string;
  method: string;
  handler: HonoHandler;
}

type Match = [[handler: HonoHandler, route: Route], parameters: unknown];
type Matches = [Match[], ...unknown[]];

interface Hono {
  fetch(request: Request, env: unknown): Response | Promise<Response>;
  routes: Route[];
  router: { name: string; add(...given: unknown[]): void; match(method: string, path: string): Matches };
  getOpenAPI31Document?(about: unknown): unknown;
}

/** The server's route for a request, if it has one. */
interface ServerRoute {
  isPublic: boolean;
}

/** A request of a client while it is answered. */
interface Exchange {
  number: number;
  scope: Scope;
  serverRoute: ServerRoute | null;
  body: Body;
  request: Request;
  /** Why the server could not be asked. */
  failure: CallFailed | null;
  /** The path of the route, for metrics. */
  route: string;
}

/** How the server's routes are joined, and whether requests to the project's are authenticated. */
interface Start {
  is_auth_first: boolean;
  authenticates_project: boolean;
}

/** Serves the project's application to the server. Throws ProjectFailed for an export that is not an application. */
export class Application {
  private readonly app: Hono;
  private readonly sockets: Promise<Sockets | null>;
  /** The callers of WebSockets that are being connected, as the server authenticated them, by token. */
  private readonly connecting = new Map<string, Caller | null>();
  private rules: Start = { is_auth_first: true, authenticates_project: true };

  constructor(
    exported: unknown,
    source: string,
    upgrade: { file: string; inject: unknown },
    private readonly link: Link,
    private readonly exchanges: Exchanges,
  ) {
    const app = exported as Hono | null;
    if (typeof app?.fetch !== "function" || !Array.isArray(app.routes) || typeof app.router?.match !== "function") {
      throw new ProjectFailed(`http.app (${source}) is of type ${typeof exported}; export a Hono app, like new Hono()`);
    }

    this.app = app;
    this.sockets = Sockets.open(upgrade.file, upgrade.inject, (request, env) => app.fetch(request, env)).catch(
      (error) => {
        throw new CallFailed("user_mistake", `http.app (${source}) cannot serve WebSockets: ${toStack(error)}`);
      },
    );

    const router = app.router;
    app.router = {
      name: router.name,
      add: (...given) => router.add(...given),
      match: (method, path) => this.joined(router.match(method, path), path),
    };
  }

  /** Take the server's rules, and return the facts about the routes that the server needs. */
  async start(rules: Fields): Promise<Fields> {
    await this.sockets;
    this.rules = rules as unknown as Start;
    const { routes } = this.app;
    const last = routes.findIndex(takesEverything);
    const knownRoutes: unknown[] = routes.map((route) => [toPattern(route.path), getMethods(route), false]);

    knownRoutes.splice(last < 0 ? knownRoutes.length : last, 0, ["", null, true]);
    const has_document = typeof this.app.getOpenAPI31Document === "function";
    return { routes: knownRoutes, has_middleware: false, sees_our_sockets: false, has_document };
  }

  /** Return the application's OpenAPI document as JSON. */
  document(): Buffer {
    return Buffer.from(JSON.stringify(this.app.getOpenAPI31Document?.(TITLE)));
  }

  /** Serve one request; return the path of its route, for metrics. */
  async request(given: Fields, call: ServedCall): Promise<string> {
    const {
      exchange: number,
      scope,
      server_route: found,
    } = given as {
      exchange: number;
      scope: Scope;
      server_route: unknown[] | null;
    };

    const outbox = new Outbox(this.link, number, (messages) => call.send(messages));
    if (scope.type === "websocket") {
      await this.connect(number, scope, outbox);
      return UNROUTED;
    }

    const [stop, over] = [new AbortController(), new AbortController()];
    const signal = AbortSignal.any([call.signal, stop.signal]);
    const body = new Body(() => this.link.call("asgi.receive", number, { signal: over.signal }) as Promise<Message>);

    const exchange: Exchange = {
      number,
      scope,
      serverRoute: found === null ? null : { isPublic: Boolean(found[2]) },
      body,
      request: toRequest(scope, body, signal),
      failure: null,
      route: UNROUTED,
    };

    const response = await this.answer(exchange);
    const failure = exchange.failure ?? body.failure;
    if (failure !== null && response.status >= 500) {
      throw failure;
    }

    // A short response ends before its client is watched.
    const watch = setTimeout(
      () =>
        body.ended(scope.method ?? "GET").then(
          () => stop.abort(),
          () => {},
        ),
      WATCH_AFTER_MS,
    );

    try {
      await outbox.respond(response, signal);
    } finally {
      clearTimeout(watch);
      over.abort();
    }

    return exchange.route;
  }

  /** Connect a WebSocket with the project's route, after the server has authenticated it if that is configured. */
  private async connect(number: number, scope: Scope, outbox: Outbox): Promise<void> {
    const receive = () => this.link.call("asgi.receive", number) as Promise<Message>;
    const sockets = await this.sockets;

    const authentication = this.rules.authenticates_project ? await this.authenticated(number, scope, receive) : null;
    if (!authentication?.refusal.length) {
      // The message that opens the connection.
      await receive();
    }

    const messages = authentication?.refusal.length
      ? authentication.refusal
      : sockets === null
        ? refusal(scope, 404)
        : [];
    if (sockets === null || messages.length > 0) {
      for (const message of messages) {
        await outbox.send(message);
      }

      return;
    }

    const token = newToken();
    this.connecting.set(token, authentication);

    try {
      await sockets.serve(scope, toAddress(scope), token, receive, outbox);
    } finally {
      this.connecting.delete(token);
    }
  }

  private async authenticated(
    original: number,
    scope: Scope,
    receive: () => Promise<Message>,
  ): Promise<Authentication> {
    const [exchange, close] = this.exchanges.opened(receive);
    try {
      return (await this.link.call("app.authenticate", { original, exchange, scope })) as Authentication;
    } finally {
      close();
    }
  }

  private async answer(exchange: Exchange): Promise<Response> {
    const [address, port] = exchange.scope.client ?? [];
    const env = {
      // Where Hono's adapter for Node puts the connection.
      incoming: { socket: { remoteAddress: address, remotePort: port } },
      [EXCHANGE]: exchange,
    };

    try {
      return await new Promise<Response>((resolve, reject) => {
        currentWork.run(handlerWork(reject), async () => this.app.fetch(exchange.request, env)).then(resolve, reject);
      });
    } catch (error) {
      log("error", "a route of the project failed", { path: exchange.scope.path }, error);
      return Response.json({ detail: "Internal Server Error" }, { status: 500 });
    }
  }

  /** Add authentication and the server's routes to the handlers of a request. */
  private joined([matched, ...rest]: Matches, path: string): Matches {
    const last = matched.findIndex(([[, route]]) => takesEverything(route));
    const at = last < 0 ? matched.length : last;
    const first = matched.slice(0, at).find(([[, route]]) => !isMiddleware(route))?.[0][1];

    // The front end's page, not the server's health check, answers `/`.
    const leavesRoot = last >= 0 && path === "/";
    const name = (first ?? matched[at]?.[0][1])?.path ?? UNROUTED;
    const before = getMatch(async (context, next) => {
      const exchange = context.env?.[EXCHANGE];
      const caller = this.connecting.get(context.req.raw.headers.get(SOCKET_HEADER) ?? "");
      if (caller) {
        setUser(context, caller);
      }

      if (exchange !== undefined) {
        exchange.route = name;
        const isServerRoute = exchange.serverRoute !== null && first === undefined && !leavesRoot;
        const isNeeded = isServerRoute
          ? this.rules.is_auth_first && !exchange.serverRoute?.isPublic
          : this.rules.authenticates_project;

        const refusal = isNeeded ? await this.authenticate(exchange, context) : null;
        if (refusal !== null) {
          return refusal;
        }
      }

      await next();
      return undefined;
    });

    const server = getMatch(async (context, next) => {
      const exchange = context.env?.[EXCHANGE];
      // Without a page for every path, the server also answers what nobody has a route for.
      if (exchange && (exchange.serverRoute !== null || last < 0) && isSame(context.req.raw, exchange.request)) {
        return this.askServer(exchange, context);
      }

      await next();
      return undefined;
    });

    const own = leavesRoot ? [] : [server];
    return [[before, ...matched.slice(0, at), ...own, ...matched.slice(at)], ...rest];
  }

  /** Have the server authenticate a request; return its refusal, or null. */
  private async authenticate(exchange: Exchange, context: Context): Promise<Response | null> {
    try {
      const authentication = await this.authenticated(exchange.number, exchange.scope, () => exchange.body.record());
      if (authentication.refusal.length > 0) {
        return responseOfAll(authentication.refusal);
      }

      setUser(context, authentication);
      return null;
    } catch (error) {
      exchange.failure = error instanceof CallFailed ? error : null;
      throw error;
    }
  }

  /** Have the server answer a request by its own route, as the project's middleware changed it. */
  private askServer(exchange: Exchange, context: Context): Promise<Response> {
    return new Promise((resolve, reject) => {
      const stop = new AbortController();
      const response = new ServerResponse(resolve, () => stop.abort());
      const [number, close] = this.exchanges.opened(getReader(exchange, context), () => response.drained());
      const scope = withHeaders(exchange.scope, getHeaders(exchange, context));

      const onItem = (messages: unknown) => {
        for (const message of messages as Message[]) {
          if (message.type === "app.user") {
            setUser(context, message as unknown as Caller);
          } else {
            response.take(message);
          }
        }
      };

      this.link
        .call(
          "app.server_route",
          { original: exchange.number, exchange: number, scope },
          { onItem, signal: AbortSignal.any([exchange.request.signal, stop.signal]) },
        )
        .then(
          () => response.end(),
          (error) => {
            exchange.failure = error instanceof CallFailed ? error : null;
            response.end(error);
            reject(error);
          },
        )
        .finally(close);
    });
  }
}

/** The caller that the server authenticated. */
interface Caller {
  user: { fields: Uint8Array } | null;
  permissions: string[];
}

/** The caller that the server authenticated, or the messages of its refusal. */
interface Authentication extends Caller {
  refusal: Message[];
}

/** Let handlers read the user as `c.get("auth")`. Nobody is a user without an identity. */
function setUser(context: Context, { user, permissions }: Caller): void {
  const nobody = { identity: "", display_name: "", permissions: [], is_authenticated: false };
  context.set("auth", { user: user === null ? nobody : unpackValue(user.fields), scopes: permissions });
}

/** Return a function that reads a request's body for the server, also if middleware has read it. */
function getReader(exchange: Exchange, context: Context): () => Promise<Message> {
  let isRead = false;

  return async () => {
    if (isRead || !hasOwnBody(exchange, context)) {
      return exchange.body.next();
    }

    isRead = true;
    return { type: "http.request", body: await readBody(exchange, context), more_body: false };
  };
}

/** Return the body that middleware has left, where it is not the one that still comes from the client. */
async function readBody(exchange: Exchange, context: Context): Promise<Uint8Array> {
  const { raw, bodyCache } = context.req;
  // Hono remembers the body that it has read, also after middleware has put another request into its place.
  if (raw !== exchange.request && !raw.bodyUsed) {
    return new Uint8Array(await raw.arrayBuffer());
  }
  if (bodyCache?.json !== undefined) {
    return Buffer.from(JSON.stringify(await bodyCache.json));
  }

  return new Uint8Array(await context.req.arrayBuffer());
}

/** Whether the body that the server gets is not the one that still comes from the client. */
function hasOwnBody(exchange: Exchange, context: Context): boolean {
  const { raw, bodyCache } = context.req;
  return raw !== exchange.request || raw.bodyUsed || Object.keys(bodyCache ?? {}).length > 0;
}

/** Return the headers of a request as middleware has left them; the length of another body is not known yet. */
function getHeaders(exchange: Exchange, context: Context): Headers {
  const headers = new Headers(context.req.raw.headers);
  if (hasOwnBody(exchange, context)) {
    headers.delete("content-length");
  }

  return headers;
}

/** Return a handler as the router would, had the project registered it for every path. */
function getMatch(handler: HonoHandler): Match {
  return [[handler, { basePath: "/", path: "*", method: EVERY_METHOD, handler }], {}];
}

/** Whether a request is for the same route as another one, which middleware may have replaced. */
function isSame(request: Request, original: Request): boolean {
  return request.url === original.url && request.method === original.method;
}

/** Whether a route is middleware, as far as Hono shows: it takes every method, and a `next`. */
function isMiddleware({ method, handler }: Route): boolean {
  return method === EVERY_METHOD && handler.length > 1;
}

function takesEverything({ path, handler }: Route): boolean {
  return EVERYTHING.has(path) && handler.length < 2;
}

/** The methods of a route; null are all of them, and middleware has none. */
function getMethods(route: Route): string[] | null {
  if (route.method !== EVERY_METHOD) {
    return [route.method];
  }

  return isMiddleware(route) ? [] : null;
}

/** Return a regular expression of Python for the paths of a route; it may match more. */
function toPattern(path: string): string {
  let pattern = "";
  for (const segment of path.split("/").filter((each) => each !== "")) {
    if (/[{?]/.test(segment) || segment === "*") {
      return `^${pattern}(?:/.*)?$`;
    }

    pattern += `/${segment.startsWith(":") ? "[^/]+" : segment.replace(/[^\w]/g, "\\$&")}`;
  }

  return `^${pattern}/?$`;
}
