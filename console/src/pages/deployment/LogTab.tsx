import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useCallback } from "react";
import { call } from "../../api/client";
import type { LogFilter } from "../../api/platform";
import { LogView } from "../../ui/LogView";

const deploymentRoute = getRouteApi("/deployments/$deploymentId");
const logTab = getRouteApi("/deployments/$deploymentId/log");

// The server log of all revisions together: it goes on through a roll-out.
export function LogTab() {
  const { deploymentId } = deploymentRoute.useParams();
  const { q, level } = logTab.useSearch();
  const navigate = useNavigate();

  const readLog = useCallback(
    (filter: LogFilter, signal: AbortSignal) =>
      call("POST /v1/projects/{project_id}/deploy_logs", { path: { project_id: deploymentId }, body: filter }, signal),
    [deploymentId],
  );

  return (
    <section className="card log" aria-label="Server log">
      <LogView
        read={readLog}
        q={q}
        level={level}
        onFilter={(changes) =>
          void navigate({
            to: "/deployments/$deploymentId/log",
            params: { deploymentId },
            search: (old) => ({ ...old, ...changes }),
            replace: true,
          })
        }
        empty="The agents of this deployment have written nothing yet."
      />
    </section>
  );
}
