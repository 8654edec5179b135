// Lists that are read page by page, as somebody scrolls, through the query cache.

import { type InfiniteData, keepPreviousData, useInfiniteQuery } from "@tanstack/react-query";
import { useCallback, useMemo } from "react";
import { usePreferences } from "../preferences";
import { useWorkspaceId } from "../shell/session";
import { type ApiError, call, type Operation, type Options } from "./client";
import type { Operations } from "./platform";
import type { Reading } from "./queries";

/** A list as far as it has been read. */
export interface Listing<Row> {
  rows: Row[];
  // Whether the first page is there.
  isRead: boolean;
  hasMore: boolean;
  isReadingMore: boolean;
  // How far back the server has searched, if it stopped before the page was full.
  searchedTo: string | null;
  error: ApiError | null;
  // Reads the next page, unless one is under way or none is left.
  loadMore: () => void;
  retry: () => void;
}

interface Page<Row, At> {
  rows: Row[];
  // Where the next page begins; null on the last one.
  next: At | null;
  searchedTo?: string | null;
}

interface Source<Row, At> {
  // Tells this list from others in the cache.
  key: readonly unknown[];
  first: At;
  read: (at: At, signal: AbortSignal) => Promise<Page<Row, At>>;
  // A live list with more pages than this is not read again: that would be a request for each, and move what is read.
  maxLivePages?: number;
}

/** Read a list from any source. */
export function usePages<Row, At>(source: Source<Row, At>, reading: Reading = {}): Listing<Row> {
  const { key, first, read, maxLivePages = Number.POSITIVE_INFINITY } = source;
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  const { data, error, refetch, fetchNextPage, hasNextPage, isFetchingNextPage } = useInfiniteQuery<
    Page<Row, At>,
    ApiError,
    InfiniteData<Page<Row, At>, At>,
    unknown[],
    At
  >({
    queryKey: [workspace, ...key],
    queryFn: ({ pageParam, signal }) => read(pageParam as At, signal),
    initialPageParam: first,
    getNextPageParam: (page) => page.next,
    // A search that takes long is not repeated by itself.
    refetchInterval: ({ state }) =>
      (isLive &&
        (state.data?.pages.length ?? 0) <= maxLivePages &&
        !state.data?.pages.at(-1)?.searchedTo &&
        reading.everyMs) ||
      false,
    enabled: reading.enabled ?? true,
    ...(reading.keep ? { placeholderData: keepPreviousData } : {}),
  });

  const rows = useMemo(() => data?.pages.flatMap((page) => page.rows) ?? [], [data]);
  const loadMore = useCallback(() => {
    if (hasNextPage && !isFetchingNextPage) void fetchNextPage();
  }, [fetchNextPage, hasNextPage, isFetchingNextPage]);

  return {
    rows,
    isRead: data !== undefined,
    hasMore: hasNextPage,
    isReadingMore: isFetchingNextPage,
    searchedTo: data?.pages.at(-1)?.searchedTo ?? null,
    error,
    loadMore,
    retry: () => void refetch(),
  };
}

const PAGE = 50;

interface Slice {
  limit: number;
  offset: number;
}

/** Read a list of the platform whose pages begin at an offset. */
export function useOffsetPages<K extends Operation, Row>(
  operation: K,
  getOptions: (slice: Slice) => Options<K>,
  getRows: (response: Operations[K]["response"]) => Row[],
  reading: Reading = {},
): Listing<Row> {
  return usePages(
    {
      key: [operation, "pages", getOptions({ limit: PAGE, offset: 0 })],
      first: 0,
      read: async (offset, signal) => {
        const rows = getRows(await call(operation, getOptions({ limit: PAGE, offset }), signal));
        return { rows, next: rows.length < PAGE ? null : offset + PAGE };
      },
    },
    reading,
  );
}

interface CursorPage<Row> {
  items: Row[];
  next_cursor?: string | null;
  searched_to?: string | null;
}

/** Read a list of the platform that gives a cursor to the next page. `key` holds all that the request depends on. */
export function useCursorPages<Row>(
  key: readonly unknown[],
  read: (cursor: string | null, signal: AbortSignal) => Promise<CursorPage<Row>>,
  reading: Reading = {},
): Listing<Row> {
  const source = {
    key,
    first: null as string | null,
    maxLivePages: 1,
    read: async (cursor: string | null, signal: AbortSignal) => {
      const { items, next_cursor: next = null, searched_to: searchedTo = null } = await read(cursor, signal);
      return { rows: items, next, searchedTo };
    },
  };

  return usePages(source, reading);
}
