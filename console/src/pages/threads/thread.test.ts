import { describe, expect, test } from "vitest";
import { contentText, isStopped, parseSearch } from "./thread";

const ID = "01a22713-cadb-7000-8c9c-dc3008c0cc02";

describe("a search of threads", () => {
  test("without words finds all", () => expect(parseSearch("  ")).toEqual({}));
  test("by ids, with spaces or commas between them", () =>
    expect(parseSearch(`${ID}, ${ID.toUpperCase()}`)).toEqual({ ids: [ID, ID.toUpperCase()] }));
  test("by metadata and state, with values of their types", () =>
    expect(parseSearch('user=ada values.step.number=3 note="two words"')).toEqual({
      metadata: { user: "ada", note: "two words" },
      values: { step: { number: 3 } },
    }));
  test("by nested keys keeps both of one object", () =>
    expect(parseSearch("a.b=1 a.c=true")?.metadata).toEqual({ a: { b: 1, c: true } }));
  test("with other words is none for the server", () => {
    expect(parseSearch("hello")).toBeNull();
    expect(parseSearch(`user=ada ${ID}`)).toBeNull();
  });
});

describe("the text of a message's content", () => {
  test("is the text", () => expect(contentText("hello")).toBe("hello"));
  test("is that of its blocks", () =>
    expect(contentText([{ type: "text", text: "a" }, "b", { type: "image_url", image_url: {} }])).toBe("ab"));
  test("is empty without any", () => expect(contentText(null)).toBe(""));
});

test("an error says whether somebody stopped the run", () => {
  expect(isStopped("CancelledError()")).toBe(true);
  expect(isStopped("Error: Abort")).toBe(true);
  expect(isStopped("ValueError: CancelledError")).toBe(false);
  expect(isStopped(null)).toBe(false);
});
