// Traces or runs of a project, newest first. Pages are read as somebody scrolls, so a million runs cost what is in view.

import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import { type ApiError, call } from "../../api/client";
import type { RunItems } from "../../api/platform";
import { usePreferences } from "../../preferences";
import { useWorkspaceId } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { compact, cost, plain, score } from "../../ui/format";
import { type Column, List } from "../../ui/List";
import { Problem } from "../../ui/Problem";
import { Ago, duration } from "../../ui/Time";
import { FILTER_FIELDS, type Filters } from "./fields";
import { runsFilter } from "./filters";
import { RunActions } from "./RunActions";
import { RunMark } from "./RunMark";
import { previewText, ROW_SELECTS, type RunRow, TYPE_WORDS } from "./runs";

const PAGE = 50;
const EVERY_MS = 5_000;

interface Props {
  projectId: string;
  filters: Filters;
  isOfTraces: boolean;
  onFilter: (changes: Filters) => void;
}

export function RunList({ projectId, filters, isOfTraces, onFilter }: Props) {
  const navigate = useNavigate();
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const found = useRuns(projectId, filters, isOfTraces);
  const rows = useMemo(
    () => (found.data?.pages ?? []).flatMap((page) => page.items as unknown as RunRow[]),
    [found.data],
  );
  const { fetchNextPage, hasNextPage, isFetchingNextPage } = found;
  const loadMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetchingNextPage]);
  const toggle = useCallback(
    (run: RunRow) =>
      setMarked((old) => {
        const next = new Set(old);
        if (!next.delete(run.id)) next.add(run.id);
        return next;
      }),
    [],
  );
  const columns = useMemo(
    () => columnsOf(projectId, isOfTraces, marked, toggle, onFilter),
    [projectId, isOfTraces, marked, toggle, onFilter],
  );
  const isFiltered = FILTER_FIELDS.some((field) => filters[field]);
  return (
    <>
      {marked.size > 0 && (
        <RunActions
          runs={rows.filter((run) => marked.has(run.id))}
          projectId={projectId}
          onDone={() => setMarked(new Set())}
        />
      )}
      {found.error && <Problem error={found.error} retry={() => void found.refetch()} />}
      {rows.length > 0 && (
        <List
          label={isOfTraces ? "Traces" : "Runs"}
          rows={rows}
          columns={columns}
          keyOf={(run) => run.id}
          onOpen={(run) =>
            void navigate({
              to: "/traces/$projectId/$traceId",
              params: { projectId, traceId: run.trace_id },
              search: run.id === run.trace_id ? {} : { run: run.id },
            })
          }
          onMark={toggle}
          loadMore={loadMore}
        />
      )}
      {found.data && rows.length === 0 && isFiltered && (
        <Empty title={isOfTraces ? "No trace matches" : "No run matches"}>
          <button
            type="button"
            className="link"
            onClick={() => onFilter(Object.fromEntries(FILTER_FIELDS.map((field) => [field, undefined])))}
          >
            Remove all filters
          </button>
        </Empty>
      )}
      {found.data && rows.length === 0 && !isFiltered && (
        <Empty
          title="Nothing was traced here yet"
          command={`LANGSMITH_TRACING=true LANGSMITH_ENDPOINT=${location.origin} LANGSMITH_API_KEY=YOUR_KEY python agent.py`}
        >
          A run shows here some seconds after it begins. LANGSMITH_PROJECT chooses the project of a program.
        </Empty>
      )}
    </>
  );
}

function useRuns(projectId: string, filters: Filters, isOfTraces: boolean) {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();
  return useInfiniteQuery<RunItems, ApiError, { pages: RunItems[] }, unknown[], string | null>({
    queryKey: [workspace, "runs", projectId, isOfTraces, filters],
    queryFn: ({ pageParam, signal }) =>
      call(
        "POST /v2/runs/query",
        {
          body: {
            project_ids: [projectId],
            ...(isOfTraces ? { is_root: true } : {}),
            ...runsFilter(filters, Date.now(), isOfTraces),
            selects: ROW_SELECTS,
            include_subtree_usage: isOfTraces,
            page_size: PAGE,
            cursor: pageParam,
          },
        },
        signal,
      ),
    initialPageParam: null,
    getNextPageParam: (page) => page.next_cursor ?? undefined,
    // Pages behind the first one would be read again one after the other, and move what somebody reads.
    refetchInterval: (query) => (isLive && (query.state.data?.pages.length ?? 0) <= 1 ? EVERY_MS : false),
    placeholderData: (last) => last,
  });
}

function columnsOf(
  projectId: string,
  isOfTraces: boolean,
  marked: ReadonlySet<string>,
  toggle: (run: RunRow) => void,
  onFilter: (changes: Filters) => void,
): Column<RunRow>[] {
  return [
    {
      title: "Mark",
      width: "20px",
      isTitleHidden: true,
      show: (run) => (
        <input
          type="checkbox"
          aria-label={`Mark ${run.name}`}
          checked={marked.has(run.id)}
          onChange={() => toggle(run)}
        />
      ),
    },
    {
      title: "Name",
      width: "minmax(140px, 1fr)",
      show: (run) => (
        <span className="run-name">
          <RunMark status={run.status} />
          <Link
            to="/traces/$projectId/$traceId"
            params={{ projectId, traceId: run.trace_id }}
            search={run.id === run.trace_id ? {} : { run: run.id }}
            className="name"
          >
            {run.name}
          </Link>
          {!isOfTraces && <span className="soft small">{TYPE_WORDS[run.run_type] ?? run.run_type}</span>}
        </span>
      ),
    },
    {
      title: "Input",
      width: "minmax(120px, 1.5fr)",
      show: (run) => <span title={run.inputs_preview ?? ""}>{previewText(run.inputs_preview)}</span>,
      isExtra: true,
    },
    {
      title: "Output",
      width: "minmax(120px, 1.5fr)",
      show: (run) =>
        run.error_preview ? (
          <span className={run.status === "ERROR" ? "bad-text" : "soft"} title={run.error_preview}>
            {plain(run.error_preview)}
          </span>
        ) : (
          <span title={run.outputs_preview ?? ""}>{previewText(run.outputs_preview)}</span>
        ),
      isExtra: true,
    },
    { title: "Latency", width: "72px", show: latencyOf, isNumber: true },
    { title: "Tokens", width: "64px", show: (run) => compact(run.total_tokens || null), isNumber: true, isExtra: true },
    { title: "Cost", width: "72px", show: (run) => cost(run.total_cost), isNumber: true, isExtra: true },
    {
      title: "Labels",
      width: "minmax(110px, 0.8fr)",
      show: (run) => <Labels run={run} onFilter={onFilter} />,
      isExtra: true,
    },
    { title: "Started", width: "64px", show: (run) => <Ago at={run.start_time} />, isNumber: true },
  ];
}

function latencyOf(run: RunRow) {
  if (run.latency_seconds !== null) return duration(run.latency_seconds * 1000);
  return <span className="soft">running</span>;
}

function Labels({ run, onFilter }: { run: RunRow; onFilter: (changes: Filters) => void }) {
  return (
    <span className="labels">
      {Object.entries(run.feedback_stats ?? {}).map(([key, stats]) => (
        <button key={`feedback ${key}`} type="button" className="label" onClick={() => onFilter({ feedback: key })}>
          {key} <b>{stats.avg === null ? `×${stats.n}` : score(stats.avg)}</b>
        </button>
      ))}
      {run.tags.map((tag) => (
        <button key={tag} type="button" className="label" onClick={() => onFilter({ tag })}>
          {tag}
        </button>
      ))}
    </span>
  );
}
