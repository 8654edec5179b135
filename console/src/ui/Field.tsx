import { type ComponentProps, type ReactNode, useId } from "react";

interface Labelled {
  label: string;
  hint?: ReactNode;
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

// A labelled field; what the API says about it stands below it.
export function Field({ label, hint, error, isRequired = false, children }: Props) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ");

  return (
    <div className={error ? "field wrong" : "field"}>
      <label htmlFor={id}>
        {label}
        {isRequired && <span className="soft"> required</span>}
      </label>
      {children({
        id,
        "aria-invalid": Boolean(error),
        "aria-describedby": described || undefined,
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

interface TextProps extends Labelled, Omit<ComponentProps<"input">, "value" | "onChange"> {
  value: string;
  onChange: (text: string) => void;
}

// A line of text. Names, addresses and the like are no prose: nothing completes or corrects them.
export function TextField({ label, hint, error, isRequired, onChange, ...input }: TextProps) {
  return (
    <Field label={label} hint={hint} error={error} isRequired={isRequired}>
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

interface ButtonsProps {
  action: string;
  isDisabled?: boolean;
  onCancel: () => void;
  children?: ReactNode;
}

// The buttons below a form.
export function FormButtons({ action, isDisabled = false, onCancel, children }: ButtonsProps) {
  return (
    <div className="row whole">
      <button type="submit" className="button main" disabled={isDisabled}>
        {action}
      </button>
      <button type="button" className="button" onClick={onCancel}>
        Cancel
      </button>
      {children}
    </div>
  );
}
