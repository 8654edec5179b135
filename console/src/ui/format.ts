// Numbers as people read them; units stand in the head of a column or next to the number.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const oneDigit = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const shares = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const cents = new Intl.NumberFormat("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
const NONE = "–";
// biome-ignore lint/suspicious/noControlCharactersInRegex: the escape character is what begins a colour
const TERMINAL = /\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)|[@-Z\\-_])/g;

// Text without the colours and links of a terminal.
export function plain(text: string): string {
  return text.replace(TERMINAL, "");
}

export function count(value: number | null | undefined): string {
  return value == null ? NONE : whole.format(value);
}

// 1,234 as it is; 12,345 as 12.3K. A mean of small numbers keeps one digit after the point.
export function compact(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value < 10_000 ? oneDigit.format(value) : short.format(value);
}

// US dollars, with as many digits as a small amount needs: $0.00042, $0.012, $1.20, $1,234.50.
export function cost(value: number | string | null | undefined): string {
  if (value == null || value === "") return NONE;
  const amount = Number(value);
  if (amount === 0) return "$0";

  // A smaller one would be written with an exponent.
  if (amount < 0.000_001) return "< $0.000001";
  if (amount < 0.1) return `$${amount.toPrecision(2)}`;
  return `$${cents.format(amount)}`;
}

export function percent(share: number | null | undefined): string {
  return share == null ? NONE : shares.format(share);
}

export function score(value: number | null | undefined): string {
  return value == null ? NONE : String(Math.round(value * 100) / 100);
}

// What is typed into a field for a number, null if it is empty. Other text stays as it is: the API refuses it at its
// field, whereas NaN would become null in JSON, and null takes a limit away.
export function parseNumber(text: string): number | null {
  const number = Number(text);
  if (text.trim() === "") return null;
  return Number.isFinite(number) ? number : (text as unknown as number);
}
