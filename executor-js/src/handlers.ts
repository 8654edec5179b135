// The project's handlers in a process of their own: authentication and authorization (`auth.path`), the web
// application (`http.app`), and the embedding of the store (`store.index.embed`). The other end is
// `portside/agent/executors/handlers_executor.py`.
//
// A handler denies access if it throws, takes too long or returns something that it may not. The server reads filters.

import { STATUS_CODES } from "node:http";
import { resolve } from "node:path";
import { Application } from "./application.js";
import { Body, Exchanges, type Scope, toRequest } from "./asgi.js";
import { CallFailed, type Handler, type Link } from "./link.js";
import { log } from "./logs.js";
import { packValue, unpackValue } from "./msgpack.js";
import { importExport, ProjectFailed } from "./project.js";
import { currentWork, type Fields, handlerWork } from "./server.js";

const HANDLER_TIMEOUT_S = 30;
const EMBEDDING_TIMEOUT_S = 60;
const RESOURCES = new Set(["assistants", "crons", "store", "threads"]);

const ACTIONS = new Set([
  "create",
  "create_run",
  "delete",
  "get",
  "list_namespaces",
  "put",
  "read",
  "search",
  "update",
]);

const ANY = "*";
/** Every handler: what a configuration names, by kind. */
export type Sources = Partial<Record<"auth" | "app" | "embed", string>>;

/** Import what the configuration names, serve it, and return the facts that the server needs. Throws ProjectFailed. */
export async function loadHandlers(
  folder: string,
  sources: Sources,
  link: Link,
  serve: Map<string, Handler>,
): Promise<Fields> {
  const facts: Fields = {};
  if (sources.auth !== undefined) {
    const label = `auth (${sources.auth})`;
    const auth = new AuthHandlers(await importHandler(folder, "auth", sources.auth), label, link);
    facts.auth = auth.facts;
    serve.set("auth.authenticate", (body, call) => auth.authenticate(body as AuthenticateCall, call.signal));
    serve.set("auth.authorize", (body) => auth.authorize(body as AuthorizeCall));
  }

  if (sources.app !== undefined) {
    const exchanges = new Exchanges();
    const exported = await importHandler(folder, "http.app", sources.app);
    const upgrade = await findUpgrade(folder, sources.app);
    const app = new Application(exported, sources.app, upgrade, link, exchanges);

    facts.app = {};
    serve.set("app.start", async (body) => app.start(body as Fields));
    serve.set("app.stop", async () => null);
    serve.set("app.document", async () => app.document());
    serve.set("app.request", (body, call) => app.request(body as Fields, call));
    serve.set("asgi.receive", (number) => exchanges.find(number).receive());
    serve.set("asgi.drain", (number) => exchanges.find(number).drain());
  }

  if (sources.embed !== undefined) {
    const embed = toEmbedding(await importHandler(folder, "store.index.embed", sources.embed), sources.embed);
    facts.embed = {};
    serve.set("embed", (body) => embed(body as EmbedCall));
  }

  return facts;
}

function importHandler(folder: string, label: string, path: string): Promise<unknown> {
  return importExport(folder, label, { path, description: null });
}

/** Return what a module has for WebSockets: `injectWebSocket` of `@hono/node-ws`, if it exports that. */
async function findUpgrade(folder: string, path: string): Promise<{ file: string; inject: unknown }> {
  const file = path.slice(0, path.lastIndexOf(":"));
  const inject = await importHandler(folder, "http.app", `${file}:injectWebSocket`).catch(() => undefined);
  return { file: resolve(folder, file), inject };
}

interface AuthenticateCall {
  scope: Scope;
  exchange: number;
}

interface AuthorizeCall {
  user: SentUser | null;
  permissions: string[];
  resource: string;
  action: string;
  value: Uint8Array;
}

interface SentUser {
  fields: Uint8Array;
}

interface Callbacks {
  authenticate?: (request: Request) => unknown;
  callbacks?: Record<string, (question: Fields) => unknown>;
}

/** The handlers of an `Auth` object of `@langchain/langgraph-sdk/auth`. */
class AuthHandlers {
  private readonly callbacks: Callbacks;

