import { afterEach, describe, expect, test, vi } from "vitest";
import { toQuery } from "./filters";

afterEach(() => {
  vi.useRealTimers();
});

describe("the filters of the audit log", () => {
  test("are sent by the names that the server has for them", () => {
    const filters = { actor: "ada@example.com", action: "secret", object: "42", outcome: "refused" };
    expect(toQuery(filters)).toEqual(filters);
  });
  test("send a period as the time at which it began", () => {
    vi.useFakeTimers({ now: new Date("2026-11-29T12:00:30Z") });
    expect(toQuery({ period: "24h" })).toEqual({ start_time: "2026-11-28T12:01:00.000Z" });
  });
  test("send moments, of which a period replaces the first", () => {
    const [since, until] = ["2026-11-28T08:00", "2026-11-28T09:00"];
    const [start, end] = [new Date(since).toISOString(), new Date(until).toISOString()];
    expect(toQuery({ since, until })).toEqual({ start_time: start, end_time: end });
    expect(toQuery({ since })).toEqual({ start_time: start });
    expect(toQuery({ period: "1h", since }).start_time).not.toBe(start);
  });
  test("leave out what is empty or no period", () => expect(toQuery({ actor: "", period: "yesterday" })).toEqual({}));
});
