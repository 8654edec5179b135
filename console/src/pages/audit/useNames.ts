import { useMemo } from "react";
import { useApi } from "../../api/queries";
import { useMay, useSession } from "../../shell/session";
import { getName } from "../deployments/deployment";
import type { Names } from "./names";

/** The names of deployments, members, keys and workspaces by their ids. What this person may not list has none. */
export function useNames(): Names {
  const deployments = useApi("GET /v2/deployments", { query: { limit: 100 } }, { enabled: useMay("deployments:read") });
  const members = useApi("GET /orgs/current/members", {}, { enabled: useMay("organization:read") });
  const keys = useApi("GET /api-key", {}, { enabled: useMay("workspaces:read") });
  const { workspaces } = useSession();

  return useMemo(
    () =>
      new Map([
        ...(deployments.data?.resources ?? []).map((each) => [each.id, getName(each)] as const),
        ...(members.data ?? []).map((each) => [each.user_id, each.email] as const),
        ...(keys.data ?? []).map((each) => [each.id, each.description] as const),
        ...workspaces.map((each) => [each.id, each.display_name] as const),
      ]),
    [deployments.data, members.data, keys.data, workspaces],
  );
}
