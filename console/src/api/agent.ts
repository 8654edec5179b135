// Requests to agents. Paths, parameters and results are typed by the agent server's OpenAPI document.
//
// The front serves agents below the platform's own address, so requests stay on this origin. An agent elsewhere is
// called at its own address. Agents do not accept the platform's session: each call carries a token that the platform
// issued for this agent, and that is valid for a minute.

import { EventSourceParserStream } from "eventsource-parser/stream";
import type { Operations } from "./agentServer";
import { ApiError, address, call, type Loose, type OptionsOf, readError } from "./client";
import { ownAgent } from "./server";

export type AgentOperation = keyof Operations;
export type AgentOptions<K extends AgentOperation> = OptionsOf<Operations[K]>;
export type AgentResponse<K extends AgentOperation> = Operations[K]["response"];

export interface StreamEvent {
  // Goes into Last-Event-ID to continue after this event; null for events that cannot be continued from.
  id: string | null;
  event: string;
  data: unknown;
}

export interface AgentPage<T> {
  result: T;
  // The offset of the next page, or null on the last one.
  next: number | null;
  total: number | null;
}

interface Token {
  value: Promise<string | null>;
  goodUntil: number;
}

// A token is valid for a minute. The clocks of this machine and the platform may differ, so a token is renewed by its
// age here, not by the expiry that it names.
const TOKEN_GOOD_FOR_MS = 45_000;
const tokens = new Map<string, Token>();
const bases = new Map<string, Promise<string>>();

/** Call an operation of a deployment's agent. Raises ApiError. */
export async function callAgent<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  options: AgentOptions<K>,
  signal?: AbortSignal,
): Promise<AgentResponse<K>> {
  return readJson<AgentResponse<K>>(await send(deploymentId, operation, options as Loose, { signal }));
}

/** Call an operation that answers in pages. Raises ApiError. */
export async function callAgentPage<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  options: AgentOptions<K>,
  signal?: AbortSignal,
): Promise<AgentPage<AgentResponse<K>>> {
  const response = await send(deploymentId, operation, options as Loose, { signal });
  const result = await readJson<AgentResponse<K>>(response);
  return { result, next: numberIn(response, "x-pagination-next"), total: numberIn(response, "x-pagination-total") };
}

export interface StreamOptions {
  signal?: AbortSignal | undefined;
  lastEventId?: string | null;
  // The same key makes a repeated request the same request.
  idempotencyKey?: string;
  // Called once the agent has accepted the request, with the path that names what it created.
  onOpen?: (location: string | null) => void;
}

/** Read the server-sent events of an operation until the agent ends the stream. Raises ApiError. */
export async function* streamAgent<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  options: AgentOptions<K>,
  stream: StreamOptions = {},
): AsyncGenerator<StreamEvent, void, void> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (stream.lastEventId) headers["Last-Event-ID"] = stream.lastEventId;
  if (stream.idempotencyKey) headers["Idempotency-Key"] = stream.idempotencyKey;
  const response = await send(deploymentId, operation, options as Loose, { signal: stream.signal, headers });

  stream.onOpen?.(response.headers.get("content-location"));
  if (!response.body) return;
  const events = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(new EventSourceParserStream());

  const reader = events.getReader();
  try {
    for (;;) {
      const { done, value } = await read(reader, stream.signal);
      if (done) return;
      yield { id: value.id ?? null, event: value.event ?? "message", data: value.data ? JSON.parse(value.data) : null };
    }
  } finally {
    // A page that stops reading closes its connection.
    void reader.cancel().catch(() => {});
  }
}

async function read<T>(reader: ReadableStreamDefaultReader<T>, signal: AbortSignal | undefined) {
  try {
    return await reader.read();
  } catch (failure) {
    if (signal?.aborted) throw failure;
    throw new ApiError(0, "The connection to the agent was lost.", [], null);
  }
}

interface Sending {
  signal?: AbortSignal | undefined;
  headers?: Record<string, string>;
}

