// Converts the filter fields in the URL of a trace list into the API's filter language.

import { parseMoment } from "../../ui/moments";
import type { FilterField, Filters } from "./fields";
import { EPOCH } from "./runs";

export interface RunsFilter {
  filter?: string;
  tree_filter?: string;
  min_start_time: string;
  max_start_time?: string;
}

const PERIODS: Record<string, number> = { "1h": 1, "24h": 24, "7d": 168, "30d": 720 };
const USER_KEYS = ["user_id", "langgraph_auth_user_id", "user"];
const NUMBER = /^(>=|<=|>|<|=)?\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|k|\$)?$/;
const RANGE = /^(\d+(?:\.\d+)?)\s*(ms|s|m|h|k|\$)?\s*(?:\.\.|-)\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|k|\$)?$/;
const OPERATORS: Record<string, string> = { ">": "gt", ">=": "gte", "<": "lt", "<=": "lte", "=": "eq" };
const UNITS: Record<string, number> = { ms: 0.001, s: 1, m: 60, h: 3600, k: 1000, $: 1 };
const FEEDBACK = /^([^<>=]+?)\s*(?:(>=|<=|>|<|=)\s*(-?\d+(?:\.\d+)?))?$/;

// Returns how to correct a field, or undefined if it is valid.
export function findProblem(field: FilterField, text: string): string | undefined {
  if ((field === "latency" || field === "tokens" || field === "cost") && parseComparisons("x", text) === null) {
    return field === "latency" ? "Write > 5s, < 200ms or 1s..5s" : "Write > 1000, <= 5 or 10..20";
  }
  if (field === "metadata" && !/^[^=]+(=.*)?$/s.test(text)) return "Write key=value, or a key alone";
  if (field === "feedback" && !FEEDBACK.test(text)) return "Write a key, or key >= 0.5";

  if ((field === "since" || field === "until") && parseBound(text) === null)
    return "Write 2026-11-23 or 2026-11-23T08:00";

  return undefined;
}

// The request's filters; fields with a problem are left out. Name, tags and so on are those of the root run. The type
// and the error are those of any run of the trace, unless all runs are listed.
export function runsFilter(filters: Filters, now: number, isOfTraces: boolean): RunsFilter {
  const own: string[] = [];
  const anywhere: string[] = [];
  const anyRun = isOfTraces ? anywhere : own;

  const addFilter = (field: FilterField) => {
    const text = filters[field]?.trim();
    return text && findProblem(field, text) === undefined ? text : undefined;
  };

  const add = (list: string[], field: FilterField, make: (text: string) => string | string[] | null) => {
    const text = addFilter(field);
    const part = text === undefined ? null : make(text);
    if (part !== null) list.push(...(Array.isArray(part) ? part : [part]));
  };

  add(own, "q", (text) => `search(${quote(text)})`);
  add(own, "name", (text) => `search(name, ${quote(text)})`);
  add(own, "status", (text) => `eq(status, ${quote(text)})`);
  add(anyRun, "type", (text) => `eq(run_type, ${quote(text)})`);
  add(own, "latency", (text) => parseComparisons("latency", text));
  add(own, "tokens", (text) => parseComparisons(isOfTraces ? "trace_tokens" : "total_tokens", text));
  add(own, "cost", (text) => parseComparisons(isOfTraces ? "trace_cost" : "total_cost", text));

  add(own, "tag", (text) => text.split(",").map((tag) => `has(tags, ${quote(tag.trim())})`));
  add(own, "metadata", metadataFilter);
  add(own, "thread", (text) => `eq(thread_id, ${quote(text)})`);
  add(own, "user", (text) => `or(${USER_KEYS.map((key) => entryFilter(key, text)).join(", ")})`);
  add(own, "feedback", feedbackFilter);
  add(anyRun, "error", (text) => `search(error, ${quote(text)})`);
  add(own, "filter", (text) => text);

  const until = addFilter("until");

  return {
    ...(own.length ? { filter: join(own) } : {}),
    ...(anywhere.length ? { tree_filter: join(anywhere) } : {}),
    min_start_time: parseBound(addFilter("since") ?? "", now) ?? EPOCH,
    ...(until ? { max_start_time: parseBound(until, now) ?? EPOCH } : {}),
  };
}

function join(parts: string[]): string {
  return parts.length === 1 ? (parts[0] ?? "") : `and(${parts.join(", ")})`;
}

// A text of the filter language: only quotes, backslashes and line ends are escaped there.
export function quote(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&").replaceAll("\n", "\\n")}"`;
}

function entryFilter(key: string, value: string): string {
  return `and(eq(metadata_key, ${quote(key)}), eq(metadata_value, ${quote(value)}))`;
}

function metadataFilter(text: string): string {
  const [key = "", ...rest] = text.split("=");
  return rest.length ? entryFilter(key.trim(), rest.join("=").trim()) : `eq(metadata_key, ${quote(key.trim())})`;
}

function feedbackFilter(text: string): string {
  const [, key = "", sign, value] = FEEDBACK.exec(text) ?? [];
  const keyFilter = `eq(feedback_key, ${quote(key.trim())})`;
  return sign ? `and(${keyFilter}, ${OPERATORS[sign]}(feedback_score, ${value}))` : keyFilter;
}

function parseComparisons(field: string, text: string): string[] | null {
  const range = RANGE.exec(text);
  if (range) {
    const [, low, lowUnit, high, highUnit] = range;
    return [`gte(${field}, ${scale(low, lowUnit ?? highUnit)})`, `lte(${field}, ${scale(high, highUnit ?? lowUnit)})`];
  }

  const one = NUMBER.exec(text.replace(/^(\W*)\$/, "$1"));
  return one && [`${OPERATORS[one[1] ?? ">="]}(${field}, ${scale(one[2], one[3])})`];
}

function scale(digits: string | undefined, unit: string | undefined): number {
  return Number(digits) * (UNITS[unit ?? "s"] ?? 1);
}

// The moment that a field names: a period before now, or a local time.
function parseBound(text: string, now = 0): string | null {
  const hours = PERIODS[text];
  // Whole minutes, so that the same address is the same request for a while.
  if (hours !== undefined) return new Date(Math.floor(now / 60_000) * 60_000 - hours * 3_600_000).toISOString();
  return parseMoment(text);
}
