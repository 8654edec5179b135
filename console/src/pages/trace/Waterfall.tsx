// The tree of a trace with a bar of time for each span. Only the rows in view are in the page.

import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useMemo, useRef } from "react";
import { useKey } from "../../shell/keys";
import { compact, cost } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { duration } from "../../ui/Time";
import { RunMark } from "../traces/RunMark";
import { TYPE_WORDS } from "../traces/runs";
import type { Node, Tree } from "./tree";

const ROW_PX = 28;
const INDENT_PX = 12;
const MAX_INDENT = 16;
const TICKS = 4;
const MINUTE_MS = 60_000;

interface Props {
  tree: Tree;
  shown: number[];
  closed: ReadonlySet<string>;
  selected: string;
  onSelect: (id: string) => void;
  onToggle: (id: string, isClosed: boolean) => void;
}

export function Waterfall({ tree, shown, closed, selected, onSelect, onToggle }: Props) {
  const scroller = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => ROW_PX,
    overscan: 16,
  });

  const rows = useMemo(
    () => new Map(shown.map((position, row) => [tree.nodes[position]?.span.id ?? "", row])),
    [tree, shown],
  );

  const row = rows.get(selected);
  const node = row === undefined ? undefined : tree.nodes[shown[row] ?? -1];

  const select = (next: number) => {
    const position = shown[Math.min(Math.max(next, 0), shown.length - 1)];
    const span = position === undefined ? undefined : tree.nodes[position]?.span;
    if (span) onSelect(span.id);
    scroller.current?.focus({ preventScroll: true });
  };

  const { scrollToIndex } = virtual;
  useEffect(() => {
    if (row !== undefined) scrollToIndex(row, { align: "auto" });
  }, [row, scrollToIndex]);
  useKey("j", () => select((row ?? -1) + 1));
  useKey("k", () => select((row ?? 1) - 1));

  const onKeyDown = (event: React.KeyboardEvent) => {
    const isClosed = closed.has(selected);
    if (event.key === "ArrowDown") select((row ?? -1) + 1);
    else if (event.key === "ArrowUp") select((row ?? 1) - 1);
    else if (event.key === "Home") select(0);
    else if (event.key === "End") select(shown.length - 1);
    else if (event.key === "ArrowRight" && node) {
      if (isClosed) onToggle(selected, false);
      else if (node.below > 0) select((row ?? 0) + 1);
    } else if (event.key === "ArrowLeft" && node) {
      const parent = node.parent === null ? undefined : tree.nodes[node.parent];
      if (node.below > 0 && !isClosed) onToggle(selected, true);
      else if (parent) onSelect(parent.span.id);
    } else return;

    event.preventDefault();
  };

  const spanMs = Math.max(tree.endMs - tree.startMs, 1);
  const items = virtual.getVirtualItems();

  // Assistive technology must not be led to a row that is not in the page.
  const isDrawn = items.some((item) => item.index === row);

  return (
    <div className="waterfall">
      <div className="waterfall-head" aria-hidden="true">
        <span>Span</span>
        <span className="number extra">Tokens</span>
        <span className="number extra">Cost</span>
        <span className="number">Time</span>
        <span className="ticks extra">
          {Array.from({ length: TICKS }, (_, tick) => (
            // biome-ignore lint/suspicious/noArrayIndexKey: ticks never move
            <span key={tick}>{tickText((spanMs * tick) / TICKS)}</span>
          ))}
        </span>
      </div>
      <div
        className="waterfall-body"
        role="tree"
        aria-label="Spans"
        tabIndex={0}
        aria-activedescendant={isDrawn ? `span-${selected}` : undefined}
        ref={scroller}
        onKeyDown={onKeyDown}
      >
        <div className="list-space" style={{ height: virtual.getTotalSize() }}>
          {items.map((item) => {
            const each = tree.nodes[shown[item.index] ?? -1];
            if (!each) return null;

            return (
              <Row
                key={each.span.id}
                node={each}
                top={item.start}
                isSelected={each.span.id === selected}
                isClosed={closed.has(each.span.id)}
                startMs={tree.startMs}
                spanMs={spanMs}
                endMs={tree.endMs}
                onSelect={onSelect}
                onToggle={onToggle}
              />
            );
          })}
        </div>
      </div>
    </div>
  );
}

interface RowProps {
  node: Node;
  top: number;
  isSelected: boolean;
  isClosed: boolean;
  startMs: number;
  spanMs: number;
  endMs: number;
  onSelect: (id: string) => void;
  onToggle: (id: string, isClosed: boolean) => void;
}

function Row({ node, top, isSelected, isClosed, startMs, spanMs, endMs, onSelect, onToggle }: RowProps) {
  const { span, depth, below } = node;
  const until = node.endMs ?? endMs;
  const left = ((node.startMs - startMs) / spanMs) * 100;
  const width = Math.max(((until - node.startMs) / spanMs) * 100, 0);
  const word = TYPE_WORDS[span.run_type] ?? span.run_type;

  return (
    // biome-ignore lint/a11y/useKeyWithClickEvents: the tree handles the keys
    // biome-ignore lint/a11y/useFocusableInteractive: aria-activedescendant marks the chosen one
    <div
      id={`span-${span.id}`}
      role="treeitem"
      aria-level={depth + 1}
      aria-selected={isSelected}
      aria-expanded={below > 0 ? !isClosed : undefined}
      className={isSelected ? "span-row selected" : "span-row"}
      style={{ transform: `translateY(${top}px)` }}
      onClick={() => onSelect(span.id)}
    >
      <span className="span-name" style={{ paddingLeft: Math.min(depth, MAX_INDENT) * INDENT_PX }}>
        {below > 0 ? (
          <span
            className="span-toggle"
            aria-hidden="true"
            onClick={(event) => {
              event.stopPropagation();
              onToggle(span.id, !isClosed);
            }}
          >
            <Icon name={isClosed ? "right" : "down"} />
          </span>
        ) : (
          <span className="span-toggle" />
        )}
        <RunMark status={span.status} />
        {span.run_type !== "CHAIN" && <span className={`span-type of-${span.run_type.toLowerCase()}`}>{word}</span>}
        <span className="span-title" title={span.name}>
          {span.name}
        </span>
        {isClosed && <span className="soft small">+{compact(below)}</span>}
      </span>
      <span className="number soft extra">{node.tokens > 0 ? compact(node.tokens) : ""}</span>
      <span className="number soft extra">{node.cost === null ? "" : cost(node.cost)}</span>
      <span className="number">{node.endMs === null ? "…" : duration(node.endMs - node.startMs)}</span>
      <span className="span-track extra" aria-hidden="true">
        <span
          className={`span-bar of-${span.status === "ERROR" ? "error" : span.run_type.toLowerCase()}`}
          style={{ left: `${Math.min(left, 99.5)}%`, width: `${width}%` }}
        />
      </span>
    </div>
  );
}

function tickText(ms: number): string {
  if (ms === 0) return "0";
  return ms >= MINUTE_MS ? `${(ms / MINUTE_MS).toFixed(1)} min` : duration(ms);
}
