// What runs cost, summed up by project, by model, by day.

import type { CostRecord } from "../../api/platform";

export const GROUPS = {
  project: "Project",
  model: "Model",
  user: "User",
  api_key: "Key",
  workspace: "Workspace",
  day: "Day",
};

export type Group = keyof typeof GROUPS;

export interface Total {
  name: string;
  traces: number;
  runs: number;
  failed: number;
  tokens: number;
  cost: number | null;
  unpriced: number;
}

const NOTHING: Total = { name: "", traces: 0, runs: 0, failed: 0, tokens: 0, cost: null, unpriced: 0 };

// A cost is of one of these: the first one that its dimensions have.
const NAMES = ["project_name", "model_name", "user_email", "api_key_short_key", "workspace_name"];

/** The sums over all buckets: the most expensive first, days the newest first. */
export function getTotals(records: CostRecord[], group: Group): Total[] {
  const totals = new Map<string, Total>();
  for (const record of records) {
    const name = group === "day" ? record.time_bucket.slice(0, 10) : getName(record.dimensions);
    const one = {
      name,
      traces: record.traces ?? 0,
      runs: record.runs ?? 0,
      failed: record.failed_runs ?? 0,
      tokens: (record.prompt_tokens ?? 0) + (record.completion_tokens ?? 0),
      cost: record.total_cost == null ? null : Number(record.total_cost),
      unpriced: record.unpriced_runs ?? 0,
    };

    totals.set(name, add({ ...(totals.get(name) ?? NOTHING), name }, one));
  }

  const rows = [...totals.values()];
  if (group === "day") return rows.sort((left, right) => right.name.localeCompare(left.name));
  return rows.sort((left, right) => (right.cost ?? 0) - (left.cost ?? 0) || right.runs - left.runs);
}

/** The sum of all rows. */
export function sumUp(totals: Total[]): Total {
  return totals.reduce(add, NOTHING);
}

function add(left: Total, right: Total): Total {
  return {
    name: left.name,
    traces: left.traces + right.traces,
    runs: left.runs + right.runs,
    failed: left.failed + right.failed,
    tokens: left.tokens + right.tokens,
    cost: left.cost === null && right.cost === null ? null : (left.cost ?? 0) + (right.cost ?? 0),
    unpriced: left.unpriced + right.unpriced,
  };
}

function getName(dimensions: Record<string, unknown>): string {
  const name = NAMES.find((each) => typeof dimensions[each] === "string");
  if (name !== undefined) return String(dimensions[name]);
  return "user_id" in dimensions ? "service keys" : "unknown";
}
