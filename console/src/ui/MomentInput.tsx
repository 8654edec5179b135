import { useId } from "react";
import { toFieldText } from "./moments";
import { useTyped } from "./useTyped";

interface Props {
  id: string;
  value: string | undefined;
  onChange: (text: string | undefined) => void;
}

// A date and a time, in the browser's own field: it can be typed, picked from a calendar and read aloud.
export function MomentInput({ id, value, onChange }: Props) {
  const typed = useTyped(toFieldText(value) || undefined, onChange);
  return <input {...typed} id={id} type="datetime-local" min="1000-01-01T00:00" max="9999-12-31T23:59" />;
}

// The two ends of a time, each with its label, in a row of filters.
export function MomentFilters({
  since,
  until,
  onChange,
}: {
  since: string | undefined;
  until: string | undefined;
  onChange: (changes: { since?: string | undefined; until?: string | undefined }) => void;
}) {
  const id = useId();

  return (
    <>
      <span className="moment">
        <label htmlFor={`${id}-since`}>From</label>
        <MomentInput id={`${id}-since`} value={since} onChange={(text) => onChange({ since: text })} />
      </span>
      <span className="moment">
        <label htmlFor={`${id}-until`}>Until</label>
        <MomentInput id={`${id}-until`} value={until} onChange={(text) => onChange({ until: text })} />
      </span>
    </>
  );
}
