// The conversation of a thread, or its state if it has no messages. Below it are the agent's questions and the input.

import { useCallback, useEffect, useRef, useState } from "react";
import type { ApiError } from "../../api/client";
import { Empty } from "../../ui/Empty";
import { Icon } from "../../ui/Icon";
import { Json, summarize } from "../../ui/Json";
import { Problem } from "../../ui/Problem";
import { Status } from "../../ui/Status";
import { hasMessages, type Schema } from "../../ui/schema";
import { isStopped } from "../threads/thread";
import { Composer } from "./Composer";
import { Conversation } from "./Conversation";
import { EditMessage } from "./EditMessage";
import { Interrupts } from "./Interrupts";
import type { Item } from "./messages";
import { RunFooter } from "./RunFooter";
import { humanMessage, type Studio } from "./useStudio";
import { type Beginning, useStudioRuns } from "./useStudioRuns";

const LONG_MS = 8_000;

interface Props extends Beginning {
  inputSchema: Schema | undefined;
  // Whether the checkpoint ends a branch.
  isLeaf: boolean;
  onLatest: () => void;
}

export function StudioMain({ inputSchema, isLeaf, onLatest, ...beginning }: Props) {
  const { threadId, checkpoint, assistant, studio, onStart } = beginning;
  const { state, isRunning, items } = studio;
  const [editing, setEditing] = useState<string | null>(null);

  const runs = useStudioRuns({
    ...beginning,
    onStart: (id) => {
      setEditing(null);
      onStart(id);
    },
  });

  const latest = useRef(runs);
  useEffect(() => {
    latest.current = runs;
  });

  // Stable, so that messages in view are not drawn again with each piece of another one.
  const onEdit = useCallback((item: Item) => setEditing(item.message.id), []);
  const onAgain = useCallback((item: Item) => void latest.current.rerun(item), []);

  // Until the state that a run left has been read, its messages are in no checkpoint that is known here.
  const isSettled = studio.overlay === null;
  const last = items.at(-1)?.message;
  const visibleItems = runs.pending ? [...items, { message: runs.pending, results: new Map() }] : items;
  const edited = items.find((each) => each.message.id === editing);
  const isChat = hasMessages(inputSchema);

  return (
    <div className="studio-main">
      <Conversation
        key={threadId ?? "new"}
        items={visibleItems}
        streaming={isRunning && last?.type === "ai" ? last.id : null}
        onEdit={isSettled && !runs.isStarting ? onEdit : null}
        onAgain={isSettled && !runs.isStarting ? onAgain : null}
        sent={runs.sent}
        empty={<Begin isChat={isChat} threadId={threadId} error={state.error ?? studio.thread.error} />}
      >
        {!isChat && threadId && studio.values !== undefined && (
          <div className="output">
            <h3>State</h3>
            <Json value={studio.values} name="state" open={2} />
          </div>
        )}
        <Progress studio={studio} isStarting={runs.isStarting} />
        <Outcome
          studio={studio}
          onAnswer={(resume) => void runs.start({ command: { resume } })}
          onContinue={checkpoint && !isLeaf ? null : () => void runs.start({ input: null })}
        />
        {!isRunning && threadId && <RunFooter state={state.data} />}
      </Conversation>
      {runs.problem && <Problem error={runs.problem} />}
      {checkpoint && <Elsewhere isLeaf={isLeaf} onBack={onLatest} onRun={() => void runs.start({ input: null })} />}
      {edited ? (
        <EditMessage
          item={edited}
          onCancel={() => setEditing(null)}
          onSend={(text) => void runs.rerun(edited, humanMessage(text, []))}
        />
      ) : (
        <Composer
          key={assistant.graph_id}
          schema={inputSchema}
          isRunning={isRunning || runs.isStarting}
          onSend={(input, said) => runs.send(input, said)}
          onStop={() => void runs.stop()}
        />
      )}
    </div>
  );
}

interface BeginProps {
  isChat: boolean;
  threadId: string | undefined;
  error: ApiError | null;
}

