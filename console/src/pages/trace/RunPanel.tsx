import { getRouteApi } from "@tanstack/react-router";
// One span: what went in and came out, its metadata, events and feedback.

import { useState } from "react";
import { request } from "../../api/client";
import { useApi } from "../../api/queries";
import { useMay } from "../../shell/session";
import { ShortId } from "../../ui/Copy";
import { compact, cost } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { isBranch, Json } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { Tabs } from "../../ui/Tabs";
import { duration, Exact } from "../../ui/Time";
import { useDownload } from "../../ui/useDownload";
import { RunActions } from "../traces/RunActions";
import { TYPE_WORDS } from "../traces/runs";
import { FeedbackTab } from "./FeedbackTab";
import { Share } from "./Share";
import type { Node } from "./tree";
import { findValue, readValue, useValues, Value } from "./Values";

const traceRoute = getRouteApi("/traces/$projectId/$traceId");

const TABS = [
  ["values", "Input and output"],
  ["metadata", "Metadata"],
  ["events", "Events"],
  ["feedback", "Feedback"],
] as const;

type Tab = (typeof TABS)[number][0];

const SELECTS = [
  "TAGS",
  "FIRST_TOKEN_TIME",
  "PROMPT_TOKENS",
  "COMPLETION_TOKENS",
  "PROMPT_COST",
  "COMPLETION_COST",
  "ATTACHMENTS",
  "TRACE_ID",
  "PROJECT_ID",
];

interface Details {
  tags: string[];
  first_token_time: string | null;
  prompt_tokens: number;
  completion_tokens: number;
  prompt_cost: number | null;
  completion_cost: number | null;
  attachments: Record<string, string>;
}

interface Props {
  runId: string;
  node: Node;
  onBack: () => void;
}

export function RunPanel({ runId, node, onBack }: Props) {
  const { projectId, traceId } = traceRoute.useParams();
  const { tab: tabName } = traceRoute.useSearch();
  const query = useApi("GET /v2/runs/{run_id}", { path: { run_id: runId }, query: { selects: SELECTS } });

  const tab: Tab = TABS.find(([name]) => name === tabName)?.[0] ?? "values";

  return (
    <aside className="run-panel" aria-label="Span">
      <BackToSpans onBack={onBack} />
      <PanelHead node={node} details={query.data as Details | undefined} />
      <Actions node={node} projectId={projectId} traceId={traceId} />
      <Tabs
        label="Parts of the span"
        tabs={TABS}
        selected={tab}
        search={(next, old) => ({ ...old, tab: next === "values" ? undefined : next })}
      />
      <div className="run-panel-body">
        {tab === "feedback" ? <FeedbackTab runId={runId} /> : <RunData node={node} tab={tab} />}
      </div>
    </aside>
  );
}

export function BackToSpans({ onBack }: { onBack: () => void }) {
  return (
    <button type="button" className="link back" onClick={onBack}>
      <Icon name="left" />
      All spans
    </button>
  );
}

// What clients sent with a run, in parts.
export function RunData({ node, tab }: { node: Node; tab: "values" | "metadata" | "events" }) {
  const { id: runId, status } = node.span;
  const isRunning = status === "PENDING";
  const values = useValues(runId, isRunning);

  return (
    <>
      {values.error && <Problem error={values.error} retry={() => void values.refetch()} />}
      {values.data && tab === "values" && (
        <>
          {["error", "inputs", "outputs"].map((name) => {
            const value = findValue(values.data, name);
            return value && <Value key={name} runId={runId} value={value} status={status} />;
          })}
          {!findValue(values.data, "outputs") && (
            <p className="soft">{isRunning ? "It runs; there is no output yet." : "There is no output."}</p>
          )}
        </>
      )}
      {values.data && tab === "metadata" && <Metadata runId={runId} values={values.data} />}
      {values.data && tab === "events" && <Events runId={runId} values={values.data} />}
    </>
  );
}

