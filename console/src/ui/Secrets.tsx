import { Icon } from "./Icon";

export interface SecretDraft {
  key: number;
  name: string;
  value: string;
}

let lastKey = 0;

export function emptySecret(): SecretDraft {
  lastKey += 1;
  return { key: lastKey, name: "", value: "" };
}

// Names and values to set. Values are typed here and never shown again.
export function SecretFields({
  drafts,
  onChange,
  errors,
}: {
  drafts: SecretDraft[];
  onChange: (drafts: SecretDraft[]) => void;
  errors?: Record<number, string>;
}) {
  const change = (key: number, changes: Partial<SecretDraft>) =>
    onChange(drafts.map((each) => (each.key === key ? { ...each, ...changes } : each)));
  return (
    <div className="fields">
      {drafts.map((draft, index) => (
        <div key={draft.key}>
          <div className="secret">
            <input
              aria-label={`Name of secret ${index + 1}`}
              aria-invalid={Boolean(errors?.[index])}
              placeholder="NAME"
              autoComplete="off"
              spellCheck={false}
              value={draft.name}
              onChange={(event) => change(draft.key, { name: event.target.value })}
            />
            <input
              aria-label={`Value of secret ${index + 1}`}
              type="password"
              placeholder="value, not shown again"
              autoComplete="new-password"
              value={draft.value}
              onChange={(event) => change(draft.key, { value: event.target.value })}
            />
            <button
              type="button"
              className="button"
              aria-label={`Remove secret ${index + 1}`}
              onClick={() => onChange(drafts.filter((each) => each.key !== draft.key))}
            >
              <Icon name="close" />
            </button>
          </div>
          {errors?.[index] && <p className="error">{errors[index]}</p>}
        </div>
      ))}
      <div>
        <button type="button" className="button" onClick={() => onChange([...drafts, emptySecret()])}>
          <Icon name="plus" />
          Add a secret
        </button>
      </div>
    </div>
  );
}
