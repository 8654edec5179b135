import { useEffect, useRef } from "react";

// Calls back for a key that is typed outside of fields and dialogs.
export function useKey(key: string, onPress: () => void) {
  const latest = useRef(onPress);
  useEffect(() => {
    latest.current = onPress;
  });

  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      if (event.key !== key || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const target = event.target as Element;
      if (target.closest("input, textarea, select, [contenteditable], dialog")) return;

      // Enter on a link or a button is theirs.
      if (key === "Enter" && target.closest("a, button")) return;
      event.preventDefault();
      latest.current();
    };

    addEventListener("keydown", listen);
    return () => removeEventListener("keydown", listen);
  }, [key]);
}
