import { useMemo } from "react";
import type { ApiError } from "../../api/client";
import type { Deployment } from "../../api/platform";
import { OWN_ID, ownAgent } from "../../api/server";
import { useMay, useSession } from "../../shell/session";
import { getName } from "../deployments/deployment";
import { useDeployments } from "../deployments/useDeployments";
import { getRefusal } from "./access";

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
  const deployments = useDeployments({ enabled: mayRead, everyMs: 60_000 });

  const groups = useMemo(() => {
    if (ownAgent !== null) return { agents: OWN, refused: [] };
    const refused: RefusedAgent[] = [];
    const agents: Agent[] = [];
    for (const each of deployments.data ?? []) {
      if (each.active_revision_id === null) continue;
      const agent = {
        id: each.id,
        name: getName(each),
        maySleep: each.sleep_after_s > 0,
        isAsleep: each.is_asleep,
      };

      const reason = getRefusal(identity, each.agent_access);
      if (reason === null) agents.push(agent);
      else refused.push({ ...agent, reason });
    }

    return { agents: deployments.data || !mayRead ? agents : undefined, refused };
  }, [deployments.data, identity, mayRead]);

  return { ...groups, error: deployments.error };
}

/** Whether the platform gives the session a token for the agent of a deployment. */
export function useMayCall(deployment: Deployment | undefined): boolean {
  const { identity } = useSession();
  return deployment !== undefined && getRefusal(identity, deployment.agent_access) === null;
}
