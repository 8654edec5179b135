import { getRouteApi, Link, Outlet, useNavigate } from "@tanstack/react-router";
import type { Deployment } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { CopyButton, ShortId } from "../../ui/Copy";
import { Fact } from "../../ui/Fact";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { DeploymentState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { useMayCall } from "../agents/useAgents";
import { describeCommit, getAddress, getName, getOrigin } from "../deployments/deployment";
import { useDeployment } from "./useDeployment";

const deploymentRoute = getRouteApi("/deployments/$deploymentId");

export function DeploymentPage() {
  const { deploymentId } = deploymentRoute.useParams();
  const query = useDeployment(deploymentId);
  const mayUpdate = useMay("deployments:update");
  const mayCall = useMayCall(query.data);

  if (!query.data) {
    return query.error ? (
      <div className="page">
        <Problem error={query.error} retry={() => void query.refetch()} />
      </div>
    ) : null;
  }

  const deployment = query.data;
  const address = getAddress(deployment);

  return (
    <div className="page full">
      <div className="head">
        <div className="row">
          <h1>{getName(deployment)}</h1>
          <DeploymentState of={deployment} />
        </div>
        {address && (
          <div className="row">
            {mayUpdate && deployment.source_config.repo_url && <DeployNewest deployment={deployment} />}
            <a className="button" href={`${address}/docs`} target="_blank" rel="noreferrer">
              <Icon name="external" />
              API reference
            </a>
            {mayCall && (
              <Link to="/agents/$deploymentId/studio" params={{ deploymentId }} className="button main">
                <Icon name="agents" />
                Open the studio
              </Link>
            )}
          </div>
        )}
      </div>
      {deployment.status_message && <p className="notice">{deployment.status_message}</p>}
      {deployment.ignored_secrets.map((name) => (
        <p key={name} className="notice">
          The secret <code>{name}</code> is ignored: this platform does not know the key, and there is no{" "}
          <code>LANGSMITH_ENDPOINT</code>. Traces arrive with the deployment's own key.
        </p>
      ))}
      <dl className="facts">
        <Fact title="Address">
          {address ? (
            <>
              <code>{address}</code> <CopyButton text={address} what="address" />
            </>
          ) : (
            <span className="soft">after the first revision is deployed</span>
          )}
        </Fact>
        <Fact title="Source">
          <span title={getOrigin(deployment)}>{getOrigin(deployment)}</span>
        </Fact>
        <Commit deployment={deployment} />
        <Replicas deploymentId={deploymentId} />
        <Fact title="Created">
          <Ago at={deployment.created_at} />
        </Fact>
        <Fact title="Id">
          <ShortId id={deployment.id} what="id" />
        </Fact>
      </dl>
      <nav className="tabs" aria-label="Parts of the deployment">
        <Link to="/deployments/$deploymentId" params={{ deploymentId }} activeOptions={{ exact: true }}>
          Revisions
        </Link>
        <Link to="/deployments/$deploymentId/activity" params={{ deploymentId }}>
          Activity
        </Link>
        <Link to="/deployments/$deploymentId/log" params={{ deploymentId }}>
          Server log
        </Link>
        <Link to="/deployments/$deploymentId/settings" params={{ deploymentId }}>
          {mayUpdate ? "Settings" : "Configuration"}
        </Link>
      </nav>
      <Outlet />
    </div>
  );
}

// A revision of the newest commit, with the settings of the latest one.
function DeployNewest({ deployment }: { deployment: Deployment }) {
  const navigate = useNavigate();
  const { graph_config_path } = deployment.source_revision_config;
  const deploy = useChange("PATCH /v2/deployments/{deployment_id}", (after) => {
    if (!after.latest_revision_id) return;
    void navigate({
      to: "/deployments/$deploymentId/revisions/$revisionId",
      params: { deploymentId: after.id, revisionId: after.latest_revision_id },
      search: { log: "build" },
    });
  });

  return (
    <>
      <button
        type="button"
        className="button"
        disabled={deploy.isPending}
        onClick={() =>
          deploy.mutate({
            path: { deployment_id: deployment.id },
            body: { source_revision_config: { graph_config_path: graph_config_path ?? "langgraph.json" } },
          })
        }
      >
        <Icon name="rotate" />
        Deploy the newest commit
      </button>
      {deploy.error && <Problem error={deploy.error} />}
    </>
  );
}

// The commit that serves, which is not always the newest one.
function Commit({ deployment }: { deployment: Deployment }) {
  const revisionId = deployment.active_revision_id;
  const active = useApi(
    "GET /v2/deployments/{deployment_id}/revisions/{revision_id}",
    { path: { deployment_id: deployment.id, revision_id: revisionId ?? "" } },
    { enabled: revisionId !== null },
  ).data;

  const commit = active?.source_revision_config.repo_commit_sha;
  if (!active || !commit) return null;

  return (
    <Fact title="Commit">
      <Link
        to="/deployments/$deploymentId/revisions/$revisionId"
        params={{ deploymentId: deployment.id, revisionId: active.id }}
        className="text"
      >
        <code>{commit.slice(0, 8)}</code>
      </Link>
      {describeCommit(active.source_revision_config)} <CopyButton text={commit} what="commit" />
    </Fact>
  );
}

function Replicas({ deploymentId }: { deploymentId: string }) {
  const metrics = useApi(
    "GET /v2/deployments/{deployment_id}/metrics",
    { path: { deployment_id: deploymentId } },
    { everyMs: 5_000 },
  ).data;

  if (!metrics?.measured_at) return null;
  const { replicas, active_runs, pending_runs, cpu, memory_mb, restarts, server_version, problem } = metrics;

  return (
    <>
      <Fact title="Replicas">
        {replicas ?? "–"}
        {restarts ? <span className="soft"> · {restarts} restarts</span> : null}
        {problem && <span title={problem}> · {problem}</span>}
      </Fact>
      <Fact title="Runs now">
        {active_runs ?? "–"} <span className="soft">running · {pending_runs ?? "–"} waiting</span>
      </Fact>
      <Fact title="In use">
        {cpu == null ? "–" : cpu.toFixed(2)} <span className="soft">CPU</span> ·{" "}
        {memory_mb == null ? "–" : Math.round(memory_mb)} <span className="soft">MB</span>
      </Fact>
      {server_version && <Fact title="Agent server">{server_version}</Fact>}
    </>
  );
}
