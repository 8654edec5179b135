import { describe, expect, test } from "vitest";
import type { CostRecord } from "../../api/platform";
import { getTotals, sumUp } from "./totals";

function record(day: number, dimensions: Record<string, unknown>, cost: string | null, runs = 1) {
  const time = `2026-11-0${day}T00:00:00Z`;
  return {
    time_bucket: time,
    dimensions,
    runs,
    prompt_tokens: 2,
    completion_tokens: 3,
    total_cost: cost,
  } as CostRecord;
}

const RECORDS = [
  record(1, { project_name: "cheap" }, "0.5"),
  record(1, { project_name: "dear" }, "1.5"),
  record(2, { project_name: "dear" }, null),
  record(2, { user_id: null }, null, 7),
];

describe("the totals of usage", () => {
  test("are summed up over the days, the most expensive first, and without costs by their runs", () =>
    expect(getTotals(RECORDS, "project").map(({ name, runs, cost }) => [name, runs, cost])).toEqual([
      ["dear", 2, 1.5],
      ["cheap", 1, 0.5],
      ["service keys", 7, null],
    ]));
  test("by day have the newest one first", () =>
    expect(getTotals(RECORDS, "day").map(({ name, tokens }) => [name, tokens])).toEqual([
      ["2026-11-02", 10],
      ["2026-11-01", 10],
    ]));
});

describe("the sum of all", () => {
  test("has a cost if one of them has", () => expect(sumUp(getTotals(RECORDS, "project")).cost).toBe(2));
  test("has none if none has, or nothing ran", () => {
    expect(sumUp(getTotals([record(1, {}, null)], "model")).cost).toBeNull();
    expect(sumUp([])).toMatchObject({ runs: 0, cost: null });
  });
});
