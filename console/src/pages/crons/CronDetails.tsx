import { Link } from "@tanstack/react-router";
import { useState } from "react";
import { useAgentApi, useAgentChange } from "../../api/agentQueries";
import type { Cron } from "../../api/agentServer";
import { Confirm } from "../../ui/Confirm";
import { ShortId } from "../../ui/Copy";
import { Icon } from "../../ui/Icon";
import { Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { SidePanel } from "../../ui/SidePanel";
import { RunState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { CronForm } from "./CronForm";
import { CronState } from "./cron";
import { NextTimes } from "./NextTimes";

const EVERY_MS = 3_000;
const SHOWN_RUNS = 50;

interface Props {
  deploymentId: string;
  cronId: string;
  assistants: readonly (readonly [string, string])[];
  getName: (id: string) => string;
  isEdited: boolean;
  onShow: (changes: Record<string, string | undefined>) => void;
  onClose: () => void;
}

// One cron: its next times, what it runs, and the runs that it made.
export function CronDetails({ deploymentId, cronId, assistants, getName, isEdited, onShow, onClose }: Props) {
  const path = { cron_id: cronId };
  const query = useAgentApi(deploymentId, "GET /runs/crons/{cron_id}", { path }, { everyMs: EVERY_MS });
  if (query.data && isEdited) {
    return (
      <CronForm
        deploymentId={deploymentId}
        assistants={assistants}
        cron={query.data}
        onClose={() => onShow({ cron: cronId, edit: undefined })}
        onSaved={onShow}
      />
    );
  }

  return (
    <SidePanel title={`Cron ${cronId.slice(-8)}`} onClose={onClose}>
      {query.error && !query.data && <Problem error={query.error} retry={() => void query.refetch()} />}
      {query.data && (
        <div className="stack">
          <Actions deploymentId={deploymentId} cron={query.data} onShow={onShow} onClose={onClose} />
          <Facts deploymentId={deploymentId} cron={query.data} getName={getName} />
          <h3>Next times</h3>
          {query.data.is_enabled && query.data.next_run_date ? (
            <NextTimes
              deploymentId={deploymentId}
              schedule={query.data.schedule}
              timezone={query.data.timezone}
              endTime={query.data.end_time}
              after={query.data.next_run_date}
            />
          ) : (
            <p className="soft">None{query.data.is_enabled ? ": it has ended." : " while it is paused."}</p>
          )}
          <h3>Runs</h3>
          <History deploymentId={deploymentId} cron={query.data} />
          <h3>Input</h3>
          <Json value={query.data.payload.input ?? null} name="input" />
        </div>
      )}
    </SidePanel>
  );
}

function Actions({
  deploymentId,
  cron,
  onShow,
  onClose,
}: {
  deploymentId: string;
  cron: Cron;
  onShow: Props["onShow"];
  onClose: () => void;
}) {
  const path = { cron_id: cron.cron_id };
  const [isAsking, setAsking] = useState(false);
  const change = useAgentChange(deploymentId, "PATCH /runs/crons/{cron_id}");
  const runNow = useAgentChange(deploymentId, "POST /runs/crons/{cron_id}/run");
  const remove = useAgentChange(deploymentId, "DELETE /runs/crons/{cron_id}", onClose);

  const error = change.error ?? runNow.error;

  return (
    <>
      <div className="row">
        {cron.is_enabled && cron.next_run_date && (
          <button type="button" className="button" disabled={runNow.isPending} onClick={() => runNow.mutate({ path })}>
            <Icon name="play" />
            Run now
          </button>
        )}
        <button
          type="button"
          className="button"
          disabled={change.isPending}
          onClick={() => change.mutate({ path, body: { is_enabled: !cron.is_enabled } })}
        >
          <Icon name={cron.is_enabled ? "pause" : "play"} />
          {cron.is_enabled ? "Pause" : "Resume"}
        </button>
        <button type="button" className="button" onClick={() => onShow({ cron: cron.cron_id, edit: "1" })}>
          <Icon name="edit" />
          Edit
        </button>
        <button type="button" className="button danger" onClick={() => setAsking(true)}>
          <Icon name="trash" />
          Delete
        </button>
      </div>
      {error && <Problem error={error} />}
      {isAsking && (
        <Confirm
          title={`Delete the cron ${cron.schedule}?`}
          action="Delete the cron"
          cancel="Keep"
          change={remove}
          onConfirm={() => remove.mutate({ path })}
          onClose={() => setAsking(false)}
        >
          <p>It never runs again. The runs that it made stay. To stop it for a while, pause it instead.</p>
        </Confirm>
      )}
    </>
  );
}

function Facts({ deploymentId, cron, getName }: { deploymentId: string; cron: Cron; getName: Props["getName"] }) {
  return (
    <dl className="facts">
      <dt>Schedule</dt>
      <dd>
        <code>{cron.schedule}</code> {cron.timezone ?? "UTC"}
      </dd>
      <dt>State</dt>
      <dd>
        <CronState cron={cron} />
      </dd>
      <dt>Assistant</dt>
      <dd>{getName(cron.assistant_id)}</dd>
      <dt>Thread</dt>
      <dd>
        {cron.thread_id ? (
          <Link
            to="/agents/$deploymentId/threads/$threadId"
            params={{ deploymentId, threadId: cron.thread_id }}
            className="text"
          >
            {cron.thread_id.slice(-8)}
          </Link>
        ) : (
          `a new one each time, ${cron.on_run_completed === "keep" ? "kept" : "deleted"} after the run`
        )}
      </dd>
      {cron.end_time && (
        <>
          <dt>Ends</dt>
          <dd>{cron.end_time}</dd>
        </>
      )}
      {cron.skipped_count > 0 && (
        <>
          <dt>Skipped</dt>
          <dd>{cron.skipped_count} times: the last run had not started, or its run was refused</dd>
        </>
      )}
    </dl>
  );
}

function History({ deploymentId, cron }: { deploymentId: string; cron: Cron }) {
  const runs = useAgentApi(
    deploymentId,
    "POST /runs/search",
    { body: { cron_id: cron.cron_id, limit: SHOWN_RUNS } },
    { everyMs: EVERY_MS },
  );

  if (!runs.data) return runs.error ? <Problem error={runs.error} /> : null;

  if (runs.data.length === 0) {
    const isDeleted = cron.thread_id === null && cron.on_run_completed !== "keep";

    return (
      <p className="soft">
        None{isDeleted ? ". Runs are deleted with their threads as soon as they end; traces stay." : " yet."}
      </p>
    );
  }

  return (
    <ul className="runs" aria-label="Runs of the cron">
      {runs.data.map((run) => (
        <li key={run.run_id}>
          <RunState status={run.status} />
          <Link
            to="/agents/$deploymentId/queue"
            params={{ deploymentId }}
            search={{ run: run.run_id, thread: run.thread_id }}
            className="text"
            aria-label={`Run ${run.run_id.slice(-8)}`}
          >
            <ShortId id={run.run_id} what="run id" />
          </Link>
          <span className="soft">
            <Ago at={run.created_at} />
          </span>
          {run.error && <p className="error">{String(run.error.message ?? run.error.error ?? "It failed.")}</p>}
        </li>
      ))}
    </ul>
  );
}
