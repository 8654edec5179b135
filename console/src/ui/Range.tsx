// A period of time in the address: the last hours or days, or the month so far.

import { parseMoment } from "./moments";

export const RANGES = {
  "1h": { title: "Last hour", ms: 3_600_000, stepMinutes: 1 },
  "24h": { title: "Last 24 hours", ms: 86_400_000, stepMinutes: 30 },
  "7d": { title: "Last 7 days", ms: 7 * 86_400_000, stepMinutes: 360 },
  "30d": { title: "Last 30 days", ms: 30 * 86_400_000, stepMinutes: 1440 },
  "90d": { title: "Last 90 days", ms: 90 * 86_400_000, stepMinutes: 1440 },
  month: { title: "This month", ms: 0, stepMinutes: 1440 },
} as const;

export type RangeName = keyof typeof RANGES;

export interface Period {
  start: string;
  end: string;
}

export function parseRange(text: string | undefined, otherwise: RangeName): RangeName {
  return text !== undefined && text in RANGES ? (text as RangeName) : otherwise;
}

// Both ends are cut to the minute, so that a page that is drawn again asks for the same figures.
export function getPeriod(name: RangeName): Period {
  const end = Math.floor(Date.now() / 60_000) * 60_000 + 60_000;
  const today = new Date();
  const start = name === "month" ? Date.UTC(today.getUTCFullYear(), today.getUTCMonth(), 1) : end - RANGES[name].ms;
  return { start: new Date(start).toISOString(), end: new Date(end).toISOString() };
}

// The period between two moments of the address; where one is missing, that end of the range stays.
export function withMoments(period: Period, since: string | undefined, until: string | undefined): Period {
  return { start: parseMoment(since) ?? period.start, end: parseMoment(until) ?? period.end };
}

export function RangeSelect({
  value,
  names,
  onChange,
}: {
  value: RangeName;
  names: readonly RangeName[];
  onChange: (name: RangeName) => void;
}) {
  return (
    <select aria-label="Period" value={value} onChange={(event) => onChange(event.target.value as RangeName)}>
      {names.map((name) => (
        <option key={name} value={name}>
          {RANGES[name].title}
        </option>
      ))}
    </select>
  );
}
