// What the audit log is filtered by: the choices, and the address as the request for it.

import type { AuditEntry } from "../../api/platform";
import { parseMoment } from "../../ui/moments";
import { getPeriod, RANGES, type RangeName } from "../../ui/Range";

type Filters = { [N in "actor" | "action" | "object" | "outcome" | "period" | "since" | "until"]?: string };

export const OBJECTS = [
  ["deployment", "Deployments"],
  ["revision", "Revisions"],
  ["secret", "Reads of secrets"],
  ["key", "API keys"],
  ["member", "Members"],
  ["session", "Sign-ins"],
  ["workspace", "Workspaces"],
  ["project", "Projects"],
  ["dataset", "Datasets"],
  ["prompt", "Prompts"],
  ["integration", "Git accounts"],
  ["usage_limit", "Limits"],
  ["platform", "Starts of the platform"],
] as const;

export const OUTCOMES = [
  ["ok", "Done"],
  ["refused", "Refused"],
  ["failed", "Failed"],
] as const;

export const PERIODS = (["1h", "24h", "7d", "30d", "90d"] as const).map((name) => [name, RANGES[name].title] as const);

/** The filters of the address as the server names them. */
export function toQuery({ actor, action, object, outcome, period, since, until }: Filters) {
  const start = period && period in RANGES ? getPeriod(period as RangeName).start : parseMoment(since);
  const end = parseMoment(until);

  return {
    ...(actor ? { actor } : {}),
    ...(action ? { action } : {}),
    ...(object ? { object } : {}),
    ...(outcome ? { outcome: outcome as AuditEntry["outcome"] } : {}),
    ...(start ? { start_time: start } : {}),
    ...(end ? { end_time: end } : {}),
  };
}
