// Prices as the API has them, for one token, and as people write them, for a million.

import type { ModelInUse, ModelPrice } from "../../api/platform";

const MILLION = 1_000_000;

export interface PriceDraft {
  key: string;
  // The price of this workspace that is changed; without it a new one is made.
  id: string | null;
  name: string;
  pattern: string;
  provider: string;
  from: string;
  threshold: number | null;
  input: string;
  output: string;
  inputDetails: Record<string, string>;
  outputDetails: Record<string, string>;
}

/** A draft for a model without a price, or from a price: a price of a file is overridden by one of the workspace. */
export function toDraft(model?: ModelInUse, price?: ModelPrice): PriceDraft {
  const own = price?.source === "workspace" ? price.id : null;

  return {
    key: price?.id ?? `${model?.provider} ${model?.name}`,
    id: own,
    name: price?.name ?? model?.name ?? "",
    pattern: price?.match_pattern ?? (model ? escapePattern(model.name) : ""),
    provider: price?.provider ?? model?.provider ?? "",
    from: price?.start_time?.slice(0, 10) ?? "",
    threshold: price?.prompt_token_threshold ?? null,
    input: perMillion(price?.prompt_cost),
    output: perMillion(price?.completion_cost),
    inputDetails: mapDetails(price?.prompt_cost_details, perMillion),
    outputDetails: mapDetails(price?.completion_cost_details, perMillion),
  };
}

/** The request that stores a draft. */
export function toBody(draft: PriceDraft) {
  return {
    name: draft.name,
    match_pattern: draft.pattern,
    provider: draft.provider || null,
    start_time: draft.from ? `${draft.from}T00:00:00Z` : null,
    prompt_token_threshold: draft.threshold,
    prompt_cost: perToken(draft.input),
    completion_cost: perToken(draft.output),
    prompt_cost_details: mapDetails(draft.inputDetails, perToken),
    completion_cost_details: mapDetails(draft.outputDetails, perToken),
  };
}

/** One row for a price that a file has for each name that a provider goes by. */
export function joinProviders(prices: ModelPrice[]): ModelPrice[] {
  const rows = new Map<string, ModelPrice>();
  for (const price of prices) {
    const { id, provider, ...rest } = price;
    const key = price.source === "workspace" ? id : JSON.stringify(rest);
    const other = rows.get(key);
    rows.set(key, other ? { ...other, provider: `${other.provider}, ${provider}` } : price);
  }

  return [...rows.values()];
}

function mapDetails(
  details: Record<string, string> | null | undefined,
  convert: (text: string) => string,
): Record<string, string> {
  const entries = Object.entries(details ?? {}).filter(([, text]) => text !== "");
  return Object.fromEntries(entries.map(([name, text]) => [name, convert(text)]));
}

/** The price of a token as that of a million tokens, which people write. */
export function perMillion(text: string | undefined): string {
  return text === undefined ? "" : String(Number((Number(text) * MILLION).toPrecision(12)));
}

// Decimal text without an exponent, as the API takes it; what is no number is sent as it is, and refused there.
function perToken(text: string): string {
  const price = Number(text.replace(/^\$/, ""));
  if (text.trim() === "" || Number.isNaN(price)) return text;
  return (price / MILLION).toFixed(18).replace(/\.?0+$/, "") || "0";
}

function escapePattern(name: string): string {
  return name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
