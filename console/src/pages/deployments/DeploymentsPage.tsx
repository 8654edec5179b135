import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo, useRef } from "react";
import { type ApiError, call } from "../../api/client";
import type { Deployment, DeploymentList, DeploymentStatus } from "../../api/platform";
import { useApi } from "../../api/queries";
import { usePreferences } from "../../preferences";
import { deploymentsRoute } from "../../router";
import { useKey } from "../../shell/keys";
import { useMay, useWorkspaceId } from "../../shell/session";
import { CopyButton } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { type Column, List } from "../../ui/List";
import { Problem } from "../../ui/Problem";
import { DeploymentState, isInProgress, RevisionState } from "../../ui/Status";
import { Ago } from "../../ui/Time";
import { addressOf, nameOf, originOf } from "./deployment";
import { NewDeploymentLink } from "./NewDeploymentLink";

const PAGE = 50;
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
    show: (each) => <DeploymentState status={each.status} title={each.status_message} />,
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
  const search = useRef<HTMLInputElement>(null);
  useKey("/", () => search.current?.focus());
  useKey("c", () => mayCreate && void navigate({ to: "/deployments/new" }));
  const found = useDeployments(q, status);
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.resources) ?? [], [found.data]);
  const { fetchNextPage, hasNextPage, isFetchingNextPage } = found;
  const loadMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetchingNextPage]);
  const filter = (changes: { q?: string | undefined; status?: string | undefined }) =>
    void navigate({ to: "/deployments", search: (old) => ({ ...old, ...changes }), replace: true });
  return (
    <div className="page full">
      <div className="head">
        <h1>Deployments</h1>
        <NewDeploymentLink />
      </div>
      <div className="filters">
        <input
          ref={search}
          type="search"
          aria-label="Search by name"
          placeholder="Search by name  ( / )"
          defaultValue={q ?? ""}
          onChange={(event) => filter({ q: event.target.value || undefined })}
        />
        <select
          aria-label="State"
          value={status ?? ""}
          onChange={(event) => filter({ status: event.target.value || undefined })}
        >
          <option value="">All states</option>
          {STATES.map(([value, word]) => (
            <option key={value} value={value}>
              {word}
            </option>
          ))}
        </select>
      </div>
      {found.error && !found.data && <Problem error={found.error} retry={() => void found.refetch()} />}
      {rows.length > 0 && (
        <List
          label="Deployments"
          rows={rows}
          columns={COLUMNS}
          keyOf={(each) => each.id}
          onOpen={(each) => void navigate({ to: "/deployments/$deploymentId", params: { deploymentId: each.id } })}
          loadMore={loadMore}
        />
      )}
      {found.data && rows.length === 0 && (q || status) && (
        <Empty title="No deployment matches">
          <button type="button" className="link" onClick={() => filter({ q: undefined, status: undefined })}>
            Show all deployments
          </button>
        </Empty>
      )}
      {found.data && rows.length === 0 && !q && !status && (
        <Empty title="Nothing is deployed yet" command="portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY">
          A deployment is an agent that runs here, from a git repository, an image or a folder.
          {mayCreate && " Press c to create one here, or run:"}
        </Empty>
      )}
    </div>
  );
}

function useDeployments(q: string | undefined, status: string | undefined) {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();
  return useInfiniteQuery<DeploymentList, ApiError, { pages: DeploymentList[] }, unknown[], number>({
    queryKey: [workspace, "deployments", q, status],
    queryFn: ({ pageParam, signal }) => {
      const query = { limit: PAGE, offset: pageParam, name_contains: q ?? "" };
      return call(
        "GET /v2/deployments",
        { query: status ? { ...query, status: status as DeploymentStatus } : query },
        signal,
      );
    },
    initialPageParam: 0,
    getNextPageParam: (page) => (page.resources.length < PAGE ? undefined : page.offset),
    refetchInterval: isLive ? EVERY_MS : false,
    placeholderData: (last) => last,
  });
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