async function send(deploymentId: string, operation: string, options: Loose, sending: Sending): Promise<Response> {
  const token = await getToken(deploymentId);
  const response = await attempt(deploymentId, operation, options, sending, token);
  if (response.status !== 401) return checkStatus(response);

  // The token may have expired on the way, or the keys that sign tokens have changed.
  if ((await tokens.get(deploymentId)?.value) === token) tokens.delete(deploymentId);
  return checkStatus(await attempt(deploymentId, operation, options, sending, await getToken(deploymentId)));
}

async function attempt(
  deploymentId: string,
  operation: string,
  { path, query, body }: Loose,
  { signal, headers }: Sending,
  token: string | null,
): Promise<Response> {
  const [method = "GET", template = ""] = operation.split(" ", 2);
  const base = await getBase(deploymentId);

  const allHeaders: Record<string, string> = { Accept: "application/json", ...headers };
  if (token) {
    allHeaders.Authorization = `Bearer ${token}`;
    // Agents with an authentication of their own accept members of the workspace too, unless they are told not to.
    if (ownAgent === null) allHeaders["X-Auth-Scheme"] = "langsmith";
  }

  if (body !== undefined) allHeaders["Content-Type"] = "application/json";

  try {
    return await fetch(base + address(template, path, query), {
      method,
      headers: allHeaders,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
      credentials: "omit",
    });
  } catch (failure) {
    if (signal?.aborted) throw failure;
    // The deployment may have moved since its address was read.
    bases.delete(deploymentId);
    throw new ApiError(0, unreachable(base), [], null);
  }
}

function unreachable(base: string): string {
  if (base.startsWith("/"))
    return "The agent does not answer. Is the platform running, and this machine connected to it?";

  const { origin } = new URL(base);
  return `The agent at ${origin} does not answer. If it runs, the platform's setting CONSOLE_AGENT_ORIGINS must name ${origin}, and the agent's CORS rules must allow this page.`;
}

async function checkStatus(response: Response): Promise<Response> {
  if (!response.ok) throw await readError(response, "agent");
  return response;
}

async function readJson<T>(response: Response): Promise<T> {
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

function numberIn(response: Response, header: string): number | null {
  const text = response.headers.get(header);
  return text ? Number(text) : null;
}

// One token of a deployment serves all requests of this page; it is renewed before its end.
function getToken(deploymentId: string): Promise<string | null> {
  const earlier = tokens.get(deploymentId);
  if (earlier && performance.now() < earlier.goodUntil) return earlier.value;

  const token = { value: issueToken(deploymentId), goodUntil: performance.now() + TOKEN_GOOD_FOR_MS };
  tokens.set(deploymentId, token);
  token.value.catch(() => tokens.get(deploymentId) === token && tokens.delete(deploymentId));

  return token.value;
}

async function issueToken(deploymentId: string): Promise<string | null> {
  if (ownAgent !== null) return ownToken();
  const issued = await call("POST /v2/deployments/{deployment_id}/token", { path: { deployment_id: deploymentId } });
  return issued.access_token;
}

const OWN_TOKEN = "portside-agent-token";

/** What the one agent's own authentication asks for; kept until the tab is closed. */
export function setOwnToken(value: string) {
  sessionStorage.setItem(OWN_TOKEN, value);
  tokens.clear();
}

export function ownToken(): string | null {
  return sessionStorage.getItem(OWN_TOKEN);
}

function getBase(deploymentId: string): Promise<string> {
  const earlier = bases.get(deploymentId);
  if (earlier) return earlier;

  const base = findBase(deploymentId);
  bases.set(deploymentId, base);
  base.catch(() => bases.get(deploymentId) === base && bases.delete(deploymentId));

  return base;
}

async function findBase(deploymentId: string): Promise<string> {
  if (ownAgent !== null) return ownAgent;
  const deployment = await call("GET /v2/deployments/{deployment_id}", { path: { deployment_id: deploymentId } });
  const url = deployment.source_config.custom_url;
  if (!url) throw new ApiError(0, "The deployment has no address yet: its first revision is not deployed.", [], null);

  // The front's address is that of this page, whatever name and scheme the platform knows itself by.
  const { pathname } = new URL(url);
  return pathname === `/agents/${deployment.name}` ? pathname : url.replace(/\/$/, "");
}
