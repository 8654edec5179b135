import type { ReactNode } from "react";
import { Command } from "./Copy";

// What a page is for, and the command that fills it.
export function Empty({ title, children, command }: { title: string; children: ReactNode; command?: string }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      <div className="soft">{children}</div>
      {command && <Command text={command} />}
    </div>
  );
}

// Filters that leave nothing, and the way back to everything.
export function NoMatch({ title, clear, onClear }: { title: string; clear: string; onClear: () => void }) {
  return (
    <Empty title={title}>
      <button type="button" className="link" onClick={onClear}>
        {clear}
      </button>
    </Empty>
  );
}
