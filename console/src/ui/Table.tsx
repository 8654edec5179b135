// A table with as many rows as there are: numbers right, sums at the end. `List` is for rows without a known end.

import type { ReactNode } from "react";

export interface TableColumn<T> {
  title: string;
  // Tells columns with one title from each other.
  key?: number;
  show: (row: T) => ReactNode;
  isNumber?: boolean;
  // Left out on narrow screens.
  isExtra?: boolean;
  // Buttons and links of a row: the title is only read aloud.
  isActions?: boolean;
  sum?: ReactNode;
}

interface Props<T> {
  label: string;
  rows: T[];
  // The first one names the row.
  columns: TableColumn<T>[];
  getKey: (row: T) => string;
  // On narrow screens each row is a block with a line for each column.
  isStacked?: boolean;
}

export function Table<T>({ label, rows, columns, getKey, isStacked = false }: Props<T>) {
  const hasSum = columns.some((column) => column.sum !== undefined);
  const [name, ...others] = columns;
  if (name === undefined) return null;

  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached with the keyboard
    <div className={isStacked ? "data-table stacked" : "data-table"} tabIndex={0}>
      <table>
        <caption className="hidden">{label}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key ?? column.title} scope="col" className={classes(column)}>
                {column.isActions ? <span className="hidden">{column.title}</span> : column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={getKey(row)}>
              <th scope="row">{name.show(row)}</th>
              {others.map((column) => (
                <td key={column.key ?? column.title} className={classes(column)} data-title={column.title}>
                  {/* One box, so that a stacked line has two: its title and this. */}
                  <div>{column.show(row)}</div>
                </td>
              ))}
            </tr>
          ))}
        </tbody>
        {hasSum && (
          <tfoot>
            <tr>
              {columns.map((column) => (
                <td key={column.key ?? column.title} className={classes(column)}>
                  {column.sum}
                </td>
              ))}
            </tr>
          </tfoot>
        )}
      </table>
    </div>
  );
}

function classes<T>({ isNumber, isExtra, isActions }: TableColumn<T>): string | undefined {
  return [isNumber && "number", isExtra && "extra", isActions && "row-actions"].filter(Boolean).join(" ") || undefined;
}
