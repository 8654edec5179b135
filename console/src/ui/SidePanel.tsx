import type { ReactNode } from "react";
import { useKey } from "../shell/keys";
import { Icon } from "./Icon";

// Details next to a page. The page's address says what is in it, so that it can be sent; Escape closes it.
export function SidePanel({ title, onClose, children }: { title: string; onClose: () => void; children: ReactNode }) {
  useKey("Escape", onClose);

  return (
    <aside className="side-panel" aria-label={title}>
      <div className="card-head">
        <h2>{title}</h2>
        <button type="button" className="copy" aria-label={`Close ${title}`} onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <div className="side-panel-body">{children}</div>
    </aside>
  );
}
