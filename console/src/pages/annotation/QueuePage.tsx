// A queue worked through with the keyboard: digits answer, d is done, s skips, p goes back, n writes a note.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useState } from "react";
import type { Queue } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Markdown } from "../../ui/Markdown";
import { Problem } from "../../ui/Problem";
import { duration } from "../../ui/Time";
import { findValue, useValues, Value } from "../trace/Values";
import { RunMark } from "../traces/RunMark";
import type { RunState } from "../traces/runs";
import { Judgement } from "./Judgement";

const queueRoute = getRouteApi("/annotation/$queueId");

const AHEAD = 100;
const SELECTS = ["NAME", "STATUS", "TRACE_ID", "PROJECT_ID", "LATENCY_SECONDS"];

interface Entry {
  id: string;
}

interface RunFacts {
  name: string;
  status: RunState;
  trace_id: string;
  project_id: string;
  latency_seconds: number | null;
}

export function QueuePage() {
  const { queueId } = queueRoute.useParams();
  const { run } = queueRoute.useSearch();
  const navigate = useNavigate();

  const path = { queue_id: queueId };
  const queue = useApi("GET /annotation-queues/{queue_id}", { path });
  const size = useApi("GET /annotation-queues/{queue_id}/size", { path }, { everyMs: 10_000 }).data;

  const waiting = useApi("GET /annotation-queues/{queue_id}/runs", {
    path,
    query: { status: "needs_my_review", exclude_values: true, limit: AHEAD },
  });

  // The runs that were open before this one, for "Previous", and the ones that are left for later.
  const [before, setBefore] = useState<string[]>([]);
  const [skipped, setSkipped] = useState<ReadonlySet<string>>(new Set());

  // Runs that were judged here. The list may still hold them until it has been read again.
  const [done, setDone] = useState<ReadonlySet<string>>(new Set());
  const entries = ((waiting.data ?? []) as unknown as Entry[]).filter((entry) => !done.has(entry.id));
  const current = run ?? entries.find((entry) => !skipped.has(entry.id))?.id ?? entries[0]?.id;
  const go = (id: string | undefined) =>
    void navigate({ to: "/annotation/$queueId", params: { queueId }, search: { run: id }, replace: true });

  const next = (isSkipped: boolean) => {
    if (!current) return;
    setBefore([...before, current]);
    if (!isSkipped) setDone(new Set([...done, current]));
    const left = isSkipped ? new Set([...skipped, current]) : skipped;

    setSkipped(left);
    const others = entries.filter((entry) => entry.id !== current);
    go((others.find((entry) => !left.has(entry.id)) ?? others[0])?.id);
  };

  const previous = () => {
    const last = before.at(-1);
    if (last === undefined) return;
    setBefore(before.slice(0, -1));
    go(last);
  };

  if (queue.error) {
    return (
      <div className="page">
        <Problem error={queue.error} retry={() => void queue.refetch()} />
      </div>
    );
  }

  if (!queue.data || !waiting.data) return null;

  return (
    <div className="page full wide">
      <Head queue={queue.data} done={size?.completed ?? 0} size={size?.size ?? 0} />
      {current ? (
        <div className="annotation">
          <RunShown key={current} runId={current} />
          <Judgement
            key={`judgement ${current}`}
            queue={queue.data}
            runId={current}
            hasPrevious={before.length > 0}
            onDone={() => next(false)}
            onSkip={() => next(true)}
            onPrevious={previous}
          />
        </div>
      ) : (
        <Empty title={size && size.size > 0 ? "Everything is done" : "The queue is empty"}>
          {size && size.size > 0
            ? `All ${count(size.size)} runs were judged. Add more from a list of traces.`
            : "Mark traces in a list with x, and add them to this queue."}{" "}
          <Link to="/traces" search={{}} className="text">
            Traces
          </Link>
          {before.length > 0 && (
            <p>
              <button type="button" className="button" onClick={previous}>
                Go back to the last one
              </button>
            </p>
          )}
        </Empty>
      )}
    </div>
  );
}

function Head({ queue, done, size }: { queue: Queue; done: number; size: number }) {
  const mayUpdate = useMay("annotation-queues:update");

  return (
    <div className="head">
      <div>
        <h1>{queue.name}</h1>
        {queue.description && <p className="soft">{queue.description}</p>}
      </div>
      <div className="row">
        <label className="row">
          <span className="number">
            {count(done)} of {count(size)} done
          </span>
          <progress max={Math.max(size, 1)} value={done} />
        </label>
        {mayUpdate && (
          <Link to="/annotation/$queueId/edit" params={{ queueId: queue.id }} className="button">
            <Icon name="edit" />
            Edit
          </Link>
        )}
      </div>
      {queue.rubric_instructions && (
        <details className="instructions" open>
          <summary>Instructions</summary>
          <Markdown text={queue.rubric_instructions} />
        </details>
      )}
    </div>
  );
}

function RunShown({ runId }: { runId: string }) {
  const run = useApi("GET /v2/runs/{run_id}", { path: { run_id: runId }, query: { selects: SELECTS } });
  const values = useValues(runId);

  const facts = run.data as RunFacts | undefined;
  const error = run.error ?? values.error;

  return (
    <section className="card annotated" aria-label="Run">
      {error && <Problem error={error} />}
      {facts && (
        <div className="card-head">
          <span className="row">
            <RunMark status={facts.status} />
            <h2>{facts.name}</h2>
            <span className="soft number">
              {facts.latency_seconds === null ? "running" : duration(facts.latency_seconds * 1000)}
            </span>
          </span>
          <Link
            to="/traces/$projectId/$traceId"
            params={{ projectId: facts.project_id, traceId: facts.trace_id }}
            search={runId === facts.trace_id ? {} : { run: runId }}
            className="text"
          >
            Its trace
          </Link>
        </div>
      )}
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled with the keyboard */}
      <div className="card-body annotated-body" tabIndex={0}>
        {["error", "inputs", "outputs"].map((name) => {
          const value = findValue(values.data, name);
          return value && <Value key={name} runId={runId} value={value} />;
        })}
      </div>
    </section>
  );
}
