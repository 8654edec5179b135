import { useState } from "react";
import { contentText } from "../threads/thread";
import type { Item } from "./messages";

interface Props {
  item: Item;
  onSend: (text: string) => void;
  onCancel: () => void;
}

/** An earlier message in another form. Sending it begins a branch before it; the old one stays. */
export function EditMessage({ item, onSend, onCancel }: Props) {
  const [text, setText] = useState(() => contentText(item.message.content));

  return (
    <form
      className="composer"
      aria-label="Edit the message"
      onSubmit={(event) => {
        event.preventDefault();
        onSend(text);
      }}
    >
      <textarea
        // biome-ignore lint/a11y/noAutofocus: somebody has just asked to edit it
        autoFocus
        aria-label="Edited message"
        rows={Math.min(text.split("\n").length + 1, 10)}
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={(event) => event.key === "Escape" && onCancel()}
      />
      <div className="row">
        <button type="submit" className="button main" disabled={!text.trim()}>
          Run from here
        </button>
        <button type="button" className="button" onClick={onCancel}>
          Cancel
        </button>
        <span className="soft small">The conversation so far stays as a branch.</span>
      </div>
    </form>
  );
}
