// All deployments of the workspace, read page by page: what one page alone would leave out is missed without a word.

import { type UseQueryResult, useQuery } from "@tanstack/react-query";
import { type ApiError, call } from "../../api/client";
import type { Deployment } from "../../api/platform";
import type { Reading } from "../../api/queries";
import { usePreferences } from "../../preferences";
import { useWorkspaceId } from "../../shell/session";

const PAGE = 100;
const OPERATION = "GET /v2/deployments";

export function useDeployments(reading: Reading = {}): UseQueryResult<Deployment[], ApiError> {
  const workspace = useWorkspaceId();
  const { isLive } = usePreferences();

  return useQuery<Deployment[], ApiError>({
    queryKey: [workspace, OPERATION, "all"],
    queryFn: ({ signal }) => readAll(signal),
    refetchInterval: isLive && reading.everyMs ? reading.everyMs : false,
    enabled: reading.enabled ?? true,
  });
}

async function readAll(signal: AbortSignal): Promise<Deployment[]> {
  // A deployment that is made meanwhile moves the others by one, so that one may come twice.
  const deployments = new Map<string, Deployment>();
  for (let offset = 0; ; offset += PAGE) {
    const { resources } = await call(OPERATION, { query: { limit: PAGE, offset } }, signal);
    for (const each of resources) deployments.set(each.id, each);
    if (resources.length < PAGE) return [...deployments.values()];
  }
}
