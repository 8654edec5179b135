// Follows a log. Reading begins at the newest lines, goes on as they come, and goes back on demand.

import { useEffect, useRef, useState } from "react";
import type { LogEntry, LogFilter, LogPage } from "../api/platform";

export type ReadLog = (filter: LogFilter, signal: AbortSignal) => Promise<LogPage>;

const PAGE = 1_000;
const EVERY_MS = 1_000;
const RETRY_MS = 3_000;
// A page keeps no more lines than this; a search finds older ones.
export const MAX_LINES = 20_000;

interface Log {
  lines: LogEntry[];
  // How many of the oldest lines were let go since the log was opened.
  dropped: number;
  // Where older lines go on; null at the beginning of the log.
  older: string | null;
  problem: string | null;
  isRead: boolean;
}

const NOTHING: Log = { lines: [], dropped: 0, older: null, problem: null, isRead: false };

export function useLog(read: ReadLog, q: string | undefined, level: string | undefined, isFollowed: boolean) {
  const [log, setLog] = useState(NOTHING);
  const newest = useRef<string | null>(null);

  // Ends every request of the filter that is shown, also those for older lines.
  const request = useRef<AbortController>(undefined);
  const isLoadingOlder = useRef(false);

  useEffect(() => {
    const stop = new AbortController();
    request.current = stop;
    isLoadingOlder.current = false;
    const filter: LogFilter = { limit: PAGE, ...(q ? { query: q } : {}), ...(level ? { level } : {}) };

    newest.current = null;
    setLog(NOTHING);

    const begin = async () => {
      const page = await read({ ...filter, order: "desc" }, stop.signal);
      const lines = page.logs.toReversed();
      newest.current = lines.at(-1)?.id ?? null;
      setLog({ lines, dropped: 0, older: page.next_offset, problem: null, isRead: true });
    };

    const follow = async () => {
      const page = await read({ ...filter, order: "asc", offset: newest.current }, stop.signal);
      newest.current = page.logs.at(-1)?.id ?? newest.current;
      if (page.logs.length) setLog((old) => append(old, page.logs));
      else setLog((old) => (old.problem ? { ...old, problem: null } : old));

      return page.logs.length === PAGE;
    };

    const run = async () => {
      let isBegun = false;
      while (!stop.signal.aborted) {
        let pause = EVERY_MS;
        try {
          if (!isBegun) await begin();
          else if (await follow()) pause = 0;
          isBegun = true;
        } catch (failure) {
          if (stop.signal.aborted) return;
          setLog((old) => ({ ...old, problem: (failure as Error).message }));
          pause = RETRY_MS;
        }

        if (isBegun && !isFollowed) return;
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    };

    void run();
    return () => stop.abort();
  }, [read, q, level, isFollowed]);

  const loadOlder = async () => {
    const signal = request.current?.signal;
    const from = log.older;
    if (from === null || log.lines.length >= MAX_LINES || !signal || isLoadingOlder.current) return;
    isLoadingOlder.current = true;

    const filter: LogFilter = { limit: PAGE, ...(q ? { query: q } : {}), ...(level ? { level } : {}) };
    try {
      const page = await read({ ...filter, order: "desc", offset: from }, signal);
      // New lines may have pushed out the oldest ones meanwhile; then this page no longer joins the lines.
      setLog((old) => (signal.aborted || old.older !== from ? old : prepend(old, page)));
    } catch (failure) {
      if (!signal.aborted) setLog((old) => ({ ...old, problem: (failure as Error).message }));
    } finally {
      if (!signal.aborted) isLoadingOlder.current = false;
    }
  };

  return { ...log, isFull: log.lines.length >= MAX_LINES, loadOlder };
}

function prepend(old: Log, page: LogPage): Log {
  return keepNewest({ ...old, lines: [...page.logs.toReversed(), ...old.lines], older: page.next_offset });
}

function append(old: Log, more: LogEntry[]): Log {
  return keepNewest({ ...old, lines: [...old.lines, ...more] });
}

function keepNewest(log: Log): Log {
  if (log.lines.length <= MAX_LINES) return { ...log, problem: null };
  const lines = log.lines.slice(-MAX_LINES);
  const dropped = log.dropped + log.lines.length - lines.length;
  return { ...log, lines, dropped, older: lines[0]?.id ?? null, problem: null };
}
