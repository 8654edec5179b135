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
export function findDifferences(before: unknown, after: unknown): Difference[] {
  const differences: Difference[] = [];
  compare("", before, after, differences);
  return differences;
}

function compare(path: string, before: unknown, after: unknown, differences: Difference[]) {
  if (before === after || differences.length >= MOST) return;
  const pairs = getPairs(before, after);
  if (pairs === null) {
    if (before === undefined) differences.push({ path, kind: "added", before, after });
    else if (after === undefined) differences.push({ path, kind: "removed", before, after });
    else differences.push({ path, kind: "changed", before, after });

    return;
  }

  for (const [key, old, current] of pairs) compare(path ? `${path}.${key}` : key, old, current, differences);
}

// The parts of two values to compare with each other; null if they have none and differ as a whole.
function getPairs(before: unknown, after: unknown): [string, unknown, unknown][] | null {
  if (!isBranch(before) || !isBranch(after) || Array.isArray(before) !== Array.isArray(after)) return null;

  if (Array.isArray(before) && Array.isArray(after)) {
    const [old, current] = [byId(before), byId(after)];
    if (old && current) return getKeys(old, current).map((id) => [id, old.get(id), current.get(id)]);

    return Array.from({ length: Math.max(before.length, after.length) }, (_, at) => [
      String(at),
      before[at],
      after[at],
    ]);
  }

  const [old, current] = [new Map(Object.entries(before)), new Map(Object.entries(after))];
  return getKeys(old, current).map((key) => [key, old.get(key), current.get(key)]);
}

function getKeys(old: Map<string, unknown>, current: Map<string, unknown>): string[] {
  return [...current.keys(), ...[...old.keys()].filter((key) => !current.has(key))];
}

function byId(values: unknown[]): Map<string, unknown> | null {
  const entries = new Map<string, unknown>();
  for (const each of values) {
    const id = isBranch(each) && "id" in each ? each.id : null;
    if (typeof id !== "string" || entries.has(id)) return null;
    entries.set(id, each);
  }

  return entries;
}
