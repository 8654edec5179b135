import { useInfiniteQuery } from "@tanstack/react-query";
import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo } from "react";
import { type ApiError, call } from "../../api/client";
import type { Revision, RevisionList } from "../../api/platform";
import { usePreferences } from "../../preferences";
import { deploymentRoute } from "../../router";
import { useWorkspaceId } from "../../shell/session";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { type Column, List } from "../../ui/List";
import { Problem } from "../../ui/Problem";
import { isInProgress, RevisionState } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";
import { codeOf } from "../deployments/deployment";
import { useDeployment } from "./useDeployment";

const PAGE = 50;

export function RevisionsTab() {
  const { deploymentId } = deploymentRoute.useParams();
  const navigate = useNavigate();
  const deployment = useDeployment(deploymentId).data;
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();
  const found = useInfiniteQuery<RevisionList, ApiError, { pages: RevisionList[] }, unknown[], number>({
    queryKey: [workspace, "revisions", deploymentId],
    queryFn: ({ pageParam, signal }) =>
      call(
        "GET /v2/deployments/{deployment_id}/revisions",
        { path: { deployment_id: deploymentId }, query: { limit: PAGE, offset: pageParam } },
        signal,
      ),
    initialPageParam: 0,
    getNextPageParam: (page) => (page.resources.length < PAGE ? undefined : page.offset),
    refetchInterval: isLive ? 3_000 : false,
  });
  const rows = useMemo(() => found.data?.pages.flatMap((page) => page.resources) ?? [], [found.data]);
  const active = deployment?.active_revision_id;
  const columns = useMemo(() => columnsOf(deploymentId, active), [deploymentId, active]);
  const { fetchNextPage, hasNextPage, isFetchingNextPage } = found;
  const loadMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetchingNextPage]);
  if (found.error && !found.data) return <Problem error={found.error} retry={() => void found.refetch()} />;
  if (found.data && rows.length === 0) {
    return (
      <Empty title="No revision yet" command={`portside deploy FOLDER --name ${deployment?.name ?? "NAME"}`}>
        The first upload of a folder or an image makes the first revision.
      </Empty>
    );
  }
  if (rows.length === 0) return null;
  return (
    <List
      label="Revisions"
      rows={rows}
      columns={columns}
      keyOf={(each) => each.id}
      onOpen={(each) =>
        void navigate({
          to: "/deployments/$deploymentId/revisions/$revisionId",
          params: { deploymentId, revisionId: each.id },
        })
      }
      loadMore={loadMore}
    />
  );
}

function columnsOf(deploymentId: string, active: string | null | undefined): Column<Revision>[] {
  return [
    {
      title: "Revision",
      width: "minmax(170px, 220px)",
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
      width: "minmax(120px, 150px)",
      show: (each) => <RevisionState status={each.status} title={each.status_message} />,
    },
    {
      title: "Code",
      width: "minmax(140px, 1fr)",
      show: (each) => <code title={codeOf(each)}>{codeOf(each)}</code>,
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
    { title: "Created", width: "72px", show: (each) => <Ago at={each.created_at} />, isNumber: true },
  ];
}
