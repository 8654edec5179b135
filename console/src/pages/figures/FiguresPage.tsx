import { useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import type { ChartSeries, ChartWindow } from "../../api/platform";
import { useApi } from "../../api/queries";
import { usePreferences } from "../../preferences";
import { figuresRoute } from "../../router";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { periodOf, RANGES, RangeSelect, rangeOf } from "../../ui/Range";
import { Chart, type ChartData, type Unit } from "./Chart";
import { dataOf } from "./metrics";
import { Sections } from "./Sections";

const NAMES = ["1h", "24h", "7d", "30d", "90d", "month"] as const;
// Their names are words in the address: the router would quote a number.
const STEPS: [string, number, string][] = [
  ["1m", 1, "1 minute"],
  ["15m", 15, "15 minutes"],
  ["30m", 30, "30 minutes"],
  ["1h", 60, "1 hour"],
  ["6h", 360, "6 hours"],
  ["1d", 1440, "1 day"],
];
const MAX_BUCKETS = 1000;
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

export function FiguresPage() {
  const search = figuresRoute.useSearch();
  const navigate = useNavigate();
  const { zone } = usePreferences();
  const range = rangeOf(search.range, "24h");
  const period = periodOf(range);
  const step = stepOf(search.step, period.start, period.end, RANGES[range].stepMinutes);
  const projects = useApi(
    "GET /sessions",
    { query: { limit: 100, sort_by: "last_run_start_time", sort_by_desc: true } },
    { enabled: useMay("projects:read") },
  );
  const view: ChartWindow = {
    start_time: period.start,
    end_time: period.end,
    stride: { minutes: step },
    timezone: zone === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone,
  };
  const show = (changes: { project?: string | undefined; range?: string; step?: string | undefined }) =>
    void navigate({ to: "/figures", search: (old) => ({ ...old, ...changes }), replace: true });
  return (
    <div className="page">
      <div className="head">
        <h1>Figures</h1>
        <div className="filters">
          <select
            aria-label="Project"
            value={search.project ?? ""}
            onChange={(event) => show({ project: event.target.value || undefined })}
          >
            <option value="">All projects</option>
            {(projects.data ?? []).map((each) => (
              <option key={each.id} value={each.id}>
                {each.name}
              </option>
            ))}
          </select>
          <RangeSelect value={range} names={NAMES} onChange={(name) => show({ range: name, step: undefined })} />
          <select
            aria-label="Step"
            value={STEPS.find(([, minutes]) => minutes === step)?.[0]}
            onChange={(event) => show({ step: event.target.value })}
          >
            {STEPS.filter(([, minutes]) => isFine(minutes, period.start, period.end)).map(([name, , title]) => (
              <option key={name} value={name}>
                {title}
              </option>
            ))}
          </select>
        </div>
      </div>
      {projects.data?.length === 0 ? (
        <Empty title="No traces yet" command="portside deploy examples/hello-agent">
          Figures are drawn from traces. Deploy an agent, or point LANGSMITH_ENDPOINT of a program at this platform.
        </Empty>
      ) : (
        <Builtins view={view} project={search.project} />
      )}
      <Sections view={view} projects={projects.data ?? []} />
    </div>
  );
}

function Builtins({ view, project }: { view: ChartWindow; project: string | undefined }) {
  const series = useMemo(
    (): ChartSeries[] =>
      BUILTIN.flatMap((chart) =>
        chart.series.map((one) => ({
          id: one.id,
          metric: one.metric,
          name: one.name,
          filters: { session: project ? [project] : null, filter: one.isRoot ? ROOTS : null },
          group_by: one.by ? { attribute: one.by, max_groups: 6 } : null,
        })),
      ),
    [project],
  );
  const found = useApi(
    "POST /charts/preview",
    { body: { bucket_info: view, chart: { series } } },
    { keep: true, everyMs: 60_000, enabled: useMay("charts:read") },
  );
  if (found.error && !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  return (
    <div className="charts">
      {BUILTIN.map((chart) => {
        const ids = new Set(chart.series.map((one) => one.id));
        const points = found.data?.data.filter((point) => ids.has(point.series_id));
        return (
          <Chart
            key={chart.title}
            title={chart.title}
            unit={chart.unit}
            isBar={chart.isBar ?? false}
            data={points && withoutZeros(dataOf(points, series), chart)}
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

function isFine(minutes: number, start: string, end: string): boolean {
  const buckets = (Date.parse(end) - Date.parse(start)) / (minutes * 60_000);
  return buckets <= MAX_BUCKETS && buckets >= 1;
}

function stepOf(text: string | undefined, start: string, end: string, otherwise: number): number {
  const minutes = STEPS.find(([name]) => name === text)?.[1];
  return minutes !== undefined && isFine(minutes, start, end) ? minutes : otherwise;
}
