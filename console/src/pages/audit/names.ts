// The ids of the audit log in words, as far as the platform still knows what they were.

import type { AuditEntry } from "../../api/platform";

export type Names = ReadonlyMap<string, string>;

/** What an entry is about: its name, else its ids with the names that are known, the outermost first. */
export function describeObject({ object_name, object_ids }: AuditEntry, names: Names): string {
  if (object_name) return object_name;
  if (!object_ids.some((id) => names.get(id))) return object_ids.at(-1) ?? "";
  return object_ids.map((id) => names.get(id) || id.slice(-8)).join(" / ");
}

/** Who did it: an address, a key, or the platform itself. */
export function describeActor(entry: AuditEntry, names: Names): string {
  const address = entry.user_email ?? names.get(entry.user_id ?? "");
  if (address) return address;

  const keyName = names.get(entry.key_id ?? "");
  if (entry.short_key) return keyName ? `${keyName} (${entry.short_key})` : entry.short_key;
  return entry.actor_kind === "platform" ? "the platform" : "somebody";
}
