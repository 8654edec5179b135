import { useState } from "react";
import { useChange } from "../../api/queries";
import { Confirm } from "../../ui/Confirm";
import { TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { type PriceDraft, toBody } from "./prices";

// The details that most providers price, and how the form names them.
const INPUT_DETAILS = { cache_read: "Cache read", cache_creation: "Cache write", audio: "Audio input" };
const OUTPUT_DETAILS = { reasoning: "Reasoning", audio: "Audio output" };

export function PriceForm({ draft: first, onClose }: { draft: PriceDraft; onClose: () => void }) {
  const [draft, setDraft] = useState(first);
  const [isAsking, setAsking] = useState(false);
  const create = useChange("POST /model-price-map", onClose);
  const update = useChange("PUT /model-price-map/{price_id}", onClose);

  const set = (changes: Partial<PriceDraft>) => setDraft((old) => ({ ...old, ...changes }));

  const save = () => {
    const body = toBody(draft);
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
