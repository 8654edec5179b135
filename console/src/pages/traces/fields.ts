// The filters of traces that an address may have.

export const FILTER_FIELDS = [
  "q",
  "name",
  "status",
  "type",
  "latency",
  "tokens",
  "cost",
  "tag",
  "metadata",
  "thread",
  "user",
  "feedback",
  "error",
  "since",
  "until",
  "filter",
] as const;

export type FilterField = (typeof FILTER_FIELDS)[number];
export type Filters = { [F in FilterField]?: string | undefined };
export const NO_FILTERS: Filters = Object.fromEntries(FILTER_FIELDS.map((field) => [field, undefined]));
