import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { address, call, request } from "../../api/client";
import { useCursorPages } from "../../api/pages";
import type { AuditEntry } from "../../api/platform";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { ListPage, PageHead } from "../../ui/ListPage";
import { MomentFilters } from "../../ui/MomentInput";
import { PagedList } from "../../ui/PagedList";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useDownload } from "../../ui/useDownload";
import { useSearchParams } from "../../ui/useSearchParams";
import { useTyped } from "../../ui/useTyped";
import { EntryPanel } from "./EntryPanel";
import { Outcome } from "./entry";
import { OBJECTS, OUTCOMES, PERIODS, toQuery } from "./filters";
import { describeActor, describeObject, type Names } from "./names";
import { useNames } from "./useNames";

const auditRoute = getRouteApi("/audit");

const getColumns = (names: Names): Column<AuditEntry>[] => [
  { title: "When", width: "72px", show: (each) => <Ago at={each.at} /> },
  {
    title: "Who",
    width: "minmax(140px, 1.2fr)",
    show: (each) => <span title={each.client ?? ""}>{describeActor(each, names)}</span>,
  },
  {
    title: "Action",
    width: "minmax(150px, 1.4fr)",
    show: (each) => (
      <Link to="/audit" search={(old) => ({ ...old, entry: String(each.seq) })}>
        <code>{each.action}</code>
      </Link>
    ),
  },
  {
    title: "Object",
    width: "minmax(140px, 1.4fr)",
    show: (each) => <span title={each.object_ids.join("\n")}>{describeObject(each, names)}</span>,
    isExtra: true,
  },
  {
    title: "Fields",
    width: "minmax(100px, 1fr)",
    show: (each) => <span title={each.fields.join("\n")}>{each.fields.join(", ")}</span>,
    isExtra: true,
  },
  { title: "From", width: "120px", show: (each) => <code>{each.address ?? ""}</code>, isExtra: true },
  { title: "Outcome", width: "96px", show: (each) => <Outcome entry={each} /> },
];

// Who changed what. The server shows the whole organization to those who manage it, and else one workspace.
export function AuditPage() {
  const search = auditRoute.useSearch();
  const { replace, bind } = useSearchParams(search);
  const isWhole = useMay("organization:manage");
  const mayRead = useMay("workspaces:manage") || isWhole;

  const operation = isWhole ? "GET /audit-log" : "GET /workspaces/current/audit-log";
  const names = useNames();
  const columns = useMemo(() => getColumns(names), [names]);
  const query = toQuery(search);
  const entries = useCursorPages(
    [operation, query],
    async (cursor, signal) => {
      const page = await call(
        operation,
        { query: { ...query, ...(cursor ? { cursor: Number(cursor) } : {}) } },
        signal,
      );

      return { items: page.items, next_cursor: page.cursor === null ? null : String(page.cursor) };
    },
    { enabled: mayRead, keep: true, everyMs: 10_000 },
  );

  if (!mayRead) {
    return (
      <div className="page">
        <h1>Audit log</h1>
        <Empty title="You may not see the audit log">Admins of the organization and of the workspace may.</Empty>
      </div>
    );
  }

  return (
    <ListPage
      head={
        <PageHead title="Audit log">
          <Exports isWhole={isWhole} query={query} />
        </PageHead>
      }
      filters={
        <>
          <SearchField label="Object" placeholder="Name or id of an object" {...bind("object")} />
          <ActorField {...bind("actor")} />
          <FilterSelect label="What" all="All actions" options={OBJECTS} {...bind("action")} />
          <FilterSelect label="Outcome" all="All outcomes" options={OUTCOMES} {...bind("outcome")} />
          <FilterSelect
            label="Period"
            all="All time"
            options={PERIODS}
            value={search.period}
            onChange={(period) => replace({ period, since: undefined, until: undefined })}
          />
          <MomentFilters
            since={search.since}
            until={search.until}
            onChange={(changes) => replace({ period: undefined, ...changes })}
          />
        </>
      }
      panel={
        search.entry && (
          <EntryPanel
            key={search.entry}
            seq={search.entry}
            isWhole={isWhole}
            onClose={() => replace({ entry: undefined })}
          />
        )
      }
    >
      <PagedList
        label="Audit log"
        listing={entries}
        columns={columns}
        getKey={(each) => each.id}
        onOpen={(each) => replace({ entry: String(each.seq) })}
        empty={
          <Empty title="No entry matches" command="portside audit list">
            Every change, every sign-in and every read of a secret is recorded here.
          </Empty>
        }
      />
    </ListPage>
  );
}

// The second search of the page: the key / goes to the other one.
function ActorField(props: { value: string | undefined; onChange: (text: string | undefined) => void }) {
  const input = useTyped(props.value, props.onChange);

  return <input {...input} type="search" aria-label="Who" placeholder="E-mail, key or address" autoComplete="off" />;
}

// The whole selection as a file. A browser's link names no workspace, so a part of the log is fetched by the page.
function Exports({ isWhole, query }: { isWhole: boolean; query: Record<string, unknown> }) {
  const download = useDownload();

  const save = (format: "csv" | "jsonl") =>
    download.mutate({
      read: () => request("GET /workspaces/current/audit-log/export", { query: { ...query, format } }),
      fileName: `audit-log.${format}`,
    });

  return (
    <div className="row">
      {download.error && <Problem error={download.error} />}
      {(["csv", "jsonl"] as const).map((format) =>
        isWhole ? (
          <a key={format} className="button" href={address("/audit-log/export", {}, { ...query, format })} download>
            <Icon name="download" /> {format === "csv" ? "CSV" : "JSON lines"}
          </a>
        ) : (
          <button
            key={format}
            type="button"
            className="button"
            disabled={download.isPending}
            onClick={() => save(format)}
          >
            <Icon name="download" /> {format === "csv" ? "CSV" : "JSON lines"}
          </button>
        ),
      )}
    </div>
  );
}
