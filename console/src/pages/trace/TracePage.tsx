// One trace: its spans as a tree with their times, and the span that the address names next to it.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useState } from "react";
import type { ApiError } from "../../api/client";
import { useApi } from "../../api/queries";
import { Empty } from "../../ui/Empty";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { useMayCall } from "../agents/useAgents";
import { useProjectDeployment } from "../traces/ProjectPage";
import { SPAN_SELECTS, type Span } from "../traces/runs";
import { Breakdown } from "./Breakdown";
import { RunPanel } from "./RunPanel";
import { Spans, TraceHead } from "./Spans";
import { toTree } from "./tree";

const traceRoute = getRouteApi("/traces/$projectId/$traceId");

const EVERY_MS = 2_000;
const LARGE = 2_000;
const LARGE_EVERY_MS = 15_000;

const VIEWS = [
  ["spans", "Spans"],
  ["breakdown", "By node and model"],
] as const;

export function TracePage() {
  const { projectId, traceId } = traceRoute.useParams();
  const { run, view: viewName } = traceRoute.useSearch();
  const navigate = useNavigate();
  const trace = useSpans(projectId, traceId);
  const tree = useMemo(() => toTree(trace.spans), [trace.spans]);

  const root = tree.nodes[0]?.span;
  const change = useCallback(
    (changes: { run?: string | undefined }) =>
      void navigate({
        to: "/traces/$projectId/$traceId",
        params: { projectId, traceId },
        search: (old) => ({ ...old, ...changes }),
        replace: true,
      }),
    [navigate, projectId, traceId],
  );

  const select = useCallback((id: string | undefined) => change({ run: id }), [change]);
  if (!root) return <Missing error={trace.error} retry={trace.retry} />;
  const view = viewName === "breakdown" ? "breakdown" : "spans";

  const tabs = (
    <Tabs
      label="Views of the trace"
      tabs={VIEWS}
      selected={view}
      search={(next, old) => ({ ...old, view: next === "spans" ? undefined : next })}
    />
  );

  return (
    <div className="page full wide trace">
      <TraceHead root={root} tree={tree}>
        <Origin traceId={root.id} projectId={projectId} />
      </TraceHead>
      {view === "breakdown" ? (
        <>
          <div className="row spread">{tabs}</div>
          <Breakdown traceId={traceId} projectId={projectId} tree={tree} />
        </>
      ) : (
        <Spans tree={tree} run={run} onSelect={select} tabs={tabs}>
          {(node) => <RunPanel key={node.span.id} runId={node.span.id} node={node} onBack={() => select(undefined)} />}
        </Spans>
      )}
    </div>
  );
}

function useSpans(projectId: string, traceId: string) {
  const [everyMs, setEveryMs] = useState<number | false>(false);
  const query = useApi(
    "GET /v2/traces/{trace_id}/runs",
    { path: { trace_id: traceId }, query: { project_id: projectId, selects: SPAN_SELECTS } },
    { everyMs },
  );

  const spans = useMemo(() => (query.data?.items ?? []) as unknown as Span[], [query.data]);
  // A trace is followed until nothing in it runs any more.
  const isRunning = spans.some((span) => span.status === "PENDING") || query.error?.status === 404;
  useEffect(
    () => setEveryMs(isRunning && (spans.length > LARGE ? LARGE_EVERY_MS : EVERY_MS)),
    [isRunning, spans.length],
  );

  return { spans, error: query.error, retry: () => void query.refetch() };
}

function Missing({ error, retry }: { error: ApiError | null; retry: () => void }) {
  if (!error) return null;

  return (
    <div className="page">
      {error.status === 404 ? (
        <Empty title="There is no such trace here">
          It may have expired, it may still be on its way, or it belongs to another project or workspace.
        </Empty>
      ) : (
        <Problem error={error} retry={retry} />
      )}
    </div>
  );
}

// Where the trace came from: its conversation, and the thread of the agent that ran it.
function Origin({ traceId, projectId }: { traceId: string; projectId: string }) {
  const run = useApi("GET /v2/runs/{run_id}", { path: { run_id: traceId }, query: { selects: ["THREAD_ID"] } });
  const threadId = (run.data as { thread_id?: string | null } | undefined)?.thread_id;
  const deployment = useProjectDeployment(projectId);
  const mayCall = useMayCall(deployment);

  if (!threadId) return null;

  return (
    <div className="row">
      <Link className="button" to="/traces/$projectId/threads/$threadId" params={{ projectId, threadId }}>
        Conversation
      </Link>
      {deployment && mayCall && (
        <Link
          className="button"
          to="/agents/$deploymentId/threads/$threadId"
          params={{ deploymentId: deployment.id, threadId }}
        >
          <Icon name="agents" />
          Thread of the agent
        </Link>
      )}
      {deployment && mayCall && (
        <Link
          className="button"
          to="/agents/$deploymentId/studio"
          params={{ deploymentId: deployment.id }}
          search={{ thread: threadId }}
        >
          <Icon name="play" />
          Studio
        </Link>
      )}
    </div>
  );
}
