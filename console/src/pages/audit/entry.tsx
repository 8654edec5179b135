import type { AuditEntry } from "../../api/platform";
import { Status } from "../../ui/Status";

// Who did it, in words: an address, a key, or the platform itself.
export function actorName(entry: AuditEntry): string {
  if (entry.user_email) return entry.user_email;
  if (entry.short_key) return entry.short_key;
  return entry.actor_kind === "platform" ? "the platform" : "somebody";
}

export function Outcome({ entry }: { entry: AuditEntry }) {
  if (entry.outcome === "ok") return <Status tone="good" word="Done" />;
  if (entry.outcome === "failed") return <Status tone="bad" word="Failed" title={entry.error} />;
  return <Status tone="wait" word={entry.count > 1 ? `${entry.count} refused` : "Refused"} title={entry.error} />;
}