function Begin({ isChat, threadId, error }: BeginProps) {
  if (error) return <Problem error={error} />;
  if (threadId) return null;

  return (
    <Empty title={isChat ? "Say something" : "Fill in the input and run"}>
      The first {isChat ? "message" : "run"} begins a thread. Its address can be sent, and shows the same in every
      browser.
    </Empty>
  );
}

function Progress({ studio, isStarting }: { studio: Studio; isStarting: boolean }) {
  const { live, isRunning } = studio;
  const isWaiting = isStarting || (isRunning && live?.phase === "starting");
  const isLong = useIsLong(isWaiting);

  if (!isStarting && (!live || !isRunning)) return null;
  const running = [...(live?.nodes ?? [])].filter(([, state]) => state === "running").map(([node]) => node);
  const words =
    isWaiting && isLong
      ? "The agent has not answered yet. What you sent is kept here; Stop gives it back to you"
      : isWaiting
        ? "Starts"
        : live?.phase === "reconnecting"
          ? "The connection was lost; it is tried again"
          : running.length > 0
            ? running.join(", ")
            : "Runs";

  const said = isWaiting ? undefined : live?.custom.at(-1);

  return (
    <div className="run-progress" role="status">
      <Status tone="busy" word={words} />
      {said !== undefined && <code className="soft">{summarize(said)}</code>}
    </div>
  );
}

// Whether something has been so for longer than an agent needs to wake.
function useIsLong(isSo: boolean): boolean {
  const [isLong, setLong] = useState(false);
  useEffect(() => {
    setLong(false);
    if (!isSo) return;
    const timer = setTimeout(() => setLong(true), LONG_MS);
    return () => clearTimeout(timer);
  }, [isSo]);

  return isLong;
}

interface OutcomeProps {
  studio: Studio;
  onAnswer: (resume: Record<string, unknown>) => void;
  // Absent where another control goes on.
  onContinue: (() => void) | null;
}

// How the last run ended: what failed, and what it asks.
function Outcome({ studio: { state, live, isRunning }, onAnswer, onContinue }: OutcomeProps) {
  const failed = isRunning ? [] : (state.data?.tasks ?? []).filter((task) => task.error);
  const interrupts = isRunning ? [] : (state.data?.interrupts ?? []);
  const next = isRunning ? [] : (state.data?.next ?? []);
  const isPaused = next.length > 0 && interrupts.length === 0;

  return (
    <>
      {failed.map((task) =>
        isStopped(task.error) ? (
          <p key={task.id} className="soft" role="status">
            {task.name} was stopped. What it had written is not part of the thread.
          </p>
        ) : (
          <p key={task.id} className="notice">
            {task.name}: {task.error}
          </p>
        ),
      )}
      {isPaused && onContinue && (
        <p className="row">
          {failed.length === 0 && <span className="soft">Paused before {next.join(", ")}.</span>}
          <button type="button" className="button" onClick={onContinue}>
            <Icon name="play" /> {failed.length === 0 ? "Continue" : "Try again"}
          </button>
        </p>
      )}
      {live?.error && failed.length === 0 && <Problem error={live.error} />}
      {interrupts.length > 0 && (
        <Interrupts
          key={interrupts.map((each) => each.id).join(" ")}
          interrupts={interrupts}
          isSending={isRunning}
          onAnswer={onAnswer}
        />
      )}
    </>
  );
}

function Elsewhere({ isLeaf, onBack, onRun }: { isLeaf: boolean; onBack: () => void; onRun: () => void }) {
  return (
    <div className="elsewhere" role="status">
      <span>
        {isLeaf
          ? "You look at another branch. What you send goes on there."
          : "You look at an earlier checkpoint. What you send begins a new branch here."}
      </span>
      {!isLeaf && (
        <button type="button" className="button" onClick={onRun}>
          <Icon name="play" /> Run again from here
        </button>
      )}
      <button type="button" className="link" onClick={onBack}>
        Back to the latest
      </button>
    </div>
  );
}
