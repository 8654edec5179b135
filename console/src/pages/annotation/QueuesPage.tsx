// Queues of runs for people to judge.

import { Link, useNavigate } from "@tanstack/react-router";
import { useOffsetPages } from "../../api/pages";
import type { Queue } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { count } from "../../ui/format";
import type { Column } from "../../ui/List";
import { ListPage, NewLink, PageHead } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { Ago } from "../../ui/Time";

const EVERY_MS = 10_000;

export function QueuesPage() {
  const navigate = useNavigate();
  const mayCreate = useMay("annotation-queues:create");

  const queues = useOffsetPages(
    "GET /annotation-queues",
    (slice) => ({ query: { ...slice } }),
    (page) => page,
    { everyMs: EVERY_MS },
  );

  return (
    <ListPage
      head={<PageHead title="Annotation">{mayCreate && <NewLink to="/annotation/new">New queue</NewLink>}</PageHead>}
    >
      <PagedList
        listing={queues}
        label="Annotation queues"
        columns={COLUMNS}
        getKey={(each) => each.id}
        onOpen={(each) => void navigate({ to: "/annotation/$queueId", params: { queueId: each.id }, search: {} })}
        empty={
          <Empty
            title="No annotation queues yet"
            command={`python -c "import langsmith; langsmith.Client(api_url='${location.origin}').create_annotation_queue(name='To check')"`}
          >
            A queue holds runs that people judge one after the other, with the keyboard.
            {mayCreate && " Press c to create one, then mark traces and add them, or run:"}
          </Empty>
        }
      />
    </ListPage>
  );
}

function Size({ queue, show }: { queue: Queue; show: "waiting" | "completed" }) {
  const size = useApi(
    "GET /annotation-queues/{queue_id}/size",
    { path: { queue_id: queue.id } },
    { everyMs: EVERY_MS },
  ).data;

  if (!size) return <span className="soft">…</span>;
  return count(show === "waiting" ? size.size - size.completed : size.completed);
}

const COLUMNS: Column<Queue>[] = [
  {
    title: "Queue",
    width: "minmax(160px, 1.2fr)",
    show: (each) => (
      <Link to="/annotation/$queueId" params={{ queueId: each.id }} search={{}} className="name">
        {each.name}
      </Link>
    ),
  },
  {
    title: "Description",
    width: "minmax(160px, 2fr)",
    show: (each) => <span className="soft">{each.description}</span>,
    isExtra: true,
  },
  {
    title: "Asks for",
    width: "minmax(100px, 1fr)",
    show: (each) => each.rubric_items.map((item) => item.feedback_key).join(", "),
    isExtra: true,
  },
  { title: "Waiting", width: "72px", show: (each) => <Size queue={each} show="waiting" />, isNumber: true },
  { title: "Done", width: "64px", show: (each) => <Size queue={each} show="completed" />, isNumber: true },
  { title: "Created", width: "72px", show: (each) => <Ago at={each.created_at} />, isNumber: true, isExtra: true },
];