  /** Throws ProjectFailed for another object, and for one that would let nobody in. */
  constructor(
    auth: unknown,
    label: string,
    private readonly link: Link,
  ) {
    const callbacks = (auth as { "~handlerCache"?: Callbacks } | null)?.["~handlerCache"];
    if (callbacks === undefined) {
      throw new ProjectFailed(
        `${label} is of type ${typeof auth}; export an Auth of @langchain/langgraph-sdk/auth, like new Auth()`,
      );
    }

    if (typeof callbacks.authenticate !== "function") {
      throw new ProjectFailed(`${label} has no authenticate handler, so every request would be refused`);
    }

    const unknown = Object.keys(callbacks.callbacks ?? {}).filter((event) => parseEvent(event) === null);
    if (unknown.length > 0) {
      throw new ProjectFailed(`${label} has handlers for events that do not exist: ${unknown.join(", ")}`);
    }

    this.callbacks = callbacks;
  }

  /** The facts that the server needs: what the handler reads, and which actions have a handler. */
  get facts(): Fields {
    const decides = Object.keys(this.callbacks.callbacks ?? {}).map(parseEvent);
    return { parameters: ["request"], decides, reads_results: false };
  }

  /** Return the user that the handler finds. Throws CallFailed. */
  async authenticate(given: AuthenticateCall, signal: AbortSignal): Promise<Fields> {
    const body = new Body(() => this.link.call("asgi.receive", given.exchange) as never);
    const request = toRequest(given.scope, body, signal);
    try {
      const user = toUser(await callWithin(() => this.callbacks.authenticate?.(request)));
      const { identity, display_name, permissions } = user;
      return { identity, display_name, permissions, user: { fields: packValue(user) } };
    } catch (error) {
      throw toFailure(error, new CallFailed("unauthorized", "Unauthorized", { status: 401 }), "authentication failed");
    }
  }

  /** Return what the handler changed and removed, and its result for the server to read. Throws CallFailed. */
  async authorize(given: AuthorizeCall): Promise<unknown> {
    const { resource, action, permissions } = given;
    const callbacks = this.callbacks.callbacks ?? {};
    const event = `${resource}:${action}`;

    const name = [event, resource, `${ANY}:${action}`, ANY].find((each) => Object.hasOwn(callbacks, each));
    if (name === undefined) {
      return [null, [], null];
    }

    const value = unpackValue(given.value) as Fields;
    const before = toTexts(value);
    const user = given.user === null ? null : unpackValue(given.user.fields);
    try {
      const question = { event, resource, action, value, user, permissions };
      const result = checkResult(await callWithin(() => callbacks[name]?.(question)));
      const after = toTexts(value);
      const changes = [...after.keys()].filter((key) => after.get(key) !== before.get(key));
      const fields = Object.fromEntries(changes.map((key) => [key, JSON.parse(after.get(key) as string)]));

      return [
        changes.length > 0 ? packValue(fields) : null,
        [...before.keys()].filter((key) => !after.has(key)),
        result,
      ];
    } catch (error) {
      const forbidden = new CallFailed("forbidden", "Forbidden", { status: 403 });
      throw toFailure(error, forbidden, "an authorization handler failed", { resource, action });
    }
  }
}

/** The resource and the action of an event of `on`; null for one that never comes. */
function parseEvent(event: string): [resource: string, action: string] | null {
  const [resource = "", action = ANY, ...rest] = event.split(":");
  const isKnown = (resource === ANY || RESOURCES.has(resource)) && rest.length === 0;
  return isKnown && (event === resource || ACTIONS.has(action)) ? [resource, action] : null;
}

interface EmbedCall {
  texts: string[];
  is_query: boolean;
}

/** Return a function that embeds texts: the project's, or one for embeddings of LangChain. Throws ProjectFailed. */
function toEmbedding(exported: unknown, source: string): (call: EmbedCall) => Promise<unknown> {
  const embeddings = exported as { embedDocuments?(texts: string[]): unknown; embedQuery?(text: string): unknown };
  const isLangChain = typeof embeddings?.embedDocuments === "function" && typeof embeddings.embedQuery === "function";
  if (!isLangChain && typeof exported !== "function") {
    throw new ProjectFailed(
      `store.index.embed (${source}) is of type ${typeof exported}; export a function that takes a list of texts and ` +
        "returns a list of vectors",
    );
  }

  const embed = async ({ texts, is_query }: EmbedCall) => {
    if (!isLangChain) {
      return (exported as (texts: string[]) => unknown)(texts);
    }

    return is_query ? [await embeddings.embedQuery?.(texts[0] as string)] : embeddings.embedDocuments?.(texts);
  };

  return async (call) => {
    try {
      const vectors = (await callWithin(() => embed(call), EMBEDDING_TIMEOUT_S)) as unknown[];
      return vectors.map((vector) => Array.from(vector as number[], finite));
    } catch (error) {
      const reason = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
      throw new CallFailed("embedding_failed", `the embedding ${source} of the store failed: ${reason}`, {
        status: 502,
      });
    }
  };
}

