import { Link } from "@tanstack/react-router";
import { useApi } from "../../api/queries";
import { CopyButton } from "../../ui/Copy";
import { Fact } from "../../ui/Fact";
import { Problem } from "../../ui/Problem";
import { SidePanel } from "../../ui/SidePanel";
import { Exact } from "../../ui/Time";
import { Outcome } from "./entry";
import { describeActor, describeObject } from "./names";
import { useNames } from "./useNames";

// One entry, read by its number: so the address of a colleague shows it, wherever the list is.
export function EntryPanel({ seq, isWhole, onClose }: { seq: string; isWhole: boolean; onClose: () => void }) {
  const query = { cursor: Number(seq) + 1 || 1, limit: 1 };
  const whole = useApi("GET /audit-log", { query }, { enabled: isWhole });
  const ofWorkspace = useApi("GET /workspaces/current/audit-log", { query }, { enabled: !isWhole });

  const names = useNames();
  const { data, error } = isWhole ? whole : ofWorkspace;
  const entry = data?.items.find((each) => String(each.seq) === seq);

  return (
    <SidePanel title={`Entry ${seq}`} onClose={onClose}>
      {error && <Problem error={error} />}
      {data && !entry && <p className="soft">There is no such entry, or you may not see it.</p>}
      {entry && (
        <dl className="facts">
          <Fact title="When">
            <Exact at={entry.at} />
          </Fact>
          <Fact title="Who">{describeActor(entry, names)}</Fact>
          {entry.short_key && (
            <Fact title="API key">
              <code>{entry.short_key}</code>
            </Fact>
          )}
          {entry.session_id && <Fact title="Session">{<Id of={entry.session_id} />}</Fact>}
          {entry.address && (
            <Fact title="From">
              <code>{entry.address}</code>
            </Fact>
          )}
          {entry.client && <Fact title="Program">{entry.client}</Fact>}
          <Fact title="Action">
            <code>{entry.action}</code>
          </Fact>
          {entry.object_ids.length + (entry.object_name ?? "").length > 0 && (
            <Fact title="Object">{describeObject(entry, names)}</Fact>
          )}
          {entry.object_ids.map((id) => (
            <Fact key={id} title="Id">
              <Id of={id} />
              {" · "}
              <Link to="/audit" search={(old) => ({ ...old, object: id, entry: undefined })}>
                all about it
              </Link>
            </Fact>
          ))}
          {entry.fields.length > 0 && <Fact title="Fields that were set">{entry.fields.join(", ")}</Fact>}
          <Fact title="Outcome">
            <Outcome entry={entry} />
            {entry.status !== null && ` ${entry.status}`}
            {entry.error && ` ${entry.error}`}
          </Fact>
          {entry.request_id && (
            <Fact title="Request">
              <Id of={entry.request_id} />
            </Fact>
          )}
          <Fact title="Hash">
            <Id of={entry.hash} />
          </Fact>
        </dl>
      )}
    </SidePanel>
  );
}

function Id({ of: id }: { of: string }) {
  return (
    <>
      <code title={id}>{id.length > 36 ? `${id.slice(0, 16)}…` : id}</code> <CopyButton text={id} what="id" />
    </>
  );
}
