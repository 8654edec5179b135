import { useCallback, useMemo, useState } from "react";
import type { Column } from "./List";

/** Rows of a list that are marked for one action on all of them, by their ids. */
export function useMarked<T>(idOf: (row: T) => string, nameOf: (row: T) => string) {
  const [marked, setMarked] = useState<ReadonlySet<string>>(new Set());
  const toggle = useCallback(
    (row: T) =>
      setMarked((old) => {
        const next = new Set(old);
        if (!next.delete(idOf(row))) next.add(idOf(row));
        return next;
      }),
    [idOf],
  );
  const clear = useCallback(() => setMarked(new Set()), []);
  const column = useMemo<Column<T>>(
    () => ({
      title: "Mark",
      width: "20px",
      isTitleHidden: true,
      show: (row) => (
        <input
          type="checkbox"
          aria-label={`Mark ${nameOf(row)}`}
          checked={marked.has(idOf(row))}
          onChange={() => toggle(row)}
        />
      ),
    }),
    [marked, toggle, idOf, nameOf],
  );
  return { marked, toggle, clear, column };
}
