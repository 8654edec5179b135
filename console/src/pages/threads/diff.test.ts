import { describe, expect, test } from "vitest";
import { findDifferences } from "./diff";

function brief(before: unknown, after: unknown) {
  return findDifferences(before, after).map(({ path, kind }) => [path, kind]);
}

describe("the differences of two states", () => {
  test("are named by their path, in the order of the later state", () =>
    expect(brief({ a: 1, gone: 1, deep: { b: 1 } }, { fresh: 1, a: 2, deep: { b: 2 } })).toEqual([
      ["fresh", "added"],
      ["a", "changed"],
      ["deep.b", "changed"],
      ["gone", "removed"],
    ]));
  test("of lists are found by the ids of the items, wherever these stand", () =>
    expect(brief([{ id: "x", n: 1 }], [{ id: "new" }, { id: "x", n: 2 }])).toEqual([
      ["new", "added"],
      ["x.n", "changed"],
    ]));
  test("of lists without ids are found by the positions", () =>
    expect(brief([1, 2], [1, 3])).toEqual([["1", "changed"]]));
  test("are none between equal states", () => expect(brief({ a: [1] }, { a: [1] })).toEqual([]));
  test("are at most 500", () => expect(brief([], Array.from({ length: 600 }, String))).toHaveLength(500));
});
