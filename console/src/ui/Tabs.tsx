import { useRef } from "react";

interface Props<T extends string> {
  label: string;
  tabs: readonly (readonly [T, string])[];
  selected: T;
  onSelect: (tab: T) => void;
}

// Tabs of a page. The caller keeps the selected tab, usually in the URL; arrow keys move between tabs.
export function Tabs<T extends string>({ label, tabs, selected, onSelect }: Props<T>) {
  const list = useRef<HTMLDivElement>(null);
  const move = (step: number) => {
    const index = tabs.findIndex(([tab]) => tab === selected);
    const next = tabs[(index + step + tabs.length) % tabs.length];
    if (next === undefined) return;
    onSelect(next[0]);
    list.current?.querySelectorAll<HTMLElement>("[role=tab]")[tabs.indexOf(next)]?.focus();
  };
  return (
    <div className="tabs" role="tablist" aria-label={label} ref={list}>
      {tabs.map(([tab, title]) => (
        <button
          key={tab}
          type="button"
          role="tab"
          aria-selected={tab === selected}
          tabIndex={tab === selected ? 0 : -1}
          onClick={() => onSelect(tab)}
          onKeyDown={(event) => {
            if (event.key === "ArrowRight") move(1);
            if (event.key === "ArrowLeft") move(-1);
          }}
        >
          {title}
        </button>
      ))}
    </div>
  );
}
