// A table of figures: as many rows as there are, numbers right, sums at the end.

import type { ReactNode } from "react";

interface DataColumn<T> {
  title: string;
  show: (row: T) => ReactNode;
  isNumber?: boolean;
  // Left out on narrow screens.
  isExtra?: boolean;
  sum?: ReactNode;
}

interface Props<T> {
  label: string;
  rows: T[];
  columns: DataColumn<T>[];
  keyOf: (row: T) => string;
}

export function DataTable<T>({ label, rows, columns, keyOf }: Props<T>) {
  const hasSum = columns.some((column) => column.sum !== undefined);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: a region that scrolls must be reached with the keyboard
    <section className="data-table" aria-label={label} tabIndex={0}>
      <table>
        <caption className="hidden">{label}</caption>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.title} scope="col" className={classes(column)}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((column) => (
                <td key={column.title} className={classes(column)}>
                  {column.show(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
        {hasSum && (
          <tfoot>
            <tr>
              {columns.map((column) => (
                <td key={column.title} className={classes(column)}>
                  {column.sum}
                </td>
              ))}
            </tr>
          </tfoot>
        )}
      </table>
    </section>
  );
}

function classes<T>(column: DataColumn<T>): string {
  return [column.isNumber && "number", column.isExtra && "extra"].filter(Boolean).join(" ");
}
