import { describe, expect, test } from "vitest";
import { ApiError, address, areAllAbout, problemAt } from "./client";

const NAME = { loc: ["body", "name"], msg: "is too short", type: "value_error" };
const PRICE = { loc: ["body", "prompt_cost_details", "cache_read"], msg: "is no number", type: "value_error" };

function refuse(...problems: (typeof NAME)[]) {
  return new ApiError(422, "Some values are not valid", problems, null);
}

describe("a problem of a request", () => {
  test("is found by the name of its field, by its path, and by what it is in", () => {
    const error = refuse(NAME, PRICE);
    expect(problemAt(error, "name")).toBe("is too short");
    expect(problemAt(error, "cache_read")).toBe("is no number");
    expect(problemAt(error, "prompt_cost_details.cache_read")).toBe("is no number");
    expect(problemAt(error, "prompt_cost_details")).toBe("is no number");
  });
  test("is not that of a field whose name its own begins with", () =>
    expect(problemAt(refuse(PRICE), "prompt_cost")).toBeUndefined());
  test("is nowhere without an error", () => expect(problemAt(null, "name")).toBeUndefined());
});

describe("an error", () => {
  test("is shown at the fields if all that it says is about them", () =>
    expect(areAllAbout(refuse(NAME), ["name", "url"])).toBe(true));
  test("is shown as a whole if one of its problems is at no field", () =>
    expect(areAllAbout(refuse(NAME, PRICE), ["name", "url"])).toBe(false));
  test("is shown as a whole if it names no field", () => expect(areAllAbout(refuse(), ["name"])).toBe(false));
});

describe("an address", () => {
  test("has its path filled in", () => expect(address("/runs/{run_id}", { run_id: "a/b" })).toBe("/runs/a%2Fb"));
  test("repeats a parameter for each value, and leaves out what is empty", () =>
    expect(address("/runs", {}, { q: "", limit: 0, tags: ["a", "b"], cursor: null })).toBe(
      "/runs?limit=0&tags=a&tags=b",
    ));
});
