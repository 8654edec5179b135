import { expect, test } from "vitest";
import { ApiError, address, areAllAbout, problemAt } from "./client";

const NAME = { loc: ["body", "name"], msg: "is too short", type: "value_error" };
const PRICE = { loc: ["body", "prompt_cost_details", "cache_read"], msg: "is no number", type: "value_error" };

function refuse(...problems: (typeof NAME)[]) {
  return new ApiError(422, "Some values are not valid", problems, null);
}

test("A problem is found by the name of its field, by the path, and by what it is in", () => {
  expect(problemAt(refuse(NAME, PRICE), "name")).toBe("is too short");
  expect(problemAt(refuse(NAME, PRICE), "cache_read")).toBe("is no number");
  expect(problemAt(refuse(NAME, PRICE), "prompt_cost_details.cache_read")).toBe("is no number");
  expect(problemAt(refuse(NAME, PRICE), "prompt_cost_details")).toBe("is no number");
});

test("A part of a name is not the name", () => {
  expect(problemAt(refuse(PRICE), "prompt_cost")).toBeUndefined();
  expect(problemAt(null, "name")).toBeUndefined();
});

test("An error is shown at the fields only if all that it says is about them", () => {
  expect(areAllAbout(refuse(NAME), ["name", "url"])).toBe(true);
  expect(areAllAbout(refuse(NAME, PRICE), ["name", "url"])).toBe(false);
  expect(areAllAbout(refuse(), ["name"])).toBe(false);
});

test("An address has its path filled in, and leaves out what is empty", () => {
  const query = { q: "", limit: 0, tags: ["a", "b"], cursor: null };

  expect(address("/runs/{run_id}", { run_id: "a/b" }, query)).toBe("/runs/a%2Fb?limit=0&tags=a&tags=b");
  expect(address("/runs")).toBe("/runs");
});
