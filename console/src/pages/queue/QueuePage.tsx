import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useAgentApi, useAgentPages } from "../../api/agentQueries";
import type { FoundRun } from "../../api/agentServer";
import { useAssistants } from "../../api/useAssistants";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { Figure } from "../../ui/Figure";
import { FilterSelect } from "../../ui/FilterSelect";
import { count } from "../../ui/format";
import type { Column } from "../../ui/List";
import { ListPage } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { RunState } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";
import { useMarked } from "../../ui/useMarked";
import { useSearchParams } from "../../ui/useSearchParams";
import { CancelRuns } from "./CancelRuns";
import { RunDetails } from "./RunDetails";
import { isActive, WaitsFor } from "./waiting";

const runQueueRoute = getRouteApi("/agents/$deploymentId/queue");

const PAGE = 100;
const EVERY_MS = 3_000;

const VIEWS = [
  ["waiting", "Waiting"],
  ["running", "Running"],
  ["failed", "Failed"],
] as const;

const STATUSES: Record<string, FoundRun["status"][]> = {
  waiting: ["pending"],
  running: ["running"],
  failed: ["error", "timeout"],
};

export function QueuePage() {
  const { deploymentId } = runQueueRoute.useParams();
  const { view, assistant, run, thread } = runQueueRoute.useSearch();
  const { push, bind } = useSearchParams({ view, assistant, run, thread });
  const { pairs, getName } = useAssistants(deploymentId);
  const { marked, toggle, clear, column } = useMarked(JSON.stringify([view, assistant]), getId, getLabel);

  const status = STATUSES[view ?? ""] ?? ["pending", "running"];
  const runs = useAgentPages(
    deploymentId,
    "POST /runs/search",
    (offset) => ({
      body: { status, ...(assistant ? { assistant_id: assistant } : {}), limit: PAGE, offset },
    }),
    { everyMs: EVERY_MS, keep: true },
  );

  const isFailed = view === "failed";
  const activeMarked = runs.rows.filter((each) => marked.has(each.run_id) && isActive(each));
  const columns = useMemo(
    () => [...(isFailed ? [] : [{ ...column, isExtra: true }]), ...getColumns(getName, isFailed)],
    [getName, isFailed, column],
  );

  return (
    <ListPage
      isWide
      head={<QueueFigures deploymentId={deploymentId} />}
      filters={
        <>
          <FilterSelect label="Runs" all="Waiting and running" options={VIEWS} {...bind("view")} />
          <FilterSelect label="Assistant" all="All assistants" options={pairs} {...bind("assistant")} />
          {runs.isRead && !isFailed && <CancelRuns deploymentId={deploymentId} marked={activeMarked} onDone={clear} />}
        </>
      }
      panel={
        run &&
        thread && (
          <RunDetails
            deploymentId={deploymentId}
            runId={run}
            threadId={thread}
            getName={getName}
            onClose={() => push({ run: undefined, thread: undefined })}
          />
        )
      }
    >
      <PagedList
        listing={runs}
        label="Runs"
        columns={columns}
        getKey={getId}
        onOpen={(each) => push({ run: each.run_id, thread: each.thread_id })}
        onMark={(each) => isActive(each) && toggle(each)}
        empty={<NoRun isFailed={isFailed} />}
      />
    </ListPage>
  );
}

function QueueFigures({ deploymentId }: { deploymentId: string }) {
  const { data } = useAgentApi(
    deploymentId,
    "GET /metrics",
    { query: { format: "json" } },
    { everyMs: EVERY_MS, keep: true },
  );

  if (!data) return null;
  const { queue, workers } = data;

  return (
    <dl className="figures four">
      <Figure title="Waiting" value={count(queue.n_pending)} />
      <Figure title="Running" value={count(queue.n_running)} />
      <Figure
        title="Longest wait"
        value={seconds(queue.pending_runs_wait_time_max_secs)}
        note={`half wait less than ${seconds(queue.pending_runs_wait_time_med_secs)}`}
      />
      <Figure
        title="Slots in use"
        value={count(workers.active)}
        unit={`of ${count(workers.max)}`}
        note="of one server"
      />
    </dl>
  );
}

function seconds(value: number | null | undefined): string {
  return value == null ? "–" : duration(value * 1000);
}

function NoRun({ isFailed }: { isFailed: boolean }) {
  if (isFailed)
    return <Empty title="No run has failed">A failed run stays here with its error until its thread is deleted.</Empty>;

  return (
    <Empty title="Nothing waits or runs">
      Runs show here from their request to their end: what executes them, what they wait for, and how often they were
      tried.
    </Empty>
  );
}

function getId(run: FoundRun): string {
  return run.run_id;
}

function getLabel(run: FoundRun): string {
  return `run ${run.run_id.slice(-8)}`;
}

function getColumns(getName: (id: string) => string, isFailed: boolean): Column<FoundRun>[] {
  return [
    {
      title: "Run",
      width: "minmax(88px, 116px)",
      show: (each) => (
        <Link
          to="."
          search={(old: Record<string, unknown>) => ({ ...old, run: each.run_id, thread: each.thread_id })}
          className="name"
          aria-label={`Run ${each.run_id.slice(-8)}`}
        >
          <ShortId id={each.run_id} what="run id" />
        </Link>
      ),
    },
    { title: "State", width: "minmax(84px, 110px)", show: (each) => <RunState status={each.status} /> },
    { title: "Assistant", width: "minmax(90px, 1fr)", show: (each) => getName(each.assistant_id), isExtra: true },
    isFailed
      ? {
          title: "Error",
          width: "minmax(120px, 2fr)",
          show: (each) => (
            <span className="soft">{String(each.error?.message ?? each.error?.error ?? each.status)}</span>
          ),
        }
      : { title: "Waits for", width: "minmax(60px, 1.4fr)", show: (each) => <WaitsFor run={each} /> },
    {
      title: "Attempts",
      width: "96px",
      isExtra: true,
      isNumber: true,
      show: (each) => (
        <>
          {each.attempt}
          {each.lost_attempts > 0 && <span className="soft"> · {each.lost_attempts} lost</span>}
        </>
      ),
    },
    {
      title: isFailed ? "Ended" : "Since",
      width: "64px",
      isNumber: true,
      show: (each) => <Ago at={isFailed ? each.updated_at : (each.started_at ?? each.created_at)} />,
    },
  ];
}
