import { useCallback, useMemo, useState } from "react";
import type { Column } from "./List";

const NONE: ReadonlySet<string> = new Set();

/**
 * Rows of a list that are marked for one action on all of them, by their ids. Marks end with the list, which `list`
 * names: nobody acts on rows that other filters no longer show.
 */
export function useMarked<T>(list: string, getId: (row: T) => string, getName: (row: T) => string) {
  const [marks, setMarks] = useState({ list, ids: NONE });
  if (marks.list !== list) setMarks({ list, ids: NONE });
  const marked = marks.list === list ? marks.ids : NONE;

  const toggle = useCallback(
    (row: T) =>
      setMarks((old) => {
        const ids = new Set(old.list === list ? old.ids : NONE);
        if (!ids.delete(getId(row))) ids.add(getId(row));
        return { list, ids };
      }),
    [list, getId],
  );

  const clear = useCallback(() => setMarks({ list, ids: NONE }), [list]);
  const column = useMemo<Column<T>>(
    () => ({
      title: "Mark",
      width: "20px",
      isTitleHidden: true,
      show: (row) => (
        <input
          type="checkbox"
          aria-label={`Mark ${getName(row)}`}
          checked={marked.has(getId(row))}
          onChange={() => toggle(row)}
        />
      ),
    }),
    [marked, toggle, getId, getName],
  );

  return { marked, toggle, clear, column };
}
