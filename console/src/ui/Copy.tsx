import { useEffect, useState } from "react";
import { Icon } from "./Icon";

// A text that is expensive to make is given as a function.
export function CopyButton({ text, what }: { text: string | (() => string); what: string }) {
  const [outcome, setOutcome] = useState<"Copied" | "Could not copy">();
  useEffect(() => {
    if (!outcome) return;
    const timer = setTimeout(() => setOutcome(undefined), 1500);
    return () => clearTimeout(timer);
  }, [outcome]);

  const label = outcome ?? `Copy the ${what}`;

  return (
    <button
      type="button"
      className="copy"
      title={label}
      aria-label={label}
      onClick={(event) => {
        event.preventDefault();
        event.stopPropagation();
        void copy(typeof text === "string" ? text : text(), event.currentTarget).then((isCopied) =>
          setOutcome(isCopied ? "Copied" : "Could not copy"),
        );
      }}
    >
      <Icon name={outcome === "Copied" ? "check" : outcome ? "alert" : "copy"} />
    </button>
  );
}

// Browsers offer the clipboard only over TLS and on this machine. Elsewhere the text is selected and copied, in the
// dialog of the button if it has one: everything outside of a modal dialog cannot be selected.
export async function copy(text: string, button: Element): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }

  const area = document.createElement("textarea");
  area.value = text;
  (button.closest("dialog") ?? document.body).append(area);
  area.select();

  const isCopied = document.execCommand("copy");
  area.remove();
  return isCopied;
}

// An id as people compare it: its end, because ids of one hour begin alike.
export function ShortId({ id, what }: { id: string; what: string }) {
  return (
    <span className="id">
      <code title={id}>{id.slice(-8)}</code>
      <CopyButton text={id} what={what} />
    </span>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div className="command">
      <code>{text}</code>
      <CopyButton text={text} what="command" />
    </div>
  );
}
