import { useState } from "react";
import type { ModelInUse, ModelPrice } from "../../api/platform";
import { useChange } from "../../api/queries";
import { Confirm } from "../../ui/Confirm";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";

const MILLION = 1_000_000;
// The details that most providers price, and how the form names them.
const INPUT_DETAILS = { cache_read: "Cache read", cache_creation: "Cache write", audio: "Audio input" };
const OUTPUT_DETAILS = { reasoning: "Reasoning", audio: "Audio output" };

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

// A draft for a model without a price, or from a price: a price of a file is overridden by one of the workspace.
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

export function PriceForm({ draft: first, onClose }: { draft: PriceDraft; onClose: () => void }) {
  const [draft, setDraft] = useState(first);
  const [isAsking, setAsking] = useState(false);
  const create = useChange("POST /model-price-map", onClose);
  const update = useChange("PUT /model-price-map/{price_id}", onClose);

  const set = (changes: Partial<PriceDraft>) => setDraft((old) => ({ ...old, ...changes }));

  const save = () => {
    const body = {
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

    if (draft.id) update.mutate({ path: { price_id: draft.id }, body });
    else create.mutate({ body });
  };

  const text = (name: "name" | "pattern" | "provider" | "input" | "output" | "from") => ({
    value: draft[name],
    onChange: (value: string) => set({ [name]: value }),
  });

  const detail = (side: "inputDetails" | "outputDetails", name: string) => ({
    inputMode: "decimal" as const,
    placeholder: side === "inputDetails" ? "like input" : "like output",
    value: draft[side][name] ?? "",
    onChange: (value: string) => set({ [side]: { ...draft[side], [name]: value } }),
  });

  return (
    <>
      <section className="card">
        <div className="card-head">
          <h2>{draft.id ? "Change the price" : "New price of this workspace"}</h2>
          <span className="soft small">USD for a million tokens</span>
        </div>
        <Form
          className="card-body price-form"
          aria-label={draft.id ? "Change the price" : "New price"}
          // The browser knows whether a date is one.
          noValidate={false}
          change={draft.id ? update : create}
          onSubmit={save}
        >
          <TextField label="Name" isRequired autoFocus name="name" {...text("name")} />
          <TextField
            label="Pattern"
            isRequired
            hint="A regular expression that matches the whole name of a model"
            name="match_pattern"
            className="mono"
            {...text("pattern")}
          />
          <TextField label="Provider" hint="Empty: any" name="provider" {...text("provider")} />
          <TextField
            label="From"
            hint="First day in UTC; empty: always"
            name="start_time"
            type="date"
            {...text("from")}
          />
          <TextField label="Input" isRequired name="prompt_cost" inputMode="decimal" {...text("input")} />
          <TextField label="Output" isRequired name="completion_cost" inputMode="decimal" {...text("output")} />
          {Object.entries(INPUT_DETAILS).map(([name, title]) => (
            <TextField
              key={name}
              label={title}
              name={`prompt_cost_details.${name}`}
              {...detail("inputDetails", name)}
            />
          ))}
          {Object.entries(OUTPUT_DETAILS).map(([name, title]) => (
            <TextField
              key={title}
              label={title}
              name={`completion_cost_details.${name}`}
              {...detail("outputDetails", name)}
            />
          ))}
          <FormButtons action="Save the price" onCancel={onClose}>
            {draft.id && (
              <button type="button" className="button danger" onClick={() => setAsking(true)}>
                <span>Remove it</span>
              </button>
            )}
            <span className="soft small">
              Runs that are stored from now on have it; compute older ones again below.
            </span>
          </FormButtons>
        </Form>
      </section>
      {isAsking && draft.id && (
        <RemovePrice id={draft.id} name={first.name} onRemoved={onClose} onClose={() => setAsking(false)} />
      )}
    </>
  );
}

interface RemoveProps {
  id: string;
  name: string;
  onRemoved: () => void;
  onClose: () => void;
}

function RemovePrice({ id, name, onRemoved, onClose }: RemoveProps) {
  const remove = useChange("DELETE /model-price-map/{price_id}", onRemoved);

  return (
    <Confirm
      title={`Remove the price of ${name}?`}
      action="Remove"
      change={remove}
      onConfirm={() => remove.mutate({ path: { price_id: id } })}
      onClose={onClose}
    >
      <p>
        Runs that are stored from now on get the next price that matches, or none. Costs that were computed stay until
        somebody computes them again.
      </p>
    </Confirm>
  );
}

function mapDetails(
  details: Record<string, string> | null | undefined,
  convert: (text: string) => string,
): Record<string, string> {
  const entries = Object.entries(details ?? {}).filter(([, text]) => text !== "");
  return Object.fromEntries(entries.map(([name, text]) => [name, convert(text)]));
}

function perMillion(text: string | undefined): string {
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
