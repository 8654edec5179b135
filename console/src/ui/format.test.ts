import { describe, expect, test } from "vitest";
import { compact, cost, count, parseNumber, percent, plain, score } from "./format";

describe("numbers", () => {
  test.each([
    [null, "–"],
    [undefined, "–"],
    [0, "0"],
    [1234.6, "1,235"],
  ])("the count %s reads %s", (value, text) => expect(count(value)).toBe(text));

  test.each([
    [null, "–"],
    [2.25, "2.3"],
    [9999, "9,999"],
    [12_345, "12.3K"],
    [1_500_000, "1.5M"],
  ])("%s in short reads %s", (value, text) => expect(compact(value)).toBe(text));

  test.each([
    [null, "–"],
    ["", "–"],
    [0, "$0"],
    ["0.000", "$0"],
    [0.000_000_4, "< $0.000001"],
    ["0.00042", "$0.00042"],
    [0.012, "$0.012"],
    [1.2, "$1.20"],
    ["1234.5", "$1,234.50"],
  ])("the cost %s reads %s", (value, text) => expect(cost(value)).toBe(text));

  test("shares and scores are rounded", () => {
    expect(percent(0.1234)).toBe("12.3%");
    expect(percent(null)).toBe("–");
    expect(score(0.666_666)).toBe("0.67");
    expect(score(undefined)).toBe("–");
  });
});

describe("what is typed for a number", () => {
  test("is null if the field is empty", () => expect(parseNumber("  ")).toBeNull());
  test("is the number", () => expect(parseNumber("-1.5")).toBe(-1.5));
  test("stays text that the API can refuse at its field", () => {
    expect(parseNumber("ten")).toBe("ten");
    expect(parseNumber("1e999")).toBe("1e999");
  });
});

test("colours and links of a terminal are left out of text", () => {
  expect(plain("\u001b[31mred\u001b[0m and \u001b]8;;https://example.com\u001b\\a link\u001b]8;;\u0007")).toBe(
    "red and a link",
  );
});
