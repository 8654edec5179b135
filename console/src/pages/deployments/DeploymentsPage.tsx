import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Deployment, DeploymentStatus } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useKey } from "../../shell/keys";
import { useMay } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { DeploymentState, isInProgress, RevisionState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { addressOf, nameOf, originOf } from "./deployment";
import { NewDeploymentLink } from "./NewDeploymentLink";

const deploymentsRoute = getRouteApi("/deployments");

const EVERY_MS = 5_000;

const STATES: [DeploymentStatus, string][] = [
  ["READY", "Ready"],
  ["UNKNOWN", "Not answering"],
  ["UNUSED", "Not running"],
  ["AWAITING_DATABASE", "Preparing"],
  ["AWAITING_DELETE", "Being deleted"],
];

const COLUMNS: Column<Deployment>[] = [
  {
    title: "Name",
    width: "minmax(160px, 1.2fr)",
    show: (each) => (
      <Link to="/deployments/$deploymentId" params={{ deploymentId: each.id }} className="name">
        {nameOf(each)}
      </Link>
    ),
  },
  {
    title: "State",
    width: "minmax(110px, 132px)",
    show: (each) => <DeploymentState of={each} title={each.status_message} />,
  },
  {
    title: "Latest revision",
    width: "minmax(140px, 172px)",
    show: (each) => <LatestRevision of={each} />,
    isExtra: true,
  },
  {
    title: "Source",
    width: "minmax(140px, 1.4fr)",
    show: (each) => <span title={originOf(each)}>{originOf(each)}</span>,
    isExtra: true,
  },
  { title: "Address", width: "minmax(140px, 1.4fr)", show: (each) => <Address of={each} />, isExtra: true },
  {
    title: "Changed",
    width: "72px",
    show: (each) => <Ago at={each.updated_at} />,
    isNumber: true,
  },
];

export function DeploymentsPage() {
  const { q, status } = deploymentsRoute.useSearch();
  const navigate = useNavigate();
  const mayCreate = useMay("deployments:create");

  useKey("c", () => mayCreate && void navigate({ to: "/deployments/new" }));
  const found = useOffsetPages(
    "GET /v2/deployments",
    (slice) => ({
      query: { ...slice, name_contains: q ?? "", ...(status ? { status: status as DeploymentStatus } : {}) },
    }),
    (page) => page.resources,
    { everyMs: EVERY_MS, keep: true },
  );

  const filter = (changes: { q?: string | undefined; status?: string | undefined }) =>
    void navigate({ to: "/deployments", search: (old) => ({ ...old, ...changes }), replace: true });

  return (
    <div className="page full">
      <div className="head">
        <h1>Deployments</h1>
        <NewDeploymentLink />
      </div>
      <div className="filters">
        <SearchField
          label="Search by name"
          placeholder="Search by name"
          q={q}
          onSearch={(text) => filter({ q: text })}
        />
        <FilterSelect
          label="State"
          all="All states"
          options={STATES}
          value={status}
          onSelect={(value) => filter({ status: value })}
        />
      </div>
      <PagedList
        found={found}
        label="Deployments"
        columns={COLUMNS}
        keyOf={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/deployments/$deploymentId", params: { deploymentId: each.id } })}
        empty={
          q || status ? (
            <Empty title="No deployment matches">
              <button type="button" className="link" onClick={() => filter({ q: undefined, status: undefined })}>
                Show all deployments
              </button>
            </Empty>
          ) : (
            <Empty title="Nothing is deployed yet" command="portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY">
              A deployment is an agent that runs here, from a git repository, an image or a folder.
              {mayCreate && " Press c to create one here, or run:"}
            </Empty>
          )
        }
      />
    </div>
  );
}

function LatestRevision({ of: deployment }: { of: Deployment }) {
  const id = deployment.latest_revision_id;
  const { data } = useApi(
    "GET /v2/deployments/{deployment_id}/revisions/{revision_id}",
    { path: { deployment_id: deployment.id, revision_id: id ?? "" } },
    { enabled: id !== null, everyMs: id === deployment.active_revision_id ? false : EVERY_MS },
  );

  if (id === null) return <span className="soft">none yet</span>;
  if (!data) return <span className="soft">…</span>;

  return (
    <Link
      to="/deployments/$deploymentId/revisions/$revisionId"
      params={{ deploymentId: deployment.id, revisionId: id }}
      search={isInProgress(data.status) ? { log: "build" } : {}}
    >
      <RevisionState status={data.status} title={data.status_message} />
    </Link>
  );
}

function Address({ of: deployment }: { of: Deployment }) {
  const address = addressOf(deployment);
  if (address === null) return <span className="soft">none yet</span>;

  return (
    <>
      <CopyButton text={address} what="address" /> <code title={address}>{address.replace(/^https?:\/\//, "")}</code>
    </>
  );
}
