import { useLinkProps } from "@tanstack/react-router";

type Search = Record<string, unknown>;

interface Props<T extends string> {
  label: string;
  tabs: readonly (readonly [T, string])[];
  selected: T;
  // The search parameters of a tab, made from those of the page.
  search: (tab: T, old: Search) => Search;
}

// Views of a page as links: the address names the view, so that it can be opened elsewhere and sent to somebody.
export function Tabs<T extends string>({ label, tabs, selected, search }: Props<T>) {
  return (
    <nav className="tabs" aria-label={label}>
      {tabs.map(([tab, title]) => (
        <Tab key={tab} isSelected={tab === selected} search={(old) => search(tab, old)}>
          {title}
        </Tab>
      ))}
    </nav>
  );
}

interface TabProps {
  isSelected: boolean;
  search: (old: Search) => Search;
  children: string;
}

function Tab({ isSelected, search, children }: TabProps) {
  const link = useLinkProps({ to: ".", search, replace: true });

  // The router marks a link whose parameters are all in the address; that is also true of a view without parameters.
  return (
    <a {...link} className={isSelected ? "active" : undefined} aria-current={isSelected ? "page" : undefined}>
      {children}
    </a>
  );
}
