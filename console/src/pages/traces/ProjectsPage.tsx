// The projects that traces are sent to, with the figures of each.

import { getRouteApi, Link, Navigate, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { TracerSession } from "../../api/platform";
import { useApi } from "../../api/queries";
import { Empty } from "../../ui/Empty";
import { compact, cost, percent } from "../../ui/format";
import type { Column } from "../../ui/List";
import { ListPage, PageHead } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { Ago, duration } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";

const tracesRoute = getRouteApi("/traces");

const EVERY_MS = 15_000;

export function ProjectsPage() {
  const { run } = tracesRoute.useSearch();
  return run ? <TraceOfRun runId={run} /> : <Projects />;
}

// An address that names a run alone: of a log line, or of an agent.
function TraceOfRun({ runId }: { runId: string }) {
  const run = useApi("GET /v2/runs/{run_id}", {
    path: { run_id: runId },
    query: { selects: ["TRACE_ID", "PROJECT_ID"] },
  });

  const { trace_id: traceId, project_id: projectId } = (run.data ?? {}) as { trace_id?: string; project_id?: string };
  if (traceId && projectId) {
    return (
      <Navigate to="/traces/$projectId/$traceId" params={{ projectId, traceId }} search={{ run: runId }} replace />
    );
  }

  if (!run.error) return null;

  return (
    <div className="page">
      {run.error.status === 404 || run.error.status === 422 ? (
        <Empty title="This run has no trace here">
          <p>
            Traces arrive some seconds after a run begins. If it does not come, tracing may be off for the agent, the
            trace may have expired, or it belongs to another workspace.
          </p>
          <p>
            <button type="button" className="button" onClick={() => void run.refetch()}>
              Look again
            </button>{" "}
            <Link to="/traces" search={{}} className="text">
              All projects
            </Link>
          </p>
        </Empty>
      ) : (
        <Problem error={run.error} retry={() => void run.refetch()} />
      )}
    </div>
  );
}

function Projects() {
  const navigate = useNavigate();
  const { q } = tracesRoute.useSearch();
  const { bind } = useSearchParams({ q });

  const projects = useOffsetPages(
    "GET /sessions",
    (slice) => ({ query: { reference_free: true, ...slice, ...(q ? { name_contains: q } : {}) } }),
    (page) => page,
    { everyMs: EVERY_MS, keep: true },
  );

  return (
    <ListPage
      head={<PageHead title="Traces" />}
      filters={<SearchField label="Search projects by name" placeholder="Search projects" {...bind("q")} />}
    >
      <PagedList
        listing={projects}
        label="Projects"
        columns={COLUMNS}
        getKey={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/traces/$projectId", params: { projectId: each.id }, search: {} })}
        empty={
          q ? (
            <Empty title="No project has this name">Try a part of it.</Empty>
          ) : (
            <Empty
              title="No traces yet"
              command={`LANGSMITH_TRACING=true LANGSMITH_ENDPOINT=${location.origin} LANGSMITH_API_KEY=YOUR_KEY python agent.py`}
            >
              Deployed agents send their traces here by themselves. To trace a program on your machine, run it so:
            </Empty>
          )
        }
      />
    </ListPage>
  );
}

// Read for each row in view, so that the list does not wait for the figures of a large project.
function useFigures(id: string): TracerSession | undefined {
  return useApi(
    "GET /sessions/{session_id}",
    { path: { session_id: id }, query: { include_stats: true } },
    { everyMs: EVERY_MS },
  ).data;
}

function Figure({ of: project, show }: { of: TracerSession; show: (figures: TracerSession) => React.ReactNode }) {
  const figures = useFigures(project.id);
  return figures ? show(figures) : <span className="soft">…</span>;
}

const COLUMNS: Column<TracerSession>[] = [
  {
    title: "Project",
    width: "minmax(160px, 1.6fr)",
    show: (each) => (
      <Link to="/traces/$projectId" params={{ projectId: each.id }} search={{}} className="name">
        {each.name}
      </Link>
    ),
  },
  {
    title: "Traces",
    width: "84px",
    show: (each) => <Figure of={each} show={(figures) => compact(figures.run_count)} />,
    isNumber: true,
  },
  {
    title: "Failed",
    width: "72px",
    show: (each) => (
      <Figure
        of={each}
        show={(figures) => <span className={figures.error_rate ? "bad-text" : ""}>{percent(figures.error_rate)}</span>}
      />
    ),
    isNumber: true,
    isExtra: true,
  },
  {
    title: "Latency p50",
    width: "92px",
    show: (each) => <Figure of={each} show={(figures) => seconds(figures.latency_p50)} />,
    isNumber: true,
    isExtra: true,
  },
  {
    title: "p99",
    width: "80px",
    show: (each) => <Figure of={each} show={(figures) => seconds(figures.latency_p99)} />,
    isNumber: true,
    isExtra: true,
  },
  {
    title: "Tokens",
    width: "84px",
    show: (each) => <Figure of={each} show={(figures) => compact(figures.total_tokens)} />,
    isNumber: true,
    isExtra: true,
  },
  {
    title: "Cost",
    width: "84px",
    show: (each) => <Figure of={each} show={(figures) => cost(figures.total_cost)} />,
    isNumber: true,
    isExtra: true,
  },
  {
    title: "Last trace",
    width: "84px",
    show: (each) => (
      <Figure
        of={each}
        show={(figures) =>
          figures.last_run_start_time ? <Ago at={figures.last_run_start_time} /> : <span className="soft">none</span>
        }
      />
    ),
    isNumber: true,
  },
];

function seconds(value: number | null | undefined): string {
  return value == null ? "–" : duration(value * 1000);
}