function finite(number: number): number {
  if (typeof number !== "number" || !Number.isFinite(number)) {
    throw new TypeError("it returned something other than lists of numbers");
  }

  return number;
}

/** Call a handler. Throws if it takes too long, and for an error that none of its code caught. */
function callWithin(handler: () => unknown, withinS = HANDLER_TIMEOUT_S): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`the handler did not return within ${withinS} s`));
    const timer = setTimeout(late, withinS * 1000);
    currentWork
      .run(handlerWork(reject), async () => handler())
      .then(resolve, reject)
      .finally(() => clearTimeout(timer));
  });
}

/** Return the refusal of a request whose handler threw: the one that it asked for, or an error without details. */
function toFailure(error: unknown, refused: CallFailed, event: string, fields: Fields = {}): CallFailed {
  if (error instanceof NotAuthenticated || (error as { code?: unknown } | null)?.code === "ERR_ASSERTION") {
    return refused;
  }

  const refusal = toRefusal(error);
  if (refusal !== null) {
    return refusal;
  }

  log("error", event, fields, error);
  return new CallFailed("auth_failed", "Internal Server Error", { status: 500 });
}

/** Return the answer that an HTTPException asks for, of the SDK's or of Hono's; null for any other error. */
function toRefusal(error: unknown): CallFailed | null {
  const { status, message, headers, res } = (error ?? {}) as Fields & { res?: Response };
  if (!isHttpException(error) || !Number.isInteger(status) || (status as number) < 400 || (status as number) > 599) {
    return null;
  }

  const detail = message || STATUS_CODES[status as number] || "Refused";
  const headerFields = new Headers((headers ?? res?.headers ?? {}) as Record<string, string>);
  return new CallFailed("refused", String(detail), { status, headers: Object.fromEntries(headerFields) });
}

/** Whether an error is of a class of this name: each package brings its own. Other errors have a `status` as well. */
function isHttpException(error: unknown): boolean {
  for (let each = error; typeof each === "object" && each !== null; each = Object.getPrototypeOf(each)) {
    if (each.constructor?.name === "HTTPException") {
      return true;
    }
  }

  return false;
}

class NotAuthenticated extends Error {}

/** Return the user that authentication returned, with the fields that every user has. Throws NotAuthenticated. */
function toUser(returned: unknown): Fields {
  const user = (typeof returned === "string" ? { identity: returned } : returned) as Fields | null | undefined;
  const identity = typeof user === "object" ? user?.identity : undefined;
  if (typeof identity !== "string" || identity === "") {
    throw new TypeError("authentication returned no user: return a name, or an object with an identity");
  }
  if (!(user?.is_authenticated ?? true)) {
    throw new NotAuthenticated();
  }

  const permissions = Array.isArray(user?.permissions) ? user.permissions.map(String) : [];
  const display_name = String(user?.display_name || identity);
  return { ...JSON.parse(JSON.stringify(user)), identity, display_name, permissions, is_authenticated: true };
}

/** Return a handler's result as it is sent. Throws for a filter with values that JSON would leave out, or empty. */
function checkResult(result: unknown): unknown {
  const check = (value: unknown): void => {
    if (Array.isArray(value)) {
      value.forEach(check);
    } else if (typeof value === "object" && value !== null) {
      if (![Object.prototype, null].includes(Object.getPrototypeOf(value))) {
        throw new TypeError("an authorization handler returned a filter with an instance of a class");
      }

      Object.values(value).forEach(check);
    } else if (value === undefined || typeof value === "function" || typeof value === "symbol") {
      throw new TypeError(`an authorization handler returned a filter with a value that is ${typeof value}`);
    }
  };

  if (result !== undefined) {
    check(result);
  }

  return result ?? null;
}

/** The JSON of each field of a value, without those that have none. */
function toTexts(value: Fields): Map<string, string> {
  const texts = Object.entries(value).map(([key, each]) => [key, JSON.stringify(each)] as const);
  return new Map(texts.filter(([, text]) => text !== undefined));
}
