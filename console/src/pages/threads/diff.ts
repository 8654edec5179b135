// What changed from one state to another. Messages are compared by their ids, so that one more is one line.

import { isBranch } from "../../ui/Json";

export interface Difference {
  path: string;
  kind: "added" | "removed" | "changed";
  before: unknown;
  after: unknown;
}

const MOST = 500;

/** Return the differences, at most 500, in the order of the later state. */
export function differences(before: unknown, after: unknown): Difference[] {
  const found: Difference[] = [];
  compare("", before, after, found);
  return found;
}

function compare(path: string, before: unknown, after: unknown, found: Difference[]) {
  if (before === after || found.length >= MOST) return;
  const pairs = pairsOf(before, after);
  if (pairs === null) {
    if (before === undefined) found.push({ path, kind: "added", before, after });
    else if (after === undefined) found.push({ path, kind: "removed", before, after });
    else found.push({ path, kind: "changed", before, after });

    return;
  }

  for (const [key, old, current] of pairs) compare(path ? `${path}.${key}` : key, old, current, found);
}

// The parts of two values to compare with each other; null if they have none and differ as a whole.
function pairsOf(before: unknown, after: unknown): [string, unknown, unknown][] | null {
  if (!isBranch(before) || !isBranch(after) || Array.isArray(before) !== Array.isArray(after)) return null;

  if (Array.isArray(before) && Array.isArray(after)) {
    const [old, current] = [byId(before), byId(after)];
    if (old && current) return keysOf(old, current).map((id) => [id, old.get(id), current.get(id)]);

    return Array.from({ length: Math.max(before.length, after.length) }, (_, at) => [
      String(at),
      before[at],
      after[at],
    ]);
  }

  const [old, current] = [new Map(Object.entries(before)), new Map(Object.entries(after))];
  return keysOf(old, current).map((key) => [key, old.get(key), current.get(key)]);
}

function keysOf(old: Map<string, unknown>, current: Map<string, unknown>): string[] {
  return [...current.keys(), ...[...old.keys()].filter((key) => !current.has(key))];
}

function byId(values: unknown[]): Map<string, unknown> | null {
  const found = new Map<string, unknown>();
  for (const each of values) {
    const id = isBranch(each) && "id" in each ? each.id : null;
    if (typeof id !== "string" || found.has(id)) return null;
    found.set(id, each);
  }

  return found;
}
