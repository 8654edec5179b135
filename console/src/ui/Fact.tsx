import type { ReactNode } from "react";

// One name with its value, in a list of facts: `<dl className="facts">`.
export function Fact({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div>
      <dt>{title}</dt>
      <dd>{children}</dd>
    </div>
  );
}
