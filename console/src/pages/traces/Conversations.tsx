// The conversations of a project: its traces by the thread that they belong to, the last active first.

import { Link, useNavigate } from "@tanstack/react-router";
import { useMemo } from "react";
import { call } from "../../api/client";
import { useCursorPages } from "../../api/pages";
import type { TracedThread } from "../../api/platform";
import { Empty, NoMatch } from "../../ui/Empty";
import { compact, cost, count } from "../../ui/format";
import type { Column } from "../../ui/List";
import { PagedList } from "../../ui/PagedList";
import { Ago, duration } from "../../ui/Time";
import { FILTER_FIELDS, type Filters, NO_FILTERS } from "./fields";
import { runsFilter } from "./filters";
import { previewText } from "./runs";

const PAGE = 50;
const EVERY_MS = 10_000;

interface Props {
  projectId: string;
  filters: Filters;
  onFilter: (changes: Filters) => void;
}

export function Conversations({ projectId, filters, onFilter }: Props) {
  const navigate = useNavigate();
  const threads = useThreads(projectId, filters);
  const columns = useMemo(() => getColumns(projectId), [projectId]);

  const isFiltered = FILTER_FIELDS.some((field) => filters[field]);

  return (
    <PagedList
      listing={threads}
      label="Conversations"
      columns={columns}
      getKey={(thread) => thread.thread_id}
      onOpen={(thread) =>
        void navigate({
          to: "/traces/$projectId/threads/$threadId",
          params: { projectId, threadId: thread.thread_id },
        })
      }
      empty={
        isFiltered ? (
          <NoMatch title="No conversation matches" clear="Remove all filters" onClear={() => onFilter(NO_FILTERS)} />
        ) : (
          <Empty title="No conversations yet">
            Traces whose metadata has a <code>thread_id</code> (or <code>session_id</code>, <code>conversation_id</code>
            ) are turns of one conversation. Agents that run on threads set it by themselves.
          </Empty>
        )
      }
    />
  );
}

function useThreads(projectId: string, filters: Filters) {
  return useCursorPages(
    ["conversations", projectId, filters],
    (cursor, signal) => {
      const body = { project_id: projectId, ...runsFilter(filters, Date.now(), true), page_size: PAGE, cursor };
      return call("POST /v2/threads/query", { body }, signal);
    },
    { everyMs: EVERY_MS, keep: true },
  );
}

function getColumns(projectId: string): Column<TracedThread>[] {
  return [
    {
      title: "Thread",
      width: "minmax(110px, 0.7fr)",
      show: (thread) => (
        <Link
          to="/traces/$projectId/threads/$threadId"
          params={{ projectId, threadId: thread.thread_id }}
          className="name"
          title={thread.thread_id}
        >
          {thread.thread_id.length > 24 ? thread.thread_id.slice(-8) : thread.thread_id}
        </Link>
      ),
    },
    {
      title: "First input",
      width: "minmax(120px, 1.4fr)",
      show: (thread) => <span title={thread.first_inputs ?? ""}>{previewText(thread.first_inputs)}</span>,
      isExtra: true,
    },
    {
      title: "Last output",
      width: "minmax(120px, 1.4fr)",
      show: (thread) =>
        thread.last_error && (thread.last_outputs ?? "{}") === "{}" ? (
          <span className="bad-text">{thread.last_error}</span>
        ) : (
          <span title={thread.last_outputs ?? ""}>{previewText(thread.last_outputs)}</span>
        ),
      isExtra: true,
    },
    { title: "Turns", width: "56px", show: (thread) => count(thread.count), isNumber: true },
    {
      title: "Failed",
      width: "56px",
      show: (thread) => (thread.num_errored_turns ? <span className="bad-text">{thread.num_errored_turns}</span> : "–"),
      isNumber: true,
      isExtra: true,
    },
    {
      title: "Latency p50",
      width: "88px",
      show: (thread) => (thread.latency_p50 === null ? "–" : duration(thread.latency_p50 * 1000)),
      isNumber: true,
      isExtra: true,
    },
    { title: "Tokens", width: "64px", show: (thread) => compact(thread.total_tokens), isNumber: true, isExtra: true },
    { title: "Cost", width: "72px", show: (thread) => cost(thread.total_cost), isNumber: true, isExtra: true },
    { title: "Last turn", width: "72px", show: (thread) => <Ago at={thread.max_start_time} />, isNumber: true },
  ];
}
