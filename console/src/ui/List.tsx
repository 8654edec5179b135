// A list of rows of one height: only those in view are in the page. The keys j and k move, Enter opens a row.

import { useVirtualizer } from "@tanstack/react-virtual";
import { type ReactNode, useEffect, useRef, useState } from "react";
import { useKey } from "../shell/keys";

export interface Column<T> {
  title: string;
  width: string;
  show: (row: T) => ReactNode;
  // Numbers stand right; columns that are not essential are left out on narrow screens.
  isNumber?: boolean;
  isExtra?: boolean;
  isTitleHidden?: boolean;
}

export interface ListProps<T> {
  label: string;
  rows: T[];
  columns: Column<T>[];
  getKey: (row: T) => string;
  onOpen: (row: T) => void;
  // Marks a row for an action on several, with the key x.
  onMark?: ((row: T) => void) | undefined;
  loadMore?: (() => void) | undefined;
}

const ROW_PX = 36;

export function List<T>({ label, rows, columns, getKey, onOpen, onMark, loadMore }: ListProps<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const [selected, setSelected] = useState<string | null>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 12,
    getItemKey: (index) => {
      const row = rows[index];
      return row === undefined ? index : getKey(row);
    },
  });

  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? 0;
  useEffect(() => {
    if (loadMore && last >= rows.length - 10) loadMore();
  }, [last, rows.length, loadMore]);

  const position = rows.findIndex((row) => getKey(row) === selected);

  const move = (step: number) => {
    const next = Math.min(Math.max(position + step, 0), rows.length - 1);
    const row = rows[next];
    if (row === undefined) return;
    setSelected(getKey(row));
    virtual.scrollToIndex(next);
  };

  useKey("j", () => move(1));
  useKey("k", () => move(-1));
  useKey("x", () => {
    const row = rows[position];
    if (row !== undefined) onMark?.(row);
  });

  useKey("Enter", () => {
    const row = rows[position];
    if (row !== undefined) onOpen(row);
  });

  const template = { "--columns": columns.map((each) => each.width).join(" ") } as React.CSSProperties;
  const narrow = columns.filter((each) => !each.isExtra).map((each) => narrowWidth(each.width));

  return (
    // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table element
    <div
      className="list"
      role="table"
      aria-label={label}
      aria-rowcount={rows.length + 1}
      style={{ ...template, "--narrow": narrow.join(" ") } as React.CSSProperties}
    >
      {/* biome-ignore lint/a11y/useSemanticElements: see above */}
      {/* biome-ignore lint/a11y/useFocusableInteractive: rows are reached by their links */}
      <div className="list-row list-head" role="row" aria-rowindex={1}>
        {columns.map((column) => (
          // biome-ignore lint/a11y/useSemanticElements: see above
          // biome-ignore lint/a11y/useFocusableInteractive: see above
          <span key={column.title} role="columnheader" className={classes(column)}>
            {column.isTitleHidden ? <span className="hidden">{column.title}</span> : column.title}
          </span>
        ))}
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: see above */}
      <div className="list-body" role="rowgroup" ref={scroller}>
        <div className="list-space" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const row = rows[item.index];
            if (row === undefined) return null;

            return (
              // biome-ignore lint/a11y/useSemanticElements: see above
              // biome-ignore lint/a11y/useFocusableInteractive: see above
              // biome-ignore lint/a11y/useKeyWithClickEvents: the link in the row and Enter do the same
              <div
                key={item.key}
                role="row"
                aria-rowindex={item.index + 2}
                className={getKey(row) === selected ? "list-row selected" : "list-row"}
                style={{ transform: `translateY(${item.start}px)` }}
                onClick={(event) => {
                  const isOwn = (event.target as Element).closest("a, button, input, select");
                  if (!isOwn && !getSelection()?.toString()) onOpen(row);
                }}
              >
                {columns.map((column) => (
                  // biome-ignore lint/a11y/useSemanticElements: see above
                  <span key={column.title} role="cell" className={classes(column)}>
                    {column.show(row)}
                  </span>
                ))}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function classes<T>(column: Column<T>): string {
  return [column.isNumber && "number", column.isExtra && "extra"].filter(Boolean).join(" ");
}

// On narrow screens columns of a limited width are as small as they may be, and the others share all that is left.
function narrowWidth(width: string): string {
  return width.replace(/^minmax\((\d+px), (.+)\)$/, (_, least: string, most: string) =>
    most.endsWith("px") ? least : `minmax(0, ${Math.max(Number.parseFloat(most), 1)}fr)`,
  );
}
