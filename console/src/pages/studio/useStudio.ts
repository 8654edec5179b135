// What the studio shows of one thread: its state, with what a run that is under way adds to it.

import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useRef } from "react";
import { callAgent } from "../../api/agent";
import { useAgentApi } from "../../api/agentQueries";
import type { ListedRun, RunCreate, ThreadState } from "../../api/agentServer";
import type { ApiError } from "../../api/client";
import { useWorkspaceId } from "../../shell/session";
import { useStateAt, useThread } from "../threads/useThread";
import { getLeaf, readTree, type Tree } from "./branches";
import { type Live, randomId, useFollower } from "./follow";
import { getMessages, type Item, type Message, toItems } from "./messages";

export const THREAD_EVERY_MS = 1_500;
// From a state of this size on, runs do not stream the whole of it after each step.
const LARGE_MESSAGES = 300;

export function useStudio(deploymentId: string, threadId: string | undefined, checkpoint: string | undefined) {
  const workspace = useWorkspaceId();
  const { follower, live: any } = useFollower(deploymentId, workspace, useQueryClient());

  const live = any && any.threadId === threadId ? any : null;
  const thread = useThread(deploymentId, threadId, THREAD_EVERY_MS);

  const changedAt = thread.data?.updated_at;
  const state = useStateAt(deploymentId, threadId, checkpoint, changedAt, changedAt !== undefined);

  const isRunning = live !== null && live.phase !== "ended";
  useRunsOfOthers(deploymentId, threadId, thread.data?.status === "busy" && !isRunning, live, (runId) => {
    if (threadId) follower.follow(threadId, runId);
  });

  // Until the state that a run left has been read, what the run streamed is newer.
  const overlay = live && (isRunning || state.dataUpdatedAt <= live.endedAt || state.isPlaceholderData) ? live : null;
  const values = overlay?.values ?? state.data?.values;
  const broken = !overlay && live && isBroken(live, state.data) ? live : null;

  const messages = useMemo(() => {
    const current = merge(getMessages(values), overlay);
    return broken ? [...current, ...getUnsaved(broken, current)] : current;
  }, [values, overlay, broken]);

  const items = useItems(messages);
  const tree = useTree(deploymentId, threadId, changedAt);

  return { follower, live, overlay, thread, state, isRunning, values, items, tree };
}

// Items of messages that have not changed stay the same objects, so that only what is written is drawn again.
function useItems(messages: Message[]): Item[] {
  const cache = useRef(new Map<string, Item>());

  return useMemo(() => {
    const items = toItems(messages).map((item) => {
      const old = cache.current.get(item.message.id);
      return old && isSame(old, item) ? old : item;
    });

    cache.current = new Map(items.map((item) => [item.message.id, item]));
    return items;
  }, [messages]);
}

function isSame(one: Item, other: Item): boolean {
  if (one.message.content !== other.message.content || one.message.type !== other.message.type) return false;
  if (one.message.isUnsaved !== other.message.isUnsaved) return false;
  if (one.message.tool_calls?.length || other.message.tool_calls?.length) return false;
  return typeof one.message.content === "string";
}

export type Studio = ReturnType<typeof useStudio>;

// A run that this page has not started: of another tab, another client, or of this page before it was loaded again.
function useRunsOfOthers(
  deploymentId: string,
  threadId: string | undefined,
  isBusy: boolean,
  live: Live | null,
  follow: (runId: string) => void,
) {
  const runs = useAgentApi(
    deploymentId,
    "GET /threads/{thread_id}/runs",
    { path: { thread_id: threadId ?? "" }, query: { limit: 10 } },
    { enabled: isBusy && threadId !== undefined, everyMs: THREAD_EVERY_MS },
  );

  const latest = useRef(follow);
  useEffect(() => {
    latest.current = follow;
  });

  const runId = isBusy ? underWay(runs.data ?? []) : undefined;
  const liveId = live?.runId;
  useEffect(() => {
    if (runId && runId !== liveId) latest.current(runId);
  }, [runId, liveId]);
}

function underWay(runs: ListedRun[]): string | undefined {
  return (runs.find((run) => run.status === "running") ?? runs.findLast((run) => run.status === "pending"))?.run_id;
}

// Whether a run was stopped or failed, so that what it has streamed last is in no checkpoint.
function isBroken(live: Live, state: ThreadState | undefined): boolean {
  return live.error !== null || (state?.tasks ?? []).some((task) => task.error);
}

// What people have read of a run that was broken off stays on the page, marked as no part of the thread.
function getUnsaved(live: Live, messages: Message[]): Message[] {
  const ids = new Set(messages.map((each) => each.id));
  const unsaved = [...live.messages.values()].filter((each) => !ids.has(each.id) && each.type !== "tool");
  return unsaved.map((each) => ({ ...each, isUnsaved: true }));
}

function merge(base: Message[], overlay: Live | null): Message[] {
  if (!overlay || overlay.messages.size === 0) return base;
  const ids = new Set(base.map((each) => each.id));
  const messages = overlay.values === undefined ? base.map((each) => overlay.messages.get(each.id) ?? each) : [...base];
  for (const [id, message] of overlay.messages) if (!ids.has(id)) messages.push(message);
  return messages;
}

function useTree(deploymentId: string, threadId: string | undefined, changedAt: string | undefined) {
  const workspace = useWorkspaceId();

  return useQuery<Tree, ApiError>({
    queryKey: [workspace, "agent", deploymentId, "tree", threadId, changedAt],
    queryFn: ({ signal }) => readTree(deploymentId, threadId ?? "", signal),
    enabled: threadId !== undefined && changedAt !== undefined,
    placeholderData: (last, query) => (query?.queryKey[4] === threadId ? last : undefined),
  }).data;
}

/** The branches of the thread, and which one is shown. */
export function getBranch(studio: Studio, checkpoint: string | undefined) {
  const leaves = studio.tree?.leaves ?? [];
  const current = checkpoint ?? studio.state.data?.checkpoint?.checkpoint_id ?? "";
  const leaf = studio.tree && current ? getLeaf(studio.tree, current) : undefined;
  return { leaves, index: leaf ? leaves.indexOf(leaf) : -1, isLeaf: leaf === current };
}

/** The part of every run of the studio: it can be followed again, by anybody, with all its events. */
export function runOptions(messageCount: number): Omit<RunCreate, "assistant_id"> {
  const isLarge = messageCount > LARGE_MESSAGES;

  return {
    stream_mode: ["messages-tuple", "updates", "custom", ...(isLarge ? [] : (["values", "tasks"] as const))],
    stream_subgraphs: true,
    stream_resumable: true,
    on_disconnect: "continue",
  };
}

/** A message of a person, with images as blocks. */
export function humanMessage(text: string, images: string[]): Message {
  const blocks = images.map((url) => ({ type: "image_url", image_url: { url } }));

  return {
    id: randomId(),
    type: "human",
    content: images.length > 0 ? [...(text ? [{ type: "text", text }] : []), ...blocks] : text,
  };
}

export async function createThread(deploymentId: string, signal: AbortSignal): Promise<string> {
  const thread = await callAgent(deploymentId, "POST /threads", { body: {} }, signal);
  return thread.thread_id ?? "";
}
