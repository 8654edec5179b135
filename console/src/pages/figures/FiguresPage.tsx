import { getRouteApi, useNavigate } from "@tanstack/react-router";
import type { ChartWindow } from "../../api/platform";
import { useApi } from "../../api/queries";
import { usePreferences } from "../../preferences";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { getPeriod, parseRange, RANGES, RangeSelect } from "../../ui/Range";
import { Builtins } from "./Builtins";
import { Sections } from "./Sections";

const figuresRoute = getRouteApi("/figures");

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

export function FiguresPage() {
  const search = figuresRoute.useSearch();
  const navigate = useNavigate();
  const { zone } = usePreferences();

  const range = parseRange(search.range, "24h");
  const period = getPeriod(range);
  const step = getStep(search.step, period.start, period.end, RANGES[range].stepMinutes);

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

function isFine(minutes: number, start: string, end: string): boolean {
  const buckets = (Date.parse(end) - Date.parse(start)) / (minutes * 60_000);
  return buckets <= MAX_BUCKETS && buckets >= 1;
}

function getStep(text: string | undefined, start: string, end: string, otherwise: number): number {
  const minutes = STEPS.find(([name]) => name === text)?.[1];
  return minutes !== undefined && isFine(minutes, start, end) ? minutes : otherwise;
}
