import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { useOffsetPages } from "../../api/pages";
import type { Revision } from "../../api/platform";
import { useApi } from "../../api/queries";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { isInProgress, RevisionState } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";
import { getCode } from "../deployments/deployment";
import { useDeployment } from "./useDeployment";

const deploymentRoute = getRouteApi("/deployments/$deploymentId");

const EVERY_MS = 3_000;

export function RevisionsTab() {
  const { deploymentId } = deploymentRoute.useParams();
  const navigate = useNavigate();
  const deployment = useDeployment(deploymentId).data;

  const revisions = useOffsetPages(
    "GET /v2/deployments/{deployment_id}/revisions",
    (slice) => ({ path: { deployment_id: deploymentId }, query: { ...slice } }),
    (page) => page.resources,
    { everyMs: EVERY_MS },
  );

  const active = deployment?.active_revision_id;
  const path = { deployment_id: deploymentId };
  const metrics = useApi("GET /v2/deployments/{deployment_id}/metrics", { path }, { everyMs: EVERY_MS }).data;

  const threads = metrics?.threads_by_revision;
  const columns = useMemo(() => getColumns(deploymentId, active, threads), [deploymentId, active, threads]);

  return (
    <PagedList
      listing={revisions}
      label="Revisions"
      columns={columns}
      getKey={(each) => each.id}
      onOpen={(each) =>
        void navigate({
          to: "/deployments/$deploymentId/revisions/$revisionId",
          params: { deploymentId, revisionId: each.id },
        })
      }
      empty={
        <Empty title="No revision yet" command={`portside deploy FOLDER --name ${deployment?.name ?? "NAME"}`}>
          The first upload of a folder or an image makes the first revision.
        </Empty>
      }
    />
  );
}

type Counts = { [revisionId: string]: number } | null | undefined;

function getColumns(deploymentId: string, active: string | null | undefined, threads: Counts): Column<Revision>[] {
  const ofThreads: Column<Revision> = {
    title: "Threads",
    width: "84px",
    show: (each) => threads?.[each.id] ?? 0,
    isNumber: true,
    isExtra: true,
  };

  return [
    {
      title: "Revision",
      width: "minmax(150px, 0.6fr)",
      show: (each) => (
        <span className="row tight">
          <Link
            to="/deployments/$deploymentId/revisions/$revisionId"
            params={{ deploymentId, revisionId: each.id }}
            className="name"
            aria-label={`Revision ${each.id.slice(-8)}`}
          >
            <ShortId id={each.id} what="id" />
          </Link>
          {each.id === active && <span className="tag">serving</span>}
        </span>
      ),
    },
    {
      title: "State",
      width: "minmax(116px, 150px)",
      show: (each) => <RevisionState status={each.status} title={each.status_message} />,
    },
    {
      title: "Code",
      width: "minmax(140px, 1fr)",
      show: (each) => <code title={getCode(each)}>{getCode(each)}</code>,
      isExtra: true,
    },
    {
      title: "Reason",
      width: "minmax(140px, 2fr)",
      show: (each) => (
        <span className="soft" title={each.status_message ?? ""}>
          {each.status_message}
        </span>
      ),
      isExtra: true,
    },
    {
      title: "Took",
      width: "92px",
      show: (each) =>
        isInProgress(each.status)
          ? "–"
          : duration(new Date(each.updated_at).getTime() - new Date(each.created_at).getTime()),
      isNumber: true,
      isExtra: true,
    },
    ...(threads ? [ofThreads] : []),
    { title: "Created", width: "72px", show: (each) => <Ago at={each.created_at} />, isNumber: true },
  ];
}
