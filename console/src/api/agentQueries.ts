// Reading from agents and changing them through the query cache, as `queries.ts` does for the platform.

import { keepPreviousData, type UseQueryResult, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { usePreferences } from "../preferences";
import { useWorkspaceId } from "../shell/session";
import { type AgentOperation, type AgentOptions, type AgentResponse, callAgent, callAgentPage } from "./agent";
import type { ApiError } from "./client";
import { type Listing, usePages } from "./pages";
import type { Reading } from "./queries";

export function useAgentApi<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  options: AgentOptions<K>,
  reading: Reading = {},
): UseQueryResult<AgentResponse<K>, ApiError> {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  return useQuery<AgentResponse<K>, ApiError>({
    queryKey: [workspace, "agent", deploymentId, operation, options],
    queryFn: ({ signal }) => callAgent(deploymentId, operation, options, signal),
    refetchInterval: isLive && reading.everyMs ? reading.everyMs : false,
    enabled: reading.enabled ?? true,
    ...(reading.keep ? { placeholderData: keepPreviousData } : {}),
  });
}

type RowOf<T> = T extends readonly (infer Row)[] ? Row : never;

/** Read a list page by page; `optionsAt` gives the request of the page that begins at an offset. */
export function useAgentPages<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  optionsAt: (offset: number) => AgentOptions<K>,
  reading: Reading = {},
): Listing<RowOf<AgentResponse<K>>> {
  const source = {
    key: ["agent", deploymentId, "pages", operation, optionsAt(0)],
    first: 0,
    read: async (offset: number, signal: AbortSignal) => {
      const { result, next } = await callAgentPage(deploymentId, operation, optionsAt(offset), signal);
      return { rows: result as RowOf<AgentResponse<K>>[], next };
    },
  };

  return usePages(source, reading);
}

export function useAgentChange<K extends AgentOperation>(
  deploymentId: string,
  operation: K,
  onDone?: (result: AgentResponse<K>) => void,
) {
  const cache = useQueryClient();
  const workspace = useWorkspaceId();

  return useMutation<AgentResponse<K>, ApiError, AgentOptions<K>>({
    mutationFn: (options) => callAgent(deploymentId, operation, options),
    onSuccess: async (result) => {
      onDone?.(result);
      await cache.invalidateQueries({ queryKey: [workspace, "agent", deploymentId] });
    },
  });
}
