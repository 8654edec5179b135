// What changed between two texts, line by line.

export interface DiffLine {
  kind: "added" | "removed" | "same";
  text: string;
}

// The table of common lines has a cell for each pair; beyond this the middle is shown as replaced.
const MOST_CELLS = 4_000_000;

/** Return the lines of both texts in order, each once if it is in both. */
export function lineDiff(before: string[], after: string[]): DiffLine[] {
  let start = 0;
  while (start < before.length && start < after.length && before[start] === after[start]) start += 1;

  let end = 0;
  while (
    end < Math.min(before.length, after.length) - start &&
    before[before.length - 1 - end] === after[after.length - 1 - end]
  ) {
    end += 1;
  }

  const same = (lines: string[]) => lines.map((text): DiffLine => ({ kind: "same", text }));

  return [
    ...same(before.slice(0, start)),
    ...middle(before.slice(start, before.length - end), after.slice(start, after.length - end)),
    ...same(before.slice(before.length - end)),
  ];
}

function middle(before: string[], after: string[]): DiffLine[] {
  const lines: DiffLine[] = [];
  let [old, current] = [0, 0];
  if (before.length * after.length <= MOST_CELLS) {
    const common = commonLengths(before, after);
    const at = (one: number, other: number) => common[one * (after.length + 1) + other] ?? 0;
    while (old < before.length && current < after.length) {
      if (before[old] === after[current]) {
        lines.push({ kind: "same", text: before[old] ?? "" });
        old += 1;
        current += 1;
      } else if (at(old + 1, current) >= at(old, current + 1)) {
        lines.push({ kind: "removed", text: before[old++] ?? "" });
      } else {
        lines.push({ kind: "added", text: after[current++] ?? "" });
      }
    }
  }

  for (const text of before.slice(old)) lines.push({ kind: "removed", text });
  for (const text of after.slice(current)) lines.push({ kind: "added", text });
  return lines;
}

// For each pair of positions, how many lines both rests have in common.
function commonLengths(before: string[], after: string[]): Uint32Array {
  const width = after.length + 1;
  const table = new Uint32Array((before.length + 1) * width);
  for (let old = before.length - 1; old >= 0; old -= 1) {
    for (let current = after.length - 1; current >= 0; current -= 1) {
      table[old * width + current] =
        before[old] === after[current]
          ? (table[(old + 1) * width + current + 1] ?? 0) + 1
          : Math.max(table[(old + 1) * width + current] ?? 0, table[old * width + current + 1] ?? 0);
    }
  }

  return table;
}
