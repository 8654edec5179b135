import { type ReactNode, useId } from "react";

interface Props {
  label: string;
  hint?: ReactNode;
  error?: string | undefined;
  isRequired?: boolean;
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
