// Traces or runs of a project, newest first. Scrolling reads further pages, so of a million runs only a few are read.

import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { Empty, NoMatch } from "../../ui/Empty";
import { compact, cost, plain, score } from "../../ui/format";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { Ago, duration } from "../../ui/Time";
import { useMarked } from "../../ui/useMarked";
import { FILTER_FIELDS, type Filters, NO_FILTERS } from "./fields";
import { runsFilter } from "./filters";
import { RunActions } from "./RunActions";
import { RunMark } from "./RunMark";
import { previewText, type RunRow, TYPE_WORDS } from "./runs";
import { useRunPages } from "./useRunPages";

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
  const runs = useRunPages(
    [projectId, isOfTraces, filters],
    () => ({
      project_ids: [projectId],
      ...(isOfTraces ? { is_root: true } : {}),
      ...runsFilter(filters, Date.now(), isOfTraces),
      include_subtree_usage: isOfTraces,
      page_size: PAGE,
    }),
    { everyMs: EVERY_MS, keep: true },
  );

  const { marked, toggle, clear, column } = useMarked(JSON.stringify(filters), getId, getName);
  const columns = useMemo(
    () => [column, ...getColumns(projectId, isOfTraces, onFilter)],
    [column, projectId, isOfTraces, onFilter],
  );

  const isFiltered = FILTER_FIELDS.some((field) => filters[field]);

  return (
    <>
      {marked.size > 0 && (
        <RunActions runs={runs.rows.filter((run) => marked.has(run.id))} projectId={projectId} onDone={clear} />
      )}
      <PagedList
        listing={runs}
        label={isOfTraces ? "Traces" : "Runs"}
        columns={columns}
        getKey={getId}
        onOpen={(run) =>
          void navigate({
            to: "/traces/$projectId/$traceId",
            params: { projectId, traceId: run.trace_id },
            search: run.id === run.trace_id ? {} : { run: run.id },
          })
        }
        onMark={toggle}
        empty={
          isFiltered ? (
            <NoMatch
              title={isOfTraces ? "No trace matches" : "No run matches"}
              clear="Remove all filters"
              onClear={() => onFilter(NO_FILTERS)}
            />
          ) : (
            <Empty
              title="Nothing was traced here yet"
              command={`LANGSMITH_TRACING=true LANGSMITH_ENDPOINT=${location.origin} LANGSMITH_API_KEY=YOUR_KEY python agent.py`}
            >
              A run shows here some seconds after it begins. LANGSMITH_PROJECT chooses the project of a program.
            </Empty>
          )
        }
      />
    </>
  );
}

function getId(run: RunRow): string {
  return run.id;
}

function getName(run: RunRow): string {
  return run.name;
}

function getColumns(projectId: string, isOfTraces: boolean, onFilter: (changes: Filters) => void): Column<RunRow>[] {
  return [
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
    { title: "Latency", width: "72px", show: showLatency, isNumber: true },
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

function showLatency(run: RunRow) {
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
