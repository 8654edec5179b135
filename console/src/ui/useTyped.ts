import { type ChangeEvent, useEffect, useRef, useState } from "react";

const PAUSE_MS = 300;

/**
 * The text of a field whose value is kept elsewhere, mostly in the address. The value follows at a pause in typing, so
 * that not every letter starts a search. When the value changes by itself (a link, going back), so does the text.
 */
export function useTyped(value: string | undefined, onChange: (text: string | undefined) => void) {
  const [text, setText] = useState(value ?? "");
  const lastSent = useRef(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);

  useEffect(() => {
    if (value !== lastSent.current) setText(value ?? "");
    lastSent.current = value;
  }, [value]);

  useEffect(() => () => clearTimeout(timer.current), []);

  const type = (event: ChangeEvent<HTMLInputElement>) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    const term = event.target.value.trim() || undefined;

    timer.current = setTimeout(() => {
      lastSent.current = term;
      onChange(term);
    }, PAUSE_MS);
  };

  return { value: text, onChange: type };
}
