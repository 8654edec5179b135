// Requests to the platform. Paths, parameters and results are typed by its OpenAPI document.

import type { Operations, Problem } from "./platform";

export type Operation = keyof Operations;
type Field<N extends string, T> = Record<never, never> extends T ? { [P in N]?: T } : { [P in N]: T };

interface Described {
  path: unknown;
  query: unknown;
  body: unknown;
}

// The path, query and body of one operation of an OpenAPI document.
export type OptionsOf<T extends Described> = Field<"path", T["path"]> &
  Field<"query", T["query"]> &
  (T["body"] extends undefined ? { body?: undefined } : { body: T["body"] });

export type Options<K extends Operation> = OptionsOf<Operations[K]>;

export type Loose = { path?: Record<string, string>; query?: Record<string, unknown>; body?: unknown };

export class ApiError extends Error {
  readonly status: number;
  readonly problems: Problem[];
  readonly requestId: string | null;

  constructor(status: number, message: string, problems: Problem[], requestId: string | null) {
    super(message);
    this.status = status;
    this.problems = problems;
    this.requestId = requestId;
  }
}

// The workspace of all requests, by its id; null for the one of the key that signed in.
let workspaceId: string | null = null;

export function setRequestWorkspace(id: string | null) {
  workspaceId = id;
}

export async function call<K extends Operation>(
  operation: K,
  options: Options<K>,
  signal?: AbortSignal,
): Promise<Operations[K]["response"]> {
  const text = await (await request(operation, options, signal)).text();
  return (text ? JSON.parse(text) : undefined) as Operations[K]["response"];
}

// The response as it is: for files, and for values that are not JSON.
export async function request<K extends Operation>(
  operation: K,
  options: Options<K>,
  signal?: AbortSignal,
): Promise<Response> {
  const [method = "GET", template = ""] = operation.split(" ", 2);
  const { path, query, body } = options as Loose;
  const headers: Record<string, string> = { Accept: "application/json" };
  if (workspaceId) headers["X-Tenant-Id"] = workspaceId;
  if (body !== undefined) headers["Content-Type"] = "application/json";

  let response: Response;
  try {
    response = await fetch(address(template, path, query), {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (failure) {
    if (signal?.aborted) throw failure;
    throw new ApiError(
      0,
      "The platform does not answer. Is it running, and is this machine connected to it?",
      [],
      null,
    );
  }

  if (response.status === 401) return signIn();
  if (!response.ok && template !== "/ok") throw await readError(response);
  return response;
}

export function address(
  template: string,
  path: Record<string, string> = {},
  query: Record<string, unknown> = {},
): string {
  const target = template.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(path[name] ?? ""));
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") search.append(name, String(each));
    }
  }

  return search.size ? `${target}?${search}` : target;
}

// The sign-in page sends the browser back to the address that it came from.
function signIn(): Promise<never> {
  location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  return new Promise(() => {});
}

export async function readError(response: Response, server = "platform"): Promise<ApiError> {
  const requestId = response.headers.get("x-request-id");
  let body: { detail?: unknown; errors?: unknown } = {};
  try {
    body = (await response.json()) as typeof body;
  } catch {
    // Not JSON: the status says it.
  }

  const { detail, errors } = body;
  if (Array.isArray(detail)) {
    const problems = detail as Problem[];
    const message = problems.map((problem) => `${getField(problem)}: ${problem.msg}`).join("; ");
    return new ApiError(response.status, message, problems, requestId);
  }

  // Agents say everything in a text, and list the fields beside it.
  const problems = Array.isArray(errors) ? (errors as Problem[]) : [];
  const message = typeof detail === "string" ? detail : `The ${server} answered ${response.status}.`;
  return new ApiError(response.status, message, problems, requestId);
}

// The field of a problem, as a path below the body: source_config.repo_url.
export function getField(problem: Problem): string {
  return problem.loc.filter((part, index) => index > 0 || part !== "body").join(".");
}

// What the API says about a field, by its name or its path.
export function problemAt(error: ApiError | null | undefined, field: string): string | undefined {
  return error?.problems.find((problem) => isAbout(problem, field))?.msg;
}

// Whether all that the API says is about these fields. Nothing is said about a field in an error without problems.
export function areAllAbout({ problems }: ApiError, fields: readonly string[]): boolean {
  return problems.length > 0 && problems.every((problem) => fields.some((field) => isAbout(problem, field)));
}

// A problem is at the field or below it. The field may be the end of a path: repo_url of source_config.repo_url.
function isAbout(problem: Problem, field: string): boolean {
  return `.${problem.loc.join(".")}.`.includes(`.${field}.`);
}
