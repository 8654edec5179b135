// Log records on standard error, as lines of JSON that the server adds to its own log.

import { currentWork, type Fields } from "./server.js";

/** The first character of a line that holds a record. */
const LOG_LINE = "\x1e";
const OUR_LINES = /\(?(?:node:|file:.*\/main\.mjs)/;

const LEVELS = {
  error: "error",
  warn: "warning",
  info: "info",
  http: "debug",
  verbose: "debug",
  debug: "debug",
  silly: "debug",
} as const;

type Level = (typeof LEVELS)[keyof typeof LEVELS];

/** Write a record. The stack of an error names the lines of the project's sources. */
export function log(level: Level, event: string, fields: Fields = {}, error?: unknown): void {
  const exception = error === undefined ? {} : { exception: toStack(error) };
  process.stderr.write(`${LOG_LINE}${JSON.stringify({ level, logger: "executor", event, fields, ...exception })}\n`);
}

/** Return the stack of an error without the lines of this program and of Node itself, or its text. */
export function toStack(error: unknown): string {
  const stack = error instanceof Error ? (error.stack ?? String(error)) : String(error);
  const lines = stack.split("\n");
  return lines.filter((line, index) => index === 0 || !(/^ +at /.test(line) && OUR_LINES.test(line))).join("\n");
}

/** Let `getLogger` of LangGraph's SDK return a logger whose records name their run. */
export function installSdkLogger(): void {
  (globalThis as unknown as Record<symbol, unknown>)[Symbol.for("langgraph.api.sdk-logger")] = sdkLogger({});
}

function sdkLogger(fields: Fields): Fields {
  const write = (level: string, message: unknown, ...given: unknown[]) => {
    const error = [message, ...given].find((each) => each instanceof Error);
    const extra = given.filter((each) => typeof each === "object" && !(each instanceof Error));
    const run = currentWork.getStore()?.run;
    const all = Object.assign({}, ...(run ? [{ run_id: run[0] }] : []), fields, ...extra);

    log(LEVELS[level as keyof typeof LEVELS] ?? "info", String(message), all, error);
  };

  const methods = Object.keys(LEVELS).map((level) => [level, write.bind(null, level)]);

  return {
    ...Object.fromEntries(methods),
    log: write,
    child: (more: Fields) => sdkLogger({ ...fields, ...more }),
  };
}
