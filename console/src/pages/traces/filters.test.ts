import { describe, expect, test } from "vitest";
import { findProblem, quote, runsFilter } from "./filters";
import { EPOCH } from "./runs";

const NOW = Date.UTC(2026, 0, 2, 12, 0, 30);

function getFilter(filters: Parameters<typeof runsFilter>[0], isOfTraces = false) {
  return runsFilter(filters, NOW, isOfTraces);
}

test("quotes, backslashes and line ends of a text are escaped", () => {
  expect(quote('a "b" \\ c\nd')).toBe('"a \\"b\\" \\\\ c\\nd"');
});

describe("filters of runs", () => {
  test("without any, all times count", () => expect(getFilter({})).toEqual({ min_start_time: EPOCH }));
  test("one is alone, several are joined", () => {
    expect(getFilter({ name: "chat" }).filter).toBe('search(name, "chat")');
    expect(getFilter({ name: "chat", status: "error" }).filter).toBe('and(search(name, "chat"), eq(status, "error"))');
  });
  test("each tag is looked for", () =>
    expect(getFilter({ tag: "a, b" }).filter).toBe('and(has(tags, "a"), has(tags, "b"))'));

  test.each([
    ["5", "gte(latency, 5)"],
    ["> 5s", "gt(latency, 5)"],
    ["<= 200ms", "lte(latency, 0.2)"],
    ["2m", "gte(latency, 120)"],
    ["1s..5s", "and(gte(latency, 1), lte(latency, 5))"],
    ["1-5m", "and(gte(latency, 60), lte(latency, 300))"],
  ])("the latency %s is %s", (latency, filter) => expect(getFilter({ latency }).filter).toBe(filter));

  test("tokens and costs are those of the trace in a list of traces", () => {
    expect(getFilter({ tokens: "2k" }).filter).toBe("gte(total_tokens, 2000)");
    expect(getFilter({ tokens: "2k" }, true).filter).toBe("gte(trace_tokens, 2000)");
    expect(getFilter({ cost: "> $0.5" }, true).filter).toBe("gt(trace_cost, 0.5)");
  });
  test("type and error are those of any run in a list of traces", () => {
    expect(getFilter({ type: "llm" }).filter).toBe('eq(run_type, "llm")');
    expect(getFilter({ type: "llm" }, true)).toEqual({ tree_filter: 'eq(run_type, "llm")', min_start_time: EPOCH });
  });
  test("metadata is a key, or a key with a value that may have an equals sign", () => {
    expect(getFilter({ metadata: "k" }).filter).toBe('eq(metadata_key, "k")');
    expect(getFilter({ metadata: "k = a=b" }).filter).toBe('and(eq(metadata_key, "k"), eq(metadata_value, "a=b"))');
  });
  test("feedback is a key, or a score compared", () => {
    expect(getFilter({ feedback: "good" }).filter).toBe('eq(feedback_key, "good")');
    expect(getFilter({ feedback: "good >= -0.5" }).filter).toBe(
      'and(eq(feedback_key, "good"), gte(feedback_score, -0.5))',
    );
  });
  test("a period ends now, in whole minutes", () =>
    expect(getFilter({ since: "1h" }).min_start_time).toBe("2026-01-02T11:00:00.000Z"));
  test("a field with a problem is left out", () => expect(getFilter({ latency: "fast" }).filter).toBeUndefined());
});

describe("problems of fields", () => {
  test.each([
    ["latency", "fast"],
    ["tokens", "many"],
    ["metadata", "=value"],
    ["feedback", ">= 1"],
    ["since", "yesterday"],
    ["until", "2026-99-99"],
  ] as const)("%s=%s has one", (field, text) => expect(findProblem(field, text)).toMatch(/^Write /));

  test.each([
    ["latency", "< 2s"],
    ["since", "24h"],
    ["until", "2026-01-02T08:00"],
    ["name", "anything"],
  ] as const)("%s=%s has none", (field, text) => expect(findProblem(field, text)).toBeUndefined());
});
