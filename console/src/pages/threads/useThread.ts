// Reading one thread. Its status is read often and its values seldom, because they may be large.

import { type UseQueryResult, useQuery } from "@tanstack/react-query";
import { callAgent } from "../../api/agent";
import type { ThreadState as State, Thread } from "../../api/agentServer";
import { ApiError } from "../../api/client";
import { usePreferences } from "../../preferences";
import { useWorkspaceId } from "../../shell/session";

const FIELDS = [
  "thread_id",
  "status",
  "metadata",
  "created_at",
  "updated_at",
  "state_updated_at",
  "interrupts",
] as const;

/** A thread without its values. */
export function useThread(
  deploymentId: string,
  threadId: string | undefined,
  everyMs: number,
): UseQueryResult<Thread, ApiError> {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  return useQuery<Thread, ApiError>({
    queryKey: [workspace, "agent", deploymentId, "thread", threadId],
    queryFn: async ({ signal }) => {
      const body = { ids: [threadId ?? ""], select: [...FIELDS] };
      const [found] = await callAgent(deploymentId, "POST /threads/search", { body }, signal);
      if (!found) throw new ApiError(404, `The agent has no thread ${threadId}.`, [], null);
      return found;
    },
    enabled: threadId !== undefined,
    refetchInterval: isLive ? everyMs : false,
  });
}

/** The state at a checkpoint, or the latest one, read again when the thread has changed. A past state never changes. */
export function useStateAt(
  deploymentId: string,
  threadId: string | undefined,
  checkpoint: string | undefined,
  changedAt: string | undefined,
  isEnabled = true,
): UseQueryResult<State, ApiError> {
  const workspace = useWorkspaceId();

  return useQuery<State, ApiError>({
    queryKey: [workspace, "agent", deploymentId, "state", threadId, checkpoint ?? `latest ${changedAt}`],
    queryFn: ({ signal }) => readState(deploymentId, threadId ?? "", checkpoint, signal),
    enabled: isEnabled && threadId !== undefined,
    ...(checkpoint ? { staleTime: Number.POSITIVE_INFINITY } : {}),
    placeholderData: (last, query) => (query?.queryKey[4] === threadId ? last : undefined),
  });
}

/** Read the state at a checkpoint, or the latest one. Raises ApiError. */
export function readState(
  deploymentId: string,
  threadId: string,
  checkpoint: string | undefined,
  signal?: AbortSignal,
): Promise<State> {
  const path = { thread_id: threadId };
  if (!checkpoint) return callAgent(deploymentId, "GET /threads/{thread_id}/state", { path }, signal);
  const operation = "GET /threads/{thread_id}/state/{checkpoint_id}";
  return callAgent(deploymentId, operation, { path: { ...path, checkpoint_id: checkpoint } }, signal);
}
