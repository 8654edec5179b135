// What charts can show, and how points of the API become lines.

import type { ChartSeries, Point } from "../../api/platform";
import type { ChartData, Unit } from "./Chart";

type Metric = ChartSeries["metric"];

export const METRICS: [Metric, string, Unit][] = [
  ["run_count", "Runs", "count"],
  ["error_rate", "Error rate", "share"],
  ["latency_p50", "Latency, median", "seconds"],
  ["latency_p95", "Latency, 95 %", "seconds"],
  ["latency_p99", "Latency, 99%", "seconds"],
  ["first_token_p50", "First token, median", "seconds"],
  ["first_token_p99", "First token, 99%", "seconds"],
  ["total_tokens", "Tokens", "tokens"],
  ["prompt_tokens", "Input tokens", "tokens"],
  ["completion_tokens", "Output tokens", "tokens"],
  ["total_cost", "Cost", "usd"],
  ["prompt_cost", "Cost of input", "usd"],
  ["completion_cost", "Cost of output", "usd"],
  ["cost_p99", "Cost of a run, 99%", "usd"],
];

export const GROUPS = [
  ["", "Nothing"],
  ["model", "Model"],
  ["node", "Node"],
  ["name", "Name of the run"],
  ["user", "User"],
  ["tag", "Tag"],
] as const;

export function getUnit(metric: Metric): Unit {
  return METRICS.find(([name]) => name === metric)?.[2] ?? "count";
}

export function getTitle(metric: Metric): string {
  return METRICS.find(([name]) => name === metric)?.[1] ?? metric;
}

// Lines over the same buckets: one for each series, or for each group of a series.
export function toData(points: Point[], series: ChartSeries[]): ChartData {
  const times = [...new Set(points.map((point) => Date.parse(point.timestamp) / 1000))].sort((a, b) => a - b);
  const position = new Map(times.map((at, index) => [at, index]));
  const lines = new Map<string, { name: string; values: (number | null)[] }>();
  for (const point of points) {
    const of = series.find((one) => one.id === point.series_id);
    if (of === undefined) continue;
    const key = `${point.series_id} ${point.group ?? ""}`;
    const line = lines.get(key) ?? { name: lineName(of, point.group), values: times.map(() => null) };

    lines.set(key, line);
    const index = position.get(Date.parse(point.timestamp) / 1000);
    if (index !== undefined) line.values[index] = typeof point.value === "number" ? point.value : null;
  }

  return { times, series: [...lines.values()] };
}

function lineName(series: ChartSeries, group: string | null | undefined): string {
  return group ?? series.name ?? getTitle(series.metric);
}
