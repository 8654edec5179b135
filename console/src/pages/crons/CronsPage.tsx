import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useAgentPages } from "../../api/agentQueries";
import type { SelectedCron } from "../../api/agentServer";
import { useAssistants } from "../../api/useAssistants";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { ListPage } from "../../ui/ListPage";
import { PagedList } from "../../ui/PagedList";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useSearchParams } from "../../ui/useSearchParams";
import { CronDetails } from "./CronDetails";
import { CronForm } from "./CronForm";
import { CronState } from "./cron";

const cronsRoute = getRouteApi("/agents/$deploymentId/crons");

const PAGE = 100;
const EVERY_MS = 5_000;
// What the address names in place of a cron while one is written.
const NEW = "new";

const STATES = [
  ["active", "Active"],
  ["paused", "Paused"],
] as const;

const ID = /^[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}$/i;

export function CronsPage() {
  const { deploymentId } = cronsRoute.useParams();
  const { assistant, thread, state, cron, edit } = cronsRoute.useSearch();
  const { push, bind } = useSearchParams({ assistant, thread, state, cron, edit });
  const { pairs, getName } = useAssistants(deploymentId);

  const isId = !thread || ID.test(thread);
  const crons = useAgentPages(
    deploymentId,
    "POST /runs/crons/search",
    (offset) => ({
      body: {
        ...(assistant ? { assistant_id: assistant } : {}),
        ...(thread ? { thread_id: thread } : {}),
        ...(state ? { is_enabled: state === "active" } : {}),
        limit: PAGE,
        offset,
      },
    }),
    { everyMs: EVERY_MS, keep: true, enabled: isId },
  );

  const columns = useMemo(() => getColumns(getName), [getName]);

  const open = (id: string | undefined) => push({ cron: id, edit: undefined });
  const close = () => open(undefined);

  return (
    <ListPage
      isWide
      filters={
        <>
          <SearchField key={deploymentId} label="Thread of the cron" placeholder="Id of a thread" {...bind("thread")} />
          <FilterSelect label="Assistant" all="All assistants" options={pairs} {...bind("assistant")} />
          <FilterSelect label="State" all="Active and paused" options={STATES} {...bind("state")} />
          {crons.isRead && (
            <button type="button" className="button main" onClick={() => open(NEW)}>
              <Icon name="plus" />
              New cron
            </button>
          )}
        </>
      }
      panel={
        cron === NEW ? (
          <CronForm deploymentId={deploymentId} assistants={pairs} onClose={close} onSaved={push} />
        ) : (
          cron && (
            <CronDetails
              key={cron}
              deploymentId={deploymentId}
              cronId={cron}
              assistants={pairs}
              getName={getName}
              isEdited={edit !== undefined}
              onShow={push}
              onClose={close}
            />
          )
        )
      }
    >
      {isId ? (
        <PagedList
          listing={crons}
          label="Crons"
          columns={columns}
          getKey={(each) => each.cron_id ?? ""}
          onOpen={(each) => open(each.cron_id)}
          empty={
            <Empty title={assistant || thread || state ? "No cron matches" : "No cron yet"}>
              A cron runs an assistant at the times of a schedule, on one thread or on a new one each time.
            </Empty>
          }
        />
      ) : (
        <p className="soft">The id of a thread has 36 characters.</p>
      )}
    </ListPage>
  );
}

function getColumns(getName: (id: string) => string): Column<SelectedCron>[] {
  return [
    {
      title: "Schedule",
      width: "minmax(120px, 1.2fr)",
      show: (each) => (
        <Link
          to="."
          search={(old: Record<string, unknown>) => ({ ...old, cron: each.cron_id, edit: undefined })}
          className="name"
        >
          <code>{each.schedule}</code>
        </Link>
      ),
    },
    { title: "Zone", width: "minmax(80px, 1fr)", show: (each) => each.timezone ?? "UTC", isExtra: true },
    { title: "State", width: "minmax(84px, 100px)", show: (each) => <CronState cron={each} /> },
    {
      title: "Assistant",
      width: "minmax(90px, 1.2fr)",
      show: (each) => getName(each.assistant_id ?? ""),
      isExtra: true,
    },
    {
      title: "Thread",
      width: "minmax(100px, 116px)",
      isExtra: true,
      show: (each) =>
        each.thread_id ? <ShortId id={each.thread_id} what="thread id" /> : <span className="soft">new ones</span>,
    },
    {
      title: "Skipped",
      width: "72px",
      isNumber: true,
      isExtra: true,
      show: (each) => each.skipped_count || <span className="soft">–</span>,
    },
    {
      title: "Next",
      width: "76px",
      isNumber: true,
      show: (each) =>
        each.next_run_date && each.is_enabled ? <Ago at={each.next_run_date} /> : <span className="soft">–</span>,
    },
  ];
}
