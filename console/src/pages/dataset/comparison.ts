// Experiments on the same examples, compared with the first of them.

import type { ExampleRuns, TracerSession } from "../../api/platform";
import { isBranch, summarize } from "../../ui/Json";

export interface ResultRun {
  id: string;
  project_id: string;
  trace_id: string;
  status: string;
  latency_seconds: number | null;
  total_tokens: number;
  total_cost: number | null;
  outputs_preview: string | null;
  error_preview: string | null;
  feedback_stats: Record<string, { n: number; avg: number | null }> | null;
}

/** An example as the page keeps it: the beginning of its input and of its reference output, and the runs on it. */
export interface Compared {
  id: string;
  inputs: string;
  outputs: string;
  runs: ResultRun[];
}

export interface Row {
  example: Compared;
  // The run of each experiment, in their order; of several on the same example the last one.
  runs: (ResultRun | null)[];
  // How much the worst score of the row fell below the first experiment's; above 0 only if nothing fell.
  change: number;
}

export const RESULT_SELECTS = [
  "ID",
  "PROJECT_ID",
  "TRACE_ID",
  "STATUS",
  "LATENCY_SECONDS",
  "TOTAL_TOKENS",
  "TOTAL_COST",
  "OUTPUTS_PREVIEW",
  "ERROR_PREVIEW",
  "FEEDBACK_STATS",
];

// An error where the first experiment had none is worse than any score.
const NEW_ERROR = -1_000_000;

const PREVIEW = 300;

export function toCompared({ id, inputs, outputs, runs }: ExampleRuns): Compared {
  return { id, inputs: textIn(inputs), outputs: textIn(outputs), runs: runs as unknown as ResultRun[] };
}

// The text of a value with one field; other values in brief.
function textIn(value: unknown): string {
  if (value == null) return "";
  const fields = isBranch(value) ? Object.values(value) : [value];
  const [only] = fields;
  return fields.length === 1 && typeof only === "string" ? only.slice(0, PREVIEW) : summarize(value, PREVIEW);
}

// Rows with what got worse first, then what got better, then what is the same.
export function toRows(items: Compared[], experiments: string[], lowerIsBetter: ReadonlySet<string>): Row[] {
  const rows = items.map((example) => {
    const runs = experiments.map((id) => example.runs.findLast((run) => run.project_id === id) ?? null);
    return { example, runs, change: getChange(runs, lowerIsBetter) };
  });

  return rows.toSorted((one, other) => rank(one.change) - rank(other.change));
}

function rank(change: number): number {
  // The worst first; what got better after it, the largest first; the rest last.
  if (change < 0) return change;
  return change > 0 ? 1 / change : Number.POSITIVE_INFINITY;
}

function getChange(runs: (ResultRun | null)[], lowerIsBetter: ReadonlySet<string>): number {
  const [first, ...others] = runs;
  let worst = 0;
  let best = 0;
  for (const run of others) {
    if (!first || !run) continue;
    if (run.status === "ERROR" && first.status !== "ERROR") worst = Math.min(worst, NEW_ERROR);

    for (const key of Object.keys(run.feedback_stats ?? {})) {
      const delta = getDelta(key, run, first);
      if (delta === null) continue;
      const gain = lowerIsBetter.has(key) ? -delta : delta;
      worst = Math.min(worst, gain);
      best = Math.max(best, gain);
    }
  }

  return worst < 0 ? worst : best;
}

export function getScore(run: ResultRun | null, key: string): number | null {
  return run?.feedback_stats?.[key]?.avg ?? null;
}

export function getDelta(key: string, run: ResultRun | null, first: ResultRun | null | undefined): number | null {
  const [own, base] = [getScore(run, key), getScore(first ?? null, key)];
  return own === null || base === null ? null : own - base;
}

// The mean score of each feedback key of an experiment.
export function getMeans(experiment: TracerSession): Record<string, number> {
  const stats = (experiment.feedback_stats ?? {}) as Record<string, { avg: number | null }>;
  return Object.fromEntries(
    Object.entries(stats).flatMap(([key, each]) => (each.avg === null ? [] : [[key, each.avg]])),
  );
}
