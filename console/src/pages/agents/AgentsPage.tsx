import { Navigate } from "@tanstack/react-router";
import { preferences } from "../../preferences";
import { Empty } from "../../ui/Empty";
import { Problem } from "../../ui/Problem";
import { NotCallable } from "./NotCallable";
import { useAgents } from "./useAgents";

// Goes to the agent that was opened last, or else to the first one that serves.
export function AgentsPage() {
  const { agents, refused, error } = useAgents();
  if (!agents) return error ? <Problem error={error} /> : null;
  const agent = agents.find((each) => each.id === preferences().agent) ?? agents[0];
  if (agent) return <Navigate to="/agents/$deploymentId/studio" params={{ deploymentId: agent.id }} replace />;
  if (refused[0]) return <NotCallable reason={refused[0].reason} />;

  return (
    <Empty title="No agent serves yet" command="portside deploy FOLDER_OR_ADDRESS_OF_A_REPOSITORY">
      Talk to an agent here, look at its threads and answer its questions, as soon as a deployment has a revision that
      serves.
    </Empty>
  );
}
