import { describe, expect, test } from "vitest";
import type { FeedbackScale } from "../../api/platform";
import { getChoices, getScaleName, SCALES } from "./scales";

const keys = (scale?: FeedbackScale) => getChoices(scale)?.map((each) => each.key) ?? null;

describe("a scale", () => {
  test("is known by what it says", () =>
    expect(SCALES.map(({ scale }) => scale && getScaleName(scale))).toEqual(["five", "yes", "ten", "text", null]));
  test("that people configured is their own", () =>
    expect(getScaleName({ type: "continuous", min: 1, max: 7 })).toBe("own"));
});

describe("the choices of a question", () => {
  test("are 1 to 5 without a scale", () => expect(keys()).toEqual(["1", "2", "3", "4", "5"]));
  test("are the categories, with a key of the keyboard each", () =>
    expect(getChoices({ type: "categorical", categories: [{ value: 1, label: "yes" }, { value: 0 }] })).toEqual([
      { key: "1", value: 1, label: "yes" },
      { key: "2", value: 0, label: "0" },
    ]));
  test.each<FeedbackScale>([
    { type: "freeform" },
    { type: "continuous", min: 0, max: 1.5 },
    { type: "continuous", min: 0, max: 100 },
  ])("are none for %j", (scale) => expect(keys(scale)).toBeNull());
});
