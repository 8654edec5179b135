// The spans of a trace as a tree with their times, and the chosen one next to it: for members and for shared links.

import { type ReactNode, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { useKey } from "../../shell/keys";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { compact, cost, count } from "../../ui/format";
import { Status } from "../../ui/Status";
import { Ago, duration } from "../../ui/Time";
import type { Span } from "../traces/runs";
import { getVisible, type Node, openTo, type Tree } from "./tree";
import { Waterfall } from "./Waterfall";

interface SpansProps {
  tree: Tree;
  // The id of the span that the address names, if it names one.
  run: string | undefined;
  onSelect: (id: string | undefined) => void;
  tabs?: ReactNode;
  children: (node: Node) => ReactNode;
}

export function Spans({ tree, run, onSelect, tabs, children }: SpansProps) {
  const [closed, setClosed] = useState<ReadonlySet<string>>(new Set());
  const [search, setSearch] = useState("");

  const spanId = run ?? tree.nodes[0]?.span.id ?? "";
  const visible = useMemo(() => getVisible(tree, closed, search), [tree, closed, search]);

  useEffect(() => setClosed((old) => openTo(tree, spanId, old)), [tree, spanId]);
  const toggle = useCallback(
    (id: string, isClosed: boolean) =>
      setClosed((old) => {
        const next = new Set(old);
        if (isClosed) next.add(id);
        else next.delete(id);

        return next;
      }),
    [],
  );

  const node = tree.nodes[tree.positions.get(spanId) ?? -1];

  return (
    <>
      <div className="row spread">
        {tabs}
        <SpanTools
          search={search}
          onSearch={setSearch}
          onClose={() => setClosed(new Set(tree.nodes.filter((each) => each.below && each.depth).map(getId)))}
          onOpen={() => setClosed(new Set())}
        />
      </div>
      <div className={run ? "trace-parts with-run" : "trace-parts"}>
        <Waterfall
          tree={tree}
          shown={visible}
          closed={closed}
          selected={spanId}
          onSelect={onSelect}
          onToggle={toggle}
        />
        {node ? (
          children(node)
        ) : (
          <Empty title="This span is not in the trace">
            <button type="button" className="link" onClick={() => onSelect(undefined)}>
              Show the root
            </button>
          </Empty>
        )}
      </div>
    </>
  );
}

function getId(node: Node): string {
  return node.span.id;
}

export function TraceHead({ root, tree, children }: { root: Span; tree: Tree; children?: ReactNode }) {
  const node = tree.nodes[0];
  const failed = tree.nodes.filter((each) => each.span.status === "ERROR").length;
  const interrupted = tree.nodes.filter((each) => each.span.status === "INTERRUPTED").length;

  return (
    <div className="head">
      <div className="row">
        <h1>{root.name}</h1>
        <RootState root={root} isInterrupted={interrupted > 0} />
      </div>
      <dl className="head-facts">
        <Fact title="Latency">{root.end_time === null ? "running" : duration(tree.endMs - tree.startMs)}</Fact>
        <Fact title="Tokens">{compact(node?.tokens || null)}</Fact>
        <Fact title="Cost">{cost(node?.cost)}</Fact>
        <Fact title="Spans">
          {count(tree.nodes.length)}
          {failed > 0 && <span className="bad-text"> · {count(failed)} failed</span>}
          {interrupted > 0 && <span className="soft"> · {count(interrupted)} interrupted</span>}
        </Fact>
        <Fact title="Started">
          <Ago at={root.start_time} />
        </Fact>
        <Fact title="Trace">
          <ShortId id={root.id} what="id of the trace" />
        </Fact>
      </dl>
      {children}
    </div>
  );
}

// A graph that asks a person ends its run without an error; only the runs below it say that it was interrupted.
function RootState({ root, isInterrupted }: { root: Span; isInterrupted: boolean }) {
  if (root.status === "ERROR") return <Status tone="bad" word="Failed" />;
  if (root.status === "PENDING") return <Status tone="busy" word="Running" />;
  if (root.status === "INTERRUPTED" || isInterrupted) {
    return <Status tone="wait" word="Interrupted" title="The run that goes on has a trace of its own." />;
  }

  return <Status tone="good" word="Succeeded" />;
}

function Fact({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div>
      <dt>{title}</dt>
      <dd className="number">{children}</dd>
    </div>
  );
}

interface ToolsProps {
  search: string;
  onSearch: (text: string) => void;
  onClose: () => void;
  onOpen: () => void;
}

function SpanTools({ search, onSearch, onClose, onOpen }: ToolsProps) {
  const field = useRef<HTMLInputElement>(null);
  useKey("/", () => field.current?.focus());

  return (
    <div className="filters">
      <input
        ref={field}
        type="search"
        aria-label="Find spans by name, type or error"
        placeholder="Find spans  ( / )"
        value={search}
        onChange={(event) => onSearch(event.target.value)}
      />
      <button type="button" className="button" onClick={onClose}>
        Collapse all
      </button>
      <button type="button" className="button" onClick={onOpen}>
        Expand all
      </button>
    </div>
  );
}
