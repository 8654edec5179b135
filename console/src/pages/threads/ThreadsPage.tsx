import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { useAgentPages } from "../../api/agentQueries";
import type { Thread } from "../../api/agentServer";
import { ShortId } from "../../ui/Copy";
import { Empty, NoMatch } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { summarize } from "../../ui/Json";
import type { Column } from "../../ui/List";
import { ListPage } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";
import { contentText, parseSearch, STATES, ThreadState, type ThreadStatus } from "./thread";

const threadsRoute = getRouteApi("/agents/$deploymentId/threads");

const PAGE = 50;
const EVERY_MS = 5_000;

const ORDERS = [["created_at", "Created first"]] as const;

export function ThreadsPage() {
  const navigate = useNavigate();
  const { deploymentId } = threadsRoute.useParams();
  const { q, status, sort } = threadsRoute.useSearch();
  const { replace, bind } = useSearchParams({ q, status, sort });

  const search = useMemo(() => parseSearch(q ?? ""), [q]);
  const threads = useAgentPages(
    deploymentId,
    "POST /threads/search",
    (offset) => ({
      body: {
        ...search,
        ...(status ? { status: status as ThreadStatus } : {}),
        sort_by: sort === "created_at" ? sort : "updated_at",
        select: ["thread_id", "status", "interrupts", "metadata", "created_at", "updated_at"],
        extract: { first: "values.messages[0].content", last: "values.messages[-1].content" },
        limit: PAGE,
        offset,
      },
    }),
    { everyMs: EVERY_MS, keep: true, enabled: search !== null },
  );

  const columns = useMemo(() => getColumns(deploymentId), [deploymentId]);

  return (
    <ListPage
      filters={
        <>
          <SearchField
            key={deploymentId}
            label="Search threads"
            placeholder="Id, user=ada, values.topic=sea"
            {...bind("q")}
          />
          <FilterSelect label="State" all="All states" options={STATES} {...bind("status")} />
          <FilterSelect label="Order" all="Last changed first" options={ORDERS} {...bind("sort")} />
        </>
      }
    >
      {search === null ? (
        <p className="soft">
          Search by ids, by metadata as <code>user=ada</code>, or by state as <code>values.topic="the sea"</code>.
        </p>
      ) : (
        <PagedList
          listing={threads}
          label="Threads"
          columns={columns}
          getKey={(each) => each.thread_id ?? ""}
          onOpen={(each) =>
            void navigate({
              to: "/agents/$deploymentId/threads/$threadId",
              params: { deploymentId, threadId: each.thread_id ?? "" },
            })
          }
          empty={
            q || status ? (
              <NoMatch
                title="No thread matches"
                clear="Show all threads"
                onClear={() => replace({ q: undefined, status: undefined })}
              />
            ) : (
              <Empty title="No thread yet">
                A thread keeps the state of one conversation with this agent. It begins with the first run.
              </Empty>
            )
          }
        />
      )}
    </ListPage>
  );
}

function getColumns(deploymentId: string): Column<Thread>[] {
  return [
    {
      title: "Thread",
      width: "minmax(108px, 124px)",
      show: (each) => (
        <Link
          to="/agents/$deploymentId/threads/$threadId"
          params={{ deploymentId, threadId: each.thread_id ?? "" }}
          className="name"
          aria-label={`Thread ${each.thread_id?.slice(-8)}`}
        >
          <ShortId id={each.thread_id ?? ""} what="thread id" />
        </Link>
      ),
    },
    {
      title: "State",
      width: "minmax(140px, 160px)",
      show: (each) => <ThreadState status={each.status} interrupts={each.interrupts} />,
    },
    {
      title: "Began with",
      width: "minmax(140px, 1.2fr)",
      show: (each) => contentText(each.extracted?.first).slice(0, 200) || <span className="soft">–</span>,
      isExtra: true,
    },
    {
      title: "Last message",
      width: "minmax(140px, 1.6fr)",
      show: (each) => <span className="soft">{contentText(each.extracted?.last).slice(0, 200) || "–"}</span>,
      isExtra: true,
    },
    {
      title: "Metadata",
      width: "minmax(120px, 1fr)",
      show: (each) => <code className="soft">{summarize(ownMetadata(each))}</code>,
      isExtra: true,
    },
    {
      title: "Changed",
      width: "72px",
      show: (each) => (each.updated_at ? <Ago at={each.updated_at} /> : "–"),
      isNumber: true,
    },
  ];
}

// What the server itself notes in metadata is known from elsewhere.
function ownMetadata(thread: Thread): Record<string, unknown> {
  const { graph_id: _graph, assistant_id: _assistant, ...own } = thread.metadata ?? {};
  return own;
}
