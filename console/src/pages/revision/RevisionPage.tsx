import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useState } from "react";
import { call } from "../../api/client";
import type { LogFilter, Move, Revision } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Confirm } from "../../ui/Confirm";
import { ShortId } from "../../ui/Copy";
import { Icon } from "../../ui/Icon";
import { LogView } from "../../ui/LogView";
import { Problem } from "../../ui/Problem";
import { isInProgress, RevisionState } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";
import { useMayCall } from "../agents/useAgents";
import { useDeployment } from "../deployment/useDeployment";
import { describeCommit, getCode } from "../deployments/deployment";

const revisionRoute = getRouteApi("/deployments/$deploymentId/revisions/$revisionId");

const EVERY_MS = 1_500;
// From these states on the build exists, so the revision can be served again.
const BUILT = new Set(["AWAITING_DEPLOY", "DEPLOYING", "DEPLOYED", "DEPLOY_FAILED"]);

export function RevisionPage() {
  const { deploymentId, revisionId } = revisionRoute.useParams();
  const path = { deployment_id: deploymentId, revision_id: revisionId };
  const mayCall = useMayCall(useDeployment(deploymentId).data);
  const query = useApi("GET /v2/deployments/{deployment_id}/revisions/{revision_id}", { path }, { everyMs: EVERY_MS });

  const history = useApi(
    "GET /v2/deployments/{deployment_id}/revisions/{revision_id}/history",
    { path },
    { everyMs: EVERY_MS },
  );

  if (!query.data) {
    return query.error ? (
      <div className="page">
        <Problem error={query.error} retry={() => void query.refetch()} />
      </div>
    ) : null;
  }

  const revision = query.data;
  const moves = history.data?.moves ?? [];

  return (
    <div className="page full">
      <div className="head">
        <div className="row">
          <h1>Revision</h1>
          <ShortId id={revision.id} what="id" />
          <RevisionState status={revision.status} />
        </div>
        <div className="row">
          <Actions revision={revision} moves={moves} />
          {mayCall && revision.status === "DEPLOYED" && (
            <Link to="/agents/$deploymentId/studio" params={{ deploymentId }} className="button main">
              <Icon name="agents" />
              Open the studio
            </Link>
          )}
        </div>
      </div>
      {revision.status_message && <p className="notice">{revision.status_message}</p>}
      <Timeline moves={moves} isOver={!isInProgress(revision.status)} />
      <Changes revision={revision} />
      <Log hasServed={moves.some((move) => move.status === "DEPLOYING") && !isInProgress(revision.status)} />
    </div>
  );
}

function Actions({ revision, moves }: { revision: Revision; moves: Move[] }) {
  const { deploymentId } = revisionRoute.useParams();
  const navigate = useNavigate();
  const mayUpdate = useMay("deployments:update");
  const deployment = useDeployment(deploymentId).data;

  const path = { deployment_id: deploymentId, revision_id: revision.id };
  const interrupt = useChange("POST /v2/deployments/{deployment_id}/revisions/{revision_id}/interrupt");
  const [isAsking, setAsking] = useState(false);

  const redeploy = useChange("POST /v2/deployments/{deployment_id}/revisions/{revision_id}/redeploy", (after) => {
    setAsking(false);
    if (!after.latest_revision_id) return;
    void navigate({
      to: "/deployments/$deploymentId/revisions/$revisionId",
      params: { deploymentId, revisionId: after.latest_revision_id },
    });
  });

  if (!mayUpdate || !deployment || deployment.status === "AWAITING_DELETE") return null;
  const again = () => redeploy.mutate({ path });
  const isActive = deployment.active_revision_id === revision.id;

  // Where nothing has served yet there is nothing to roll back from.
  const takesPlace = deployment.active_revision_id !== null && !isActive;
  const isBuilt = moves.some((move) => BUILT.has(move.status)) || Boolean(revision.source_revision_config.image_uri);
  const error = interrupt.error ?? redeploy.error;

  return (
    <>
      {isInProgress(revision.status) && (
        <button
          type="button"
          className="button"
          disabled={interrupt.isPending}
          onClick={() => interrupt.mutate({ path })}
        >
          <Icon name="stop" />
          Interrupt
        </button>
      )}
      {!isInProgress(revision.status) && isBuilt && (
        <button
          type="button"
          className="button"
          disabled={redeploy.isPending}
          onClick={takesPlace ? () => setAsking(true) : again}
        >
          <Icon name={takesPlace ? "back" : "rotate"} />
          {takesPlace ? "Roll back to this" : "Redeploy"}
        </button>
      )}
      {isAsking && (
        <Confirm
          title="Roll back?"
          action="Roll back"
          change={redeploy}
          onConfirm={again}
          onClose={() => setAsking(false)}
        >
          <p>
            This revision ({getCode(revision)}, created <Ago at={revision.created_at} />) takes the place of the one
            that serves now, with its own code, secrets and resources. Threads and their data stay. Runs in progress go
            on with the older code.
          </p>
        </Confirm>
      )}
      {error && !isAsking && <Problem error={error} />}
    </>
  );
}

