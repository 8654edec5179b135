// The spans of a trace as a tree: in the order in which they are shown, with what the runs below each one used.

import type { Span } from "../traces/runs";

export interface Node {
  span: Span;
  depth: number;
  // How many nodes follow that are below this one.
  below: number;
  startMs: number;
  // The end, or null while the span runs.
  endMs: number | null;
  tokens: number;
  cost: number | null;
  parent: number | null;
}

export interface Tree {
  nodes: Node[];
  positions: Map<string, number>;
  startMs: number;
  endMs: number;
}

export function toTree(spans: Span[]): Tree {
  const children = new Map<string | null, Span[]>();
  const ids = new Set(spans.map((span) => span.id));
  for (const span of spans) {
    // The parent of a run may not have arrived.
    const parent = span.parent_run_id !== null && ids.has(span.parent_run_id) ? span.parent_run_id : null;
    const list = children.get(parent);
    if (list) list.push(span);
    else children.set(parent, [span]);
  }

  const nodes: Node[] = [];
  const positions = new Map<string, number>();

  // Deep chains would exceed the call stack, so the spans that are still to come are on one of our own.
  const ahead = (children.get(null) ?? [])
    .toReversed()
    .map((span) => ({ span, depth: 0, parent: null as number | null }));

  for (let next = ahead.pop(); next; next = ahead.pop()) {
    const position = nodes.length;
    positions.set(next.span.id, position);
    nodes.push(toNode(next.span, next.depth, next.parent));

    for (const child of (children.get(next.span.id) ?? []).toReversed()) {
      ahead.push({ span: child, depth: next.depth + 1, parent: position });
    }
  }

  let startMs = Number.POSITIVE_INFINITY;
  let endMs = 0;
  for (let index = nodes.length - 1; index >= 0; index -= 1) {
    const node = nodes[index] as Node;
    startMs = Math.min(startMs, node.startMs);
    endMs = Math.max(endMs, node.endMs ?? node.startMs);
    const parent = node.parent === null ? undefined : nodes[node.parent];
    if (!parent) continue;
    parent.below += node.below + 1;
    parent.tokens += node.tokens;

    if (node.cost !== null) parent.cost = (parent.cost ?? 0) + node.cost;
  }

  return { nodes, positions, startMs: nodes.length ? startMs : 0, endMs };
}

function toNode(span: Span, depth: number, parent: number | null): Node {
  return {
    span,
    depth,
    below: 0,
    startMs: new Date(span.start_time).getTime(),
    endMs: span.end_time === null ? null : new Date(span.end_time).getTime(),
    tokens: span.total_tokens,
    cost: span.total_cost,
    parent,
  };
}

// The positions of the nodes that are shown: not those below a closed one; with a search only what matches, and what is
// above it.
export function getVisible(tree: Tree, closed: ReadonlySet<string>, search: string): number[] {
  const indexes: number[] = [];
  const words = search.trim().toLowerCase();

  const matches = words ? findMatches(tree, words) : null;
  for (let index = 0; index < tree.nodes.length; index += 1) {
    const node = tree.nodes[index] as Node;
    if (matches && !matches.has(index)) continue;
    indexes.push(index);
    if (!matches && closed.has(node.span.id)) index += node.below;
  }

  return indexes;
}

function findMatches(tree: Tree, words: string): Set<number> {
  const indexes = new Set<number>();
  const isFailure = words === "error" || words === "failed";
  tree.nodes.forEach((node, index) => {
    const { name, run_type: type, status } = node.span;
    if (!`${name} ${type}`.toLowerCase().includes(words) && !(isFailure && status === "ERROR")) return;
    for (let at: number | null = index; at !== null && !indexes.has(at); at = tree.nodes[at]?.parent ?? null)
      indexes.add(at);
  });

  return indexes;
}

// Everything on the way to a span is opened.
export function openTo(tree: Tree, id: string, closed: ReadonlySet<string>): ReadonlySet<string> {
  const next = new Set(closed);
  let at = tree.positions.get(id);
  while (at !== undefined) {
    const parent: number | null = tree.nodes[at]?.parent ?? null;
    if (parent === null) break;
    next.delete(tree.nodes[parent]?.span.id ?? "");
    at = parent;
  }

  return next.size === closed.size ? closed : next;
}
