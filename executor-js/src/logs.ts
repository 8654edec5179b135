// Log records on standard error, as lines of JSON that the server adds to its own log.

import type { Fields } from "./server.js";

/** The first character of a line that holds a record. */
const LOG_LINE = "\x1e";
const OUR_LINES = /\(?(?:node:|file:.*\/main\.mjs)/;

/** Write a record. The stack of an error names the lines of the project's sources. */
export function log(level: "info" | "warning" | "error", event: string, fields: Fields = {}, error?: unknown): void {
  const exception = error === undefined ? {} : { exception: stackOf(error) };
  process.stderr.write(`${LOG_LINE}${JSON.stringify({ level, logger: "executor", event, fields, ...exception })}\n`);
}

/** Return the stack of an error without the lines of this program and of Node itself, or its text. */
export function stackOf(error: unknown): string {
  const stack = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  const lines = stack.split("\n");
  return lines.filter((line, index) => index === 0 || !(/^ +at /.test(line) && OUR_LINES.test(line))).join("\n");
}
