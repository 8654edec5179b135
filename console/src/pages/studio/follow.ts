// Follows the events of a run as it happens. After a lost connection, a refresh or a restart of the server, reading
// goes on after the last event that came, so that nothing is lost and nothing comes twice.

import type { QueryClient } from "@tanstack/react-query";
import { useEffect, useMemo, useSyncExternalStore } from "react";
import { callAgent, type StreamEvent, type StreamOptions, streamAgent } from "../../api/agent";
import type { RunCreate } from "../../api/agentServer";
import { ApiError } from "../../api/client";
import { isBranch } from "../../ui/Json";
import { addChunk, getMessages, type Message } from "./messages";

export type NodeState = "running" | "done" | "failed" | "waiting";

export interface Live {
  threadId: string;
  runId: string | null;
  phase: "starting" | "running" | "reconnecting" | "ended";
  // The latest whole state, if the run streams it.
  values: unknown;
  // Streamed messages by id, in their order.
  messages: Map<string, Message>;
  nodes: Map<string, NodeState>;
  // The latest events that nodes wrote themselves.
  custom: unknown[];
  error: ApiError | null;
  endedAt: number;
}

const SHOW_EVERY_MS = 50;
const LONGEST_PAUSE_MS = 10_000;
const KEPT_CUSTOM = 20;
const REPLAY_ALL = "-1";

class RunFollower {
  private readonly deploymentId: string;
  private live: Live | null = null;
  private shown: Live | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private reading: AbortController | null = null;
  private readonly listeners = new Set<() => void>();
  private onTaken: (isTaken: boolean) => void = () => {};
  onEnd: (threadId: string) => void = () => {};

  constructor(deploymentId: string) {
    this.deploymentId = deploymentId;
  }

  readonly subscribe = (listener: () => void) => {
    this.listeners.add(listener);
    return () => {
      this.listeners.delete(listener);
    };
  };

  readonly snapshot = () => this.shown;

  /**
   * Start a run and follow it. `pending` is the message that is shown until the run has it, and `base` the state from
   * which the run begins, if that is not the one that is shown. Returns whether the agent has taken the run.
   */
  async start(threadId: string, body: RunCreate, pending?: Message, base?: unknown): Promise<boolean> {
    const live = this.begin(threadId, null);
    live.values = base;
    if (pending) live.messages.set(pending.id, pending);
    const key = randomId();

    const open = (options: StreamOptions) =>
      streamAgent(
        this.deploymentId,
        "POST /threads/{thread_id}/runs/stream",
        { path: { thread_id: threadId }, body },
        { ...options, idempotencyKey: key },
      );

    const isTaken = new Promise<boolean>((resolve) => {
      this.onTaken = resolve;
    });
    void this.read(live, open);
    if (await isTaken) return true;

    // The message is in no run: it goes back to who wrote it.
    if (pending) live.messages.delete(pending.id);
    if (this.live === live) this.show();
    return false;
  }

  /** Stop waiting for an agent that has not taken the run. */
  giveUp() {
    this.reading?.abort();
    if (this.live && this.live.runId === null) this.end(this.live, null);
  }

  /** Follow a run that somebody else started, or this page before it was loaded again. */
  follow(threadId: string, runId: string) {
    if (this.live?.runId === runId && this.live.phase !== "ended") return;
    void this.read(this.begin(threadId, runId), null);
  }

  /** Stop reading; the run goes on. */
  close() {
    this.onTaken(false);
    this.reading?.abort();
    this.reading = null;
    clearTimeout(this.timer);
    this.timer = undefined;
  }

  private begin(threadId: string, runId: string | null): Live {
    this.onTaken(false);
    this.reading?.abort();
    this.reading = new AbortController();

    this.live = {
      threadId,
      runId,
      phase: "starting",
      values: undefined,
      messages: new Map(),
      nodes: new Map(),
      custom: [],
      error: null,
      endedAt: 0,
    };

    this.show();
    return this.live;
  }

  private async read(live: Live, open: ((options: StreamOptions) => AsyncIterable<StreamEvent>) | null) {
    const signal = this.reading?.signal;
    let lastEventId: string | null = live.runId ? REPLAY_ALL : null;
    let failures = 0;
    while (!signal?.aborted) {
      try {
        const options: StreamOptions = { signal, lastEventId, onOpen: (location) => this.name(live, location) };
        const events = open && !live.runId ? open(options) : this.join(live, options);
        for await (const event of events) {
          if (signal?.aborted) return;
          failures = 0;
          if (event.id) lastEventId = event.id;
          live.phase = "running";
          apply(live, event);
          this.showSoon();
        }

        // A server that stops ends its streams before their runs are over.
        const isUnderWay = await this.isUnderWay(live, signal);
        if (signal?.aborted) return;
        if (!isUnderWay) return this.end(live, null);
      } catch (failure) {
        if (signal?.aborted) return;
        const error = failure instanceof ApiError ? failure : new ApiError(500, String(failure), [], null);
        if (error.status !== 0 && error.status < 502) return this.end(live, error);
      }

      live.phase = "reconnecting";
      this.showSoon();
      await pause(Math.min(500 * 2 ** failures, LONGEST_PAUSE_MS));
      failures += 1;
    }
  }

