import "@xyflow/react/dist/base.css";
import { Graph, layout } from "@dagrejs/dagre";
import {
  Background,
  BaseEdge,
  Controls,
  type Edge,
  type EdgeProps,
  Handle,
  MarkerType,
  type Node,
  type NodeProps,
  Position,
  ReactFlow,
} from "@xyflow/react";
import { useMemo } from "react";
import type { Drawing } from "../../api/agentServer";
import type { NodeState } from "./follow";

type Data = { title: string; tools: string[]; state: NodeState | "next" | "idle"; isEnd: boolean };
type Drawn = Node<Data, "step">;

const HEIGHT_PX = 36;
const TOOLS_PX = 16;
const CHAR_PX = 8;
const WORDS = { running: "runs", done: "done", failed: "failed", waiting: "waits", next: "next", idle: "" };
const NODE_TYPES = { step: Step };
const EDGE_TYPES = { laid: LaidEdge };
type Point = { x: number; y: number };
type Laid = Edge<{ points: Point[] }, "laid">;

interface Props {
  drawing: Drawing;
  states: Map<string, NodeState>;
  next: string[];
}

export default function GraphView({ drawing, states, next }: Props) {
  const placed = useMemo(() => place(drawing), [drawing]);
  const nodes = useMemo(
    () => placed.nodes.map((node) => ({ ...node, data: { ...node.data, state: getState(node.id, states, next) } })),
    [placed, states, next],
  );

  return (
    <figure className="graph" aria-label={describe(nodes)}>
      <ReactFlow
        key={placed.key}
        nodes={nodes}
        edges={placed.edges}
        nodeTypes={NODE_TYPES}
        edgeTypes={EDGE_TYPES}
        fitView
        fitViewOptions={{ padding: 0.15, maxZoom: 1 }}
        minZoom={0.1}
        nodesDraggable={false}
        nodesConnectable={false}
        nodesFocusable={false}
        edgesFocusable={false}
        elementsSelectable={false}
        proOptions={{ hideAttribution: true }}
      >
        <Background gap={16} />
        <Controls showInteractive={false} />
      </ReactFlow>
    </figure>
  );
}

function Step({ data }: NodeProps<Drawn>) {
  const classes = ["graph-node", data.state, data.isEnd && "end"].filter(Boolean).join(" ");

  return (
    <div className={classes} data-state={data.state}>
      <Handle type="target" position={Position.Top} isConnectable={false} />
      <span>{data.title}</span>
      {data.tools.length > 0 && <small>{data.tools.join(", ")}</small>}
      <Handle type="source" position={Position.Bottom} isConnectable={false} />
    </div>
  );
}

// The way that the layout found around the nodes, with round corners.
function LaidEdge({ data, markerEnd, label }: EdgeProps<Laid>) {
  const points = data?.points ?? [];
  const [first, ...others] = points;
  const last = others.at(-1);
  if (!first || !last) return null;
  let path = `M${first.x},${first.y}`;

  others.slice(0, -1).forEach((point, index) => {
    const following = others[index + 1] ?? last;
    const isLast = index === others.length - 2;
    const to = isLast ? last : { x: (point.x + following.x) / 2, y: (point.y + following.y) / 2 };
    path += ` Q${point.x},${point.y} ${to.x},${to.y}`;
  });

  if (others.length === 1) path += ` L${last.x},${last.y}`;
  const middle = points[Math.floor(points.length / 2)] ?? first;
  return <BaseEdge path={path} markerEnd={markerEnd} label={label} labelX={middle.x} labelY={middle.y} />;
}

// A run names nodes of subgraphs by their path; the drawing may know only the outer one.
function getState(id: string, states: Map<string, NodeState>, next: string[]): Data["state"] {
  const own = states.get(id);
  if (own) return own;
  for (const [node, state] of states) if (state === "running" && node.startsWith(`${id}:`)) return "running";
  return next.includes(id) ? "next" : "idle";
}

function describe(nodes: Drawn[]): string {
  const said = nodes.map(({ data }) => (WORDS[data.state] ? `${data.title} (${WORDS[data.state]})` : data.title));
  return `Graph: ${said.join(", ")}`;
}

function place(drawing: Drawing): { nodes: Drawn[]; edges: Laid[]; key: string } {
  const graph = new Graph({ multigraph: true });
  graph.setGraph({ rankdir: "TB", nodesep: 28, ranksep: 44 });
  graph.setDefaultEdgeLabel(() => ({}));
  const ids = drawing.nodes.map((node) => String(node.id));

  for (const node of drawing.nodes) {
    const [title, tools] = [getTitle(node), getTools(node)];
    const width = Math.max(72, 28 + CHAR_PX * Math.max(title.length, Math.min(tools.join(", ").length, 28)));
    graph.setNode(String(node.id), { width, height: HEIGHT_PX + (tools.length > 0 ? TOOLS_PX : 0) });
  }

  drawing.edges.forEach((edge, index) => {
    graph.setEdge(String(edge.source), String(edge.target), {}, String(index));
  });
  layout(graph);

  const nodes = drawing.nodes.map((node): Drawn => {
    const { x, y, width, height } = graph.node(String(node.id)) as Record<"x" | "y" | "width" | "height", number>;
    const title = getTitle(node);

    return {
      id: String(node.id),
      type: "step",
      position: { x: x - width / 2, y: y - height / 2 },
      width,
      height,
      data: { title, tools: getTools(node), state: "idle", isEnd: title.startsWith("__") },
    };
  });

  const edges = drawing.edges.map(
    (edge, index): Laid => ({
      id: String(index),
      type: "laid",
      data: { points: getPoints(graph, edge, index) },
      source: String(edge.source),
      target: String(edge.target),
      label: typeof edge.data === "string" ? edge.data : undefined,
      className: edge.conditional ? "conditional" : "",
      markerEnd: { type: MarkerType.ArrowClosed, width: 14, height: 14 },
    }),
  );

  return { nodes, edges, key: ids.join(" ") };
}

function getPoints(graph: Graph, edge: Record<string, unknown>, index: number): Point[] {
  const edgeLayout = graph.edge(String(edge.source), String(edge.target), String(index)) as { points?: Point[] };
  return edgeLayout.points ?? [];
}

function getTitle(node: Record<string, unknown>): string {
  const data = node.data as { name?: unknown } | undefined;

  return (
    String(data?.name ?? node.id)
      .split(":")
      .at(-1) ?? ""
  );
}

function getTools(node: Record<string, unknown>): string[] {
  const tools = (node.metadata as { __tools?: unknown } | undefined)?.__tools;
  return Array.isArray(tools) ? tools.map(String) : [];
}
