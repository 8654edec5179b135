import { Link, useNavigate } from "@tanstack/react-router";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { FoundRun, Run } from "../../api/agentServer";
import { useApi } from "../../api/queries";
import { ownAgent } from "../../api/server";
import { useMay } from "../../shell/session";
import { ShortId } from "../../ui/Copy";
import { ErrorText } from "../../ui/ErrorText";
import { plain } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { SidePanel } from "../../ui/SidePanel";
import { RunState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { toRetry } from "./retry";
import { isActive, WaitsFor } from "./waiting";

const EVERY_MS = 3_000;
const TRACED_CHARS = 100_000;

interface Props {
  deploymentId: string;
  runId: string;
  threadId: string;
  getName: (id: string) => string;
  onClose: () => void;
}

// One run of the queue: what it waits for, its attempts, its error and its input.
export function RunDetails({ deploymentId, runId, threadId, getName, onClose }: Props) {
  const path = { thread_id: threadId, run_id: runId };
  const runs = useAgentApi(
    deploymentId,
    "POST /runs/search",
    { body: { thread_id: threadId, run_id: runId } },
    { everyMs: EVERY_MS },
  );

  const whole = useAgentApi(deploymentId, "GET /threads/{thread_id}/runs/{run_id}", { path }, { everyMs: EVERY_MS });
  const run = runs.data?.[0];
  const error = whole.error ?? runs.error;

  return (
    <SidePanel title={`Run ${runId.slice(-8)}`} onClose={onClose}>
      <div className="stack">
        {error && !whole.data && <Problem error={error} />}
        {run && whole.data && (
          <>
            <div className="row spread">
              <RunState status={run.status} />
              <Actions deploymentId={deploymentId} run={run} whole={whole.data} />
            </div>
            <Facts deploymentId={deploymentId} run={run} getName={getName} />
            {run.error && <Failure run={run} deploymentId={deploymentId} />}
            <h3>Input</h3>
            <Json value={whole.data.kwargs.input ?? whole.data.kwargs.command ?? null} name="input" open={2} />
          </>
        )}
      </div>
    </SidePanel>
  );
}

// Why a run failed: the error with the line of the agent's own code, what the agent wrote meanwhile, and the way to try
// again with another input.
function Failure({ run, deploymentId }: { run: FoundRun; deploymentId: string }) {
  const mayRead = useMay("runs:read");
  const values = useApi(
    "GET /runs/{run_id}/values",
    { path: { run_id: run.run_id }, query: { chars: TRACED_CHARS } },
    { enabled: mayRead && ownAgent === null },
  ).data;

  const { error, message } = run.error ?? {};
  const said = [error, message].filter(Boolean).join(": ") || "It failed.";
  const traced = values?.values.find((each) => each.name === "error")?.text;

  return (
    <>
      <ErrorText text={traced ? plain(traced) : said} />
      <p className="row">
        <Link
          to="/agents/$deploymentId/studio"
          params={{ deploymentId }}
          search={{ thread: run.thread_id, assistant: run.assistant_id }}
          className="text"
        >
          Edit the message and fork in the studio
        </Link>
        {ownAgent === null && (
          <Link
            to="/deployments/$deploymentId/log"
            params={{ deploymentId }}
            search={{ q: run.run_id }}
            className="text"
          >
            Log of this run
          </Link>
        )}
      </p>
    </>
  );
}

function Facts({
  deploymentId,
  run,
  getName,
}: {
  deploymentId: string;
  run: FoundRun;
  getName: (id: string) => string;
}) {
  return (
    <dl className="facts">
      <dt>Run</dt>
      <dd>
        <ShortId id={run.run_id} what="run id" />{" "}
        <Link to="/traces" search={{ run: run.run_id }} className="text">
          Trace
        </Link>
      </dd>
      <dt>Thread</dt>
      <dd>
        <Link
          to="/agents/$deploymentId/threads/$threadId"
          params={{ deploymentId, threadId: run.thread_id }}
          className="text"
        >
          {run.thread_id.slice(-8)}
        </Link>
      </dd>
      <dt>Assistant</dt>
      <dd>{getName(run.assistant_id)}</dd>
      {run.cron_id && (
        <>
          <dt>Cron</dt>
          <dd>
            <Link
              to="/agents/$deploymentId/crons"
              params={{ deploymentId }}
              search={{ cron: run.cron_id }}
              className="text"
            >
              {run.cron_id.slice(-8)}
            </Link>
          </dd>
        </>
      )}
      {run.waits_for && (
        <>
          <dt>Waits for</dt>
          <dd>
            <WaitsFor run={run} />
          </dd>
        </>
      )}
      <dt>Attempts</dt>
      <dd>
        {run.attempt}, of which {run.lost_attempts} lost with their worker
      </dd>
      {run.worker_id && (
        <>
          <dt>Worker</dt>
          <dd>
            <ShortId id={run.worker_id} what="worker id" />
          </dd>
        </>
      )}
      <dt>Requested</dt>
      <dd>
        <Ago at={run.created_at} />
      </dd>
      {run.started_at && (
        <>
          <dt>Started</dt>
          <dd>
            <Ago at={run.started_at} />
          </dd>
        </>
      )}
      {run.cancel_reason && (
        <>
          <dt>Cancelled</dt>
          <dd>{run.cancel_reason}</dd>
        </>
      )}
    </dl>
  );
}

function Actions({ deploymentId, run, whole }: { deploymentId: string; run: FoundRun; whole: Run }) {
  const navigate = useNavigate();
  const cancel = useAgentChange(deploymentId, "POST /threads/{thread_id}/runs/{run_id}/cancel");
  const retry = useAgentChange(
    deploymentId,
    "POST /threads/{thread_id}/runs",
    (newRun) =>
      void navigate({
        to: ".",
        search: (old) => ({ ...old, view: undefined, run: newRun.run_id, thread: newRun.thread_id }),
      }),
  );

  const error = cancel.error ?? retry.error;

  return (
    <>
      {isActive(run) ? (
        <button
          type="button"
          className="button"
          disabled={cancel.isPending}
          onClick={() => cancel.mutate({ path: { thread_id: run.thread_id, run_id: run.run_id } })}
        >
          <Icon name="stop" />
          Cancel
        </button>
      ) : (
        <button
          type="button"
          className="button"
          disabled={retry.isPending}
          title="A new run of the same thread with the same input"
          onClick={() => retry.mutate({ path: { thread_id: run.thread_id }, body: toRetry(whole) })}
        >
          <Icon name="rotate" />
          Run again
        </button>
      )}
      {error && <Problem error={error} />}
    </>
  );
}
