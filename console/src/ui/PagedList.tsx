import type { ReactNode } from "react";
import type { Listing } from "../api/pages";
import { List, type ListProps } from "./List";
import { Problem } from "./Problem";
import { Ago } from "./Time";

interface Props<T> extends Omit<ListProps<T>, "rows" | "loadMore"> {
  found: Listing<T>;
  // Shown in place of a list without rows.
  empty: ReactNode;
}

// A list that is read as somebody scrolls: its rows, why it could not be read, or what to do while there are none.
export function PagedList<T>({ found, empty, ...list }: Props<T>) {
  if (!found.isRead) return found.error && <Problem error={found.error} retry={found.retry} />;
  // Only a person goes on with a search that takes long.
  const isStopped = found.hasMore && found.searchedTo !== null;

  return (
    <>
      {found.rows.length > 0 ? (
        <List {...list} rows={found.rows} {...(isStopped ? {} : { loadMore: found.loadMore })} />
      ) : (
        !isStopped && empty
      )}
      {isStopped && <Stopped found={found} />}
    </>
  );
}

function Stopped<T>({ found }: { found: Listing<T> }) {
  return (
    <p className="soft" role="status">
      {found.rows.length === 0 && "Nothing found yet. "}
      Searched back to <Ago at={found.searchedTo ?? ""} />.{" "}
      <button type="button" className="link" disabled={found.isReadingMore} onClick={found.loadMore}>
        {found.isReadingMore ? "Searching…" : "Go on searching"}
      </button>
    </p>
  );
}
