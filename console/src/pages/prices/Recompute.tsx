import { useState } from "react";
import type { Recomputation } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { count, percent } from "../../ui/format";
import { Problem } from "../../ui/Problem";
import { Ago, Exact } from "../../ui/Time";

const DAYS = [1, 7, 30, 90] as const;
const DAY_MS = 86_400_000;

// Costs of past runs by today's prices. The platform works in the background; this shows how far it has come.
export function Recompute() {
  const [project, setProject] = useState("");
  const [days, setDays] = useState<string>("30");
  const projects = useApi("GET /sessions", { query: { limit: 100, sort_by: "name" } });
  const works = useApi("GET /model-price-map/recomputations", {}, { everyMs: 2_000 });
  const start = useChange("POST /model-price-map/recomputations");
  const cancel = useChange("DELETE /model-price-map/recomputations/{recomputation_id}");

  const latest = works.data?.[0];
  const isRunning = latest !== undefined && latest.finished_at === null && latest.cancelled_at === null;

  const begin = () =>
    start.mutate({
      body: {
        session_id: project || null,
        start_time: days === "all" ? null : new Date(Date.now() - Number(days) * DAY_MS).toISOString(),
      },
    });

  return (
    <section className="card" aria-labelledby="past">
      <div className="card-head">
        <h2 id="past">Costs of the past</h2>
      </div>
      <div className="card-body stack">
        <div className="filters">
          <select aria-label="Project" value={project} onChange={(event) => setProject(event.target.value)}>
            <option value="">All projects</option>
            {(projects.data ?? []).map((each) => (
              <option key={each.id} value={each.id}>
                {each.name}
              </option>
            ))}
          </select>
          <select aria-label="Runs of" value={days} onChange={(event) => setDays(event.target.value)}>
            {DAYS.map((each) => (
              <option key={each} value={each}>
                {each === 1 ? "the last day" : `the last ${each} days`}
              </option>
            ))}
            <option value="all">all time</option>
          </select>
          <button type="button" className="button" disabled={isRunning || start.isPending} onClick={begin}>
            Compute again
          </button>
          {isRunning && (
            <button
              type="button"
              className="button danger"
              disabled={cancel.isPending}
              onClick={() => cancel.mutate({ path: { recomputation_id: latest.id } })}
            >
              Stop
            </button>
          )}
        </div>
        {start.error && <Problem error={start.error} />}
        {cancel.error && <Problem error={cancel.error} />}
        {latest === undefined ? (
          <p className="soft">
            A new price applies to runs that are stored from then on. This applies today's prices to older ones; costs
            that clients reported stay.
          </p>
        ) : (
          <div className="meter-row" role="status">
            <progress aria-label="Progress" max={1} value={latest.progress} />
            <span className="number">{percent(latest.progress)}</span>
            <span className="soft">
              {getState(latest)}: {count(latest.runs)} model runs, {count(latest.changed)} changed,{" "}
              {latest.session_name ?? "all projects"}, begun <Ago at={latest.created_at} />
            </span>
          </div>
        )}
        {isRunning && latest.error !== null && latest.retry_at !== null && (
          <p role="alert">
            A batch failed and is tried again at <Exact at={latest.retry_at} />: {latest.error}
          </p>
        )}
      </div>
    </section>
  );
}

function getState(work: Recomputation): string {
  if (work.finished_at !== null) return "done";
  if (work.cancelled_at !== null) return "stopped";
  return work.error === null ? "running" : "waiting";
}
