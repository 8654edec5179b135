import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { address, call, request } from "../../api/client";
import { useCursorPages } from "../../api/pages";
import type { AuditEntry } from "../../api/platform";
import { useMay } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { FilterSelect } from "../../ui/FilterSelect";
import { Icon } from "../../ui/Icon";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { Problem } from "../../ui/Problem";
import { periodOf, RANGES, type RangeName } from "../../ui/Range";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { useDownload } from "../../ui/useDownload";
import { useTyped } from "../../ui/useTyped";
import { EntryPanel } from "./EntryPanel";
import { actorName, Outcome } from "./entry";

const auditRoute = getRouteApi("/audit");

const OBJECTS = [
  ["deployment", "Deployments"],
  ["revision", "Revisions"],
  ["secret", "Reads of secrets"],
  ["key", "API keys"],
  ["member", "Members"],
  ["session", "Sign-ins"],
  ["workspace", "Workspaces"],
  ["project", "Projects"],
  ["dataset", "Datasets"],
  ["prompt", "Prompts"],
  ["integration", "Git accounts"],
  ["usage_limit", "Limits"],
  ["platform", "Starts of the platform"],
] as const;

const OUTCOMES = [
  ["ok", "Done"],
  ["refused", "Refused"],
  ["failed", "Failed"],
] as const;

const PERIODS = (["1h", "24h", "7d", "30d", "90d"] as const).map((name) => [name, RANGES[name].title] as const);

const COLUMNS: Column<AuditEntry>[] = [
  { title: "When", width: "72px", show: (each) => <Ago at={each.at} /> },
  {
    title: "Who",
    width: "minmax(140px, 1.2fr)",
    show: (each) => <span title={each.client ?? ""}>{actorName(each)}</span>,
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
  { title: "Object", width: "minmax(140px, 1.4fr)", show: (each) => <ObjectName entry={each} />, isExtra: true },
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
  const { actor, action, object, outcome, period, entry } = auditRoute.useSearch();
  const navigate = useNavigate();
  const isWhole = useMay("organization:manage");
  const mayRead = useMay("workspaces:manage") || isWhole;

  const operation = isWhole ? "GET /audit-log" : "GET /workspaces/current/audit-log";
  const query = {
    ...(actor ? { actor } : {}),
    ...(action ? { action } : {}),
    ...(object ? { object } : {}),
    ...(outcome ? { outcome: outcome as AuditEntry["outcome"] } : {}),
    ...(period && period in RANGES ? { start_time: periodOf(period as RangeName).start } : {}),
  };

  const found = useCursorPages(
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

  type Search = Record<"actor" | "action" | "object" | "outcome" | "period" | "entry", string | undefined>;
  const show = (changes: Partial<Search>) =>
    void navigate({ to: "/audit", search: (old) => ({ ...old, ...changes }), replace: true });
  const typed = useTyped(actor, (text) => show({ actor: text }));

  if (!mayRead) {
    return (
      <div className="page">
        <h1>Audit log</h1>
        <Empty title="You may not see the audit log">Admins of the organization and of the workspace may.</Empty>
      </div>
    );
  }

  return (
    <div className="page full">
      <div className="head">
        <h1>Audit log</h1>
        <Exports isWhole={isWhole} query={query} />
      </div>
      <div className={entry ? "split open" : "split"}>
        <div className="split-main">
          <div className="filters">
            <SearchField
              label="Object"
              placeholder="Name or id of an object"
              q={object}
              onSearch={(text) => show({ object: text })}
            />
            <input {...typed} type="search" aria-label="Who" placeholder="E-mail, key or address" autoComplete="off" />
            <FilterSelect
              label="What"
              all="All actions"
              options={OBJECTS}
              value={action}
              onSelect={(value) => show({ action: value })}
            />
            <FilterSelect
              label="Outcome"
              all="All outcomes"
              options={OUTCOMES}
              value={outcome}
              onSelect={(value) => show({ outcome: value })}
            />
            <FilterSelect
              label="Period"
              all="All time"
              options={PERIODS}
              value={period}
              onSelect={(value) => show({ period: value })}
            />
          </div>
          <PagedList
            label="Audit log"
            found={found}
            columns={COLUMNS}
            keyOf={(each) => each.id}
            onOpen={(each) => show({ entry: String(each.seq) })}
            empty={
              <Empty title="No entry matches" command="portside audit list">
                Every change, every sign-in and every read of a secret is recorded here.
              </Empty>
            }
          />
        </div>
        {entry && <EntryPanel key={entry} seq={entry} isWhole={isWhole} onClose={() => show({ entry: undefined })} />}
      </div>
    </div>
  );
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

function ObjectName({ entry }: { entry: AuditEntry }) {
  const text = entry.object_name ?? entry.object_ids.at(-1) ?? "";
  return <span title={entry.object_ids.join("\n")}>{text}</span>;
}
