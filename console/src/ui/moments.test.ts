import { expect, test } from "vitest";
import { parseMoment, toFieldText } from "./moments";

test.each([
  ["2026-01-02", "2026-01-02T00:00"],
  ["2026-01-02T08:30", "2026-01-02T08:30"],
  ["2026-01-02T08:30:15", "2026-01-02T08:30"],
])("a local time is shown in the field as it was written: %s", (text, shown) => {
  expect(toFieldText(text)).toBe(shown);
  expect(parseMoment(text)).toBe(new Date(text.length === 10 ? `${text}T00:00` : text).toISOString());
});

test("a time with a zone is shown as the local one", () => {
  const moment = "2026-01-02T08:30:00.000Z";
  expect(parseMoment(toFieldText(moment))).toBe(moment);
});

test.each([undefined, "", "24h", "yesterday", "2026-99-99", "0202-01-02T08:30"])("no moment is no text: %s", (text) => {
  expect(parseMoment(text)).toBeNull();
  expect(toFieldText(text)).toBe("");
});
