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
