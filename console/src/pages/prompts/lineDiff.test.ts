import { describe, expect, test } from "vitest";
import { lineDiff } from "./lineDiff";

function brief(before: string, after: string) {
  const signs = { added: "+", removed: "-", same: " " };
  return lineDiff([...before], [...after]).map(({ kind, text }) => signs[kind] + text);
}

describe("the lines of two texts", () => {
  test("are each listed once if they are in both", () => expect(brief("abc", "abc")).toEqual([" a", " b", " c"]));
  test("show what was removed before what was added in its place", () =>
    expect(brief("abc", "axc")).toEqual([" a", "-b", "+x", " c"]));
  test("keep as many common lines as there are", () =>
    expect(brief("abcd", "bxcd")).toEqual(["-a", " b", "+x", " c", " d"]));
  test("do not count a line twice that repeats at both ends", () =>
    expect(brief("aa", "aaa")).toEqual([" a", " a", "+a"]));
  test("may be none", () => expect(brief("", "a")).toEqual(["+a"]));
});
