// Numbers as people read them; units stand in the head of a column or next to the number.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
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

// 1,234 as it is; 12,345 as 12.3K.
export function compact(value: number | null | undefined): string {
  if (value == null) return NONE;
  return value < 10_000 ? whole.format(value) : short.format(value);
}

// US dollars, with as many digits as a small amount needs: $0.00042, $1.20, $1,234.
export function cost(value: number | string | null | undefined): string {
  if (value == null || value === "") return NONE;
  const amount = Number(value);
  if (amount === 0) return "$0";
  if (amount < 0.000_001) return "< $0.000001";
  if (amount >= 1000) return `$${whole.format(amount)}`;
  if (amount >= 0.1) return `$${amount.toFixed(2)}`;
  return `$${amount.toPrecision(2)}`;
}

export function percent(share: number | null | undefined): string {
  if (share == null) return NONE;
  const value = share * 100;
  return `${value > 0 && value < 1 ? value.toFixed(1) : whole.format(value)} %`;
}

export function score(value: number | null | undefined): string {
  return value == null ? NONE : String(Math.round(value * 100) / 100);
}
