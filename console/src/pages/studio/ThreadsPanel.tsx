import { useState } from "react";
import { useAgentApi } from "../../api/agentQueries";
import type { Thread } from "../../api/agentServer";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { SearchField } from "../../ui/SearchField";
import { Ago } from "../../ui/Time";
import { contentText, parseSearch, ThreadState } from "../threads/thread";

const SHOWN = 100;
const EVERY_MS = 10_000;
const SHOWN_CHARS = 120;

interface Props {
  deploymentId: string;
  threadId: string | undefined;
  onOpen: (thread: Thread) => void;
}

// The threads of the agent, last changed first: by ids, metadata and state on the server, by other words among these.
export function ThreadsPanel({ deploymentId, threadId, onOpen }: Props) {
  const [q, setQ] = useState<string>();
  const search = parseSearch(q ?? "");
  const query = useAgentApi(
    deploymentId,
    "POST /threads/search",
    {
      body: {
        ...search,
        limit: SHOWN,
        sort_by: "updated_at",
        select: ["thread_id", "status", "interrupts", "metadata", "updated_at"],
        extract: { first: "values.messages[0].content", last: "values.messages[-1].content" },
      },
    },
    { everyMs: EVERY_MS },
  );

  const words = search === null ? (q ?? "").trim().toLowerCase() : "";
  const threads = (query.data ?? []).filter((each) => getText(each).toLowerCase().includes(words));

  return (
    <div className="stack">
      <SearchField label="Search threads" placeholder="Words, an id, or user=ada" value={q} onChange={setQ} />
      {query.error && !query.data && <Problem error={query.error} retry={() => void query.refetch()} />}
      {query.data && threads.length === 0 && (
        <Empty title="No thread matches">
          Words are looked for in the first and last message of the {SHOWN} threads that changed last.
        </Empty>
      )}
      <ul className="studio-threads" aria-label="Threads">
        {threads.map((each) => (
          <li key={each.thread_id}>
            <button
              type="button"
              aria-current={each.thread_id === threadId ? "true" : undefined}
              onClick={() => onOpen(each)}
            >
              <span dir="auto">
                {contentText(each.extracted?.first).slice(0, SHOWN_CHARS) || each.thread_id?.slice(-8)}
              </span>
              <span className="row spread soft small">
                <ThreadState status={each.status} interrupts={each.interrupts} />
                {each.updated_at && <Ago at={each.updated_at} />}
              </span>
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function getText({ thread_id, extracted }: Thread): string {
  return [thread_id, contentText(extracted?.first), contentText(extracted?.last)].join(" ");
}
