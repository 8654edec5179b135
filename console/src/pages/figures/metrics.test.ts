import { expect, test } from "vitest";
import type { ChartSeries, Point } from "../../api/platform";
import { toData } from "./metrics";

test("points become lines over the same times, one for each group", () => {
  const series = [{ id: "s", name: "Cost", metric: "total_cost" }] as ChartSeries[];
  const point = (minute: number, group: string | null, value: number | null) =>
    ({ series_id: "s", timestamp: `2026-11-29T12:0${minute}:00Z`, group, value }) as Point;

  const start = Date.parse("2026-11-29T12:01:00Z") / 1000;
  const data = toData(
    [point(2, "a", 1), point(1, "b", 2), point(1, null, 3), { ...point(1, "c", 4), series_id: "x" }],
    series,
  );
  expect(data).toEqual({
    times: [start, start + 60],
    series: [
      { name: "a", values: [null, 1] },
      { name: "b", values: [2, null] },
      { name: "Cost", values: [3, null] },
    ],
  });
});
