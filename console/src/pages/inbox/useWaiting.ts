// Threads that wait for a person, of all agents. Several are asked at once, so a slow one does not hold up the rest.

import { useQueries } from "@tanstack/react-query";
import { useMemo } from "react";
import { callAgent } from "../../api/agent";
import type { StateInterrupt, Thread } from "../../api/agentServer";
import { usePreferences } from "../../preferences";
import { useWorkspaceId } from "../../shell/session";
import { type Agent, useAgents } from "../agents/useAgents";

const AT_ONCE = 4;
// Each is a request every few seconds.
const MOST_AGENTS = 200;
export const MOST_THREADS = 25;
const PAGE = 50;
const MOST_PAGES = 6;
const ANSWERS_WITHIN_MS = 10_000;

export interface Waiting {
  agent: Agent;
  thread: Thread;
}

/** Tells questions from one another: a new question of the same thread is another one. */
export function getKey({ agent, thread }: Waiting): string {
  return [agent.id, thread.thread_id, ...getQuestions(thread).map((each) => each.id)].join(" ");
}

/**
 * The waiting threads, longest waits first, and the agents that could not or may not be asked. Agents that sleep are
 * asked, and so woken, only with `isWaking`. `complete` are the agents whose waiting threads are all listed, `notAsked`
 * those beyond the number that is asked.
 */
export function useWaiting(everyMs: number, isWaking = false) {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();
  const { agents, refused } = useAgents();
  const awake = useMemo(() => (agents ?? []).filter((agent) => isWaking || !agent.isAsleep), [agents, isWaking]);
  const agentsToAsk = useMemo(() => awake.slice(0, MOST_AGENTS), [awake]);

  return useQueries({
    queries: agentsToAsk.map((agent) => ({
      queryKey: [workspace, "agent", agent.id, "waiting"],
      queryFn: ({ signal }: { signal: AbortSignal }) => ask(agent, signal),
      refetchInterval: isLive && !agent.maySleep ? everyMs : (false as const),
      staleTime: everyMs / 2,
      retry: false,
    })),
    combine: (results) => ({
      waiting: results
        .flatMap((result, index) => {
          const agent = agentsToAsk[index];
          return agent ? (result.data ?? []).map((thread): Waiting => ({ agent, thread })) : [];
        })
        .sort((one, other) => (one.thread.updated_at ?? "").localeCompare(other.thread.updated_at ?? "")),
      refused,
      notAsked: awake.slice(MOST_AGENTS),
      complete: agentsToAsk
        .filter((_, index) => (results[index]?.data?.length ?? MOST_THREADS) < MOST_THREADS)
        .map((agent) => agent.id),
      asleep: isWaking ? [] : (agents ?? []).filter((agent) => agent.isAsleep),
      silent: agentsToAsk.filter((_, index) => results[index]?.isError),
      isRead: agents !== undefined && results.every((result) => !result.isPending),
    }),
  });
}

// The threads that ask something. One that only stopped before a node, after a fork or at a breakpoint, is interrupted
// too, but asks nothing; pages are read until there are enough that do.
async function ask(agent: Agent, signal: AbortSignal): Promise<Thread[]> {
  const asking: Thread[] = [];
  for (let page = 0; page < MOST_PAGES && asking.length < MOST_THREADS; page += 1) {
    const threads = await inTurn(() => findInterrupted(agent, page * PAGE, signal));
    asking.push(...threads.filter((each) => getQuestions(each).length > 0));
    if (threads.length < PAGE) break;
  }

  return asking.slice(0, MOST_THREADS);
}

function findInterrupted(agent: Agent, offset: number, signal: AbortSignal): Promise<Thread[]> {
  return callAgent(
    agent.id,
    "POST /threads/search",
    {
      body: {
        status: "interrupted",
        limit: PAGE,
        offset,
        sort_by: "updated_at",
        sort_order: "asc",
        select: ["thread_id", "metadata", "interrupts", "updated_at"],
        extract: { last: "values.messages[-1].content" },
      },
    },
    AbortSignal.any([signal, AbortSignal.timeout(ANSWERS_WITHIN_MS)]),
  );
}

let free = AT_ONCE;
const queue: (() => void)[] = [];

async function inTurn<T>(work: () => Promise<T>): Promise<T> {
  if (free > 0) free -= 1;
  else await new Promise<void>((resolve) => queue.push(resolve));

  try {
    return await work();
  } finally {
    const next = queue.shift();
    if (next) next();
    else free += 1;
  }
}

/** The questions of a thread, which the server lists by the tasks that ask them. */
export function getQuestions(thread: Thread): StateInterrupt[] {
  return Object.values(thread.interrupts ?? {})
    .flat()
    .filter((each): each is StateInterrupt => typeof (each as StateInterrupt | null)?.id === "string");
}
