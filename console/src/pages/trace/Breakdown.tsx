// What took the time and the money of a trace: by model, by node of the graph, and by name of runs.

import { useMemo } from "react";
import type { RunStats } from "../../api/platform";
import { useApi } from "../../api/queries";
import { compact, cost, count } from "../../ui/format";
import { Problem } from "../../ui/Problem";
import { Table, type TableColumn } from "../../ui/Table";
import { duration } from "../../ui/Time";
import type { Node, Tree } from "./tree";

const MODEL_STATS = ["run_count", "latency_avg", "latency_p99", "total_tokens", "total_cost", "error_rate"] as const;
const MAX_GROUPS = 100;
const P99 = 0.99;

interface Group {
  name: string;
  runs: number;
  failed: number;
  // In milliseconds; the sum of runs that ran at the same time may exceed the time of the trace.
  totalMs: number;
  p99Ms: number | null;
  tokens: number;
  cost: number | null;
}

export function Breakdown({ traceId, projectId, tree }: { traceId: string; projectId: string; tree: Tree }) {
  const query = { trace: traceId, session: [projectId] };
  const models = useApi("POST /runs/stats", {
    body: {
      ...query,
      run_type: "llm",
      group_by: { attribute: "metadata", path: "ls_model_name", max_groups: MAX_GROUPS },
      select: [...MODEL_STATS],
    },
  });

  const nodes = useApi("POST /runs/stats", {
    body: {
      ...query,
      group_by: { attribute: "metadata", path: "langgraph_node", max_groups: MAX_GROUPS },
      select: ["run_count"],
    },
  });

  const byName = useMemo(() => getGroups(tree), [tree]);
  const ofModels = Object.entries((models.data ?? {}) as Record<string, RunStats>)
    .map(modelGroup)
    .toSorted(largest);

  // Runs inside of a node carry its name in their metadata; the run of the node is called like it.
  const ofNodes = byName.filter((group) => group.name in ((nodes.data ?? {}) as Record<string, RunStats>));
  const error = models.error ?? nodes.error;

  return (
    <div className="breakdowns">
      {error && <Problem error={error} />}
      {models.data && (
        <GroupTable title="By model" groups={ofModels} empty="No model of this trace names itself (ls_model_name)." />
      )}
      {nodes.data && (
        <GroupTable title="By node" groups={ofNodes} empty="This trace has no nodes of a graph (langgraph_node)." />
      )}
      <GroupTable title="By name" groups={byName.slice(0, MAX_GROUPS)} empty="" />
    </div>
  );
}

// Runs by their name, with what was used below them. A run inside of one of the same name counts once.
function getGroups(tree: Tree): Group[] {
  const groups = new Map<string, Group & { times: number[] }>();
  for (const node of tree.nodes) {
    const { name, status } = node.span;
    const group = groups.get(name) ?? {
      name,
      runs: 0,
      failed: 0,
      totalMs: 0,
      p99Ms: null,
      tokens: 0,
      cost: null,
      times: [],
    };

    groups.set(name, group);
    group.runs += 1;
    if (status === "ERROR") group.failed += 1;
    if (isInside(tree, node)) continue;
    if (node.endMs !== null) group.times.push(node.endMs - node.startMs);
    group.tokens += node.tokens;
    if (node.cost !== null) group.cost = (group.cost ?? 0) + node.cost;
  }

  for (const group of groups.values()) {
    group.times.sort((one, other) => one - other);
    group.totalMs = group.times.reduce((sum, each) => sum + each, 0);
    group.p99Ms = group.times[Math.floor(P99 * (group.times.length - 1))] ?? null;
  }

  return [...groups.values()].toSorted(largest);
}

function isInside(tree: Tree, node: Node): boolean {
  for (let at = node.parent; at !== null; at = tree.nodes[at]?.parent ?? null) {
    if (tree.nodes[at]?.span.name === node.span.name) return true;
  }

  return false;
}

function modelGroup([name, stats]: [string, RunStats]): Group {
  const runs = stats.run_count ?? 0;

  return {
    name,
    runs,
    failed: Math.round((stats.error_rate ?? 0) * runs),
    totalMs: (stats.latency_avg ?? 0) * runs * 1000,
    p99Ms: stats.latency_p99 == null ? null : stats.latency_p99 * 1000,
    tokens: stats.total_tokens ?? 0,
    cost: stats.total_cost == null ? null : Number(stats.total_cost),
  };
}

function largest(one: Group, other: Group): number {
  return (other.cost ?? 0) - (one.cost ?? 0) || other.totalMs - one.totalMs;
}

const COLUMNS: TableColumn<Group>[] = [
  { title: "Runs", show: (group) => count(group.runs), isNumber: true },
  {
    title: "Failed",
    show: (group) => (group.failed ? <span className="bad-text">{count(group.failed)}</span> : "–"),
    isNumber: true,
    isExtra: true,
  },
  { title: "Time in all", show: (group) => duration(group.totalMs), isNumber: true },
  {
    title: "Average",
    show: (group) => duration(group.totalMs / Math.max(group.runs, 1)),
    isNumber: true,
    isExtra: true,
  },
  {
    title: "p99",
    show: (group) => (group.p99Ms === null ? "–" : duration(group.p99Ms)),
    isNumber: true,
    isExtra: true,
  },
  { title: "Tokens", show: (group) => compact(group.tokens || null), isNumber: true, isExtra: true },
  { title: "Cost", show: (group) => cost(group.cost), isNumber: true },
];

function GroupTable({ title, groups, empty }: { title: string; groups: Group[]; empty: string }) {
  return (
    <section className="card" aria-label={title}>
      <h2>{title}</h2>
      {groups.length === 0 ? (
        <p className="card-body soft">{empty}</p>
      ) : (
        <Table
          label={title}
          rows={groups}
          getKey={(group) => group.name}
          columns={[
            {
              title: title.replace("By ", "").replace(/^./, (letter) => letter.toUpperCase()),
              show: (group) => group.name,
            },
            ...COLUMNS,
          ]}
        />
      )}
    </section>
  );
}
