import { call } from "../../api/client";
import { type Listing, useCursorPages } from "../../api/pages";
import type { Operations } from "../../api/platform";
import type { Reading } from "../../api/queries";
import { ROW_SELECTS, type RunRow } from "./runs";

type Query = NonNullable<Operations["POST /v2/runs/query"]["body"]>;

// A filter that few of a million runs match is searched for piece by piece.
const SEARCH_SECONDS = 1.5;

/** Runs, the newest first. `key` holds all that the query depends on. */
export function useRunPages(key: readonly unknown[], getQuery: () => Query, reading: Reading): Listing<RunRow> {
  return useCursorPages(
    ["runs", ...key],
    async (cursor, signal) => {
      const body = { ...getQuery(), selects: ROW_SELECTS, cursor, search_seconds: SEARCH_SECONDS };
      const { items, ...page } = await call("POST /v2/runs/query", { body }, signal);
      return { ...page, items: items as unknown as RunRow[] };
    },
    reading,
  );
}
