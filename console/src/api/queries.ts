// Reading and changing through the query cache. Every key begins with the workspace, so that workspaces never mix.

import { keepPreviousData, type UseQueryResult, useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { usePreferences } from "../preferences";
import { useWorkspaceId } from "../shell/session";
import { type ApiError, call, type Operation, type Options } from "./client";
import type { Operations } from "./platform";

export interface Reading {
  // How often a live page reads again, in milliseconds; without it the page reads once, and when it is shown again.
  everyMs?: number | false;
  enabled?: boolean;
  // Shows the last content of another key (another search, another page) until the new one is there.
  keep?: boolean;
}

export function useApi<K extends Operation>(
  operation: K,
  options: Options<K>,
  reading: Reading = {},
): UseQueryResult<Operations[K]["response"], ApiError> {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  return useQuery<Operations[K]["response"], ApiError>({
    queryKey: [workspace, operation, options],
    queryFn: ({ signal }) => call(operation, options, signal),
    refetchInterval: isLive && reading.everyMs ? reading.everyMs : false,
    enabled: reading.enabled ?? true,
    ...(reading.keep ? { placeholderData: keepPreviousData } : {}),
  });
}

export function useChange<K extends Operation>(operation: K, onDone?: (result: Operations[K]["response"]) => void) {
  const cache = useQueryClient();

  return useMutation<Operations[K]["response"], ApiError, Options<K>>({
    mutationFn: (options) => call(operation, options),
    onSuccess: async (result) => {
      // A change may show in any list; what is on the screen is read again at once.
      onDone?.(result);
      await cache.invalidateQueries();
    },
  });
}
