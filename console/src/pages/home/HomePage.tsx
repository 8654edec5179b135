import { Link } from "@tanstack/react-router";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Icon } from "../../ui/Icon";
import { PageHead } from "../../ui/ListPage";
import { Problem } from "../../ui/Problem";
import { DeploymentState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { getAddress, getName, getOrigin } from "../deployments/deployment";
import { useDeployments } from "../deployments/useDeployments";
import { Attention } from "./Attention";
import { Figures } from "./Figures";

const EVERY_MS = 5_000;
const SHOWN = 8;
const DEPLOY = "portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY";

export function HomePage() {
  const mayRead = useMay("deployments:read");
  const mayCreate = useMay("deployments:create");
  const query = useDeployments({ everyMs: EVERY_MS, enabled: mayRead });

  const deployments = query.data ?? [];

  return (
    <div className="page">
      <PageHead title="Home">
        {mayCreate && (
          <Link to="/deployments/new" className="button main">
            <Icon name="plus" />
            New deployment
          </Link>
        )}
      </PageHead>
      <Figures deployments={deployments} />
      <Attention deployments={deployments} />
      <section className="card" aria-labelledby="deployments">
        <div className="card-head">
          <h2 id="deployments">Deployments</h2>
          <Link to="/deployments" className="text">
            All deployments
          </Link>
        </div>
        {query.error && !query.data && (
          <div className="card-body">
            <Problem error={query.error} retry={() => void query.refetch()} />
          </div>
        )}
        {query.data && deployments.length === 0 && (
          <Empty title="Nothing is deployed yet" command={DEPLOY}>
            A deployment is an agent that runs here, from a git repository, an image or a folder.
          </Empty>
        )}
        <ul className="brief">
          {deployments.slice(0, SHOWN).map((each) => (
            <li key={each.id}>
              <Link to="/deployments/$deploymentId" params={{ deploymentId: each.id }} className="name">
                {getName(each)}
              </Link>
              <DeploymentState of={each} title={each.status_message} />
              <span className="soft extra" title={getOrigin(each)}>
                {getOrigin(each)}
              </span>
              <span className="soft extra">{getAddress(each) ?? "no address yet"}</span>
              <span className="number soft">
                <Ago at={each.updated_at} />
              </span>
            </li>
          ))}
        </ul>
      </section>
    </div>
  );
}
