import { Link } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import type { ThreadState as State } from "../../api/agentServer";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Icon } from "../../ui/Icon";

const LOOK_EVERY_MS = 5_000;

// The trace of the run that led to a state, and what somebody thinks of it. Without a trace there is nothing to say.
export function RunFooter({ state }: { state: State | undefined }) {
  const runId = state?.metadata?.run_id;
  return typeof runId === "string" ? <Footer key={runId} runId={runId} /> : null;
}

function Footer({ runId }: { runId: string }) {
  const mayRead = useMay("runs:read");
  const mayRate = useMay("feedback:create");
  const [isTraced, setTraced] = useState(false);
  const [score, setScore] = useState<number | null>(null);

  const trace = useApi(
    "GET /v2/runs/{run_id}",
    { path: { run_id: runId }, query: { selects: ["TRACE_ID"] } },
    { enabled: mayRead && !isTraced, everyMs: LOOK_EVERY_MS },
  );

  const isFound = trace.data !== undefined;
  useEffect(() => setTraced(isFound), [isFound]);
  const rate = useChange("POST /feedback", (feedback) => setScore(Number(feedback.score)));

  if (!isFound) return null;
  const send = (value: number) => rate.mutate({ body: { run_id: runId, key: "user_score", score: value } });

  return (
    <div className="run-footer">
      <Link to="/traces" search={{ run: runId }} className="text">
        Trace of the last run
      </Link>
      {mayRate && (
        <>
          <button
            type="button"
            className="copy"
            aria-label="Good"
            title="Good"
            aria-pressed={score === 1}
            onClick={() => send(1)}
          >
            <Icon name="thumbUp" />
          </button>
          <button
            type="button"
            className="copy"
            aria-label="Bad"
            title="Bad"
            aria-pressed={score === 0}
            onClick={() => send(0)}
          >
            <Icon name="thumbDown" />
          </button>
          {score !== null && <span className="soft small">stored as user_score</span>}
          {rate.error && <span className="error small">{rate.error.message}</span>}
        </>
      )}
    </div>
  );
}
