import { useQueryClient } from "@tanstack/react-query";
import { getRouteApi, Link, Outlet, useMatches, useNavigate } from "@tanstack/react-router";
import { useEffect } from "react";
import { ownToken, setOwnToken } from "../../api/agent";
import { ownAgent } from "../../api/server";
import { setPreferences } from "../../preferences";
import { useTyped } from "../../ui/useTyped";
import { NotCallable } from "./NotCallable";
import { useAgents } from "./useAgents";

const agentRoute = getRouteApi("/agents/$deploymentId");

// The pages of one agent. Each has an address below /agents/ID, so the switch can change the agent and keep the page.
const PARTS = [
  { to: "/agents/$deploymentId/studio", title: "Studio" },
  { to: "/agents/$deploymentId/threads", title: "Threads" },
  { to: "/agents/$deploymentId/queue", title: "Queue" },
  { to: "/agents/$deploymentId/crons", title: "Crons" },
  { to: "/agents/$deploymentId/store", title: "Store" },
] as const;

// The page of one thread has a heading of its own.
const HAS_HEADING = "/agents/$deploymentId/threads/$threadId";

function partAt(path: string) {
  return PARTS.find((part) => path.startsWith(part.to)) ?? PARTS[0];
}

export function AgentLayout() {
  const { deploymentId } = agentRoute.useParams();
  const path = useMatches().at(-1)?.fullPath ?? "";
  const { agents, refused, error } = useAgents();

  const reason = refused.find((each) => each.id === deploymentId)?.reason;
  useEffect(() => setPreferences({ agent: deploymentId }), [deploymentId]);
  if (reason) return <NotCallable reason={reason} deploymentId={deploymentId} />;

  // No page sends requests to the agent before it is known whether the platform would refuse them.
  if (!agents && !error) return null;

  return (
    <div className="agent">
      {path !== HAS_HEADING && (
        <h1 className="hidden">
          {partAt(path).title} of {agents?.find((each) => each.id === deploymentId)?.name ?? "the agent"}
        </h1>
      )}
      <div className="agent-head">
        <AgentSwitch deploymentId={deploymentId} />
        <nav className="tabs" aria-label="Parts of the agent">
          {PARTS.map((part) => (
            <Link key={part.to} to={part.to} params={{ deploymentId }}>
              {part.title}
            </Link>
          ))}
          {ownAgent === null && (
            <Link to="/deployments/$deploymentId" params={{ deploymentId }}>
              Deployment
            </Link>
          )}
        </nav>
      </div>
      <Outlet />
    </div>
  );
}

function AgentSwitch({ deploymentId }: { deploymentId: string }) {
  const navigate = useNavigate();
  const current = partAt(useMatches().at(-1)?.fullPath ?? "");
  const agents = useAgents().agents ?? [];

  if (ownAgent !== null) return <OwnToken />;

  return (
    <select
      aria-label="Agent"
      value={deploymentId}
      onChange={(event) => void navigate({ to: current.to, params: { deploymentId: event.target.value } })}
    >
      {!agents.some((each) => each.id === deploymentId) && (
        <option value={deploymentId}>{deploymentId.slice(-8)}</option>
      )}
      {agents.map((each) => (
        <option key={each.id} value={each.id}>
          {each.name}
        </option>
      ))}
    </select>
  );
}

// An agent with an authentication of its own asks for a token. Everything is read again with it, at a pause in typing.
function OwnToken() {
  const cache = useQueryClient();
  const input = useTyped(ownToken() ?? undefined, (token) => {
    setOwnToken(token ?? "");
    void cache.invalidateQueries();
  });

  return (
    <input
      type="password"
      className="own-token"
      aria-label="Bearer token"
      placeholder="Bearer token, if needed"
      autoComplete="off"
      {...input}
    />
  );
}
