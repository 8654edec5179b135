import { useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { callAgent } from "../../api/agent";
import { ApiError } from "../../api/client";
import { useKey } from "../../shell/keys";
import { useWorkspaceId } from "../../shell/session";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { Ago } from "../../ui/Time";
import { Interrupts } from "../studio/Interrupts";
import { questionText } from "../studio/interrupts";
import { contentText } from "../threads/thread";
import { NotAsked } from "./NotAsked";
import { getKey, getQuestions, MOST_THREADS, useWaiting, type Waiting } from "./useWaiting";

const inboxRoute = getRouteApi("/inbox");

const EVERY_MS = 15_000;

// Every thread that waits for a person, with its questions. Answered ones stay in place until the page is left.
export function InboxPage() {
  const { thread: opened } = inboxRoute.useSearch();
  const navigate = useNavigate();
  const [isWaking, setWaking] = useState(false);
  const { waiting, complete, silent, refused, notAsked, asleep, isRead } = useWaiting(EVERY_MS, isWaking);
  const [answered, setAnswered] = useState<Set<string>>(new Set());
  const rows = useStable(waiting);

  const show = (id: string | undefined) =>
    void navigate({ to: "/inbox", search: (old) => ({ ...old, thread: id }), replace: true });

  const move = (step: number) => {
    const index = rows.findIndex((each) => each.thread.thread_id === opened);
    const next = rows[Math.min(Math.max(index + step, 0), rows.length - 1)];
    if (next) show(next.thread.thread_id);
  };

  useKey("j", () => move(1));
  useKey("k", () => move(-1));
  const asking = new Set(waiting.map(getKey));

  const getState = (row: Waiting): RowState => {
    if (answered.has(getKey(row))) return "answered";
    return asking.has(getKey(row)) || !complete.includes(row.agent.id) ? "waiting" : "over";
  };

  const left = rows.filter((each) => getState(each) === "waiting").length;

  return (
    <div className="page inbox">
      <div className="head">
        <h1>Inbox</h1>
        {isRead && rows.length > 0 && <span className="soft">{left} waiting, longest first</span>}
      </div>
      <NotAsked refused={refused} notAsked={notAsked} />
      {silent.length > 0 && (
        <p className="soft" role="status">
          {silent.map((each) => each.name).join(", ")}: does not answer or may not be called, so what waits there is not
          shown.
        </p>
      )}
      {asleep.length > 0 && (
        <p className="soft" role="status">
          {asleep.map((each) => each.name).join(", ")}: asleep, so what waits there is not shown.{" "}
          <button type="button" className="link" onClick={() => setWaking(true)}>
            Wake and ask
          </button>
        </p>
      )}
      {isRead && rows.length === 0 && (
        <Empty
          title={
            refused.length + notAsked.length + silent.length + asleep.length > 0
              ? "Nobody waits, as far as you may see"
              : "Nobody waits for you"
          }
        >
          A thread whose agent asks a person (<code>interrupt</code>) is listed here, of whichever agent it is.
        </Empty>
      )}
      <ul className="stack">
        {rows.map((each) => (
          <WaitingThread
            key={getKey(each)}
            waiting={each}
            isOpen={each.thread.thread_id === opened}
            state={getState(each)}
            onToggle={() => show(each.thread.thread_id === opened ? undefined : each.thread.thread_id)}
            onAnswered={() => setAnswered((old) => new Set(old).add(getKey(each)))}
          />
        ))}
      </ul>
      {rows.length >= MOST_THREADS && (
        <p className="soft">Of each agent the {MOST_THREADS} threads that wait longest are shown.</p>
      )}
    </div>
  );
}

// Rows keep their places: what is new comes last, and what is gone stays until the page is left.
function useStable(waiting: Waiting[]): Waiting[] {
  const [rows, setRows] = useState<Waiting[]>([]);
  useEffect(() => {
    setRows((old) => {
      const keys = new Set(old.map(getKey));
      const newRows = waiting.filter((each) => !keys.has(getKey(each)));
      return newRows.length > 0 ? [...old, ...newRows] : old;
    });
  }, [waiting]);

  return rows;
}

// "over" are questions that somebody else answered, or whose thread was deleted.
type RowState = "waiting" | "answered" | "over";

function stateText(state: RowState, questions: number): string {
  if (state === "answered") return "answered";
  if (state === "over") return "no longer waiting";
  return questions === 1 ? "1 question" : `${questions} questions`;
}

interface RowProps {
  waiting: Waiting;
  isOpen: boolean;
  state: RowState;
  onToggle: () => void;
  onAnswered: () => void;
}

function WaitingThread({ waiting, isOpen, state, onToggle, onAnswered }: RowProps) {
  const { agent, thread } = waiting;
  const cache = useQueryClient();
  const workspace = useWorkspaceId();
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [isSending, setSending] = useState(false);

  const questions = getQuestions(thread);
  const threadId = thread.thread_id ?? "";

  const answer = async (resume: Record<string, unknown>) => {
    setSending(true);
    setProblem(null);

    try {
      const assistant = String(thread.metadata?.assistant_id ?? thread.metadata?.graph_id ?? "");
      const body = { assistant_id: assistant, command: { resume }, stream_resumable: true };
      await callAgent(agent.id, "POST /threads/{thread_id}/runs", { path: { thread_id: threadId }, body });
      onAnswered();
      await cache.invalidateQueries({ queryKey: [workspace, "agent", agent.id, "waiting"] });
    } catch (failure) {
      setProblem(failure instanceof ApiError ? failure : new ApiError(500, String(failure), [], null));
    } finally {
      setSending(false);
    }
  };

  const question = questions.map((each) => questionText(each.value)).find(Boolean);
  const last = contentText(thread.extracted?.last).slice(0, 160);

  return (
    <li className={state === "waiting" ? "card waiting" : "card waiting answered"}>
      <div className="waiting-head">
        <button type="button" className="waiting-toggle" aria-expanded={isOpen} onClick={onToggle}>
          <span className="name">{agent.name}</span>
          <span className="waiting-text">
            <strong>{question || "asks a question"}</strong>
            <span className="soft waiting-last">{last || `thread ${threadId.slice(-8)}`}</span>
          </span>
        </button>
        <span className="soft">{stateText(state, questions.length)}</span>
        <span className="soft">{thread.updated_at && <Ago at={thread.updated_at} />}</span>
        <Link
          to="/agents/$deploymentId/studio"
          params={{ deploymentId: agent.id }}
          search={{ thread: threadId, assistant: String(thread.metadata?.assistant_id ?? "") }}
          className="text"
        >
          Studio
        </Link>
      </div>
      {isOpen && state === "waiting" && (
        <div className="card-body">
          {problem && <Problem error={problem} />}
          <Interrupts interrupts={questions} isSending={isSending} onAnswer={(resume) => void answer(resume)} />
        </div>
      )}
    </li>
  );
}
