// The charts that every workspace has: of all projects, or of one.

import { useMemo } from "react";
import type { ChartSeries, ChartWindow } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Problem } from "../../ui/Problem";
import { Chart, type ChartData, type Unit } from "./Chart";
import { toData } from "./metrics";

const ROOTS = "eq(is_root, true)";

interface Builtin {
  title: string;
  unit: Unit;
  isBar?: boolean;
  series: (Pick<ChartSeries, "metric"> & { id: string; name: string; isRoot?: boolean; by?: "model" | "node" })[];
}

const id = (number: number) => `00000000-0000-4000-8000-${String(number).padStart(12, "0")}`;

const BUILTIN: Builtin[] = [
  {
    title: "Traces",
    unit: "count",
    isBar: true,
    series: [{ id: id(1), metric: "run_count", name: "Traces", isRoot: true }],
  },
  {
    title: "Errors",
    unit: "share",
    series: [{ id: id(2), metric: "error_rate", name: "Failed traces", isRoot: true }],
  },
  {
    title: "Latency",
    unit: "seconds",
    series: [
      { id: id(3), metric: "latency_p50", name: "50 %", isRoot: true },
      { id: id(4), metric: "latency_p95", name: "95 %", isRoot: true },
      { id: id(5), metric: "latency_p99", name: "99%", isRoot: true },
    ],
  },
  {
    title: "Tokens",
    unit: "tokens",
    series: [
      { id: id(6), metric: "prompt_tokens", name: "Input" },
      { id: id(7), metric: "completion_tokens", name: "Output" },
    ],
  },
  { title: "Cost by model", unit: "usd", series: [{ id: id(8), metric: "total_cost", name: "Cost", by: "model" }] },
  { title: "Cost by node", unit: "usd", series: [{ id: id(9), metric: "total_cost", name: "Cost", by: "node" }] },
];

interface Props {
  view: ChartWindow;
  project: string | undefined;
  // How many of the charts, the most important first.
  most?: number;
}

export function Builtins({ view, project, most = BUILTIN.length }: Props) {
  const series = useMemo(
    (): ChartSeries[] =>
      BUILTIN.slice(0, most).flatMap((chart) =>
        chart.series.map((one) => ({
          id: one.id,
          metric: one.metric,
          name: one.name,
          filters: { session: project ? [project] : null, filter: one.isRoot ? ROOTS : null },
          group_by: one.by ? { attribute: one.by, max_groups: 6 } : null,
        })),
      ),
    [project, most],
  );

  const query = useApi(
    "POST /charts/preview",
    { body: { bucket_info: view, chart: { series } } },
    { keep: true, everyMs: 60_000, enabled: useMay("charts:read") },
  );

  if (query.error && !query.data) return <Problem error={query.error} retry={() => void query.refetch()} />;

  return (
    <div className="charts">
      {BUILTIN.slice(0, most).map((chart) => {
        const ids = new Set(chart.series.map((one) => one.id));
        const points = query.data?.data.filter((point) => ids.has(point.series_id));

        return (
          <Chart
            key={chart.title}
            title={chart.title}
            unit={chart.unit}
            isBar={chart.isBar ?? false}
            data={points && withoutZeros(toData(points, series), chart)}
            none={chart.unit === "usd" ? "No cost in this period. Models without a price have none." : undefined}
          />
        );
      })}
    </div>
  );
}

// Models and nodes without any cost would hide the others under a line at zero.
function withoutZeros(data: ChartData, chart: Builtin): ChartData {
  if (chart.unit !== "usd") return data;
  return { ...data, series: data.series.filter((one) => one.values.some((value) => value)) };
}
