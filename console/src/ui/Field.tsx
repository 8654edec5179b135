import { type ComponentProps, type ReactNode, useId } from "react";
import { useFieldProblem } from "./Form";

interface Labelled {
  label: string;
  hint?: ReactNode;
  // The field of the body that it fills: what the API says about it stands below.
  name?: string | undefined;
  // What the page itself says about it.
  error?: string | undefined;
  isRequired?: boolean | undefined;
}

interface Props extends Labelled {
  children: (attributes: {
    id: string;
    "aria-invalid": boolean;
    "aria-describedby": string | undefined;
    required: boolean;
  }) => ReactNode;
}

// A labelled field, with what is wrong with it.
export function Field({ label, hint, name, error: ownError, isRequired = false, children }: Props) {
  const id = useId();
  const fieldProblem = useFieldProblem(name);

  const error = ownError ?? fieldProblem;
  const description = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");

  return (
    <div className={error ? "field wrong" : "field"}>
      <label htmlFor={id}>
        {label}
        {isRequired && <span className="soft"> required</span>}
      </label>
      {children({
        id,
        "aria-invalid": Boolean(error),
        "aria-describedby": description || undefined,
        required: isRequired,
      })}
      {error && (
        <p className="error" id={`${id}-error`}>
          {error}
        </p>
      )}
      {hint && (
        <p className="hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
    </div>
  );
}

interface TextProps extends Labelled, Omit<ComponentProps<"input">, "name" | "value" | "onChange"> {
  value: string;
  onChange: (text: string) => void;
}

// A line of text. Names, addresses and the like are no prose: nothing completes or corrects them.
export function TextField({ label, hint, name, error, isRequired, onChange, ...input }: TextProps) {
  return (
    <Field label={label} hint={hint} name={name} error={error} isRequired={isRequired}>
      {(attributes) => (
        <input
          autoComplete="off"
          spellCheck={false}
          {...attributes}
          {...input}
          onChange={(event) => onChange(event.target.value)}
        />
      )}
    </Field>
  );
}

interface SelectProps<T extends string> extends Labelled {
  value: T;
  options: readonly (readonly [value: T, word: string])[];
  onChange: (value: T) => void;
}

export function SelectField<T extends string>({ value, options, onChange, ...labelled }: SelectProps<T>) {
  return (
    <Field {...labelled}>
      {(attributes) => (
        <select {...attributes} value={value} onChange={(event) => onChange(event.target.value as T)}>
          {options.map(([each, word]) => (
            <option key={each} value={each}>
              {word}
            </option>
          ))}
        </select>
      )}
    </Field>
  );
}
