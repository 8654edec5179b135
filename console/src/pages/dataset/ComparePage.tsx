// Experiments side by side: every example with its reference output, and what each experiment made of it.

import { useInfiniteQuery } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef, useState } from "react";
import { type ApiError, call } from "../../api/client";
import type { TracerSession } from "../../api/platform";
import { useApi } from "../../api/queries";
import { useWorkspaceId } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { compact, cost, count, percent, score } from "../../ui/format";
import { Problem } from "../../ui/Problem";
import { duration } from "../../ui/Time";
import { RunMark } from "../traces/RunMark";
import { previewText, type RunState } from "../traces/runs";
import {
  type Compared,
  getDelta,
  getMeans,
  getScore,
  RESULT_SELECTS,
  type ResultRun,
  type Row,
  toCompared,
  toRows,
} from "./comparison";

const compareRoute = getRouteApi("/datasets/$datasetId/compare");

const PAGE = 100;
const AT_ONCE = 5_000;
const ROW_PX = 132;

export function ComparePage() {
  const { datasetId } = compareRoute.useParams();
  const { experiments: experimentIds, only } = compareRoute.useSearch();
  const navigate = useNavigate();
  const ids = useMemo(() => (experimentIds ?? "").split(",").filter(Boolean), [experimentIds]);

  const sessions = useApi(
    "GET /sessions",
    { query: { id: ids, include_stats: true, limit: 100 } },
    { enabled: ids.length > 0 },
  );

  const lowerIsBetter = useLowerIsBetter();
  const results = useResults(datasetId, ids);
  const items = useMemo(() => results.pages.flatMap((page) => page.examples), [results.pages]);
  const rows = useMemo(() => toRows(items, ids, lowerIsBetter), [items, ids, lowerIsBetter]);

  const keys = useMemo(
    () =>
      [...new Set(rows.flatMap((row) => row.runs.flatMap((run) => Object.keys(run?.feedback_stats ?? {}))))].toSorted(),
    [rows],
  );

  const worse = rows.filter((row) => row.change < 0);
  const visible = only === "worse" ? worse : rows;
  const experiments = ids.map((id) => sessions.data?.find((each) => each.id === id));
  const error = sessions.error ?? results.error;
  if (ids.length === 0) return <Empty title="No experiment is chosen">Choose some on the page of the dataset.</Empty>;

  return (
    <div className="page full wide">
      <div className="head">
        <h1>{ids.length === 1 ? "Results" : `${ids.length} experiments`}</h1>
        <div className="row">
          <span className="soft number">
            {count(rows.length)} {rows.length === 1 ? "example" : "examples"}
            {results.isReading && " so far…"}
          </span>
          {ids.length > 1 && (
            <label className="check">
              <input
                type="checkbox"
                checked={only === "worse"}
                onChange={(event) =>
                  void navigate({
                    to: "/datasets/$datasetId/compare",
                    params: { datasetId },
                    search: (old) => ({ ...old, only: event.target.checked ? "worse" : undefined }),
                    replace: true,
                  })
                }
              />
              Only what got worse ({count(worse.length)})
            </label>
          )}
        </div>
      </div>
      {error && <Problem error={error} />}
      {results.readMore && (
        <p className="notice">
          The first {count(rows.length)} examples are compared; there are more.{" "}
          <button type="button" className="link" onClick={results.readMore}>
            Compare the next {count(AT_ONCE)}
          </button>
        </p>
      )}
      <Results
        rows={visible}
        experiments={experiments}
        keys={keys}
        lowerIsBetter={lowerIsBetter}
        datasetId={datasetId}
      />
      {results.pages.length > 0 && rows.length === 0 && (
        <Empty title="No results">These experiments ran on no example that still exists.</Empty>
      )}
    </div>
  );
}

function useLowerIsBetter(): ReadonlySet<string> {
  const configs = useApi("GET /feedback-configs", { query: { limit: 100 } }).data;
  return useMemo(
    () => new Set((configs ?? []).filter((each) => each.is_lower_score_better).map((each) => each.feedback_key)),
    [configs],
  );
}

interface ComparedPage {
  examples: Compared[];
  next: string | null;
}

