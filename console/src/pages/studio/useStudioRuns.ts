// Starting and stopping the runs of the studio's thread.

import { useRef, useState } from "react";
import { callAgent } from "../../api/agent";
import type { Assistant, RunCreate } from "../../api/agentServer";
import { ApiError } from "../../api/client";
import { readState } from "../threads/useThread";
import { checkpointBefore } from "./branches";
import type { Said } from "./Composer";
import type { Item, Message } from "./messages";
import { createThread, humanMessage, runOptions, type Studio } from "./useStudio";

export interface Beginning {
  deploymentId: string;
  assistant: Assistant;
  // A new thread is created if there is none yet.
  threadId: string | undefined;
  // The checkpoint that runs begin at; without one, the latest.
  checkpoint: string | undefined;
  // The context or configuration of runs.
  settings: Partial<RunCreate>;
  studio: Studio;
  onStart: (threadId: string) => void;
}

export function useStudioRuns(beginning: Beginning) {
  const { deploymentId, assistant, threadId, checkpoint, settings, studio, onStart } = beginning;
  const { state, live, items, follower } = studio;
  const [problem, setProblem] = useState<ApiError | null>(null);
  const [sent, setSent] = useState(0);

  // From the click until the run is requested, which can first need a thread or a checkpoint. A second click meanwhile
  // must not start a second run.
  const [isStarting, setStarting] = useState(false);
  const starting = useRef<AbortController | null>(null);

  // What somebody has said, until the agent's thread has it.
  const [pending, setPending] = useState<Message | null>(null);

  const attempt = async <T>(step: () => Promise<T>): Promise<T | undefined> => {
    setProblem(null);

    try {
      return await step();
    } catch (failure) {
      const isGivenUp = failure instanceof Error && failure.name === "AbortError";
      if (!isGivenUp) setProblem(failure instanceof ApiError ? failure : new ApiError(500, String(failure), [], null));
      return undefined;
    }
  };

  // Returns whether the agent has taken the run.
  const startOnce = async (step: (signal: AbortSignal) => Promise<boolean>): Promise<boolean> => {
    if (starting.current) return false;
    const controller = new AbortController();
    starting.current = controller;
    setStarting(true);

    const isTaken = await attempt(() => step(controller.signal));
    starting.current = null;
    setPending(null);
    setStarting(false);

    return isTaken === true;
  };

  const begin = async (
    signal: AbortSignal,
    changes: Partial<RunCreate>,
    message?: Message,
    base?: unknown,
  ): Promise<boolean> => {
    setSent((count) => count + 1);
    setPending(message ?? null);
    const id = threadId ?? (await createThread(deploymentId, signal));
    const from = checkpoint ? fromCheckpoint(checkpoint) : {};
    const options = { ...runOptions(items.length), ...settings, ...from, ...changes };

    const isTaken = follower.start(
      id,
      { assistant_id: assistant.assistant_id, ...options },
      message,
      base ?? (checkpoint ? state.data?.values : undefined),
    );

    setPending(null);
    onStart(id);
    return await isTaken;
  };

  return {
    problem,
    isStarting,
    pending,
    // Counts what was sent.
    sent,
    start: (changes: Partial<RunCreate>) => startOnce((signal) => begin(signal, changes)),
    send: (input: Record<string, unknown>, said: Said | null) => {
      const message = said ? humanMessage(said.text, said.images) : undefined;
      return startOnce((signal) =>
        begin(signal, { input: message ? { ...input, messages: [message] } : input }, message),
      );
    },
    // A run from before a message: with another message in its place, or with the same input again.
    rerun: (item: Item, replacement?: Message) =>
      startOnce(async (signal) => {
        const tip = checkpoint ?? state.data?.checkpoint?.checkpoint_id;
        if (!threadId || !tip) return false;
        const before = await checkpointBefore(deploymentId, threadId, tip, item.message.id);
        if (!before) throw new ApiError(409, "No checkpoint is left from before this message.", [], null);
        const base = (await readState(deploymentId, threadId, before)).values;
        const input = replacement ? { messages: [replacement] } : null;

        return await begin(signal, { ...fromCheckpoint(before), input }, replacement, base ?? {});
      }),
    stop: () =>
      attempt(async () => {
        if (!live?.runId || starting.current) {
          starting.current?.abort();
          follower.giveUp();
          return;
        }

        const path = { thread_id: live.threadId, run_id: live.runId };
        const operation = "POST /threads/{thread_id}/runs/{run_id}/cancel";
        await callAgent(deploymentId, operation, { path, query: { wait: true } });
      }),
  };
}

function fromCheckpoint(id: string): Partial<RunCreate> {
  return { checkpoint: { checkpoint_id: id, checkpoint_ns: "" } };
}
