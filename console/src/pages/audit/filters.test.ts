import { afterEach, expect, test, vi } from "vitest";
import { toQuery } from "./filters";

afterEach(() => {
  vi.useRealTimers();
});

test("Filters of the address become parameters of the request", () => {
  const filters = { actor: "ada@example.com", action: "secret", object: "42", outcome: "refused" };

  expect(toQuery(filters)).toEqual(filters);
});

test("A period becomes the time at which it began", () => {
  vi.useFakeTimers({ now: new Date("2026-11-29T12:00:30Z") });

  expect(toQuery({ period: "24h" })).toEqual({ start_time: "2026-11-28T12:01:00.000Z" });
});

test("What the page does not know is not sent", () => {
  expect(toQuery({ actor: "", period: "yesterday" })).toEqual({});
});