// Page after page is read by itself, because what got worse may be on any; after so many examples somebody is asked.
function useResults(datasetId: string, ids: string[]) {
  const workspace = useWorkspaceId();
  const [most, setMost] = useState(AT_ONCE);
  const query = useInfiniteQuery<ComparedPage, ApiError, { pages: ComparedPage[] }, unknown[], string | null>({
    queryKey: [workspace, "results", datasetId, ids],
    queryFn: async ({ pageParam, signal }) => {
      const { items, next_cursor } = await call(
        "POST /v2/datasets/{dataset_id}/experiment-runs",
        {
          path: { dataset_id: datasetId },
          body: {
            experiment_ids: ids,
            selects: RESULT_SELECTS,
            include_subtree_usage: true,
            page_size: PAGE,
            cursor: pageParam,
          },
        },
        signal,
      );

      // Whole examples would fill the memory of the browser; the page shows their beginning.
      return { examples: items.map(toCompared), next: next_cursor };
    },
    initialPageParam: null,
    getNextPageParam: (page) => page.next ?? undefined,
    enabled: ids.length > 0,
    // Reading all pages again whenever somebody looks would be many requests.
    refetchOnWindowFocus: ({ state }) => (state.data?.pages.length ?? 0) <= 1,
  });

  const { hasNextPage, isFetchingNextPage, fetchNextPage, data, error } = query;
  const pages = data?.pages ?? NONE;
  const isFull = pages.length * PAGE >= most;
  useEffect(() => {
    if (hasNextPage && !isFetchingNextPage && !isFull && !error) void fetchNextPage();
  }, [hasNextPage, isFetchingNextPage, fetchNextPage, isFull, error]);

  const isReading = hasNextPage && !isFull && !error;
  return { pages, error, isReading, readMore: hasNextPage && isFull ? () => setMost(most + AT_ONCE) : null };
}

const NONE: ComparedPage[] = [];

interface ResultsProps {
  rows: Row[];
  experiments: (TracerSession | undefined)[];
  keys: string[];
  lowerIsBetter: ReadonlySet<string>;
  datasetId: string;
}

function Results({ rows, experiments, keys, lowerIsBetter, datasetId }: ResultsProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 8,
    getItemKey: (index) => rows[index]?.example.id ?? index,
  });

  const style = { "--experiments": experiments.length } as React.CSSProperties;

  return (
    // biome-ignore lint/a11y/useSemanticElements: a virtual list cannot be a table element
    // biome-ignore lint/a11y/noNoninteractiveTabindex: it is scrolled with the keyboard
    <div className="results card" role="table" aria-label="Results" style={style} ref={scroller} tabIndex={0}>
      {/* biome-ignore lint/a11y/useSemanticElements: see above */}
      {/* biome-ignore lint/a11y/useFocusableInteractive: rows are reached by their links */}
      <div className="result-row result-head" role="row">
        {["Input", "Reference output"].map((title) => (
          // biome-ignore lint/a11y/useSemanticElements: see above
          // biome-ignore lint/a11y/useFocusableInteractive: see above
          <div key={title} role="columnheader">
            {title}
          </div>
        ))}
        {experiments.map((each, index) => (
          // biome-ignore lint/a11y/useSemanticElements: see above
          // biome-ignore lint/a11y/useFocusableInteractive: see above
          <div key={each?.id ?? index} role="columnheader">
            {each && (
              <ExperimentHead
                experiment={each}
                first={index > 0 ? experiments[0] : undefined}
                keys={keys}
                lowerIsBetter={lowerIsBetter}
              />
            )}
          </div>
        ))}
      </div>
      {/* biome-ignore lint/a11y/useSemanticElements: see above */}
      <div className="list-space" role="rowgroup" style={{ height: virtual.getTotalSize() }}>
        {virtual.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (!row) return null;

          return (
            // biome-ignore lint/a11y/useSemanticElements: see above
            // biome-ignore lint/a11y/useFocusableInteractive: see above
            <div key={item.key} role="row" className="result-row" style={{ transform: `translateY(${item.start}px)` }}>
              {/* biome-ignore lint/a11y/useSemanticElements: see above */}
              <div role="cell">
                <Link
                  to="/datasets/$datasetId"
                  params={{ datasetId }}
                  search={{ example: row.example.id }}
                  className="result-text"
                >
                  {row.example.inputs}
                </Link>
              </div>
              {/* biome-ignore lint/a11y/useSemanticElements: see above */}
              <div role="cell" className="result-text">
                {row.example.outputs}
              </div>
              {row.runs.map((run, index) => (
                // biome-ignore lint/a11y/useSemanticElements: see above
                <div key={run?.id ?? `none ${index}`} role="cell">
                  <Result
                    run={run}
                    first={index > 0 ? row.runs[0] : undefined}
                    keys={keys}
                    lowerIsBetter={lowerIsBetter}
                  />
                </div>
              ))}
            </div>
          );
        })}
      </div>
    </div>
  );
}

