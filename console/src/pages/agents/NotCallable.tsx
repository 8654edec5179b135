import { Link } from "@tanstack/react-router";
import { useSession } from "../../shell/session";
import { Empty } from "../../ui/Empty";

// Stands where the pages of an agent would be, if the platform would refuse all their requests.
export function NotCallable({ reason, deploymentId }: { reason: string; deploymentId?: string }) {
  const { identity } = useSession();

  return (
    <Empty title={deploymentId ? "You may not call this agent here" : "You may not call any agent here"}>
      That is because {reason}.{" "}
      {identity.user_id === null
        ? "A program may call agents with the key itself. A person needs an account: an admin adds members under People. "
        : "An admin of the workspace can change your role, or who may call the agent. "}
      {deploymentId ? (
        <>
          You can look at{" "}
          <Link to="/deployments/$deploymentId" params={{ deploymentId }} className="text">
            its deployment
          </Link>{" "}
          and at{" "}
        </>
      ) : (
        <>
          You can look at{" "}
          <Link to="/deployments" className="text">
            deployments
          </Link>{" "}
          and at{" "}
        </>
      )}
      <Link to="/traces" className="text">
        traces
      </Link>
      , as far as your role allows.
    </Empty>
  );
}
