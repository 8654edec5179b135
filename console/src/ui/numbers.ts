// Numbers as people type and read them. Shown ones are aligned right, with their unit, and no more digits than matter.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const share = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });

export function wholeNumber(value: number): string {
  return whole.format(value);
}

export function shortNumber(value: number): string {
  return short.format(value);
}

export function percent(value: number): string {
  return share.format(value);
}

// What is typed into a field for a number, null if it is empty. Other text stays as it is: the API refuses it at its
// field, whereas NaN would become null in JSON, and null takes a limit away.
export function typedNumber(text: string): number | null {
  const number = Number(text);
  if (text.trim() === "") return null;
  return Number.isFinite(number) ? number : (text as unknown as number);
}

// US dollars. Small amounts keep two digits that matter, because a cost of $0.00 would be wrong.
export function money(amount: number): string {
  if (amount === 0) return "$0";
  // A smaller one would be written with an exponent.
  if (amount < 0.000_001) return "< $0.000001";
  if (amount < 0.01) return `$${amount.toPrecision(2)}`;
  return `$${amount.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
}
