// Moments that people write in filters, as local times without a zone: 2026-11-23 or 2026-11-23T08:00.

/** The moment of a text, or null if it names none. A year of one to three digits is one that is still being written. */
export function parseMoment(text: string | undefined): string | null {
  if (text === undefined || !/^[1-9]\d{3}-\d\d-\d\d/.test(text)) return null;
  const moment = new Date(text.length === 10 ? `${text}T00:00` : text);
  return Number.isNaN(moment.getTime()) ? null : moment.toISOString();
}

/** The moment as the browser's field for a date and a time shows it; empty if the text names none. */
export function toFieldText(text: string | undefined): string {
  const moment = parseMoment(text);
  if (moment === null) return "";

  const local = new Date(moment);
  const shifted = new Date(local.getTime() - local.getTimezoneOffset() * 60_000);
  return shifted.toISOString().slice(0, 16);
}
