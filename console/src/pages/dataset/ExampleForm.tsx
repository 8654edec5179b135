// One example: shown, and written as JSON.

import { Link } from "@tanstack/react-router";
import { useState } from "react";
import type { Example } from "../../api/platform";
import { useApi, useChange } from "../../api/queries";
import { CopyButton } from "../../ui/Copy";
import { Field, TextField } from "../../ui/Field";
import { Form, FormButtons } from "../../ui/Form";
import { Icon } from "../../ui/Icon";
import { isBranch, Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { getSplits } from "./example";

// Editing a larger text would stop the page at every key.
const EDITED_CHARS = 200_000;

interface ViewProps {
  exampleId: string;
  asOf: string | undefined;
  mayUpdate: boolean;
  onGone: () => void;
}

export function ExampleView({ exampleId, asOf, mayUpdate, onGone }: ViewProps) {
  const query = useApi("GET /examples/{example_id}", {
    path: { example_id: exampleId },
    query: asOf ? { as_of: asOf } : {},
  });

  const [isEdited, setEdited] = useState(false);
  const remove = useChange("DELETE /examples/{example_id}", onGone);

  if (query.error) return <Problem error={query.error} />;
  const example = query.data;
  if (!example) return null;

  if (isEdited) {
    return <ExampleForm example={example} datasetId={example.dataset_id ?? ""} onDone={() => setEdited(false)} />;
  }

  const isSmall = JSON.stringify([example.inputs, example.outputs]).length <= EDITED_CHARS;

  return (
    <div className="stack">
      <div className="row spread">
        <span className="row">
          {getSplits(example).map((split) => (
            <span key={split} className="label">
              {split}
            </span>
          ))}
          <CopyButton text={example.id} what="id of the example" />
          {example.source_run_id && (
            <Link to="/traces" search={{ run: example.source_run_id }} className="text">
              Its run
            </Link>
          )}
        </span>
        {mayUpdate && (
          <span className="row">
            {isSmall && (
              <button type="button" className="button" onClick={() => setEdited(true)}>
                <Icon name="edit" />
                Edit
              </button>
            )}
            <button
              type="button"
              className="button danger"
              disabled={remove.isPending}
              title="Earlier versions keep it"
              onClick={() => remove.mutate({ path: { example_id: example.id } })}
            >
              <Icon name="trash" />
              Delete
            </button>
          </span>
        )}
      </div>
      {remove.error && <Problem error={remove.error} />}
      <Part title="Inputs" value={example.inputs} />
      <Part title="Reference outputs" value={example.outputs} />
      <Part title="Metadata" value={example.metadata} />
    </div>
  );
}

function Part({ title, value }: { title: string; value: unknown }) {
  return (
    <section className="value" aria-label={title}>
      <div className="value-head">
        <h3>{title}</h3>
      </div>
      {value == null || (isBranch(value) && Object.keys(value).length === 0) ? (
        <p className="soft">none</p>
      ) : (
        <Json value={value} name={title} open={2} />
      )}
    </section>
  );
}

interface FormProps {
  datasetId: string;
  example?: Example;
  onDone: () => void;
}

export function ExampleForm({ datasetId, example, onDone }: FormProps) {
  const [inputs, setInputs] = useState(toText(example?.inputs ?? {}));
  const [outputs, setOutputs] = useState(toText(example?.outputs ?? {}));
  const [metadata, setMetadata] = useState(toText(withoutSplit(example?.metadata)));
  const [split, setSplit] = useState(example ? getSplits(example).join(", ") : "");
  const create = useChange("POST /examples", onDone);
  const change = useChange("PATCH /examples/{example_id}", onDone);

  const objects = [inputs, outputs, metadata].map(parseObject);
  const problems = objects.map((value) => (value === null ? "This is not a JSON object." : undefined));

  const save = () => {
    const [readInputs, readOutputs, readMetadata] = objects;
    if (!readInputs || !readOutputs || !readMetadata) return;
    const splits = split.split(",").map((each) => each.trim());
    const names = splits.filter(Boolean);

    const body = {
      inputs: readInputs,
      outputs: readOutputs,
      metadata: readMetadata,
      // A change without a split leaves the example in its old ones.
      split: names.length > 1 ? names : (names[0] ?? "base"),
    };

    if (example) change.mutate({ path: { example_id: example.id }, body });
    else create.mutate({ body: { ...body, dataset_id: datasetId } });
  };

  const fields = [
    ["Inputs", inputs, setInputs, 8],
    ["Reference outputs", outputs, setOutputs, 8],
    ["Metadata", metadata, setMetadata, 3],
  ] as const;

  return (
    <Form change={example ? change : create} onSubmit={save}>
      {fields.map(([label, text, setText, rows], index) => (
        <Field key={label} label={label} error={problems[index]}>
          {(attributes) => (
            <textarea
              {...attributes}
              className="mono"
              rows={rows}
              spellCheck={false}
              value={text}
              onChange={(event) => setText(event.target.value)}
            />
          )}
        </Field>
      ))}
      <TextField
        label="Split"
        hint="One or more names, separated by commas. Empty is base."
        value={split}
        onChange={setSplit}
      />
      <FormButtons
        action={example ? "Save as a new version" : "Add"}
        isDisabled={problems.some(Boolean)}
        onCancel={onDone}
      />
    </Form>
  );
}

function toText(value: unknown): string {
  return JSON.stringify(value, null, 2);
}

function withoutSplit(metadata: Record<string, unknown> | undefined): Record<string, unknown> {
  const { dataset_split: _, ...rest } = metadata ?? {};
  return rest;
}

function parseObject(text: string): Record<string, unknown> | null {
  try {
    const value: unknown = JSON.parse(text.trim() || "{}");
    return isBranch(value) && !Array.isArray(value) ? (value as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}
