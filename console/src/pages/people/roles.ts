import type { Role } from "../../api/platform";
import { useApi } from "../../api/queries";
import { covers, useMay, useSession } from "../../shell/session";

export interface Roles {
  organization: Role[];
  workspace: Role[];
}

/** All roles. A session that may not read the organization gets none. */
export function useRoles(): Roles {
  const isReadable = useMay("organization:read");
  const roles = useApi("GET /orgs/current/roles", {}, { enabled: isReadable }).data ?? [];

  return {
    organization: roles.filter((each) => each.access_scope === "organization"),
    workspace: roles.filter((each) => each.access_scope === "workspace"),
  };
}

/** Those of the roles that the caller may give and take: the ones that permit no more than the caller may do. */
export function useGrantable(roles: Role[]): Role[] {
  const { permissions } = useSession().identity;
  return roles.filter((role) => role.permissions.every((permission) => covers(permissions, permission)));
}
