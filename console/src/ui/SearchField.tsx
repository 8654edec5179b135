import { useRef } from "react";
import { useKey } from "../shell/keys";
import { useTyped } from "./useTyped";

interface Props {
  label: string;
  placeholder: string;
  // What the address searches for.
  value: string | undefined;
  onChange: (text: string | undefined) => void;
}

// Searches a list. The key / goes there.
export function SearchField({ label, placeholder, value, onChange }: Props) {
  const field = useRef<HTMLInputElement>(null);
  const input = useTyped(value, onChange);

  useKey("/", () => field.current?.focus());

  return (
    <input
      {...input}
      ref={field}
      type="search"
      aria-label={label}
      placeholder={`${placeholder}  ( / )`}
      autoComplete="off"
      spellCheck={false}
    />
  );
}
