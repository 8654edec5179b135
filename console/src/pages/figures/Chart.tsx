// One chart: axes with units, a legend, and the table behind it. The drawing is loaded when the first chart is shown.

import { lazy, Suspense, useId } from "react";
import { usePreferences } from "../../preferences";
import { compact, cost, percent } from "../../ui/format";
import { Table } from "../../ui/Table";
import { duration } from "../../ui/Time";
import { LINES } from "./lines";

const Drawing = lazy(() => import("./Drawing"));

export type Unit = "count" | "share" | "seconds" | "tokens" | "usd";

interface Series {
  name: string;
  values: (number | null)[];
}

export interface ChartData {
  // Starts of the buckets, in seconds.
  times: number[];
  series: Series[];
}

interface Props {
  title: string;
  unit: Unit;
  data: ChartData | undefined;
  isBar?: boolean;
  actions?: React.ReactNode;
  none?: string;
}

const UNITS: Record<Unit, string> = { count: "", share: "%", seconds: "s", tokens: "tokens", usd: "USD" };

export function valueText(unit: Unit, value: number | null): string {
  if (value === null) return "–";
  if (unit === "usd") return cost(value);
  if (unit === "share") return percent(value);
  if (unit === "seconds") return duration(value * 1000);
  return compact(value);
}

export function Chart({ title, unit, data, isBar = false, actions, none = "No values in this period." }: Props) {
  const id = useId();
  // A share of 0 % is a finding; a count of 0 everywhere says that nothing ran.
  const isWorthShowing = (value: number | null) => value !== null && (value !== 0 || unit === "share");
  const hasValues = data?.series.some((one) => one.values.some(isWorthShowing)) ?? false;

  return (
    <section className="card chart" aria-labelledby={id}>
      <div className="card-head">
        <h3 id={id}>
          {title} {UNITS[unit] && <span className="soft small">{UNITS[unit]}</span>}
        </h3>
        {actions}
      </div>
      <div className="chart-body">
        {data === undefined && <div className="chart-none">Loading…</div>}
        {data && !hasValues && <div className="chart-none">{none}</div>}
        {data && hasValues && (
          <Suspense fallback={<div className="chart-none">Loading…</div>}>
            <Drawing data={data} unit={unit} isBar={isBar} label={`${title}: ${data.series.map((one) => one.name)}`} />
          </Suspense>
        )}
      </div>
      {data && hasValues && (
        <>
          <ul className="legend" aria-label={`Legend of ${title}`}>
            {data.series.map((one, index) => (
              // biome-ignore lint/suspicious/noArrayIndexKey: two series may have one name, and none moves
              <li key={index} title={one.name}>
                <span className={`swatch line-${index % LINES}`} />
                <span>{one.name}</span>
              </li>
            ))}
          </ul>
          <Values title={title} unit={unit} data={data} />
        </>
      )}
    </section>
  );
}

function Values({ title, unit, data }: { title: string; unit: Unit; data: ChartData }) {
  const { zone } = usePreferences();
  const rows = data.times.map((at, index) => ({ at, index })).reverse();

  return (
    <details>
      <summary>Table</summary>
      <Table
        label={`${title} as a table`}
        rows={rows}
        getKey={(row) => String(row.at)}
        columns={[
          { title: zone === "utc" ? "From (UTC)" : "From", show: (row) => timeText(row.at, zone) },
          ...data.series.map((one, index) => ({
            key: index,
            title: one.name,
            show: (row: { index: number }) => valueText(unit, one.values[row.index] ?? null),
            isNumber: true,
          })),
        ]}
      />
    </details>
  );
}

function timeText(seconds: number, zone: "local" | "utc"): string {
  const moment = new Date(seconds * 1000);
  const shifted = zone === "utc" ? moment : new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16).replace("T", " ");
}
