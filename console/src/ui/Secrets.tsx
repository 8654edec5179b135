import { useRef } from "react";
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

/** What the rows set; rows without a name and a value are left out. */
export function toSecrets(drafts: SecretDraft[]): { name: string; value: string }[] {
  return drafts.filter((each) => !isEmpty(each)).map(({ name, value }) => ({ name: name.trim(), value }));
}

/** Whether a row has a value that would be lost, because it has no name. */
export function lacksName(drafts: SecretDraft[]): boolean {
  return drafts.some((each) => each.value !== "" && !each.name.trim());
}

function isEmpty({ name, value }: SecretDraft): boolean {
  return value === "" && !name.trim();
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
  const focusKey = useRef<number | null>(null);

  const add = () => {
    // A row that is still empty is the one to fill in.
    const draft = drafts.find(isEmpty) ?? emptySecret();
    focusKey.current = draft.key;
    if (drafts.includes(draft)) document.getElementById(`secret-${draft.key}`)?.focus();
    else onChange([...drafts, draft]);
  };

  const change = (key: number, changes: Partial<SecretDraft>) =>
    onChange(drafts.map((each) => (each.key === key ? { ...each, ...changes } : each)));

  return (
    <div className="fields">
      {drafts.map((draft, index) => (
        <div key={draft.key}>
          <div className="secret">
            <input
              id={`secret-${draft.key}`}
              // biome-ignore lint/a11y/noAutofocus: somebody has just asked for this row
              autoFocus={draft.key === focusKey.current}
              aria-label={`Name of secret ${index + 1}`}
              aria-invalid={Boolean(errors?.[index]) || lacksName([draft])}
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
          {lacksName([draft]) && !errors?.[index] && <p className="error">A value needs a name.</p>}
          {errors?.[index] && <p className="error">{errors[index]}</p>}
        </div>
      ))}
      <div>
        <button type="button" className="button" onClick={add}>
          <Icon name="plus" />
          Add a secret
        </button>
      </div>
    </div>
  );
}
