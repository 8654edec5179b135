import { useMemo } from "react";
import type { Deployment } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { Figure } from "../../ui/Figure";
import { compact, cost, count, percent } from "../../ui/format";
import { duration } from "../../ui/Time";

const HOUR_MS = 3_600_000;

// The last hour and the month at a glance. A figure that cannot be read is shown as a dash, and blocks nothing.
export function Figures({ deployments }: { deployments: Deployment[] }) {
  const serving = deployments.filter((each) => each.status === "READY" && each.active_revision_id).length;
  const mayReadRuns = useMay("runs:read");
  const projects = useApi(
    "GET /sessions",
    { query: { limit: 100, sort_by: "last_run_start_time", sort_by_desc: true } },
    { enabled: useMay("projects:read"), everyMs: 60_000 },
  );

  const session = useMemo(() => projects.data?.map((each) => each.id), [projects.data]);
  // Times are cut to the minute, so that a page that is drawn again asks for the same figures.
  const minute = Math.floor(Date.now() / 60_000) * 60_000;
  const hour = useApi(
    "POST /runs/stats",
    { body: { session: session ?? [], is_root: true, start_time: new Date(minute - HOUR_MS).toISOString() } },
    { enabled: mayReadRuns && Boolean(session?.length), keep: true, everyMs: 15_000 },
  );

  const month = useApi(
    "POST /runs/stats",
    { body: { session: session ?? [], is_root: true, start_time: startOfMonth() } },
    { enabled: mayReadRuns && Boolean(session?.length), keep: true, everyMs: 60_000 },
  );

  // Tokens and costs are those of model runs, which are no roots.
  const spend = useApi(
    "POST /runs/stats",
    { body: { session: session ?? [], start_time: startOfMonth(), select: ["total_cost", "total_tokens"] } },
    { enabled: mayReadRuns && Boolean(session?.length), keep: true, everyMs: 60_000 },
  );

  const runs = hour.data?.run_count ?? (session?.length === 0 ? 0 : undefined);
  const monthRuns = month.data?.run_count ?? (session?.length === 0 ? 0 : undefined);

  return (
    <dl className="figures">
      <Health />
      <Figure title="Deployments" value={count(serving)} unit={`of ${count(deployments.length)} serving`} />
      <Figure title="Runs, last hour" value={count(runs)} />
      <Figure
        title="Errors, last hour"
        value={runs ? percent(hour.data?.error_rate ?? 0) : "–"}
        note={runs ? runsText(Math.round((hour.data?.error_rate ?? 0) * runs)) : "no runs"}
      />
      <Figure
        title="Latency, last hour"
        value={hour.data?.latency_p50 == null ? "–" : duration(hour.data.latency_p50 * 1000)}
        note={hour.data?.latency_p99 == null ? "no runs" : `median; 99%: ${duration(hour.data.latency_p99 * 1000)}`}
      />
      <Figure
        title="Spent this month"
        value={cost(spend.data?.total_cost)}
        note={
          spend.data === undefined || monthRuns === undefined
            ? ""
            : `${compact(spend.data.total_tokens ?? 0)} tokens, ${runsText(monthRuns)}`
        }
        to="/usage"
      />
    </dl>
  );
}

function Health() {
  const { data, error } = useApi("GET /ok", {}, { everyMs: 5_000 });
  const info = useApi("GET /info", {}).data;
  const { identity } = useSession();

  const health = data as
    | { ok: boolean; services: Record<string, boolean>; problems?: Record<string, string> }
    | undefined;
  const problems = Object.keys(health?.problems ?? {});
  const isWell = !error && health?.ok === true && problems.length === 0;
  const word = error || health?.ok === false ? "Down" : isWell ? "Healthy" : problems.length ? "Degraded" : "–";

  return (
    <Figure
      title="Platform"
      value={word}
      note={
        isWell
          ? `version ${(info?.portside_version ?? info?.version ?? "–").split("+")[0]}`
          : problems.join(", ") || identity.workspace_name || ""
      }
    />
  );
}

function startOfMonth(): string {
  const today = new Date();
  return new Date(Date.UTC(today.getUTCFullYear(), today.getUTCMonth(), 1)).toISOString();
}

function runsText(number: number): string {
  return number === 1 ? "1 run" : `${count(number)} runs`;
}
