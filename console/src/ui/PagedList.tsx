import type { ReactNode } from "react";
import type { Listing } from "../api/pages";
import { List, type ListProps } from "./List";
import { Problem } from "./Problem";

interface Props<T> extends Omit<ListProps<T>, "rows" | "loadMore"> {
  found: Listing<T>;
  // Shown in place of a list without rows.
  empty: ReactNode;
}

// A list that is read as somebody scrolls: its rows, why it could not be read, or what to do while there are none.
export function PagedList<T>({ found, empty, ...list }: Props<T>) {
  if (!found.isRead) return found.error && <Problem error={found.error} retry={found.retry} />;
  return found.rows.length > 0 ? <List {...list} rows={found.rows} loadMore={found.loadMore} /> : empty;
}
