import { describe, expect, test } from "vitest";
import type { Span } from "../traces/runs";
import { getVisible, openTo, toTree } from "./tree";

function span(id: string, parent: string | null, fields: Partial<Span> = {}): Span {
  return {
    id,
    parent_run_id: parent,
    name: id,
    run_type: "chain",
    status: "SUCCESS",
    start_time: "2026-01-01T00:00:00Z",
    end_time: "2026-01-01T00:00:01Z",
    total_tokens: 1,
    total_cost: null,
    ...fields,
  } as Span;
}

const SPANS = [
  span("root", null),
  span("a", "root"),
  span("a1", "a", { total_cost: 0.5 }),
  span("b", "root", { status: "ERROR" }),
];

describe("the tree of a trace", () => {
  test("has each span below its parent, in their order", () =>
    expect(toTree(SPANS).nodes.map((node) => [node.span.id, node.depth, node.below])).toEqual([
      ["root", 0, 3],
      ["a", 1, 1],
      ["a1", 2, 0],
      ["b", 1, 0],
    ]));
  test("adds up tokens, and costs where there are any", () => {
    const { nodes } = toTree(SPANS);
    expect(nodes.map((node) => node.tokens)).toEqual([4, 2, 1, 1]);
    expect(nodes.map((node) => node.cost)).toEqual([0.5, 0.5, 0.5, null]);
  });
  test("shows a span whose parent has not arrived", () =>
    expect(toTree([span("child", "missing")]).nodes.map((node) => node.depth)).toEqual([0]));
  test("may be as deep as it likes", () => {
    const chain = Array.from({ length: 20_000 }, (_, index) => span(`s${index}`, index ? `s${index - 1}` : null));
    expect(toTree(chain).nodes[0]?.below).toBe(19_999);
  });
  test("ends when its last span ends", () => {
    const tree = toTree([span("root", null), span("late", "root", { end_time: "2026-01-01T00:00:09Z" })]);
    expect(tree.endMs - tree.startMs).toBe(9000);
  });
});

describe("the spans that are shown", () => {
  const tree = toTree(SPANS);
  const names = (positions: number[]) => positions.map((position) => tree.nodes[position]?.span.id);

  test("are not those below a closed one", () =>
    expect(names(getVisible(tree, new Set(["a"]), ""))).toEqual(["root", "a", "b"]));
  test("are what a search matches, and what is above it, also below a closed one", () =>
    expect(names(getVisible(tree, new Set(["a"]), "A1"))).toEqual(["root", "a", "a1"]));
  test("are failed ones if failures are looked for", () =>
    expect(names(getVisible(tree, new Set(), "failed"))).toEqual(["root", "b"]));
  test("are opened on the way to one", () => {
    expect(openTo(tree, "a1", new Set(["a", "b"]))).toEqual(new Set(["b"]));
    const closed = new Set(["b"]);
    expect(openTo(tree, "a1", closed)).toBe(closed);
  });
});
