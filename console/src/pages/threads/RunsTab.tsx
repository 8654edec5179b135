import { Link } from "@tanstack/react-router";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { ListedRun } from "../../api/agentServer";
import { useMay } from "../../shell/session";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { RunState } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";

const SHOWN = 50;
const EVERY_MS = 3_000;

// The latest runs of a thread. Pending and running ones can be stopped.
export function RunsTab({ deploymentId, threadId }: { deploymentId: string; threadId: string }) {
  const runs = useAgentApi(
    deploymentId,
    "GET /threads/{thread_id}/runs",
    { path: { thread_id: threadId }, query: { limit: SHOWN } },
    { everyMs: EVERY_MS },
  );

  const mayTrace = useMay("runs:read");
  const cancel = useAgentChange(deploymentId, "POST /threads/{thread_id}/runs/{run_id}/cancel");

  if (!runs.data) {
    return runs.error ? <Problem error={runs.error} retry={() => void runs.refetch()} /> : null;
  }
  if (runs.data.length === 0) return <Empty title="No run yet">Each message or answer to this thread is a run.</Empty>;

  return (
    <div className="stack">
      {cancel.error && <Problem error={cancel.error} />}
      <ul className="runs">
        {runs.data.map((run) => (
          <li key={run.run_id}>
            {run.status && <RunState status={run.status} />}
            <ShortId id={run.run_id ?? ""} what="run id" />
            <span className="soft">{took(run)}</span>
            <span className="soft">{run.created_at && <Ago at={run.created_at} />}</span>
            {mayTrace && (
              <Link to="/traces" search={{ run: run.run_id }} className="text">
                Trace
              </Link>
            )}
            {run.status === "pending" || run.status === "running" ? (
              <button
                type="button"
                className="link"
                disabled={cancel.isPending}
                onClick={() => cancel.mutate({ path: { thread_id: threadId, run_id: run.run_id ?? "" } })}
              >
                Stop
              </button>
            ) : (
              <span />
            )}
            {run.error && <p className="error">{String(run.error.message ?? run.error.error ?? "It failed.")}</p>}
          </li>
        ))}
      </ul>
    </div>
  );
}

function took(run: ListedRun): string {
  if (!run.created_at || !run.updated_at || run.status === "pending" || run.status === "running") return "";
  return duration(new Date(run.updated_at).getTime() - new Date(run.created_at).getTime());
}
