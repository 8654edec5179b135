import type { AuditEntry } from "../../api/platform";
import { Status } from "../../ui/Status";

export function Outcome({ entry }: { entry: AuditEntry }) {
  if (entry.outcome === "ok") return <Status tone="good" word="Done" />;
  if (entry.outcome === "failed") return <Status tone="bad" word="Failed" title={entry.error} />;
  return <Status tone="wait" word={entry.count > 1 ? `${entry.count} refused` : "Refused"} title={entry.error} />;
}