interface HeadProps {
  experiment: TracerSession;
  first: TracerSession | undefined;
  keys: string[];
  lowerIsBetter: ReadonlySet<string>;
}

function ExperimentHead({ experiment, first, keys, lowerIsBetter }: HeadProps) {
  const means = getMeans(experiment);
  const base = first ? getMeans(first) : {};

  return (
    <div className="stack tight">
      <Link to="/traces/$projectId" params={{ projectId: experiment.id }} search={{}} className="name">
        {experiment.name}
      </Link>
      <span className="labels">
        {keys.map((key) => (
          <ScoreLabel
            key={key}
            name={key}
            value={means[key] ?? null}
            delta={means[key] !== undefined && base[key] !== undefined ? means[key] - base[key] : null}
            isLowerBetter={lowerIsBetter.has(key)}
          />
        ))}
      </span>
      <span className="soft small number">
        {experiment.latency_p50 == null ? "" : `p50 ${duration(experiment.latency_p50 * 1000)} · `}
        {experiment.total_tokens ? `${compact(experiment.total_tokens)} tokens · ` : ""}
        {experiment.total_cost ? `${cost(experiment.total_cost)} · ` : ""}
        {percent(experiment.error_rate)} failed
      </span>
    </div>
  );
}

interface ResultProps {
  run: ResultRun | null;
  first: ResultRun | null | undefined;
  keys: string[];
  lowerIsBetter: ReadonlySet<string>;
}

function Result({ run, first, keys, lowerIsBetter }: ResultProps) {
  if (!run) return <span className="soft">no run</span>;
  const facts = [
    run.latency_seconds === null ? null : duration(run.latency_seconds * 1000),
    run.total_tokens > 0 ? `${compact(run.total_tokens)} tokens` : null,
    run.total_cost === null ? null : cost(run.total_cost),
  ].filter(Boolean);

  return (
    <div className="stack tight">
      <span className="labels">
        {keys.map((key) => (
          <ScoreLabel
            key={key}
            name={key}
            value={getScore(run, key)}
            delta={getDelta(key, run, first)}
            isLowerBetter={lowerIsBetter.has(key)}
          />
        ))}
      </span>
      <Link
        to="/traces/$projectId/$traceId"
        params={{ projectId: run.project_id, traceId: run.trace_id }}
        search={{}}
        className={run.error_preview ? "result-text bad-text" : "result-text"}
      >
        <RunMark status={run.status as RunState} /> {run.error_preview ?? previewText(run.outputs_preview)}
      </Link>
      <span className="soft small number">{facts.join(" · ")}</span>
    </div>
  );
}

interface LabelProps {
  name: string;
  value: number | null;
  delta: number | null;
  isLowerBetter: boolean;
}

function ScoreLabel({ name, value, delta, isLowerBetter }: LabelProps) {
  if (value === null) return null;
  const gain = (delta ?? 0) * (isLowerBetter ? -1 : 1);

  return (
    <span className="label" title={isLowerBetter ? "Lower is better" : undefined}>
      {name} <b>{score(value)}</b>
      {delta !== null && Math.abs(delta) >= 0.005 && (
        <span className={gain < 0 ? "bad-text" : "good-text"}>
          {delta < 0 ? "▼" : "▲"} {score(Math.abs(delta))}{" "}
          <span className="hidden">{gain < 0 ? "worse" : "better"}</span>
        </span>
      )}
    </span>
  );
}
