import { type ChangeEvent, useEffect, useRef, useState } from "react";

const PAUSE_MS = 300;

/**
 * What is typed into a field whose value the address keeps. The address follows at a pause, which says that it is a
 * whole term; a link, or going back, changes the field.
 */
export function useTyped(value: string | undefined, onChange: (text: string | undefined) => void) {
  const [text, setText] = useState(value ?? "");
  const sent = useRef(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => {
    if (value !== sent.current) setText(value ?? "");
    sent.current = value;
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const type = (event: ChangeEvent<HTMLInputElement>) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    const term = event.target.value.trim() || undefined;
    timer.current = setTimeout(() => {
      sent.current = term;
      onChange(term);
    }, PAUSE_MS);
  };
  return { value: text, onChange: type };
}
