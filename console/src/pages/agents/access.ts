// Which agents a session may open, by what the platform checks when it gives a token.

import type { AgentAccess, Identity } from "../../api/platform";
import { covers } from "../../shell/session";

/** Why the platform gives a session no token for an agent; null if it gives one. The agent may still refuse calls. */
export function getRefusal(identity: Identity, { allow = "workspace", roles = [] }: AgentAccess): string | null {
  if (allow === "none") return "it accepts no keys of the platform, and its own authentication decides who calls it";
  if (identity.user_id === null) return "this is the session of an API key, and only members talk to agents here";

  if (allow === "permission" && !covers(identity.permissions, "deployments:call")) {
    return "its calls need the permission deployments:call, which your role lacks";
  }
  if (allow === "roles" && !roles.some((role) => identity.roles.includes(role))) {
    return `only members with one of these roles may call it: ${roles.join(", ")}`;
  }

  return null;
}
