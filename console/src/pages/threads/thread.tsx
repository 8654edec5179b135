// A thread in words: its state, what it is about, and the searches that find it.

import type { Thread, ThreadSearch } from "../../api/agentServer";
import { isBranch, summarize } from "../../ui/Json";
import { Status } from "../../ui/Status";

export type ThreadStatus = "busy" | "error" | "idle" | "interrupted";

export const STATES: [ThreadStatus, string][] = [
  ["idle", "Idle"],
  ["busy", "Running"],
  ["interrupted", "Waits for a person"],
  ["error", "Failed"],
];

// A thread that stopped before a node, because of a fork, a breakpoint or a person, is interrupted without a question.
export function ThreadState({ status, interrupts }: Pick<Thread, "status" | "interrupts">) {
  const tone = status === "busy" ? "busy" : status === "error" ? "bad" : status === "interrupted" ? "wait" : "idle";
  const asks = interrupts === undefined || Object.keys(interrupts ?? {}).length > 0;
  const word = status === "interrupted" && !asks ? "Paused" : STATES.find(([state]) => state === status)?.[1];
  return <Status tone={tone} word={word ?? "–"} />;
}

/** Whether the error of a task says that somebody stopped its run. */
export function isStopped(error: string | null | undefined): boolean {
  return /^(CancelledError|AbortError|Error: Abort)/.test(error ?? "");
}

/** The text of a message's content, which is a text or a list of blocks. */
export function contentText(content: unknown): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return isBranch(content) ? summarize(content) : "";
  return content
    .map((block) => (typeof block === "string" ? block : isBranch(block) && "text" in block ? String(block.text) : ""))
    .join("");
}

const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const TERM = /([\w.-]+)=("(?:[^"\\]|\\.)*"|\S+)/g;

/** What somebody typed, as a search: ids, `key=value` of the metadata, `values.key=value` of the state. */
export function parseSearch(text: string): Pick<ThreadSearch, "ids" | "metadata" | "values"> | null {
  const ids = text.split(/[\s,]+/).filter(Boolean);
  if (ids.length === 0) return {};
  if (ids.every((each) => ID.test(each))) return { ids };
  if (text.replace(TERM, "").trim()) return null;

  const search: { metadata: Record<string, unknown>; values: Record<string, unknown> } = { metadata: {}, values: {} };
  for (const [, key = "", value = ""] of text.matchAll(TERM)) {
    const [where, path] = key.startsWith("values.") ? [search.values, key.slice(7)] : [search.metadata, key];
    put(where, path.split("."), parseOrKeep(value));
  }

  return search;
}

function put(into: Record<string, unknown>, [first = "", ...rest]: string[], value: unknown) {
  if (rest.length === 0) into[first] = value;
  else {
    const inner = isBranch(into[first]) ? (into[first] as Record<string, unknown>) : {};
    into[first] = inner;
    put(inner, rest, value);
  }
}

function parseOrKeep(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
