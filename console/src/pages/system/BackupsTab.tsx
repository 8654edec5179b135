import type { Attempt, BackupSchedule, ListedBackup, TimeSpan } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { useMay } from "../../shell/session";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { bytes } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Table } from "../../ui/Table";
import { Ago, AgoOrNever, duration, Exact } from "../../ui/Time";

const EVERY_MS = 5_000;
const SCHEDULED = "BACKUP_TO=/mnt/backups PORTSIDE_BACKUP_PASSPHRASE_FILE=/etc/portside/passphrase portside up";
const KINDS: Record<string, string> = { data: "whole server", dumps: "dumps" };

// The backups, the last failure, and the command that restores a backup.
export function BackupsTab() {
  const mayManage = useMay("organization:manage");
  const query = useApi("GET /system/backups", {}, { enabled: mayManage, everyMs: EVERY_MS });
  const take = useChange("POST /system/backups", () => void query.refetch());

  if (!mayManage) {
    return <Empty title="You may not see backups">Admins and operators of the organization may.</Empty>;
  }
  if (query.error) return <Problem error={query.error} retry={() => void query.refetch()} />;
  if (!query.data) return null;

  const { schedule, backups, attempts, problem, restorable = [] } = query.data;
  if (!schedule) {
    return (
      <Empty title="No backups are scheduled" command={SCHEDULED}>
        With these settings the platform takes encrypted backups by itself. To take one now, run “portside backup
        create” on its machine. <ByHand attempts={attempts} />
      </Empty>
    );
  }

  const failed = attempts[0]?.error ? attempts[0] : null;

  return (
    <>
      <section className="card" aria-label="Schedule">
        <h2>Backups</h2>
        <Facts schedule={schedule} newest={backups[0]} failed={failed} restorable={restorable} />
        {failed && <Failure of={failed} />}
        {problem && (
          <p className="card-body bad-text" role="alert">
            {problem}
          </p>
        )}
        <div className="card-body stack">
          <div>
            <button
              type="button"
              className="button"
              disabled={take.isPending || schedule.is_running}
              onClick={() => take.mutate({})}
            >
              {schedule.is_running ? "A backup is being taken" : "Back up now"}
            </button>
          </div>
          {take.error && <Problem error={take.error} />}
          <p className="soft small">
            On an empty machine with Portside this restores the newest backup. It asks for the passphrase
            {schedule.keeps_log ? "; with --at TIME it restores any second of the times above." : "."}
          </p>
          <Command text={schedule.restore_command} />
        </div>
      </section>
      {backups.length === 0 && !problem && <Empty title="No backup yet">The first one is being taken.</Empty>}
      {backups.length > 0 && <List backups={backups} />}
    </>
  );
}

// From when to when any second can be restored: from the end of a backup to the newest log that was archived.
function Restorable({ spans }: { spans: TimeSpan[] }) {
  if (spans.length === 0) return <span className="soft">not yet: the log has to follow a backup</span>;

  return (
    <>
      {spans.map((span) => (
        <div key={span.since}>
          <Exact at={span.since} /> to <Exact at={span.until} />
        </div>
      ))}
    </>
  );
}

// The last backup that somebody took without a schedule.
function ByHand({ attempts }: { attempts: Attempt[] }) {
  const last = attempts.find((each) => !each.error);
  if (!last) return <>There is no backup yet.</>;

  return (
    <>
      The last one was taken <Ago at={last.ended_at} />: <code>{`${last.location}/${last.name}`}</code>.
    </>
  );
}

interface FactsProps {
  schedule: BackupSchedule;
  newest: ListedBackup | undefined;
  failed: Attempt | null;
  restorable: TimeSpan[];
}

function Facts({ schedule, newest, failed, restorable }: FactsProps) {
  return (
    <dl className="card-body facts">
      <div>
        <dt>State</dt>
        <dd>{failed ? <Status tone="bad" word="The last one failed" /> : <Status tone="good" word="In order" />}</dd>
      </div>
      <div>
        <dt>Newest</dt>
        <dd>
          <AgoOrNever at={newest?.created_at} />
        </dd>
      </div>
      <div>
        <dt>Taken every</dt>
        <dd>{duration(schedule.every_hours * 3_600_000)}</dd>
      </div>
      <div>
        <dt>Kept</dt>
        <dd>
          the newest {schedule.keep}, and those of {schedule.keep_days} days
        </dd>
      </div>
      <div>
        <dt>Any second</dt>
        <dd>
          {schedule.keeps_log ? (
            <Restorable spans={restorable} />
          ) : (
            <span className="soft">no: BACKUP_POINT_IN_TIME is off</span>
          )}
        </dd>
      </div>
      <div>
        <dt>Where</dt>
        <dd>
          <code>{schedule.location}</code>
        </dd>
      </div>
    </dl>
  );
}

function Failure({ of: attempt }: { of: Attempt }) {
  return (
    <p className="card-body bad-text" role="alert">
      The backup of <Ago at={attempt.started_at} /> failed: {attempt.error}
    </p>
  );
}

function List({ backups }: { backups: ListedBackup[] }) {
  return (
    <section className="card" aria-label="Stored backups">
      <Table
        label="Stored backups"
        rows={backups}
        getKey={(each) => each.name}
        isStacked
        columns={[
          { title: "Name", show: (each) => <code>{each.name}</code> },
          {
            title: "Taken",
            show: (each) =>
              each.problem ? <span className="bad-text">{each.problem}</span> : <Ago at={each.created_at} />,
          },
          { title: "Size", isNumber: true, show: (each) => bytes(each.size_bytes) },
          { title: "Kind", show: (each) => KINDS[each.kind ?? ""] ?? "–" },
          { title: "Version", show: (each) => <code>{each.version || "–"}</code> },
        ]}
      />
    </section>
  );
}
