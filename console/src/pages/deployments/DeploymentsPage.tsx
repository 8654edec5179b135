import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Deployment, DeploymentStatus } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { Empty, NoMatch } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import type { Column } from "../../ui/List";
import { ListPage, NewLink, PageHead } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { DeploymentState, isInProgress, RevisionState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";
import { getAddress, getName, getOrigin } from "./deployment";

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
        {getName(each)}
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
    show: (each) => <span title={getOrigin(each)}>{getOrigin(each)}</span>,
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
  const navigate = useNavigate();
  const { q, status } = deploymentsRoute.useSearch();
  const { replace, bind } = useSearchParams({ q, status });
  const mayCreate = useMay("deployments:create");

  const deployments = useOffsetPages(
    "GET /v2/deployments",
    (slice) => ({
      query: { ...slice, name_contains: q ?? "", ...(status ? { status: status as DeploymentStatus } : {}) },
    }),
    (page) => page.resources,
    { everyMs: EVERY_MS, keep: true },
  );

  return (
    <ListPage
      head={
        <PageHead title="Deployments">{mayCreate && <NewLink to="/deployments/new">New deployment</NewLink>}</PageHead>
      }
      filters={
        <>
          <SearchField label="Search by name" placeholder="Search by name" {...bind("q")} />
          <FilterSelect label="State" all="All states" options={STATES} {...bind("status")} />
        </>
      }
    >
      <PagedList
        listing={deployments}
        label="Deployments"
        columns={COLUMNS}
        getKey={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/deployments/$deploymentId", params: { deploymentId: each.id } })}
        empty={
          q || status ? (
            <NoMatch
              title="No deployment matches"
              clear="Show all deployments"
              onClear={() => replace({ q: undefined, status: undefined })}
            />
          ) : (
            <Empty title="Nothing is deployed yet" command="portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY">
              A deployment is an agent that runs here, from a git repository, an image or a folder.
              {mayCreate && " Press c to create one here, or run:"}
            </Empty>
          )
        }
      />
    </ListPage>
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
  const address = getAddress(deployment);
  if (address === null) return <span className="soft">none yet</span>;

  return (
    <>
      <CopyButton text={address} what="address" /> <code title={address}>{address.replace(/^https?:\/\//, "")}</code>
    </>
  );
}
