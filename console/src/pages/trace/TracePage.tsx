// One trace: its spans as a tree with their times, and the span that the address names next to it.

import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import type { ApiError } from "../../api/client";
import { useApi } from "../../api/queries";
import { traceRoute } from "../../router";
import { useKey } from "../../shell/keys";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { compact, cost, count } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Tabs } from "../../ui/Tabs";
import { Ago, duration } from "../../ui/Time";
import { useDeploymentOf } from "../traces/ProjectPage";
import { SPAN_SELECTS, type Span } from "../traces/runs";
import { Breakdown } from "./Breakdown";
import { RunPanel } from "./RunPanel";
import { openedTo, shownOf, type Tree, treeOf } from "./tree";
import { Waterfall } from "./Waterfall";

const EVERY_MS = 2_000;
const LARGE = 2_000;
const LARGE_EVERY_MS = 15_000;
const VIEWS = [
  ["spans", "Spans"],
  ["breakdown", "By node and model"],
] as const;

export function TracePage() {
  const { projectId, traceId } = traceRoute.useParams();
  const { run, view: wanted } = traceRoute.useSearch();
  const navigate = useNavigate();
  const found = useSpans(projectId, traceId);
  const tree = useMemo(() => treeOf(found.spans), [found.spans]);
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const [search, setSearch] = useState("");
  const root = tree.nodes[0]?.span;
  const selected = run ?? root?.id ?? "";
  const shown = useMemo(() => shownOf(tree, closed, search), [tree, closed, search]);
  useEffect(() => setClosed((old) => openedTo(tree, selected, old)), [tree, selected]);
  const select = useCallback(
    (id: string | undefined) =>
      void navigate({
        to: "/traces/$projectId/$traceId",
        params: { projectId, traceId },
        search: (old) => ({ ...old, run: id }),
        replace: true,
      }),
    [navigate, projectId, traceId],
  );
  const toggle = useCallback(
    (id: string, isClosed: boolean) =>
      setClosed((old) => {
        const next = new Set(old);
        if (isClosed) next.add(id);
        else next.delete(id);
        return next;
      }),
    [],
  );
  if (!root) return <Missing error={found.error} retry={found.retry} />;
  const view = wanted === "breakdown" ? "breakdown" : "spans";
  const isKnown = tree.positions.has(selected);
  return (
    <div className="page full wide trace">
      <Head root={root} tree={tree} projectId={projectId} />
      <div className="row spread">
        <Tabs
          label="Views of the trace"
          tabs={VIEWS}
          selected={view}
          onSelect={(next) =>
            void navigate({
              to: "/traces/$projectId/$traceId",
              params: { projectId, traceId },
              search: (old) => ({ ...old, view: next === "spans" ? undefined : next }),
              replace: true,
            })
          }
        />
        {view === "spans" && (
          <SpanTools
            search={search}
            onSearch={setSearch}
            onClose={() => setClosed(new Set(tree.nodes.filter((node) => node.below && node.depth).map(idOf)))}
            onOpen={() => setClosed(new Set())}
          />
        )}
      </div>
      {view === "breakdown" ? (
        <Breakdown traceId={traceId} projectId={projectId} tree={tree} />
      ) : (
        <div className={run ? "trace-parts with-run" : "trace-parts"}>
          <Waterfall
            tree={tree}
            shown={shown}
            closed={closed}
            selected={selected}
            onSelect={select}
            onToggle={toggle}
          />
          {isKnown ? (
            <RunPanel
              key={selected}
              runId={selected}
              node={tree.nodes[tree.positions.get(selected) ?? 0]}
              onBack={() => select(undefined)}
            />
          ) : (
            <Empty title="This span is not in the trace">
              <button type="button" className="link" onClick={() => select(undefined)}>
                Show the root
              </button>
            </Empty>
          )}
        </div>
      )}
    </div>
  );
}

function idOf(node: { span: Span }): string {
  return node.span.id;
}

