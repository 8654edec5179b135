// A trace that somebody shared by a link. It needs no account, uses the public routes alone, and changes nothing.

import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { useCallback, useEffect, useMemo, useState } from "react";
import { useApi } from "../../api/queries";
import { ViewTools } from "../../shell/Shell";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Tabs } from "../../ui/Tabs";
import { BackToSpans, PanelHead, RunData } from "../trace/RunPanel";
import { Spans, TraceHead } from "../trace/Spans";
import { type Node, toTree } from "../trace/tree";
import { ShareToken } from "../trace/Values";
import { SPAN_SELECTS, type Span } from "../traces/runs";

const sharedRoute = getRouteApi("/shared/$shareToken");

const EVERY_MS = 5_000;

const TABS = [
  ["values", "Input and output"],
  ["metadata", "Metadata"],
  ["events", "Events"],
] as const;

export function SharedPage() {
  const { shareToken } = sharedRoute.useParams();
  const { run } = sharedRoute.useSearch();
  const trace = useSharedSpans(shareToken);
  const tree = useMemo(() => toTree(trace.spans), [trace.spans]);
  const change = useChangedAddress();
  const select = useCallback((id: string | undefined) => change({ run: id }), [change]);

  const root = tree.nodes[0]?.span;

  return (
    <ShareToken value={shareToken}>
      <div className="stage shared">
        <header className="topbar">
          <span className="row">
            <img src="/console/favicon.svg" alt="" width="22" height="22" />
            <span>Shared trace</span>
            <span className="soft">read only</span>
          </span>
          <div className="tools">
            <ViewTools />
          </div>
        </header>
        <main id="page" tabIndex={-1}>
          {root && (
            <div className="page full wide trace">
              <TraceHead root={root} tree={tree} />
              <Spans tree={tree} run={run} onSelect={select}>
                {(node) => <SharedPanel key={node.span.id} node={node} onBack={() => select(undefined)} />}
              </Spans>
            </div>
          )}
          {trace.error && !root && (
            <div className="page">
              {[404, 422].includes(trace.error.status) ? (
                <Empty title="This link shares nothing">
                  It may be misspelled, the trace may have expired, or the person who shared it has stopped that.
                </Empty>
              ) : (
                <Problem error={trace.error} retry={trace.retry} />
              )}
            </div>
          )}
        </main>
      </div>
    </ShareToken>
  );
}

function useChangedAddress() {
  const { shareToken } = sharedRoute.useParams();
  const navigate = useNavigate();

  return useCallback(
    (changes: { run?: string | undefined }) =>
      void navigate({
        to: "/shared/$shareToken",
        params: { shareToken },
        search: (old) => ({ ...old, ...changes }),
        replace: true,
      }),
    [navigate, shareToken],
  );
}

function useSharedSpans(shareToken: string) {
  const [everyMs, setEveryMs] = useState<number | false>(false);
  const query = useApi(
    "POST /v2/public/{share_token}/runs/query",
    { path: { share_token: shareToken }, body: { selects: SPAN_SELECTS } },
    { everyMs },
  );

  // Nothing stays on the screen after the link has ended.
  const spans = useMemo(
    () => (query.error ? [] : ((query.data?.items ?? []) as unknown as Span[])),
    [query.data, query.error],
  );

  const isRunning = spans.some((span) => span.status === "PENDING");
  useEffect(() => setEveryMs(isRunning && EVERY_MS), [isRunning]);
  return { spans, error: query.error, retry: () => void query.refetch() };
}

function SharedPanel({ node, onBack }: { node: Node; onBack: () => void }) {
  const { tab: tabName } = sharedRoute.useSearch();
  const tab = TABS.find(([name]) => name === tabName)?.[0] ?? "values";

  return (
    <aside className="run-panel" aria-label="Span">
      <BackToSpans onBack={onBack} />
      <PanelHead node={node} />
      <Tabs
        label="Parts of the span"
        tabs={TABS}
        selected={tab}
        search={(next, old) => ({ ...old, tab: next === "values" ? undefined : next })}
      />
      <div className="run-panel-body">
        <RunData node={node} tab={tab} />
      </div>
    </aside>
  );
}
