import { useSyncExternalStore } from "react";
import { usePreferences } from "../preferences";

const TICK_MS = 10_000;

const UNITS: [Intl.RelativeTimeFormatUnit, number][] = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
  ["second", 1],
];

const relative = new Intl.RelativeTimeFormat("en", { numeric: "always", style: "narrow" });

// One clock for all times on the page, so that they change together.
let now = Date.now();
const listeners = new Set<() => void>();

setInterval(() => {
  now = Date.now();
  for (const listener of listeners) listener();
}, TICK_MS);

function useNow(): number {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => now,
  );
}

// How long ago something was, with the exact time on hover.
export function Ago({ at }: { at: string }) {
  const current = useNow();
  const { zone } = usePreferences();

  const exact = exactTime(at, zone);

  return (
    <time dateTime={at} title={exact} className="time">
      {agoText(new Date(at).getTime(), Math.max(current, Date.now()))}
    </time>
  );
}

export function AgoOrNever({ at }: { at: string | null | undefined }) {
  return at ? <Ago at={at} /> : <span className="soft">never</span>;
}

export function Exact({ at, withDate = true }: { at: string | number; withDate?: boolean }) {
  const { zone } = usePreferences();
  const text = exactTime(at, zone);

  return (
    <time dateTime={new Date(at).toISOString()} title={text} className="time">
      {withDate ? text : text.slice(11, 23)}
    </time>
  );
}

function agoText(at: number, current: number): string {
  const seconds = Math.round((current - at) / 1000);
  if (Math.abs(seconds) < 5) return "now";
  for (const [unit, size] of UNITS) {
    if (Math.abs(seconds) >= size) return relative.format(-Math.trunc(seconds / size), unit);
  }

  return "now";
}

// 2026-11-23 03:41:07.123 UTC: sorts, and reads the same everywhere.
function exactTime(at: string | number, zone: "local" | "utc"): string {
  const moment = new Date(at);
  if (zone === "utc") return `${moment.toISOString().replace("T", " ").replace("Z", "")} UTC`;
  const shifted = new Date(moment.getTime() - moment.getTimezoneOffset() * 60_000);
  const offset = -moment.getTimezoneOffset();
  const sign = offset < 0 ? "-" : "+";
  const hours = String(Math.trunc(Math.abs(offset) / 60)).padStart(2, "0");
  const minutes = String(Math.abs(offset) % 60).padStart(2, "0");

  return `${shifted.toISOString().replace("T", " ").replace("Z", "")} ${sign}${hours}:${minutes}`;
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;

  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
