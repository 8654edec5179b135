import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { usePreferences } from "../../preferences";
import { type ChartData, type Unit, valueText } from "./Chart";
import { DASHES, LINES } from "./lines";

const HEIGHT = 220;
const FEW_POINTS = 40;

// The canvas. It is drawn again when the data, the theme, the time zone or the width of the page change.
export default function Drawing({
  data,
  unit,
  isBar,
  label,
}: {
  data: ChartData;
  unit: Unit;
  isBar: boolean;
  label: string;
}) {
  const place = useRef<HTMLDivElement>(null);
  const { theme, zone } = usePreferences();

  useEffect(() => {
    const element = place.current;
    if (element === null) return;
    let plot = draw(element, data, unit, isBar, zone);

    const redraw = () => {
      plot.destroy();
      plot = draw(element, data, unit, isBar, zone);
    };

    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", redraw);
    const resized = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);

    // The theme is an attribute of the page; it has changed by the time this runs.
    element.dataset.theme = theme;

    return () => {
      scheme.removeEventListener("change", redraw);
      resized.disconnect();
      plot.destroy();
    };
  }, [data, unit, isBar, zone, theme]);

  return <div ref={place} role="img" aria-label={label} />;
}

function draw(element: HTMLElement, data: ChartData, unit: Unit, isBar: boolean, zone: "local" | "utc"): uPlot {
  const colour = colours(element);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  const isOneBar = isBar && data.series.length === 1;
  const bars = uPlot.paths.bars?.({ size: [0.7, 32] });

  return new uPlot(
    {
      width: element.clientWidth,
      height: HEIGHT,
      legend: { show: false },
      cursor: { y: false },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      ...(zone === "utc" ? { tzDate: (seconds: number) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") } : {}),
      axes: [
        {
          ...axis,
          font: `11px ${colour("--sans")}`,
          space: 64,
          size: 28,
          values: (_plot, ticks, _index, _space, step) => ticks.map((tick) => tickText(tick, step, zone)),
        },
        {
          ...axis,
          font: `11px ${colour("--sans")}`,
          size: 64,
          values: (_plot, ticks) => ticks.map((tick) => (tick === 0 ? "0" : valueText(unit, tick))),
        },
      ],
      series: [
        {},
        ...data.series.map((one, index): uPlot.Series => {
          const stroke = colour(`--chart-${(index % LINES) + 1}`);

          return {
            label: one.name,
            stroke,
            width: 2,
            dash: DASHES[index % LINES] ?? [],
            points: {
              show: true,
              size: 5,
              fill: stroke,
              filter: (plot, number) => (data.times.length <= FEW_POINTS ? null : lonePoints(plot.data[number] ?? [])),
            },
            ...(isOneBar && bars ? { paths: bars, fill: stroke, points: { show: false } } : {}),
          };
        }),
      ],
    },
    [data.times, ...data.series.map((one) => one.values)],
    element,
  );
}

// Values without neighbours: no line goes through them, so that only a point shows them.
function lonePoints(values: ArrayLike<number | null | undefined>): number[] {
  return Array.from(values).flatMap((value, index) =>
    value != null && values[index - 1] == null && values[index + 1] == null ? [index] : [],
  );
}

const DAY_S = 86_400;

// The time of a tick, and the day where a day begins.
function tickText(seconds: number, step: number, zone: "local" | "utc"): string {
  const timeZone = zone === "utc" ? "UTC" : undefined;
  const moment = new Date(seconds * 1000);
  const time = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", timeZone });
  const isDay = step >= DAY_S || time === "00:00";
  return isDay ? moment.toLocaleDateString("en", { month: "short", day: "numeric", timeZone }) : time;
}

// Values of the theme's variables, as the canvas needs them: light-dark() is resolved by the browser.
function colours(element: HTMLElement): (name: string) => string {
  return (name) => {
    if (name === "--sans") return getComputedStyle(element).fontFamily;
    const probe = document.createElement("span");
    probe.style.color = `var(${name})`;
    element.append(probe);

    const value = getComputedStyle(probe).color;
    probe.remove();
    return value;
  };
}
