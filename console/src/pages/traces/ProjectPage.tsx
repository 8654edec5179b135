// One project: its traces, all its runs, and its conversations.

import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useApi } from "../../api/queries";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { Conversations } from "./Conversations";
import { FilterBar } from "./FilterBar";
import type { Filters } from "./fields";
import { RunList } from "./RunList";

const projectRoute = getRouteApi("/traces/$projectId");

const VIEWS = [
  ["traces", "Traces"],
  ["runs", "All runs"],
  ["threads", "Conversations"],
] as const;

type View = (typeof VIEWS)[number][0];

export function ProjectPage() {
  const { projectId } = projectRoute.useParams();
  const { view: viewName, ...filters } = projectRoute.useSearch();
  const navigate = useNavigate();
  const project = useApi("GET /sessions/{session_id}", { path: { session_id: projectId } });

  const view: View = VIEWS.find(([name]) => name === viewName)?.[0] ?? "traces";

  const change = (changes: Filters & { view?: string | undefined }) =>
    void navigate({
      to: "/traces/$projectId",
      params: { projectId },
      search: (old) => ({ ...old, ...changes }),
      replace: true,
    });

  if (project.error && !project.data) {
    return (
      <div className="page">
        <Problem error={project.error} retry={() => void project.refetch()} />
      </div>
    );
  }

  return (
    <div className="page full">
      <div className="head">
        <h1>{project.data?.name ?? "…"}</h1>
        <DeploymentLink projectId={projectId} />
      </div>
      <Tabs
        label="Views of the project"
        tabs={VIEWS}
        selected={view}
        search={(next, old) => ({ ...old, view: next })}
      />
      <FilterBar filters={filters} onChange={change} />
      {view === "threads" ? (
        <Conversations projectId={projectId} filters={filters} onFilter={change} />
      ) : (
        <RunList key={view} projectId={projectId} filters={filters} isOfTraces={view === "traces"} onFilter={change} />
      )}
    </div>
  );
}

function DeploymentLink({ projectId }: { projectId: string }) {
  const deployment = useProjectDeployment(projectId);
  if (!deployment) return null;

  return (
    <Link className="button" to="/deployments/$deploymentId" params={{ deploymentId: deployment.id }}>
      <Icon name="deployments" />
      {deployment.display_name ?? deployment.name}
    </Link>
  );
}

// The deployment whose agents send their traces to the project.
export function useProjectDeployment(projectId: string) {
  const deployments = useApi("GET /v2/deployments", { query: { tracing_project_id: projectId, limit: 1 } });
  return deployments.data?.resources[0];
}