// The states that the revision went through, each with the time that it took.
function Timeline({ moves, isOver }: { moves: Move[]; isOver: boolean }) {
  return (
    <ol className="states" aria-label="States">
      {moves.map((move, index) => {
        const next = moves[index + 1];
        const endMs = next ? new Date(next.at).getTime() : isOver ? null : Date.now();

        return (
          <li key={`${move.status}-${move.at}`}>
            {next ? <span>{stateWord(move)}</span> : <RevisionState status={move.status} title={move.reason} />}
            <span className="soft small number">
              {endMs === null ? <Ago at={move.at} /> : duration(Math.max(endMs - new Date(move.at).getTime(), 0))}
            </span>
          </li>
        );
      })}
    </ol>
  );
}

function stateWord(move: Move): string {
  const text = move.status.toLowerCase().replaceAll("_", " ").replace("awaiting", "waiting to");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

// What is different from the revision before.
function Changes({ revision }: { revision: Revision }) {
  const { deploymentId } = revisionRoute.useParams();
  const list = useApi("GET /v2/deployments/{deployment_id}/revisions", {
    path: { deployment_id: deploymentId },
    query: { limit: 100 },
  }).data?.resources;

  const position = list?.findIndex((each) => each.id === revision.id) ?? -1;
  const before = position < 0 ? undefined : list?.[position + 1];
  const config = revision.source_revision_config;
  const old = before?.source_revision_config;

  const facts: [string, string | null | undefined, string | null | undefined][] = [
    ["Code", getCode(revision), before && getCode(before)],
    ["Configuration", config.graph_config_path, old?.graph_config_path],
  ];

  return (
    <dl className="facts">
      {facts.map(([title, value, previous]) =>
        value ? (
          <div key={title}>
            <dt>{title}</dt>
            <dd>
              <code title={value}>{value}</code>
              {before && previous !== value && previous && <span className="soft"> was {previous}</span>}
            </dd>
          </div>
        ) : null,
      )}
      <div>
        <dt>Commit</dt>
        <dd>
          {config.repo_commit_sha ? <ShortCommit sha={config.repo_commit_sha} /> : "–"}
          {config.repo_commit_sha && describeCommit(config)}
        </dd>
      </div>
      <div>
        <dt>Created</dt>
        <dd>
          <Ago at={revision.created_at} />
        </dd>
      </div>
      {before && (
        <div>
          <dt>The one before</dt>
          <dd>
            <Link
              to="/deployments/$deploymentId/revisions/$revisionId"
              params={{ deploymentId, revisionId: before.id }}
              className="text"
            >
              <code>{before.id.slice(-8)}</code>
            </Link>
          </dd>
        </div>
      )}
    </dl>
  );
}

function ShortCommit({ sha }: { sha: string }) {
  return <code title={sha}>{sha.slice(0, 8)}</code>;
}

// A revision whose servers were never started, because its build failed, has a build log alone.
function Log({ hasServed }: { hasServed: boolean }) {
  const { deploymentId, revisionId } = revisionRoute.useParams();
  const { log, q, level } = revisionRoute.useSearch();
  const navigate = useNavigate();

  const type = log === "build" || (log === undefined && !hasServed) ? "build" : "deploy";
  const to = "/deployments/$deploymentId/revisions/$revisionId";
  const params = { deploymentId, revisionId };

  const readLog = useCallback(
    (filter: LogFilter, signal: AbortSignal) =>
      call(
        "GET /v2/deployments/{deployment_id}/revisions/{revision_id}/logs",
        { path: { deployment_id: deploymentId, revision_id: revisionId }, query: { type, ...withoutNull(filter) } },
        signal,
      ),
    [deploymentId, revisionId, type],
  );

  return (
    <section className="card log" aria-label="Log">
      <div className="card-head">
        <h2>Log</h2>
        <div className="segments">
          {(["build", "deploy"] as const).map((each) => (
            <Link
              key={each}
              to={to}
              params={params}
              search={(old) => ({ ...old, log: each })}
              replace
              className={each === type ? "active" : ""}
              aria-current={each === type ? "true" : undefined}
              activeProps={{}}
            >
              {each === "build" ? "Build" : "Server"}
            </Link>
          ))}
        </div>
      </div>
      <LogView
        read={readLog}
        q={q}
        level={level}
        onFilter={(changes) => void navigate({ to, params, search: (old) => ({ ...old, ...changes }), replace: true })}
        empty={type === "build" ? "Nothing was built for this revision." : "The servers have written nothing yet."}
      />
    </section>
  );
}

function withoutNull<T extends object>(filter: T): { [P in keyof T]: Exclude<T[P], null> } {
  return Object.fromEntries(Object.entries(filter).filter(([, value]) => value !== null)) as {
    [P in keyof T]: Exclude<T[P], null>;
  };
}
