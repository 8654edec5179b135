import { useQueries } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import { call } from "../../api/client";
import type { Deployment } from "../../api/platform";
import { useApi } from "../../api/queries";
import { usePreferences } from "../../preferences";
import { useMay, useWorkspaceId } from "../../shell/session";
import { DeploymentState, isFailed, RevisionState, Status } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { getName } from "../deployments/deployment";
import { NotAsked } from "../inbox/NotAsked";
import { useWaiting } from "../inbox/useWaiting";

const EVERY_MS = 10_000;
const WAITING_EVERY_MS = 60_000;
// What these alerts are about is listed by itself.
const LISTED = ["deployment_failed", "part_down"];

// What somebody should look at: parts that are down, deployments that do not answer, revisions that failed, limits.
export function Attention({ deployments }: { deployments: Deployment[] }) {
  const health = useApi("GET /ok", {}, { everyMs: EVERY_MS }).data as { problems?: Record<string, string> } | undefined;
  const usage = useApi(
    "GET /workspaces/current/usage_limits",
    {},
    { everyMs: 60_000, enabled: useMay("workspaces:read") },
  ).data;

  const alerts = useApi(
    "GET /alerts",
    { query: { status: "open" } },
    { everyMs: EVERY_MS, enabled: useMay("organization:manage") },
  ).data?.filter((each) => !LISTED.includes(each.rule) && !each.is_silenced);

  const revisions = useLatestRevisions(deployments);
  const parts = Object.entries(health?.problems ?? {});
  const silent = deployments.filter((each) => each.status === "UNKNOWN");
  const failed = revisions.filter(({ revision }) => isFailed(revision.status));
  const { waiting, refused, notAsked } = useWaiting(WAITING_EVERY_MS);

  const count = parts.length + silent.length + failed.length + waiting.length + (alerts?.length ?? 0);
  const isCalm = count === 0 && !usage?.in_reject_set;

  return (
    <section className="card attention" aria-labelledby="attention">
      <h2 id="attention">Wants attention</h2>
      {isCalm && (
        <p className="soft">
          {refused.length > 0 ? "Nothing that you may see." : "Nothing."} Waiting threads, failed revisions, silent
          deployments and reached limits will be listed here.
        </p>
      )}
      <NotAsked refused={refused} notAsked={notAsked} />
      <ul>
        {parts.map(([part, problem]) => (
          <li key={part}>
            <Status tone="bad" word={`${part} is down`} />
            <span className="reason">{problem}</span>
            <span />
          </li>
        ))}
        {alerts?.map((each) => (
          <li key={each.id}>
            <Status tone="bad" word={each.rule.replaceAll("_", " ")} />
            <span className="reason">
              <Link to="/alerts" className="name">
                {each.name}
              </Link>{" "}
              {each.detail}
            </span>
            <Ago at={each.fired_at} />
          </li>
        ))}
        {usage?.in_reject_set && (
          <li>
            <Status tone="bad" word="Limit reached" />
            <span className="reason">The workspace has reached a monthly limit, so new traces are refused.</span>
            <span />
          </li>
        )}
        {waiting.length > 0 && (
          <li>
            <Status tone="wait" word="Waits for a person" />
            <span className="reason">
              <Link to="/inbox" className="name">
                {waiting.length === 1 ? "1 thread" : `${waiting.length} threads`}
              </Link>{" "}
              of {[...new Set(waiting.map(({ agent }) => agent.name))].join(", ")}
            </span>
            {waiting[0]?.thread.updated_at && <Ago at={waiting[0].thread.updated_at} />}
          </li>
        )}
        {silent.map((each) => (
          <li key={each.id}>
            <DeploymentState of={each} />
            <span className="reason">
              <Link to="/deployments/$deploymentId" params={{ deploymentId: each.id }} className="name">
                {getName(each)}
              </Link>{" "}
              {each.status_message}
            </span>
            <Ago at={each.updated_at} />
          </li>
        ))}
        {failed.map(({ deployment, revision }) => (
          <li key={revision.id}>
            <RevisionState status={revision.status} />
            <span className="reason">
              <Link
                to="/deployments/$deploymentId/revisions/$revisionId"
                params={{ deploymentId: deployment.id, revisionId: revision.id }}
                className="name"
              >
                {getName(deployment)}
              </Link>{" "}
              {revision.status_message}
            </span>
            <Ago at={revision.updated_at} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function useLatestRevisions(deployments: Deployment[]) {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  // The active revision has not failed. Hundreds of deployments must not cost a request each.
  const withRevision = deployments.filter(
    (each) => each.latest_revision_id !== null && each.latest_revision_id !== each.active_revision_id,
  );
  const operation = "GET /v2/deployments/{deployment_id}/revisions/{revision_id}";

  return useQueries({
    queries: withRevision.map((each) => {
      const options = { path: { deployment_id: each.id, revision_id: each.latest_revision_id ?? "" } };

      return {
        queryKey: [workspace, operation, options],
        queryFn: ({ signal }: { signal: AbortSignal }) => call(operation, options, signal),
        refetchInterval: isLive ? EVERY_MS : (false as const),
      };
    }),
    combine: (results) =>
      results.flatMap((result, index) => {
        const deployment = withRevision[index];
        return result.data && deployment ? [{ deployment, revision: result.data }] : [];
      }),
  });
}
