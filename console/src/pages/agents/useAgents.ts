import { useMemo } from "react";
import type { ApiError } from "../../api/client";
import type { Deployment } from "../../api/platform";
import { OWN_ID, ownAgent } from "../../api/server";
import { useMay, useSession } from "../../shell/session";
import { nameOf } from "../deployments/deployment";
import { useDeployments } from "../deployments/useDeployments";
import { refusalOf } from "./access";

export interface Agent {
  id: string;
  name: string;
  // An agent that may sleep is not asked again and again, which would keep it awake.
  maySleep: boolean;
  isAsleep: boolean;
}

interface RefusedAgent extends Agent {
  reason: string;
}

interface Agents {
  // Those that the session may call; undefined until they are known.
  agents: Agent[] | undefined;
  refused: RefusedAgent[];
  error: ApiError | null;
}

const OWN: Agent[] = [{ id: OWN_ID, name: "this agent", maySleep: false, isAsleep: false }];

/** The agents that serve: deployments with an active revision, or the one agent without a platform. */
export function useAgents(): Agents {
  const { identity } = useSession();
  const mayRead = useMay("deployments:read");
  const found = useDeployments({ enabled: mayRead, everyMs: 60_000 });

  const known = useMemo(() => {
    if (ownAgent !== null) return { agents: OWN, refused: [] };
    const refused: RefusedAgent[] = [];
    const agents: Agent[] = [];
    for (const each of found.data ?? []) {
      if (each.active_revision_id === null) continue;
      const agent = {
        id: each.id,
        name: nameOf(each),
        maySleep: each.sleep_after_s > 0,
        isAsleep: each.is_asleep,
      };

      const reason = refusalOf(identity, each.agent_access);
      if (reason === null) agents.push(agent);
      else refused.push({ ...agent, reason });
    }

    return { agents: found.data || !mayRead ? agents : undefined, refused };
  }, [found.data, identity, mayRead]);

  return { ...known, error: found.error };
}

/** Whether the platform gives the session a token for the agent of a deployment. */
export function useMayCall(deployment: Deployment | undefined): boolean {
  const { identity } = useSession();
  return deployment !== undefined && refusalOf(identity, deployment.agent_access) === null;
}
