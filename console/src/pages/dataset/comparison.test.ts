import { describe, expect, test } from "vitest";
import { type Compared, getDelta, type ResultRun, toCompared, toRows } from "./comparison";

function run(project: string, score: number | null, status = "SUCCESS"): ResultRun {
  const stats = score === null ? null : { good: { n: 1, avg: score } };
  return { id: `${project} ${score}`, project_id: project, status, feedback_stats: stats } as ResultRun;
}

function example(id: string, ...runs: ResultRun[]): Compared {
  return { id, inputs: "", outputs: "", runs };
}

const EXAMPLES = [
  example("same", run("old", 1), run("new", 1)),
  example("better", run("old", 0), run("new", 1)),
  example("worse", run("old", 1), run("new", 0.5)),
  example("failed", run("old", 1), run("new", null, "ERROR")),
];

function order(lowerIsBetter: string[] = []) {
  return toRows(EXAMPLES, ["old", "new"], new Set(lowerIsBetter)).map((row) => row.example.id);
}

describe("the rows of a comparison", () => {
  test("begin with new errors and what got worse, then what got better", () =>
    expect(order()).toEqual(["failed", "worse", "better", "same"]));
  test("take a lower score as the better one where it is", () =>
    expect(order(["good"])).toEqual(["failed", "better", "worse", "same"]));
  test("have the last run of each experiment, or none", () => {
    const [row] = toRows([example("twice", run("new", 0), run("new", 1))], ["old", "new"], new Set());
    expect(row?.runs.map((each) => each?.id ?? null)).toEqual([null, "new 1"]);
  });
});

describe("the change of a score", () => {
  test("is against the first experiment", () => expect(getDelta("good", run("new", 0.5), run("old", 1))).toBe(-0.5));
  test("is none if one of both has no score", () => expect(getDelta("good", run("new", 0.5), null)).toBeNull());
});

describe("an example", () => {
  test("is shown by the text of its only field, or in brief", () => {
    const { inputs, outputs } = toCompared({ id: "a", inputs: { q: "Why?" }, outputs: null, runs: [] } as never);
    expect([inputs, outputs]).toEqual(["Why?", ""]);
  });
});
