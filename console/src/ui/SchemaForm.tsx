// A form made from a JSON schema. Texts, numbers, truth values and choices have controls; everything else is JSON.

import { useState } from "react";
import { Field } from "./Field";
import { type FormField, getFields, type Schema } from "./schema";

type Values = Record<string, unknown>;

interface Props {
  schema: Schema | null | undefined;
  values: Values;
  onChange: (values: Values) => void;
  // Fields that have a control elsewhere.
  without?: string[];
}

export function SchemaForm({ schema, values, onChange, without = [] }: Props) {
  const fields = getFields(schema).filter((each) => !without.includes(each.name));

  const set = (name: string, value: unknown) => {
    const { [name]: _old, ...others } = values;
    onChange(value === undefined ? others : { ...others, [name]: value });
  };

  return (
    <div className="fields">
      {fields.map((field) => (
        <SchemaField
          key={field.name}
          field={field}
          value={values[field.name]}
          onChange={(value) => set(field.name, value)}
        />
      ))}
    </div>
  );
}

interface FieldProps {
  field: FormField;
  value: unknown;
  onChange: (value: unknown) => void;
}

function SchemaField({ field, value, onChange }: FieldProps) {
  if (field.kind === "json") return <JsonField field={field} value={value} onChange={onChange} />;
  const preset = field.preset === undefined || field.preset === null ? "" : `default ${JSON.stringify(field.preset)}`;

  return (
    <Field label={field.title} hint={field.description} isRequired={field.isRequired}>
      {({ required: _required, ...attributes }) => {
        if (field.kind === "choice") return <Choice {...attributes} field={field} value={value} onChange={onChange} />;

        if (field.kind === "boolean") {
          const text = value === undefined ? "" : String(value);

          return (
            <select
              {...attributes}
              value={text}
              onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}
            >
              <option value="">{preset || "not set"}</option>
              <option value="true">yes</option>
              <option value="false">no</option>
            </select>
          );
        }

        if (field.kind === "text") {
          return (
            <textarea
              {...attributes}
              rows={1}
              placeholder={preset}
              value={typeof value === "string" ? value : ""}
              onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value)}
            />
          );
        }

        return (
          <input
            {...attributes}
            type="number"
            step={field.kind === "integer" ? 1 : "any"}
            placeholder={preset}
            value={typeof value === "number" ? value : ""}
            onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))}
          />
        );
      }}
    </Field>
  );
}

function Choice({ field, value, onChange, ...attributes }: FieldProps & { id: string }) {
  return (
    <select
      {...attributes}
      value={value === undefined ? "" : String(field.choices.indexOf(value))}
      onChange={(event) => onChange(event.target.value === "" ? undefined : field.choices[Number(event.target.value)])}
    >
      <option value="">{field.preset === undefined ? "not set" : `default ${String(field.preset)}`}</option>
      {field.choices.map((choice, index) => (
        <option key={String(choice)} value={index}>
          {String(choice)}
        </option>
      ))}
    </select>
  );
}

function JsonField({ field, value, onChange }: FieldProps) {
  return (
    <JsonInput
      label={field.title}
      hint={field.description || "JSON"}
      isRequired={field.isRequired}
      value={value}
      onChange={onChange}
    />
  );
}

interface JsonProps {
  label: string;
  hint?: string;
  isRequired?: boolean;
  rows?: number;
  value: unknown;
  onChange: (value: unknown) => void;
}

/** A field for JSON. What is not JSON yet is kept and said; the value is then not set. */
export function JsonInput({ label, hint = "", isRequired = false, rows = 3, value, onChange }: JsonProps) {
  const [text, setText] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const problem = text.trim() ? problemIn(text) : undefined;

  return (
    <Field label={label} hint={hint} error={problem} isRequired={isRequired}>
      {({ required: _required, ...attributes }) => (
        <textarea
          {...attributes}
          // Text that is no JSON yet has no value. Without this, the form would be sent without it.
          ref={(element) => element?.setCustomValidity(problem ?? "")}
          className="code"
          rows={Math.min(Math.max(rows, text.split("\n").length), 20)}
          spellCheck={false}
          value={text}
          onChange={(event) => {
            setText(event.target.value);
            const isValid = event.target.value.trim() && !problemIn(event.target.value);
            onChange(isValid ? JSON.parse(event.target.value) : undefined);
          }}
        />
      )}
    </Field>
  );
}

function problemIn(text: string): string | undefined {
  try {
    JSON.parse(text);
    return undefined;
  } catch (failure) {
    return `Not JSON yet: ${(failure as Error).message}`;
  }
}