function useSpans(projectId: string, traceId: string) {
  const [everyMs, setEveryMs] = useState<number | false>(false);
  const found = useApi(
    "GET /v2/traces/{trace_id}/runs",
    { path: { trace_id: traceId }, query: { project_id: projectId, selects: SPAN_SELECTS } },
    { everyMs },
  );
  const spans = useMemo(() => (found.data?.items ?? []) as unknown as Span[], [found.data]);
  // A trace is followed until nothing in it runs any more.
  const isRunning = spans.some((span) => span.status === "PENDING") || found.error?.status === 404;
  useEffect(
    () => setEveryMs(isRunning && (spans.length > LARGE ? LARGE_EVERY_MS : EVERY_MS)),
    [isRunning, spans.length],
  );
  return { spans, error: found.error, retry: () => void found.refetch() };
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

function Head({ root, tree, projectId }: { root: Span; tree: Tree; projectId: string }) {
  const node = tree.nodes[0];
  const failed = tree.nodes.filter((each) => each.span.status === "ERROR").length;
  const interrupted = tree.nodes.filter((each) => each.span.status === "INTERRUPTED").length;
  return (
    <div className="head">
      <div className="row">
        <h1>{root.name}</h1>
        <RootState root={root} isInterrupted={interrupted > 0} />
      </div>
      <dl className="head-facts">
        <Fact title="Latency">{root.end_time === null ? "running" : duration(tree.endMs - tree.startMs)}</Fact>
        <Fact title="Tokens">{compact(node?.tokens || null)}</Fact>
        <Fact title="Cost">{cost(node?.cost)}</Fact>
        <Fact title="Spans">
          {count(tree.nodes.length)}
          {failed > 0 && <span className="bad-text"> · {count(failed)} failed</span>}
          {interrupted > 0 && <span className="soft"> · {count(interrupted)} interrupted</span>}
        </Fact>
        <Fact title="Started">
          <Ago at={root.start_time} />
        </Fact>
        <Fact title="Trace">
          <ShortId id={root.id} what="id of the trace" />
        </Fact>
      </dl>
      <Origin traceId={root.id} projectId={projectId} />
    </div>
  );
}

// Where the trace came from: its conversation, and the thread of the agent that ran it.
function Origin({ traceId, projectId }: { traceId: string; projectId: string }) {
  const found = useApi("GET /v2/runs/{run_id}", { path: { run_id: traceId }, query: { selects: ["THREAD_ID"] } });
  const threadId = (found.data as { thread_id?: string | null } | undefined)?.thread_id;
  const deployment = useDeploymentOf(projectId);
  if (!threadId) return null;
  return (
    <div className="row">
      <Link className="button" to="/traces/$projectId/threads/$threadId" params={{ projectId, threadId }}>
        Conversation
      </Link>
      {deployment && (
        <Link
          className="button"
          to="/agents/$deploymentId/threads/$threadId"
          params={{ deploymentId: deployment.id, threadId }}
        >
          <Icon name="agents" />
          Thread of the agent
        </Link>
      )}
      {deployment && (
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

// A graph that asks a person ends its run without an error; only the runs below it say that it was interrupted.
function RootState({ root, isInterrupted }: { root: Span; isInterrupted: boolean }) {
  if (root.status === "ERROR") return <Status tone="bad" word="Failed" />;
  if (root.status === "PENDING") return <Status tone="busy" word="Running" />;
  if (root.status === "INTERRUPTED" || isInterrupted) {
    return <Status tone="wait" word="Interrupted" title="The run that goes on has a trace of its own." />;
  }
  return <Status tone="good" word="Succeeded" />;
}

function Fact({ title, children }: { title: string; children: React.ReactNode }) {
  return (
    <div>
      <dt>{title}</dt>
      <dd className="number">{children}</dd>
    </div>
  );
}

interface ToolsProps {
  search: string;
  onSearch: (text: string) => void;
  onClose: () => void;
  onOpen: () => void;
}

function SpanTools({ search, onSearch, onClose, onOpen }: ToolsProps) {
  const field = useRef<HTMLInputElement>(null);
  useKey("/", () => field.current?.focus());
  return (
    <div className="filters">
      <input
        ref={field}
        type="search"
        aria-label="Find spans by name, type or error"
        placeholder="Find spans  ( / )"
        value={search}
        onChange={(event) => onSearch(event.target.value)}
      />
      <button type="button" className="button" onClick={onClose}>
        Collapse all
      </button>
      <button type="button" className="button" onClick={onOpen}>
        Expand all
      </button>
    </div>
  );
}
