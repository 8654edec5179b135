interface Props {
  label: string;
  // What is chosen while the address names nothing.
  all: string;
  options: readonly (readonly [value: string, word: string])[];
  value: string | undefined;
  onChange: (value: string | undefined) => void;
}

// Narrows a list to one value, or to none.
export function FilterSelect({ label, all, options, value, onChange }: Props) {
  return (
    <select aria-label={label} value={value ?? ""} onChange={(event) => onChange(event.target.value || undefined)}>
      <option value="">{all}</option>
      {options.map(([each, word]) => (
        <option key={each} value={each}>
          {word}
        </option>
      ))}
    </select>
  );
}
