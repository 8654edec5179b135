import { describe, expect, test } from "vitest";
import type { ModelInUse, ModelPrice } from "../../api/platform";
import { joinProviders, perMillion, toBody, toDraft } from "./prices";

const PRICE = {
  id: "one",
  name: "model-1",
  match_pattern: "model-1",
  provider: "ours",
  source: "file",
  start_time: null,
  prompt_token_threshold: null,
  prompt_cost: "0.000003",
  completion_cost: "0.0000000025",
  prompt_cost_details: { cache_read: "0.0000003" },
  completion_cost_details: null,
} as unknown as ModelPrice;

describe("the price of a token", () => {
  test("is shown for a million tokens, without errors of rounding", () => {
    expect(perMillion("0.000003")).toBe("3");
    expect(perMillion("0.0000000025")).toBe("0.0025");
    expect(perMillion(undefined)).toBe("");
  });
  test("is stored as it was written, in decimals", () => {
    const body = toBody({ ...toDraft(undefined, PRICE), input: "$3", output: "0.0025", outputDetails: { audio: "" } });
    expect(body.prompt_cost).toBe("0.000003");
    expect(body.completion_cost).toBe("0.0000000025");
    expect(body.prompt_cost_details).toEqual({ cache_read: "0.0000003" });
    expect(body.completion_cost_details).toEqual({});
  });
  test("is sent as it is if it is no number, for the server to refuse", () =>
    expect(toBody({ ...toDraft(), input: "cheap" }).prompt_cost).toBe("cheap"));
});

describe("the draft of a price", () => {
  test("changes a price of the workspace, and overrides any other", () => {
    expect(toDraft(undefined, { ...PRICE, source: "workspace" }).id).toBe("one");
    expect(toDraft(undefined, PRICE).id).toBeNull();
  });
  test("of a model matches its name to the letter", () =>
    expect(toDraft({ name: "gpt-4.1", provider: "openai" } as ModelInUse).pattern).toBe("gpt-4\\.1"));
});

describe("the list of prices", () => {
  test("has one row for a price that a file has for several providers", () =>
    expect(joinProviders([PRICE, { ...PRICE, id: "two", provider: "theirs" }])).toEqual([
      { ...PRICE, provider: "ours, theirs" },
    ]));
  test("has a row for each price of the workspace", () => {
    const own: ModelPrice = { ...PRICE, source: "workspace" };
    expect(joinProviders([own, { ...own, id: "two" }])).toHaveLength(2);
  });
});
