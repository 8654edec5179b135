// A page that shows a list, and beside it the entry that the address names.

import { Link, type LinkProps, useNavigate } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { useKey } from "../shell/keys";
import { Icon } from "./Icon";

interface Props {
  // What stands above the list: a title with its actions, or figures.
  head?: ReactNode;
  filters?: ReactNode;
  // The list itself, mostly a `PagedList`.
  children: ReactNode;
  // The chosen entry, or nothing while none is chosen. Lists whose entries have pages of their own leave it out.
  panel?: ReactNode;
  // As wide as the window, for a list and an entry that need much room.
  isWide?: boolean;
}

export function ListPage(props: Props) {
  const { head, filters, children, panel, isWide = false } = props;
  const list = (
    <>
      {filters && <div className="filters">{filters}</div>}
      {children}
    </>
  );

  return (
    <div className={isWide ? "page full wide" : "page full"}>
      {head}
      {"panel" in props ? <Split panel={panel}>{list}</Split> : list}
    </div>
  );
}

// Two columns as long as there is something in the second one.
export function Split({ panel, children }: { panel: ReactNode; children: ReactNode }) {
  return (
    <div className={panel ? "split open" : "split"}>
      <div className="split-main">{children}</div>
      {panel}
    </div>
  );
}

export function PageHead({ title, children }: { title: string; children?: ReactNode }) {
  return (
    <div className="head">
      <h1>{title}</h1>
      {children}
    </div>
  );
}

// The way to the form of something new, also by the key c.
export function NewLink({ to, children }: { to: NonNullable<LinkProps["to"]>; children: ReactNode }) {
  const navigate = useNavigate();

  useKey("c", () => void navigate({ to }));

  return (
    <Link to={to} className="button main">
      <Icon name="plus" />
      {children}
    </Link>
  );
}