  private join(live: Live, options: StreamOptions) {
    const path = { thread_id: live.threadId, run_id: live.runId ?? "" };
    return streamAgent(this.deploymentId, "GET /threads/{thread_id}/runs/{run_id}/stream", { path }, options);
  }

  private async isUnderWay(live: Live, signal: AbortSignal | undefined): Promise<boolean> {
    const path = { thread_id: live.threadId, run_id: live.runId ?? "" };
    try {
      const run = await callAgent(this.deploymentId, "GET /threads/{thread_id}/runs/{run_id}", { path }, signal);
      return run.status === "pending" || run.status === "running";
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 404) return false;
      throw failure;
    }
  }

  private name(live: Live, location: string | null) {
    live.runId ??= location?.split("/").at(-1) ?? null;
    this.onTaken(true);
    this.showSoon();
  }

  private end(live: Live, error: ApiError | null) {
    live.phase = "ended";
    live.endedAt = Date.now();
    live.error = error ?? live.error;
    this.onTaken(false);
    for (const [node, state] of live.nodes) if (state === "running") live.nodes.set(node, "waiting");
    this.show();
    this.onEnd(live.threadId);
  }

  private showSoon() {
    this.timer ??= setTimeout(() => this.show(), SHOW_EVERY_MS);
  }

  private show() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.shown = this.live && { ...this.live };
    for (const listener of this.listeners) listener();
  }
}

function apply(live: Live, { event, data }: StreamEvent) {
  const [mode = "", ...namespace] = event.split("|");
  if (mode === "metadata") applyMetadata(live, data);
  else if (mode === "values" && namespace.length === 0) live.values = data;
  else if (mode === "messages") applyMessage(live, data);
  else if (mode === "updates") applyUpdate(live, data);
  else if (mode === "tasks") applyTask(live, namespace, data);
  else if (mode === "custom") live.custom = [...live.custom.slice(1 - KEPT_CUSTOM), data];
  else if (mode === "error") live.error = errorIn(data);
}

// Another attempt at a run begins again at its last checkpoint; what the lost one had streamed since is void.
function applyMetadata(live: Live, data: unknown) {
  const { run_id: runId, attempt } = data as { run_id?: string; attempt?: number };
  live.runId = runId ?? live.runId;
  if (!attempt || attempt < 2) return;
  for (const [id, message] of live.messages) if (message.type !== "human") live.messages.delete(id);
  live.nodes = new Map();
}

function applyMessage(live: Live, data: unknown) {
  const [piece] = data as [Message];
  const id = piece.id ?? `stream-${piece.type}`;
  live.messages.set(id, { ...addChunk(live.messages.get(id), piece), id });
}

// What a node returned is final; it takes the place of what was streamed.
function applyUpdate(live: Live, data: unknown) {
  if (!isBranch(data)) return;

  for (const update of Object.values(data)) {
    for (const message of getMessages(update)) {
      if (message.type !== "remove") live.messages.set(message.id, message);
    }
  }
}

function applyTask(live: Live, namespace: string[], data: unknown) {
  const task = data as { name: string; error?: unknown; interrupts?: unknown[]; result?: unknown };
  const node = [...namespace.map((part) => part.split(":", 1)[0]), task.name].join(":");
  if (!("result" in task) && !("error" in task)) live.nodes.set(node, "running");
  else live.nodes.set(node, task.error ? "failed" : task.interrupts?.length ? "waiting" : "done");

  live.nodes = new Map(live.nodes);
}

function errorIn(data: unknown): ApiError {
  const { error, message } = data as { error?: string; message?: string };
  return new ApiError(500, message ? `${error ?? "Error"}: ${message}` : String(error), [], null);
}

function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** A random id; `crypto.randomUUID` exists only over TLS and on this machine. */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-a${hex.slice(17, 20)}-${hex.slice(20)}`;
}

/** The follower of a page, and what it shows now. When a run has ended, what is known of the agent is read again. */
export function useFollower(deploymentId: string, workspace: string | null, cache: QueryClient) {
  const follower = useMemo(() => {
    const created = new RunFollower(deploymentId);
    created.onEnd = () => void cache.invalidateQueries({ queryKey: [workspace, "agent", deploymentId] });
    return created;
  }, [deploymentId, workspace, cache]);

  const live = useSyncExternalStore(follower.subscribe, follower.snapshot);
  useEffect(() => () => follower.close(), [follower]);
  return { follower, live };
}
