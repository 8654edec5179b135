import { Link } from "@tanstack/react-router";
import { useAgentApi } from "../../api/agentQueries";
import type { Assistant } from "../../api/agentServer";
import { Icon } from "../../ui/Icon";
import { contentText } from "../threads/thread";

const RECENT = 20;

interface Props {
  deploymentId: string;
  assistants: Assistant[];
  assistant: Assistant;
  threadId: string | undefined;
  branch: { leaves: string[]; index: number };
  onShow: (changes: Record<string, string | undefined>) => void;
}

export function StudioHead({ deploymentId, assistants, assistant, threadId, branch, onShow }: Props) {
  const recent = useAgentApi(
    deploymentId,
    "POST /threads/search",
    {
      body: {
        limit: RECENT,
        sort_by: "updated_at",
        select: ["thread_id", "status", "metadata"],
        extract: { first: "values.messages[0].content" },
      },
    },
    { everyMs: 10_000 },
  ).data;

  const threads = recent ?? [];

  // A thread is shown with the assistant that ran on it.
  const open = (id: string) => {
    const ran = threads.find((each) => each.thread_id === id)?.metadata?.assistant_id;
    onShow({ thread: id || undefined, checkpoint: undefined, ...(ran ? { assistant: String(ran) } : {}) });
  };

  const { leaves, index } = branch;

  const go = (step: number) => {
    const leaf = leaves[index + step];
    if (leaf) onShow({ checkpoint: index + step === leaves.length - 1 ? undefined : leaf });
  };

  return (
    <div className="studio-head">
      <select
        aria-label="Assistant"
        value={assistant.assistant_id}
        onChange={(event) => onShow({ assistant: event.target.value, thread: undefined, checkpoint: undefined })}
      >
        {assistants.map((each) => (
          <option key={each.assistant_id} value={each.assistant_id}>
            {each.name === each.graph_id ? each.name : `${each.name} (${each.graph_id})`}
          </option>
        ))}
      </select>
      <select aria-label="Thread" value={threadId ?? ""} onChange={(event) => open(event.target.value)}>
        <option value="">New thread</option>
        {threadId && !threads.some((each) => each.thread_id === threadId) && (
          <option value={threadId}>{threadId.slice(-8)}</option>
        )}
        {threads.map((each) => (
          <option key={each.thread_id} value={each.thread_id}>
            {each.thread_id?.slice(-8)} {contentText(each.extracted?.first).slice(0, 40)}
          </option>
        ))}
      </select>
      {threadId && (
        <>
          <button type="button" className="button" onClick={() => onShow({ thread: undefined, checkpoint: undefined })}>
            <Icon name="plus" /> New
          </button>
          <Link to="/agents/$deploymentId/threads/$threadId" params={{ deploymentId, threadId }} className="text">
            Checkpoints
          </Link>
        </>
      )}
      {leaves.length > 1 && index >= 0 && (
        <span className="branches">
          <button
            type="button"
            className="copy"
            aria-label="Earlier branch"
            disabled={index === 0}
            onClick={() => go(-1)}
          >
            <Icon name="left" />
          </button>
          Branch {index + 1} of {leaves.length}
          <button
            type="button"
            className="copy"
            aria-label="Later branch"
            disabled={index === leaves.length - 1}
            onClick={() => go(1)}
          >
            <Icon name="right" />
          </button>
        </span>
      )}
    </div>
  );
}
