// The experiments on a dataset, with the figures of each; two to four of them are compared.

import { Link, useNavigate } from "@tanstack/react-router";
import { useCallback, useMemo, useState } from "react";
import type { TracerSession } from "../../api/platform";
import { useApi } from "../../api/queries";
import { Command } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { compact, cost, count, percent, score } from "../../ui/format";
import { type Column, List } from "../../ui/List";
import { Problem } from "../../ui/Problem";
import { Ago, duration } from "../../ui/Time";
import { getMeans } from "./comparison";

const MOST = 4;

export function Experiments({ datasetId, name }: { datasetId: string; name: string }) {
  const navigate = useNavigate();
  const [marked, setMarked] = useState<string[]>([]);
  const query = useApi(
    "GET /sessions",
    { query: { reference_dataset: [datasetId], include_stats: true, limit: 100 } },
    { everyMs: 10_000 },
  );

  const rows = query.data ?? [];
  const toggle = useCallback(
    (each: TracerSession) =>
      setMarked((old) => (old.includes(each.id) ? old.filter((id) => id !== each.id) : [...old, each.id].slice(-MOST))),
    [],
  );

  const keys = useMemo(
    () => [...new Set((query.data ?? []).flatMap((each) => Object.keys(getMeans(each))))],
    [query.data],
  );

  const columns = useMemo(() => getColumns(keys, marked, toggle), [keys, marked, toggle]);

  const compare = (ids: string[]) =>
    void navigate({
      to: "/datasets/$datasetId/compare",
      params: { datasetId },
      search: { experiments: ids.join(",") },
    });

  return (
    <>
      {query.error && <Problem error={query.error} retry={() => void query.refetch()} />}
      {rows.length > 0 && (
        <div className="row">
          <button
            type="button"
            className="button main"
            disabled={marked.length < 1}
            // The oldest one first: the others are compared with it.
            onClick={() =>
              compare(
                rows
                  .filter((each) => marked.includes(each.id))
                  .map((each) => each.id)
                  .toReversed(),
              )
            }
          >
            {marked.length < 2 ? "Show results" : `Compare ${marked.length}`}
          </button>
          <span className="soft">Mark up to {MOST} experiments, with the key x.</span>
        </div>
      )}
      {rows.length > 0 && (
        <List
          label="Experiments"
          rows={rows}
          columns={columns}
          getKey={(each) => each.id}
          onOpen={(each) => compare([each.id])}
          onMark={toggle}
        />
      )}
      {query.data && rows.length === 0 && (
        <Empty title="No experiment yet">
          <p>An experiment runs an agent on every example and judges the outputs:</p>
          <Command text={`from langsmith import evaluate; evaluate(my_agent, data="${name}", evaluators=[my_check])`} />
        </Empty>
      )}
    </>
  );
}

function getColumns(keys: string[], marked: string[], toggle: (each: TracerSession) => void): Column<TracerSession>[] {
  return [
    {
      title: "Mark",
      width: "20px",
      isTitleHidden: true,
      show: (each) => (
        <input
          type="checkbox"
          aria-label={`Mark ${each.name}`}
          checked={marked.includes(each.id)}
          onChange={() => toggle(each)}
        />
      ),
    },
    {
      title: "Experiment",
      width: "minmax(160px, 1.4fr)",
      show: (each) => (
        <Link to="/traces/$projectId" params={{ projectId: each.id }} search={{}} className="name">
          {each.name}
        </Link>
      ),
    },
    ...keys.slice(0, 4).map(
      (key): Column<TracerSession> => ({
        title: key,
        width: "minmax(64px, 96px)",
        show: (each) => score(getMeans(each)[key]),
        isNumber: true,
      }),
    ),
    { title: "Runs", width: "56px", show: (each) => count(each.run_count), isNumber: true, isExtra: true },
    { title: "Failed", width: "56px", show: (each) => percent(each.error_rate), isNumber: true, isExtra: true },
    {
      title: "Latency p50",
      width: "88px",
      show: (each) => (each.latency_p50 == null ? "–" : duration(each.latency_p50 * 1000)),
      isNumber: true,
      isExtra: true,
    },
    { title: "Tokens", width: "64px", show: (each) => compact(each.total_tokens), isNumber: true, isExtra: true },
    { title: "Cost", width: "72px", show: (each) => cost(each.total_cost), isNumber: true, isExtra: true },
    { title: "Started", width: "72px", show: (each) => <Ago at={each.start_time} />, isNumber: true, isExtra: true },
  ];
}
