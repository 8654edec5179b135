import type { ReactNode } from "react";
import type { Listing } from "../api/pages";
import { List, type ListProps } from "./List";
import { Problem } from "./Problem";
import { Ago } from "./Time";

interface Props<T> extends Omit<ListProps<T>, "rows" | "loadMore"> {
  listing: Listing<T>;
  // Shown in place of a list without rows.
  empty: ReactNode;
}

// A list that is read as somebody scrolls: its rows, why it could not be read, or what to do while there are none.
export function PagedList<T>({ listing, empty, ...list }: Props<T>) {
  if (!listing.isRead) return listing.error && <Problem error={listing.error} retry={listing.retry} />;
  // Only a person goes on with a search that takes long.
  const isStopped = listing.hasMore && listing.searchedTo !== null;

  return (
    <>
      {listing.rows.length > 0 ? (
        <List {...list} rows={listing.rows} {...(isStopped ? {} : { loadMore: listing.loadMore })} />
      ) : (
        !isStopped && empty
      )}
      {isStopped && <Stopped listing={listing} />}
    </>
  );
}

function Stopped<T>({ listing }: { listing: Listing<T> }) {
  return (
    <p className="soft" role="status">
      {listing.rows.length === 0 && "Nothing found yet. "}
      Searched back to <Ago at={listing.searchedTo ?? ""} />.{" "}
      <button type="button" className="link" disabled={listing.isReadingMore} onClick={listing.loadMore}>
        {listing.isReadingMore ? "Searching…" : "Go on searching"}
      </button>
    </p>
  );
}
