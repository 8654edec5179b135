// Search, state and period at hand; the other filters below them. All of them are the address.

import { useId, useState } from "react";
import { FilterSelect } from "../../ui/FilterSelect";
import { Icon } from "../../ui/Icon";
import { MomentInput } from "../../ui/MomentInput";
import { SearchField } from "../../ui/SearchField";
import { useTyped } from "../../ui/useTyped";
import { FILTER_FIELDS, type FilterField, type Filters, NO_FILTERS } from "./fields";
import { findProblem } from "./filters";
import { TYPE_WORDS } from "./runs";

const TITLES: Record<FilterField, string> = {
  q: "Text",
  name: "Name",
  status: "State",
  type: "Type of run",
  latency: "Latency",
  tokens: "Tokens",
  cost: "Cost in $",
  tag: "Tags",
  metadata: "Metadata",
  thread: "Thread",
  user: "User",
  feedback: "Feedback",
  error: "Error",
  since: "From",
  until: "Until",
  filter: "Filter expression",
};

const HINTS: Partial<Record<FilterField, string>> = {
  name: "part of a name",
  latency: "> 5s, < 200ms, 1s..5s",
  tokens: "> 1000",
  cost: "> 0.01",
  tag: "prod, eu",
  metadata: "customer=acme",
  thread: "id of a thread",
  user: "id of a user",
  feedback: "correct >= 0.5",
  error: "part of an error",
  filter: 'and(eq(run_type, "llm"), gt(latency, "5s"))',
};

const BELOW = FILTER_FIELDS.filter((field) => field !== "q" && field !== "status");

const PERIODS: [string, string][] = [
  ["1h", "Last hour"],
  ["24h", "Last 24 hours"],
  ["7d", "Last 7 days"],
  ["30d", "Last 30 days"],
];

const STATES: [string, string][] = [
  ["success", "Succeeded"],
  ["error", "Failed"],
  ["interrupted", "Interrupted"],
  ["pending", "Running"],
];

interface Props {
  filters: Filters;
  onChange: (changes: Filters) => void;
}

export function FilterBar({ filters, onChange }: Props) {
  const [isOpen, setOpen] = useState(false);
  const active = FILTER_FIELDS.filter((field) => filters[field]);
  const isPeriod = PERIODS.some(([value]) => value === filters.since);
  const chips = active.filter((field) => field !== "q" && field !== "status" && !(field === "since" && isPeriod));

  return (
    <div className="filter-bar">
      <div className="filters">
        <SearchField
          label="Search in names, inputs, outputs and errors"
          placeholder="Search"
          value={filters.q}
          onChange={(q) => onChange({ q })}
        />
        <FilterSelect
          label="State"
          all="Every state"
          options={STATES}
          value={filters.status}
          onChange={(status) => onChange({ status })}
        />
        <FilterSelect
          label="Period"
          all="All time"
          options={PERIODS}
          value={isPeriod ? filters.since : undefined}
          onChange={(since) => onChange({ since })}
        />
        <button type="button" className="button" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
          <Icon name={isOpen ? "down" : "right"} />
          Filters{chips.length > 0 && ` · ${chips.length}`}
        </button>
      </div>
      {isOpen && (
        <div className="filter-fields card">
          {BELOW.map((field) => (
            <FilterInput key={field} field={field} value={filters[field]} onChange={onChange} />
          ))}
        </div>
      )}
      {chips.length > 0 && (
        <ul className="chips" aria-label="Filters in use">
          {chips.map((field) => (
            <li key={field} className="chip">
              <span className="soft">{TITLES[field]}</span> {filters[field]}
              <button
                type="button"
                className="copy"
                aria-label={`Remove the filter ${TITLES[field]}`}
                onClick={() => onChange({ [field]: undefined })}
              >
                <Icon name="close" />
              </button>
            </li>
          ))}
          <li>
            <button type="button" className="link" onClick={() => onChange(NO_FILTERS)}>
              Remove all
            </button>
          </li>
        </ul>
      )}
    </div>
  );
}

function FilterInput({
  field,
  value,
  onChange,
}: { field: FilterField; value: string | undefined } & Pick<Props, "onChange">) {
  const id = useId();
  const problem = value ? findProblem(field, value) : undefined;

  if (field === "type") {
    return (
      <div className="field">
        <label htmlFor={id}>{TITLES.type}</label>
        <select id={id} value={value ?? ""} onChange={(event) => onChange({ type: event.target.value || undefined })}>
          <option value="">Every type</option>
          {Object.entries(TYPE_WORDS).map(([type, word]) => (
            <option key={type} value={type.toLowerCase()}>
              {word}
            </option>
          ))}
        </select>
      </div>
    );
  }

  return (
    <div className={`field${problem ? " wrong" : ""}${field === "filter" ? " wide" : ""}`}>
      <label htmlFor={id}>{TITLES[field]}</label>
      {field === "since" || field === "until" ? (
        <MomentInput id={id} value={value} onChange={(text) => onChange({ [field]: text })} />
      ) : (
        <TextFilter
          id={id}
          placeholder={HINTS[field] ?? ""}
          value={value}
          isMono={field === "filter"}
          onChange={(text) => onChange({ [field]: text })}
        />
      )}
      {problem && <p className="error">{problem}</p>}
    </div>
  );
}

interface TextProps {
  id: string;
  value: string | undefined;
  onChange: (text: string | undefined) => void;
  placeholder: string;
  isMono: boolean;
}

function TextFilter({ id, value, onChange, placeholder, isMono }: TextProps) {
  const input = useTyped(value, onChange);

  return (
    <input
      {...input}
      id={id}
      className={isMono ? "mono" : undefined}
      placeholder={placeholder}
      autoComplete="off"
      spellCheck={false}
    />
  );
}