export function PanelHead({ node, details }: { node: Node; details?: Details | undefined }) {
  const { span } = node;
  const isModel = (details?.prompt_tokens ?? 0) + (details?.completion_tokens ?? 0) > 0;
  const firstToken = details?.first_token_time;

  return (
    <div className="run-head">
      <div className="row">
        <h2>{span.name}</h2>
        <span className={`span-type of-${span.run_type.toLowerCase()}`}>
          {TYPE_WORDS[span.run_type] ?? span.run_type}
        </span>
        {span.status === "ERROR" && <Status tone="bad" word="Failed" />}
        {span.status === "INTERRUPTED" && <Status tone="wait" word="Interrupted" />}
        {span.status === "PENDING" && <Status tone="busy" word="Running" />}
      </div>
      <dl className="run-facts">
        <div>
          <dt>Time</dt>
          <dd>{node.endMs === null ? "…" : duration(node.endMs - node.startMs)}</dd>
        </div>
        {firstToken && (
          <div>
            <dt>First token</dt>
            <dd>{duration(new Date(firstToken).getTime() - node.startMs)}</dd>
          </div>
        )}
        {node.tokens > 0 && (
          <div>
            <dt>Tokens</dt>
            <dd>
              {compact(node.tokens)}
              {isModel && (
                <span className="soft">
                  {" "}
                  {compact(details?.prompt_tokens)} in · {compact(details?.completion_tokens)} out
                </span>
              )}
            </dd>
          </div>
        )}
        {node.cost !== null && (
          <div>
            <dt>Cost</dt>
            <dd>{cost(node.cost)}</dd>
          </div>
        )}
        <div>
          <dt>Started</dt>
          <dd>
            <Exact at={span.start_time} withDate={false} />
          </dd>
        </div>
        <div>
          <dt>Run</dt>
          <dd>
            <ShortId id={span.id} what="id of the run" />
          </dd>
        </div>
      </dl>
      {details && details.tags.length > 0 && (
        <p className="labels">
          {details.tags.map((tag) => (
            <span key={tag} className="label">
              {tag}
            </span>
          ))}
        </p>
      )}
      {details && Object.keys(details.attachments).length > 0 && (
        <p className="labels">
          {Object.entries(details.attachments).map(([name, url]) => (
            <a key={name} className="label" href={url} download={name} rel="noreferrer">
              <Icon name="download" /> {name}
            </a>
          ))}
        </p>
      )}
    </div>
  );
}

function Actions({ node, projectId, traceId }: { node: Node; projectId: string; traceId: string }) {
  const [opened, setOpened] = useState<"add" | "share" | null>(null);
  const mayUpdate = useMay("datasets:update");
  const mayQueue = useMay("annotation-queues:update");

  const { span } = node;
  const download = useDownload();

  const save = () =>
    download.mutate({
      read: () => request("GET /runs/{run_id}", { path: { run_id: span.id } }),
      fileName: `run-${span.id.slice(-8)}.json`,
    });

  const toggle = (which: "add" | "share") => setOpened(opened === which ? null : which);

  return (
    <>
      <div className="row">
        {(mayUpdate || mayQueue) && (
          <button type="button" className="button" aria-expanded={opened === "add"} onClick={() => toggle("add")}>
            <Icon name="plus" />
            Add to…
          </button>
        )}
        <button type="button" className="button" aria-expanded={opened === "share"} onClick={() => toggle("share")}>
          <Icon name="share" />
          Share
        </button>
        <button type="button" className="button" disabled={download.isPending} onClick={save}>
          <Icon name="download" />
          JSON
        </button>
      </div>
      {download.error && <Problem error={download.error} />}
      {opened === "add" && (
        <RunActions runs={[{ ...span, trace_id: traceId }]} projectId={projectId} onDone={() => setOpened(null)} />
      )}
      {opened === "share" && <Share runId={span.id} />}
    </>
  );
}

function Metadata({ runId, values }: { runId: string; values: NonNullable<ReturnType<typeof useValues>["data"]> }) {
  const extra = findValue(values, "extra");
  const serialized = findValue(values, "serialized");
  const extraValue = readValue(extra);
  const { metadata, ...rest } = isBranch(extraValue)
    ? (extraValue as Record<string, unknown>)
    : { metadata: undefined };
  if (!extra && !serialized) return <p className="soft">The run has no metadata.</p>;

  return (
    <>
      {isBranch(metadata) && <MetadataTable metadata={metadata as Record<string, unknown>} />}
      {isBranch(metadata) && Object.keys(rest).length > 0 && (
        <section className="value" aria-label="Runtime">
          <div className="value-head">
            <h3>Runtime and settings</h3>
          </div>
          <Json value={rest} name="extra" open={2} />
        </section>
      )}
      {!isBranch(metadata) && extra && <Value runId={runId} value={extra} />}
      {serialized && <Value runId={runId} value={serialized} />}
    </>
  );
}

function MetadataTable({ metadata }: { metadata: Record<string, unknown> }) {
  return (
    <dl className="pairs" aria-label="Metadata">
      {Object.entries(metadata).map(([key, value]) => (
        <div key={key}>
          <dt>{key}</dt>
          <dd>{isBranch(value) ? <Json value={value} name={key} open={0} /> : <code>{String(value)}</code>}</dd>
        </div>
      ))}
    </dl>
  );
}

function Events({ runId, values }: { runId: string; values: NonNullable<ReturnType<typeof useValues>["data"]> }) {
  const value = findValue(values, "events");
  const events = readValue(value);
  if (!value || (Array.isArray(events) && events.length === 0)) return <p className="soft">The run has no events.</p>;
  return <Value runId={runId} value={value} />;
}
