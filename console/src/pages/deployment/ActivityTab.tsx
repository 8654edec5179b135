import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { usePreferences } from "../../preferences";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { getPeriod, RANGES } from "../../ui/Range";
import { Builtins } from "../figures/Builtins";
import { RunList } from "../traces/RunList";
import { useDeployment } from "./useDeployment";

const deploymentRoute = getRouteApi("/deployments/$deploymentId");

const RANGE = "24h";
const CHARTS = 3;

// What a deployment did in the last day: its charts, and its traces.
export function ActivityTab() {
  const { deploymentId } = deploymentRoute.useParams();
  const deployment = useDeployment(deploymentId).data;
  const navigate = useNavigate();
  const mayRead = useMay("runs:read");
  const { zone } = usePreferences();

  if (!deployment) return null;
  if (!mayRead) return <Empty title="You may not read traces">A role with runs:read shows them here.</Empty>;

  const projectId = deployment.tracing_project_id;
  const { start, end } = getPeriod(RANGE);
  const view = {
    start_time: start,
    end_time: end,
    stride: { minutes: RANGES[RANGE].stepMinutes },
    timezone: zone === "utc" ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone,
  };

  return (
    <div className="stack">
      <div className="row spread">
        <h2>The last 24 hours</h2>
        <span className="row">
          <Link to="/figures" search={{ project: projectId }} className="text">
            All figures
          </Link>
          <Link to="/traces/$projectId" params={{ projectId }} search={{}} className="text">
            Filter the traces
          </Link>
        </span>
      </div>
      <Builtins view={view} project={projectId} most={CHARTS} />
      <RunList
        projectId={projectId}
        filters={{}}
        isOfTraces
        onFilter={(changes) =>
          void navigate({ to: "/traces/$projectId", params: { projectId }, search: { ...changes } })
        }
      />
    </div>
  );
}
