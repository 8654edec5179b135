// Log records on standard error, as lines of JSON that the server adds to its own log.

import type { Fields } from "./server.js";

/** The first character of a line that holds a record. */
const LOG_LINE = "\x1e";

/** Write a record. The stack of an error names the lines of the project's sources. */
export function log(level: "info" | "warning" | "error", event: string, fields: Fields = {}, error?: unknown): void {
  const exception = error === undefined ? {} : { exception: stackOf(error) };
  process.stderr.write(`${LOG_LINE}${JSON.stringify({ level, logger: "executor", event, fields, ...exception })}\n`);
}

/** Return the stack of an error, or its text. */
export function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? String(error)) : String(error);
}
