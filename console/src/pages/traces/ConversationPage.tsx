// One conversation: the turns of a thread with the messages that each one added, and its trace next to it.

import { getRouteApi, Link } from "@tanstack/react-router";
import { useMemo } from "react";
import { useApi } from "../../api/queries";
import { ShortId } from "../../ui/Copy";
import { Empty } from "../../ui/Empty";
import { compact, cost } from "../../ui/format";
import { Icon } from "../../ui/Icon";
import { Problem } from "../../ui/Problem";
import { Ago, duration } from "../../ui/Time";
import { useMayCall } from "../agents/useAgents";
import { Chat } from "../trace/Chat";
import { findMessages } from "../trace/messages";
import { findValue, readValue, useValues, Value } from "../trace/Values";
import { quote } from "./filters";
import { useProjectDeployment } from "./ProjectPage";
import { RunMark } from "./RunMark";
import { EPOCH, type RunRow } from "./runs";
import { useRunPages } from "./useRunPages";

const conversationRoute = getRouteApi("/traces/$projectId/threads/$threadId");

const PAGE = 20;
const EVERY_MS = 5_000;

export function ConversationPage() {
  const { projectId, threadId } = conversationRoute.useParams();
  const listing = useRunPages(
    ["turns", projectId, threadId],
    () => ({
      project_ids: [projectId],
      is_root: true,
      filter: `eq(thread_id, ${quote(threadId)})`,
      min_start_time: EPOCH,
      include_subtree_usage: true,
      page_size: PAGE,
    }),
    { everyMs: EVERY_MS },
  );

  const project = useApi("GET /sessions/{session_id}", { path: { session_id: projectId } }).data;
  const deployment = useProjectDeployment(projectId);
  const mayCall = useMayCall(deployment);
  const turns = useMemo(() => listing.rows.toReversed(), [listing.rows]);

  return (
    <div className="page conversation">
      <div className="head">
        <div className="row">
          <h1>Conversation</h1>
          <ShortId id={threadId} what="id of the thread" />
        </div>
        {deployment && mayCall && (
          <Link
            className="button"
            to="/agents/$deploymentId/threads/$threadId"
            params={{ deploymentId: deployment.id, threadId }}
          >
            <Icon name="agents" />
            Thread of {deployment.display_name ?? deployment.name}
          </Link>
        )}
      </div>
      {listing.error && <Problem error={listing.error} retry={listing.retry} />}
      {listing.isRead && turns.length === 0 && (
        <Empty title="This conversation has no trace here">
          Its traces may have expired, or belong to another project than {project?.name ?? "this one"}.
        </Empty>
      )}
      {listing.hasMore && (
        <div>
          <button type="button" className="button" disabled={listing.isReadingMore} onClick={listing.loadMore}>
            Earlier turns
          </button>
        </div>
      )}
      <ol className="turns" aria-label="Turns">
        {turns.map((turn, index) => (
          <Turn key={turn.id} turn={turn} projectId={projectId} before={turns[index - 1]?.id} />
        ))}
      </ol>
    </div>
  );
}

interface TurnProps {
  turn: RunRow;
  projectId: string;
  before: string | undefined;
}

function Turn({ turn, projectId, before }: TurnProps) {
  return (
    <li className="turn card">
      <div className="card-head">
        <span className="row">
          <RunMark status={turn.status} />
          <Link
            to="/traces/$projectId/$traceId"
            params={{ projectId, traceId: turn.trace_id }}
            search={{}}
            className="name"
          >
            {turn.name}
          </Link>
          <span className="soft">
            <Ago at={turn.start_time} />
          </span>
        </span>
        <span className="soft number">
          {turn.latency_seconds === null ? "running" : duration(turn.latency_seconds * 1000)}
          {turn.total_tokens > 0 && ` · ${compact(turn.total_tokens)} tokens`}
          {turn.total_cost !== null && ` · ${cost(turn.total_cost)}`}
        </span>
      </div>
      <div className="card-body">
        <TurnMessages turn={turn} before={before} />
      </div>
    </li>
  );
}

// The state of a thread holds all its messages; a turn shows those that it added.
function TurnMessages({ turn, before }: { turn: RunRow; before: string | undefined }) {
  const values = useValues(turn.id, turn.status === "PENDING");
  const previous = useValues(before ?? turn.id).data;

  if (values.error) return <Problem error={values.error} />;
  if (!values.data) return <p className="soft">…</p>;
  const inputs = findMessages(readValue(findValue(values.data, "inputs"))) ?? [];
  const outputs = findMessages(readValue(findValue(values.data, "outputs"))) ?? [];
  const old = before ? (findMessages(readValue(findValue(previous, "outputs"))) ?? []).length : 0;
  const isState = outputs.length > inputs.length && old > 0 && outputs.length > old;
  const messages = isState ? outputs.slice(old) : outputs.length > 1 ? outputs : [...inputs, ...outputs];

  const error = findValue(values.data, "error");
  if (messages.length > 0) {
    return (
      <>
        <Chat messages={messages} />
        {error && <Value runId={turn.id} value={error} />}
      </>
    );
  }

  return (
    <>
      {["error", "inputs", "outputs"].map((name) => {
        const value = findValue(values.data, name);
        return value && <Value key={name} runId={turn.id} value={value} />;
      })}
    </>
  );
}
